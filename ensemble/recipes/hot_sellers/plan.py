"""The members that scripts/fit.py trains, also in `make demo`.

The choices were made by scores on blend, of four real datasets and generated markets.
"""

from typing import Any

from ensemble.data.inputs import BLEND
from ensemble.errors import UserError
from ensemble.pipeline.plan import PlannedMember, trees

MOST_ROWS, NUM_REFITS = 200_000, 3
"""Up to `MOST_ROWS` training rows, trees are refitted with `NUM_REFITS` seeds, whose mean predicts, and a linear model is a
member too. With 55,000 rows the mean of three seeds had a lower log loss on blend in all eight trials, and a higher average
precision in six (on average .296 instead of .290); with few rows the differences are larger. The linear model, which takes
14 s for 54,000 rows, lowered the cross-fitted log loss of the ensemble by 0 to 12 %. CatBoost and TabM did not lower it
further."""
FEW_ROWS = 30_000
"""With fewer training rows, the network has the settings `NETWORK_OF_FEW`, with a refit if its trial improves the score on
blend. With more rows, a refit helped in one of five trials on generated markets, and took a fifth of the total time."""
NETWORK_OF_FEW = {"max_epochs": 10.0, "batch_size": 256, "evaluations_per_epoch": 1, "refit_epochs": 1.0}
"""The default of three epochs of batches of 512 rows is too short for few rows: average precision of the network was .12
instead of .37 on Gift_Cards_5, .07 instead of .21 on ml-100k, and .29 instead of .31 on ratings_Beauty."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The trees and, with at most `MOST_ROWS` rows, the linear model; then the network, which takes most of the time.

    Raises `UserError` if blend has only one week, since the ensemble could not be fitted after all members are trained, and
    for folds, which no member would use.
    """
    config = manifest.get("config", {})
    if folds := config.get("folds"):
        raise UserError(
            f"panel.folds={folds}: scripts/fit.py trains no bags, so leave it out, or prepare with scripts/prepare_data.py "
            "and train with scripts/train_trees.py folds=true"
        )
    blend = manifest["splits"].get(BLEND)
    if blend and blend["first_week"] == blend["last_week"]:
        raise UserError(
            f"the {BLEND} split has one week, that of {blend['first_week']}, but an ensemble is fitted on at least 2: set "
            "panel.horizon_weeks lower, give panel.shares a larger third number, or give more data"
        )
    num_rows = manifest["splits"]["train"]["rows"]
    has_many_rows = num_rows > MOST_ROWS
    settings: dict[str, Any] = dict(NETWORK_OF_FEW) if num_rows < FEW_ROWS else {}
    if tokenizer := config.get("tokenizer"):
        settings["recipe.text_encoder"] = tokenizer
    transformer = PlannedMember(name="transformer", kind="neural", settings=settings, share=4.0, least_seconds=20.0)
    linear = [] if has_many_rows else trees("linear", refit=True)
    boosted = trees("xgboost", "lightgbm", refit=True, num_refits=1 if has_many_rows else NUM_REFITS)
    return [*boosted, *linear, transformer]
