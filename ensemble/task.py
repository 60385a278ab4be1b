"""The task of prepared data: the column to predict, the kind of target, and the metric."""

import dataclasses
from typing import Any

from ensemble.errors import UserError

KINDS = ("binary", "multiclass", "regression", "ranking")
METRICS = {
    "binary": ("log_loss", "roc_auc", "average_precision", "accuracy"),
    "multiclass": ("multiclass_log_loss", "accuracy"),
    "regression": ("root_mean_squared_error", "mean_absolute_error"),
    "ranking": ("ndcg_at_10",),
}
"""The keys of `metrics.METRIC_FUNCTIONS` that a task of each kind can have; the first is the default of a table."""
ABSOLUTE_ERROR = "absolute_error"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The entry `task` of a manifest. All columns are columns of `rows/<split>`."""

    kind: str
    """binary (0 or 1), multiclass (0 to the number of classes − 1), regression (a number) or ranking (0, 1, …, by group)."""
    target: str
    """The column to predict; NaN in a forecast. In a multiclass task it may be a fixed-size list of integers: then each
    element is an example, with a row of its own in prediction files, and the recipe defines its row id and classes."""
    metric: str
    """One of `METRICS`, for early stopping, the leaderboard and the report."""
    group: str
    """The column whose equal values mark rows that are ranked against each other, such as the week or the user. A group that
    stands for a time is a number that grows with time."""
    cluster: str
    """The column whose equal values mark rows that the bootstrap draws together, such as the product or the user."""
    weight: str = ""
    """The column of sample weights; empty for 1 each."""
    classes: tuple[str, ...] = ()
    """The names of the classes of a multiclass task."""
    is_relative: bool = False
    """Whether a binary target compares the rows of a group, as "in the top 5 % of its week", so that all groups have about
    the same share of positives. Then an ensemble gives them the same mean probability."""

    @property
    def loss(self) -> str:
        """The name of the loss that is minimised: the kind, or `ABSOLUTE_ERROR` if that is the metric of a regression."""
        return ABSOLUTE_ERROR if self.metric == "mean_absolute_error" else self.kind


def task_of(manifest: dict[str, Any]) -> Task:
    """The task in a manifest of prepared data; `UserError` if there is none."""
    if "task" not in manifest:
        raise UserError(
            f"the manifest of these data of the recipe {manifest.get('recipe')} has no task: prepare them again if an older "
            "version prepared them; otherwise this recipe has no target for trees and ensembles to predict"
        )
    return Task(**{**manifest["task"], "classes": tuple(manifest["task"].get("classes", ()))})
