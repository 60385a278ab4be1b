"""The members that scripts/fit.py trains, also in `make demo`.

The choices were made by scores on blend, of four real datasets and generated markets.
"""

from typing import Any

from ensemble.pipeline.plan import PlannedMember, trees

FEW_ROWS, REFITS_OF_FEW = 30_000, 3
"""With fewer than `FEW_ROWS` training rows, trees are refitted with `REFITS_OF_FEW` seeds. The mean of the refitted trees
had a better score in all ten trials on five datasets. Trees of different seeds differ most with few rows, and training takes
the least time there. The network has the settings `NETWORK_OF_FEW`. It is refitted if a trial improves its score on blend.
With more rows, a refit helped in one of five trials on generated markets, and took a fifth of the time."""
NETWORK_OF_FEW = {"max_epochs": 10.0, "batch_size": 256, "evaluations_per_epoch": 1, "refit_epochs": 1.0}
"""The default of three epochs of batches of 512 rows is too short for few rows: average precision of the network was .12
instead of .37 on Gift_Cards_5, .07 instead of .21 on ml-100k, and .29 instead of .31 on ratings_Beauty."""
MOST_ROWS_OF_LINEAR = 200_000
"""Up to this number of training rows, a linear model is a member too; 54,000 rows take 14 s. It lowered the cross-fitted log
loss of the ensemble by 0 to 12 %. CatBoost and TabM did not lower it further."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The trees and the linear model, then the network, which takes most of the time."""
    num_rows = manifest["splits"]["train"]["rows"]
    has_few_rows = num_rows < FEW_ROWS
    num_refits, settings = (REFITS_OF_FEW, NETWORK_OF_FEW) if has_few_rows else (1, {})
    transformer = PlannedMember(name="transformer", kind="neural", settings=settings, share=4.0, least_seconds=20.0)
    linear = trees("linear", refit=True) if num_rows <= MOST_ROWS_OF_LINEAR else []
    return [*trees("xgboost", "lightgbm", refit=True, num_refits=num_refits), *linear, transformer]
