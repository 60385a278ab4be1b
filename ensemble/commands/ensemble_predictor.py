"""Fit an ensemble on prediction files of its members, or forecast new raw data with it.

python scripts/ensemble_predictor.py fit predictions=runs/demo/predictions data=runs/demo/prepared out=runs/ensemble
python scripts/ensemble_predictor.py predict ensemble=runs/demo/ensemble 'source=[all.jsonl]' out=runs/new
"""

import dataclasses
from pathlib import Path
from typing import Literal

from ensemble import configuration, errors, recipe

AS_PREPARED = -1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Fit weights and calibration on blend or on out-of-fold predictions, score on test, and forecast."""

    predictions: str = "???"
    """The folder with the prediction files MEMBER.SPLIT.parquet of the split blend (or oof), and of the splits test and
    forecast, if the data have them. Without test, the ensemble is scored on cross-fitted predictions of blend or oof."""
    data: str = "???"
    """The folder of the prepared data that were predicted."""
    verify: Literal["changed", "full"] = "changed"
    """Files of the data whose checksums are verified: those changed since they were last read, or all (full)."""
    out: str = "???"
    """The folder of the ensemble to write."""
    members: tuple[str, ...] = ()
    """Names of the members and baselines; empty for all with a prediction file of the split on which weights are fitted."""
    combiner: str = "auto"
    """How the weights are computed: auto, equal, best_member, greedy, shrunk, simplex; for some kinds of task also logistic,
    nnls, ridge or rank_average. Of several, as in combiner=simplex,ridge, the first is used unless another one has a loss
    that is lower by more than half a standard error, on rows to which it was not fitted."""
    calibration: str = "auto"
    """How probabilities are calibrated: auto, none, platt, temperature, or isotonic (needs 1,000 rows of the rarer class).
    Of several, as in calibration=platt,none, one is chosen in the same way."""
    on: str = ""
    """The split on which weights and calibration are fitted: blend, or oof (out-of-fold predictions); empty for oof if the
    data are for cross-validation, else blend."""
    num_draws: int = 200
    """Draws of the bootstrap over clusters of rows, such as products."""
    seed: int = 0
    """Seed of the bootstrap."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Forecast raw reviews, or new rows of a table, with a fitted ensemble."""

    ensemble: str = "???"
    """The folder of a fitted ensemble."""
    source: tuple[str, ...] = ()
    """Files or globs of raw data. If they are reviews: all reviews of all products of the categories, old and new, up to the
    day of the forecast. If they are a table: new rows with the columns of the training table; the target may be left out."""
    metadata: tuple[str, ...] = ()
    """Files or globs of product metadata; needed if the members were trained with metadata."""
    out: str = "???"
    """The folder for forecast.parquet and forecast.csv."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """For review files with unknown headers: which of their columns is product_id, user_id, rating and time, as in
    'columns={product_id: item, user_id: user, rating: stars, time: date}'."""
    until: str = ""
    """Leave out reviews after this day (YYYY-MM-DD)."""
    max_bad_fraction: float = AS_PREPARED
    """The command fails if more than this share of the rows is bad; -1 for the value with which the training data were
    prepared."""
    min_matched: float = AS_PREPARED
    """With members that use metadata, the command fails if the share of products with metadata is lower than this value.
    With members that use text, it fails if the share of reviews with text is lower than this value times the share in the
    training data; -1 for the value with which the training data were prepared."""
    overwrite: bool = False
    """Replace `out` if it exists."""


COMMANDS = {"fit": FitConfig, "predict": PredictConfig}


def main() -> None:
    parser = recipe.option()
    if named_recipe := parser.parse_known_args()[0].recipe:
        recipe.named(named_recipe)
    command, settings = configuration.from_subcommands(COMMANDS, __doc__, [parser])

    from ensemble import folders

    if command == "predict":
        from ensemble.predictor import new_data

        options = {name: getattr(settings, name) for name in ("columns", "until", "max_bad_fraction", "min_matched")}
        changed = {name: value for name, value in options.items() if value not in ("", {}, AS_PREPARED)}
        data = (settings.source, settings.metadata)
        path = new_data.predict(settings.ensemble, *data, settings.out, changed, settings.overwrite)
        meaning = new_data.meaning_of(folders.read_json(Path(settings.ensemble) / "like.json"))
        print("; ".join(filter(None, (f"the ranked forecast is in {path}", meaning))))
        return

    from ensemble.data.cross_validation import CrossValidation
    from ensemble.predictor import card, fit

    manifest = folders.read_manifest(settings.data, settings.verify == "full")
    recipe.check_named(named_recipe, manifest, settings.data)
    arguments = configuration.to_dict(settings)
    del arguments["verify"]
    scores = fit.fit(arguments.pop("predictions"), **arguments)
    fitted_on = "other blocks" if CrossValidation.from_manifest(manifest) else "the blocks before it"
    order = "forward in time" if recipe.follows_time(manifest) else f"each block with weights fitted on {fitted_on}"
    print(f"cross-fitted scores of the combiners on {scores['fitted_on']}, {order}:")
    for name, values in scores["combiner"]["cross_fitted"].items():
        chosen = "  chosen" if name == scores["combiner"]["method"] else ""
        text = "  ".join(f"{metric.replace('_', ' ')} {value:.5f}" for metric, value in values.items())
        print(f"{name:>14}  {text}{chosen}")
    metric, base_rate = scores["metric"], scores["base_rate"]
    positives = "" if base_rate is None else f", {base_rate:.2%} positive"
    print(f"{scores['split']}: {scores['rows']:,} rows{positives}; {metric.replace('_', ' ')} with its 95 % interval")
    if scores["left_out"]:
        print(scores["left_out"])
    print("\n".join(card.score_lines(scores, manifest["task"]["group"])))


if __name__ == "__main__":
    errors.run(main)
