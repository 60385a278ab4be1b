"""The members that a fit of hot_sellers trains."""

import pytest

from ensemble.recipes.hot_sellers.plan import plan


@pytest.mark.parametrize(("rows", "num_refits", "epochs"), [(29_999, 3, (10.0, 1.0)), (30_000, 1, (None, None))])
def test_with_few_rows_the_network_is_trained_longer_and_more_is_refitted(
    rows: int, num_refits: int, epochs: tuple[float | None, float | None]
) -> None:
    """A small dataset would not be refitted, or a large one would spend a third of its time on the trial of a refit."""
    xgboost, lightgbm, linear, transformer = plan({"splits": {"train": {"rows": rows}}}, 2)
    assert [member.settings["num_refits"] for member in (xgboost, lightgbm)] == [num_refits] * 2
    assert linear.settings == {"library": "linear", "refit": True}
    assert (transformer.settings.get("max_epochs"), transformer.settings.get("refit_epochs")) == epochs


@pytest.mark.parametrize(("rows", "has_linear"), [(200_000, True), (200_001, False)])
def test_many_rows_have_no_linear_model(rows: int, has_linear: bool) -> None:
    """A fit of millions of rows would wait for many minutes for one member."""
    names = [member.name for member in plan({"splits": {"train": {"rows": rows}}}, 2)]
    assert ("linear" in names) == has_linear
