"""What the model card of an ensemble says of hot sellers."""

from typing import Any

from ensemble.predictor.card import Parts, fitted_on, sources


def parts(about: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """What is forecast, of which data, scored on what, and the limits."""
    panel, splits = about["config"], about["splits"]
    horizon_weeks, base_weeks = panel["horizon_weeks"], panel["base_weeks"]
    used = [
        f"| {split} | {facts['first_week']} | {facts['last_week']} | {facts['rows']:,} | {facts['hot']:,} |"
        for split, facts in splits.items()
    ]
    crawl = "price and helpful votes as of the crawl are among them" if panel["as_of_crawl"] else "none is as of the crawl"
    return Parts(
        purpose=f"For each product with a review in the last {base_weeks} weeks: the probability that its reviews in the "
        f"next {horizon_weeks} weeks ÷ (those in the last {base_weeks} weeks + 1) will be among the highest "
        f"{panel['top_fraction']:.3g} of its week.",
        data=[
            f"Fingerprint `{about['fingerprint']}`; {about['products']:,} products in {len(about['categories']) - 1} "
            f"categories, weeks from {about['first_week']} to {about['last_week']}. Sources: {sources(about)}. "
            f"{len(about['features'])} features; {crawl}. Between two splits {horizon_weeks} weeks are left out.",
            "",
            "| split | first week | last week | rows | hot |",
            "|---|---|---|---|---|",
            *used,
        ],
        counts=f"{scores['rows']:,} rows of {scores['clusters']:,} products in {scores['groups']:,} weeks, "
        f"{scores['base_rate']:.2%} of them hot, with 95 % intervals by {scores['num_draws']:,} draws of products.",
        limits=[
            "- It learned from these categories and weeks; other markets and later years are not measured here.",
            "- Give all reviews of all products of the categories, old and new: ages and market totals are features.",
            f"- Members stopped early on validation, weights and calibration were fitted on {fitted_on(scores)}, and test "
            "was only scored; the intervals hold for these weeks, not for the change from one season to another.",
        ],
        tags=("time-series",),
    )
