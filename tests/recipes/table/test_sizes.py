"""The sizes of the network that follow from the table."""

import pytest

from ensemble.data.cross_validation import CrossValidation
from ensemble.recipes.table import sizes
from ensemble.recipes.table.settings import RecipeConfig
from ensemble.task import Task


@pytest.mark.parametrize(
    ("classes", "num_rows", "expected"),
    [(7, 20_000, (8, 64)), (8, 10_000, (8, 128)), (8, 10_001, (4, 256))],
)
def test_many_classes_have_a_wider_network(classes: int, num_rows: int, expected: tuple[int, int]) -> None:
    """A network for many classes would be too narrow, or a size that the user gives would have no effect."""
    names = tuple(f"c{number}" for number in range(classes))
    task = Task(kind="multiclass", target="y", metric="multiclass_log_loss", group="id", cluster="id", classes=names)
    chosen = sizes.of_network(RecipeConfig(), task, num_rows, 16, None)
    assert (chosen.num_submodels, chosen.width) == expected
    given = sizes.of_network(RecipeConfig(num_submodels=2, width=32), task, num_rows, 16, None)
    assert (given.num_submodels, given.width) == (2, 32)


@pytest.mark.parametrize(("stop_share", "num_copies", "new_rows"), [(1.0, 1, "refit"), (0.5, 1, "copies")])
def test_a_copy_of_nearly_all_rows_predicts_new_rows(stop_share: float, num_copies: int, new_rows: str) -> None:
    """Half of the time for a table of a million rows would be spent on a second copy with 2 % more rows."""
    task = Task(kind="regression", target="y", metric="root_mean_squared_error", group="id", cluster="id")
    cv = CrossValidation(scheme="holdout", num_folds=1, stop_share=stop_share)
    chosen = sizes.of_network(RecipeConfig(), task, 300_000, 16, cv)
    assert (chosen.num_copies, chosen.new_rows) == (num_copies, new_rows)
