"""Preparation of new raw reviews for predictions by a fitted ensemble, with the settings of its training data."""

import dataclasses
import sys
from typing import Any

from ensemble import configuration
from ensemble.data.reviews import UnknownFormat
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import coverage
from ensemble.recipes.hot_sellers.settings import PrepareConfig


def check(like: dict[str, Any], source: bool, metadata: bool) -> None:
    """Raise `UserError` without reviews, or without product metadata if the members learned from them.

    like : the manifest of the training data.
    source, metadata : whether reviews and product metadata are given.
    """
    if not source:
        raise UserError(
            "no reviews are given: add source=[reviews.jsonl] on the command line, or reviews in Python or in a request"
        )
    if not metadata and coverage.needs_metadata(like):
        raise UserError(
            "the members were trained with product metadata, but none are given: add metadata=[meta.jsonl] on the command "
            "line, or products in Python or in a request"
        )


def prepare(like: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Prepare the split `forecast` of new reviews, print the notes about them as warnings, and return the manifest.

    like : the manifest of the training data.
    settings : settings of `PrepareConfig` except `panel`, with at least `out` and `source`. `min_matched` and
        `max_bad_fraction` are by default those of the training data, as are the `columns` of files that have them.
    """
    from ensemble.recipes.hot_sellers import prepare as preparation

    check(like, bool(settings["source"]), bool(settings.get("metadata")))
    of_training: dict[str, Any] = {name: like[name] for name in ("min_matched", "max_bad_fraction") if name in like}
    config = configuration.from_dict(PrepareConfig, {"panel": like["config"], **of_training, **settings})
    choices = [config.columns] if config.columns or "columns" not in like else [like["columns"], {}]
    # Numbers of columns fit a table with any header
    if all(column.isdigit() for column in choices[0].values()):
        choices.reverse()
    try:
        manifest = preparation.prepare(dataclasses.replace(config, columns=choices[0]), like)
    except UnknownFormat:
        if len(choices) == 1:
            raise
        try:
            manifest = preparation.prepare(dataclasses.replace(config, columns=choices[1]), like)
        except UnknownFormat as error:
            fix = "give only files that have these columns, or only files of known formats"
            raise UserError(f"{error}; columns was {like['columns']} for the training data: {fix}") from None
    for note in manifest["notes"]:
        print(f"warning: {note}", file=sys.stderr)
    return manifest
