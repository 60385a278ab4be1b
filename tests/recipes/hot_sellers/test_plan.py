"""The members that a fit of hot_sellers trains."""

import pytest

from ensemble.errors import UserError
from ensemble.pipeline.plan import words_of
from ensemble.recipes.hot_sellers.plan import plan


@pytest.mark.parametrize(("rows", "epochs"), [(29_999, (10.0, 1.0)), (30_000, (None, None))])
def test_with_few_rows_the_network_is_trained_longer_and_refitted(
    rows: int, epochs: tuple[float | None, float | None]
) -> None:
    """A small dataset would not be refitted, or a large one would spend a third of its time on the trial of a refit."""
    *_, transformer = plan({"splits": {"train": {"rows": rows}}}, 2)
    assert (transformer.settings.get("max_epochs"), transformer.settings.get("refit_epochs")) == epochs


@pytest.mark.parametrize(("rows", "num_refits", "linear"), [(200_000, 3, ["linear"]), (200_001, 1, [])])
def test_many_rows_have_one_refit_and_no_linear_model(rows: int, num_refits: int, linear: list[str]) -> None:
    """A fit of millions of rows would wait for many minutes for little gain."""
    members = {member.name: member.settings for member in plan({"splits": {"train": {"rows": rows}}}, 2)}
    assert list(members) == ["xgboost", "lightgbm", *linear, "transformer"]
    assert [members[name]["num_refits"] for name in ("xgboost", "lightgbm")] == [num_refits] * 2
    assert all(members[name] == {"library": "linear", "refit": True} for name in linear)


def test_a_blend_of_one_week_is_refused_before_the_training() -> None:
    """A fit would train all members, and then fail, since weights need rows of at least two weeks."""
    splits = {"train": {"rows": 300}, "blend": {"rows": 30, "first_week": "2021-03-01", "last_week": "2021-03-01"}}
    with pytest.raises(UserError, match=r"^the blend split has one week, that of 2021-03-01, but an ensemble is fitted on"):
        plan({"splits": splits}, 2)
    splits["blend"]["last_week"] = "2021-03-08"
    assert plan({"splits": splits}, 2)


def test_the_network_reads_the_texts_with_the_encoder_of_the_tokenizer() -> None:
    """A fit with panel.tokenizer would train its network in vain, and be without it."""
    *_, transformer = plan({"splits": {"train": {"rows": 300}}, "config": {"tokenizer": "a b/encoder"}}, 2)
    assert "recipe.text_encoder=a b/encoder" in words_of(transformer.settings)


def test_folds_that_no_member_uses_are_refused() -> None:
    """A fit would prepare folds, and train no bags, without a message."""
    with pytest.raises(
        UserError, match=r"^panel\.folds=2: scripts/fit\.py trains no bags, so leave it out, or prepare with"
    ):
        plan({"splits": {"train": {"rows": 300}}, "config": {"folds": 2}}, 2)
