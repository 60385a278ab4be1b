"""Preparation of new raw reviews for predictions by a fitted ensemble, with the settings of its training data."""

import sys
from typing import Any

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers.settings import PrepareConfig


def check(like: dict[str, Any], source: bool, metadata: bool) -> None:
    """Raise `UserError` without reviews, or without product metadata if the training data (manifest `like`) had them.

    source, metadata : whether reviews and product metadata are given.
    """
    if not source:
        raise UserError(
            "no reviews are given: add source=[reviews.jsonl] on the command line, or reviews in Python or in a request"
        )
    if not metadata and len(like["categories"]) > 1:  # without metadata, "" for unknown is the only category
        raise UserError(
            "the members were trained with product metadata, but none are given: add metadata=[meta.jsonl] on the command "
            "line, or products in Python or in a request"
        )


def prepare(like: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Prepare the split `forecast` of new reviews, print the notes about them as warnings, and return the manifest.

    like : the manifest of the training data.
    settings : settings of `PrepareConfig` except `panel`, with at least `out` and `source`. If `min_matched` is left out, it
        is that of the training data.
    """
    from ensemble.recipes.hot_sellers import prepare as preparation

    check(like, bool(settings["source"]), bool(settings.get("metadata")))
    of_training = {"panel": like["config"], "min_matched": like.get("min_matched", PrepareConfig.min_matched)}
    config = configuration.from_dict(PrepareConfig, of_training | settings)
    manifest = preparation.prepare(config, like)
    for note in manifest["notes"]:
        print(f"warning: {note}", file=sys.stderr)
    return manifest
