"""Sentences for the report and the model card: how each row of data for cross-validation was used."""

import re
from typing import Any

from ensemble import recipe
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.inputs import FORECAST
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD

SPLIT_USE = {
    "train": "members are fitted, and weights and calibration on their out-of-fold predictions",
    "test": "the scores above",
    FORECAST: "the forecast above",
}
"""By split, what its rows are used for, for a table of the report."""

REGROWN = (
    "A copy of a tree or linear member with regrow=true is then trained again, also on the rows by which it was "
    "stopped, if there is time."
)


def sentences(manifest: dict[str, Any], scores: dict[str, Any]) -> dict[str, str]:
    """A sentence for each step of the fit, by the data's manifest and scores.json; empty with a validation split."""
    cv = CrossValidation.from_manifest(manifest)
    if cv is None:
        return {}
    copies = "copy" if cv.scheme == "holdout" else "mean of the copies"
    return {
        "training": f"{_training(manifest, cv)} {REGROWN}",
        "out-of-fold predictions": _predicted(manifest, cv, scores["out_of_fold_rows"]),
        "weights and calibration": "Fitted on the out-of-fold predictions."
        if scores["fitted_on"] == OUT_OF_FOLD
        else f"Fitted on the split {scores['fitted_on']}.",
        "scores": _scored(manifest, cv, scores),
        "new rows": "Predicted by models that are refitted on all rows."
        if cv.scheme == "forward"
        else f"Predicted by the {copies} of each member, or, if it was refitted, by models trained on all rows.",
    }


def place(scores: dict[str, Any]) -> str:
    """Words for the rows that are scored, for use within a sentence."""
    return "out-of-fold predictions" if scores["split"] == OUT_OF_FOLD else f"the {scores['split']} split"


def drawn(manifest: dict[str, Any], scores: dict[str, Any]) -> str:
    """What the bootstrap draws, in the plural."""
    unit = recipe.of(manifest).words.unit
    if unit != "row" or scores["clusters"] == scores["rows"]:
        return f"{unit}s"
    # Single rows in time are drawn by slices, the groups of the scores (scoring.with_clusters), except in a ranking
    has_slices = recipe.follows_time(manifest) and scores["kind"] != "ranking"
    if has_slices and scores["clusters"] == scores.get("groups"):
        return "slices of time"
    return "groups" if manifest.get("config", {}).get("group") else "clusters"


def _training(manifest: dict[str, Any], cv: CrossValidation) -> str:
    rows, config = f"{manifest['splits']['train']['rows']:,} rows with a known target", manifest["config"]
    if cv.scheme == "holdout":
        return (
            f"{rows}: one copy of each member. It is fitted on one part of the rows, stopped early on another, and "
            "predicts the third."
        )
    num_fit = cv.num_folds - 2
    copies = f"Each member has {cv.num_folds} {'copy' if cv.num_folds == 1 else 'copies'}."
    if cv.scheme == "forward":
        unit = " days" if re.match(r"\d{4}-\d\d", str(manifest["splits"]["train"].get("from"))) else ""
        embargo = f", less an embargo of {cv.embargo:g}{unit}" if cv.embargo else ""
        groups = f", except those with a {config['group']} of these two blocks" if config.get("group") else ""
        return (
            f"{rows}, in {cv.num_folds} block{'s' if cv.num_folds > 1 else ''} forward in time, by {config.get('time')}. "
            f"{copies} A copy predicts one block, is stopped early on the block before it, and is fitted on all rows before "
            f"that{groups}{embargo}."
        )
    how = "stratified by the target" if cv.scheme == "random" else f"with all rows of one {config.get('group')} in one fold"
    stop = ", one more decides"
    if cv.stop_share < 1:
        stop = f" and {100 * (1 - cv.stop_share):.0f} % of one more, whose other rows decide"
    return (
        f"{rows}, in {cv.num_folds} random folds, {how}. {copies} A copy is fitted on {num_fit} "
        f"fold{'s' if num_fit > 1 else ''}{stop} when its training stops, and it predicts the last one."
    )


def _predicted(manifest: dict[str, Any], cv: CrossValidation, num_rows: int) -> str:
    others = manifest["splits"]["train"]["rows"] - num_rows
    sentence = f"{num_rows:,} rows, each by the copy that was not fitted on it."
    which = " rows, before the first block," if cv.scheme == "forward" else " rows"
    return f"{sentence} The other {others:,}{which} have none: they are only used for training." if others else sentence


def _scored(manifest: dict[str, Any], cv: CrossValidation, scores: dict[str, Any]) -> str:
    rows = f"The scores are of {scores['rows']:,} rows"
    if scores["split"] != OUT_OF_FOLD:
        how = "the last in time" if cv.scheme == "forward" else "set aside at random"
        return f"{rows} of the {scores['split']} split, {how}, on which nothing was fitted."
    others = scores["out_of_fold_rows"] - scores["rows"]
    fitted_on, reason = "other rows", "there are no other rows"
    if cv.scheme == "forward":  # the rows of one block may all have the same time
        fitted_on = "earlier rows" if cv.num_folds > 1 else "rows that are not later"
        reason = "the first weights are fitted on them"
    sentence = f"{rows} with out-of-fold predictions. For each, weights and calibration were fitted on {fitted_on}."
    return f"{sentence} {others:,} rows are not scored, since {reason} or their weight is 0." if others else sentence
