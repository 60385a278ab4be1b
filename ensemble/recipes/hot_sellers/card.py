"""The sections of the model card that are specific to hot_sellers."""

from typing import Any

from ensemble.data.inputs import FORECAST
from ensemble.predictor.card import Parts, sources, use_of_splits


def parts(manifest: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """The sections: purpose, data, scored rows, and limits."""
    panel = manifest["config"]
    horizon_weeks, base_weeks, min_reviews = panel["horizon_weeks"], panel["base_weeks"], panel["min_reviews"]
    lines_of_splits = [
        f"| {name} | {split['first_week']} | {split['last_week']} | {split['rows']:,} | "
        f"{'–' if name == FORECAST else format(split['hot'], ',')} |"
        for name, split in manifest["splits"].items()
    ]
    crawl = "price and helpful votes are as of the crawl" if panel["as_of_crawl"] else "none is known only at the crawl"
    return Parts(
        purpose=f"For each product with {'a review' if min_reviews == 1 else f'at least {min_reviews} reviews'} in the last "
        f"{base_weeks} weeks: the probability that its reviews in the next {horizon_weeks} weeks ÷ (those in the last "
        f"{base_weeks} weeks + 1) will be among the highest {100 * panel['top_fraction']:.3g} % of its week.",
        data=[
            f"Fingerprint `{manifest['fingerprint']}`; {manifest['products']:,} products in "
            f"{len(manifest['categories']) - 1} categories, weeks from {manifest['first_week']} to {manifest['last_week']}. "
            f"Sources: {sources(manifest)}. {len(manifest['features'])} features; {crawl}. "
            f"Between two splits {horizon_weeks} weeks are left out.",
            "",
            "| split | first week | last week | rows | hot |",
            "|---|---|---|---|---|",
            *lines_of_splits,
        ],
        counts=f"{scores['rows']:,} rows of {scores['clusters']:,} products in {scores['groups']:,} weeks, "
        f"{scores['base_rate']:.2%} of them hot, with 95 % intervals by {scores['num_draws']:,} draws of products.",
        limits=[
            "- It was trained on these categories and weeks; other markets and later years are not measured here.",
            "- Give all reviews of all products of the categories, old and new: ages and market totals are features.",
            f"{use_of_splits(scores)} The intervals do not include the difference between seasons.",
        ],
        tags=("time-series",),
    )
