"""Preparation of new raw reviews for predictions by a fitted ensemble, with the settings of its training data."""

import dataclasses
import sys
from typing import Any

from ensemble import configuration
from ensemble.data.reviews import UnknownFormat
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import coverage
from ensemble.recipes.hot_sellers.settings import PrepareConfig


def check(training: dict[str, Any], source: bool, metadata: bool) -> None:
    """Raise `UserError` without reviews, or without product metadata if the members learned from them.

    training : the manifest of the training data.
    source, metadata : whether reviews and product metadata are given.
    """
    if not source:
        raise UserError(
            "no reviews are given: add source=[reviews.jsonl] on the command line, or reviews in Python or in a request"
        )
    if not metadata and coverage.needs_metadata(training):
        raise UserError(
            "the members were trained with product metadata, but none are given: add metadata=[meta.jsonl] on the command "
            "line, or products in Python or in a request"
        )


def prepare(training: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Prepare the split `forecast` of new reviews, print the notes about them as warnings, and return the manifest.

    training : the manifest of the training data.
    settings : settings of `PrepareConfig` except `panel`, with at least `out` and `source`. The defaults of `min_matched`
        and `max_bad_fraction` are those of the training data. Without `columns`, those of the training data and the known
        formats are tried, each for all files.
    """
    from ensemble.recipes.hot_sellers import prepare as preparation

    check(training, bool(settings["source"]), bool(settings.get("metadata")))
    limits: dict[str, Any] = {name: training[name] for name in ("min_matched", "max_bad_fraction") if name in training}
    config = configuration.from_dict(PrepareConfig, {"panel": training["config"], **limits, **settings})
    choices = [config.columns] if config.columns or "columns" not in training else [training["columns"], {}]
    # Column numbers fit any table, so the known formats are tried before them
    if all(column.isdigit() for column in choices[0].values()):
        choices.reverse()
    try:
        manifest = preparation.prepare(dataclasses.replace(config, columns=choices[0]), training)
    except UnknownFormat:
        if len(choices) == 1:
            raise
        try:
            manifest = preparation.prepare(dataclasses.replace(config, columns=choices[1]), training)
        except UnknownFormat as error:
            fix = "give only files that have these columns, or only files of known formats"
            raise UserError(f"{error}; columns was {training['columns']} for the training data: {fix}") from None
    for note in manifest["notes"]:
        print(f"warning: {note}", file=sys.stderr)
    return manifest
