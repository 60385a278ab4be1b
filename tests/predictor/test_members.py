"""The one way to ask a member or a baseline."""

from pathlib import Path

import pytest

from ensemble import folders
from ensemble.errors import UserError
from ensemble.predictor import members


def test_a_baseline_is_of_its_recipe(prepared: Path) -> None:
    """Products would be ranked as if users had taken them, or the baselines of a recipe be unknown to its users."""
    manifest = folders.read_manifest(prepared)
    assert members.baselines(manifest) == {"momentum": "baseline"}
    sentence = "popularity/summary.json does not exist: .* or name a baseline of the recipe hot_sellers: momentum"
    with pytest.raises(UserError, match=sentence):
        members.kind_of(Path("popularity"), manifest)


def test_an_unknown_split_is_named(prepared: Path) -> None:
    """A slip in a split's name would end in a traceback."""
    manifest = folders.read_manifest(prepared)
    sentence = "has no split 'tset'.* it has train, validation, blend, test, forecast"
    with pytest.raises(UserError, match=sentence):
        members.load_baseline("momentum", manifest).predict(prepared, "tset")
    with pytest.raises(UserError, match=sentence):
        members.check_splits(["blend", "tset"], prepared, manifest)
    members.check_splits(["train", "oof"], prepared, manifest)
