"""New raw reviews, prepared like those that a fitted ensemble learned from."""

import sys
from typing import Any

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers.settings import PrepareConfig


def check(like: dict[str, Any], source: bool, metadata: bool) -> None:
    """Raise `UserError` if reviews or metadata are missing that data like those of the manifest `like` need."""
    if not source:
        raise UserError("no reviews are given: add source=[reviews.jsonl]")
    if not metadata and len(like["categories"]) > 1:
        raise UserError(
            "the members learned with product metadata, and none are given: add metadata=[meta.jsonl] on the command line, "
            "products in Python or in a request"
        )


def prepare(like: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Prepare the split `forecast` of new reviews, and return its manifest.

    settings : those of `PrepareConfig` without `panel`; `out`, `source` and `metadata` among them. `min_matched` is that of
        the members' data where it is not given.
    """
    from ensemble.recipes.hot_sellers import coverage
    from ensemble.recipes.hot_sellers import prepare as preparation

    check(like, bool(settings["source"]), bool(settings.get("metadata")))
    asked = {name: like[name] for name in ("min_matched",) if name in like}
    wanted = {"panel": like["config"], **asked, **settings}
    about = preparation.prepare(configuration.from_dict(PrepareConfig, wanted), like)
    if about["first_week"] > like["first_week"]:
        print(
            f"warning: these reviews begin {about['first_week']}, those the members learned from {like['first_week']}: "
            "a product's totals, age and last year are only right if all its reviews are given, old and new",
            file=sys.stderr,
        )
    for what, part in coverage.of_market(about, like).items():
        print(
            f"warning: these reviews have {part:.1%} of the {what} that the members learned from: the features of a "
            "category and of the market, and with them the probabilities, are only right if all reviews of all products of "
            "the categories are given",
            file=sys.stderr,
        )
    return about
