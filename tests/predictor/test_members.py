"""Members and baselines that predict: their kinds, unknown splits, and prediction files of another member."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripts_run import started

from ensemble import folders, predictions
from ensemble.commands import predict
from ensemble.errors import UserError
from ensemble.predictor import members


def test_a_baseline_is_of_its_recipe(prepared: Path) -> None:
    """A baseline of another recipe would be used, or the error would not name the baselines of the recipe."""
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


def test_the_out_of_fold_predictions_are_named_among_the_splits(folded: Path) -> None:
    """A user who asks for blend would read that the data have train only, which no fit needs."""
    with pytest.raises(UserError, match=r"has no split 'tset'.*, oof$"):
        members.check_splits(["tset"], folded, folders.read_manifest(folded))
    with pytest.raises(UserError, match=r"has no split 'blend' to predict: it has train, oof$"):
        members.check_splits(["blend"], "table", {"recipe": "table", "splits": {"train": {}}, "cross_validation": {}})


def test_a_baseline_that_a_fit_predicted_may_be_predicted_again(prepared: Path, tmp_path: Path) -> None:
    """After `make demo` the documented command member=momentum would be refused, as if another member had this name."""
    manifest, out = folders.read_manifest(prepared), tmp_path / "predictions"
    loaded = members.load_baseline("momentum", manifest)
    ((_, file, _),) = members.write_splits(loaded, "momentum", "baseline", ["test"], prepared, manifest, out)
    predicted_by_fit = file.read_bytes()
    done = started("predict", "member=momentum", f"data={prepared}", f"out={out}", "splits=[test]")
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == predicted_by_fit


def test_a_member_is_found_behind_a_link_and_dots(prepared: Path, tmp_path: Path) -> None:
    """With out=scratch/../runs, where scratch is a link, a fit would look for its members in another folder, and fail after
    the training."""
    (tmp_path / "disk/scratch").mkdir(parents=True)
    (tmp_path / "disk/runs/mine").mkdir(parents=True)
    (tmp_path / "scratch").symlink_to(tmp_path / "disk/scratch")
    runs, manifest = tmp_path / "scratch/../runs", folders.read_manifest(prepared)
    loaded = members.load_baseline("momentum", manifest)
    ((_, file, _),) = members.write_splits(loaded, "mine", "xgboost", ["test"], prepared, manifest, runs, runs / "mine")
    folder = predictions.read(file).config["folder"]
    assert Path(folder).resolve() == tmp_path.resolve() / "disk/runs/mine"
    members.refuse_other_member(file, "mine", runs / "mine")
    with pytest.raises(UserError, match="has predictions of"):
        members.refuse_other_member(file, "mine", tmp_path / "other")


def test_a_baseline_has_its_own_name(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with a link called momentum, the baseline would have the name of the link's target in the ensemble."""
    monkeypatch.chdir(tmp_path)
    Path("momentum").symlink_to(prepared)
    config = predict.PredictConfig(member="momentum", data=str(prepared), out="predictions", splits=("test",))
    predict.predict(config, folders.read_manifest(prepared))
    assert [file.name for file in Path("predictions").iterdir()] == ["momentum.test.parquet"]


def test_predictions_of_another_member_are_not_replaced(fitted: Path, prepared: Path, tmp_path: Path) -> None:
    """Of two members in folders of the same name, the ensemble would have only the second, without a message."""
    first, second = tmp_path / "seed0" / "xgboost", tmp_path / "seed1" / "xgboost"
    for folder in (first, second):
        shutil.copytree(fitted / "members" / "xgboost", folder)
    words = (f"data={prepared}", f"out={tmp_path}/predictions", "splits=[test]")
    (tmp_path / "linked").symlink_to(tmp_path / "seed0")
    for member in (first, first, tmp_path / "linked" / "xgboost"):  # the same member may predict again
        assert started("predict", f"member={member}", *words).returncode == 0
    refused = started("predict", f"member={second}", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"has predictions of {first}: choose another out, or with scripts/predict.py another name=…" in refused.stderr
    assert started("predict", f"member={second}", "name=other", *words).returncode == 0
    assert "has predictions of" in started("predict", "member=momentum", "name=xgboost", *words).stderr
    shutil.rmtree(first)  # as if it had been moved
    assert started("predict", f"member={second}", *words).returncode == 0


@pytest.mark.parametrize("config", [None, [], {"folder": 3}])
def test_a_file_of_another_program_is_not_one_of_another_member(config: object, tmp_path: Path) -> None:
    """A prediction would end in a traceback, since the other program uses the entry `config` in another way."""
    table = pa.table({"row_id": [0]}).replace_schema_metadata({predictions.KEY: json.dumps({"config": config})})
    pq.write_table(table, tmp_path / "a.test.parquet")
    members.refuse_other_member(tmp_path / "a.test.parquet", "a", tmp_path)
