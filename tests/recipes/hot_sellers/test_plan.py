"""The members that a fit of hot_sellers trains."""

import pytest

from ensemble.recipes.hot_sellers.plan import plan


@pytest.mark.parametrize(("rows", "num_refits", "refit_epochs"), [(29_999, 3, 1.0), (30_000, 1, None)])
def test_with_few_rows_more_is_refitted(rows: int, num_refits: int, refit_epochs: float | None) -> None:
    """A small dataset would not be refitted, or a large one would spend a third of its time on the trial of a refit."""
    *trees, transformer = plan({"splits": {"train": {"rows": rows}}}, 2)
    assert [member.settings["num_refits"] for member in trees] == [num_refits] * 2
    assert transformer.settings.get("refit_epochs") == refit_epochs
