"""The forecast's first rows on the page."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ensemble.report import forecast


def shown(columns: dict[str, list[Any]], classes: tuple[str, ...] = ()) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of the forecast with these columns."""
    run: Any = SimpleNamespace(
        forecast=pa.table(columns),
        manifest={"features": []},
        task=SimpleNamespace(classes=classes),
        feature_labels={},
        explained_by=(),
    )
    result = forecast.rows(run)
    return result["columns"], [row["cells"] for row in result["rows"]]


@pytest.mark.parametrize("num_classes", [6, 7])
def test_the_likeliest_class_is_named(num_classes: int) -> None:
    """With 100 classes a reader would have to find the largest of 100 numbers, and the reasons would be the last column."""
    classes = tuple(f"in_stock {number}" for number in range(num_classes))
    of_class = {f"probability of {name}": [0.25 if number == 2 else 0.125] for number, name in enumerate(classes)}
    columns, rows = shown({"row_id": [7], "id": ["a_b"], **of_class, "why": [""]}, classes)
    assert columns[:4] == ["row id", "id", "likeliest class", "its probability"]
    assert rows[0][:4] == ["7", "a_b", "in_stock 2", "0.250"]
    headers = [f"probability of <bdi>{name}</bdi>" for name in classes]  # with the names as in the table
    assert columns[4:] == (headers if num_classes == 6 else [])
    assert len(rows[0]) == len(columns)


def test_a_recipe_may_write_other_columns() -> None:
    """The page of a recipe with a table of its own would fail on the probabilities that it does not write."""
    assert shown({"puzzle": [3], "digit": ["4"]}, ("1", "2", "3", "4")) == (["puzzle", "digit"], [["3", "4"]])


def test_small_predictions_have_digits() -> None:
    """Predictions of 0.00149 and 0.00051 would both be shown as 0.001."""
    values = {0.0: "0.000", 0.00149: "0.00149", -0.00051: "−0.00051", 0.01: "0.010", 0.5: "0.500", 1234.5: "1,234"}
    assert [cells[0] for cells in shown({"prediction": list(values)})[1]] == list(values.values())
