"""One command from a table to a fitted ensemble: the files it writes, how it continues, and what it refuses."""

import dataclasses
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fits import NUM_NEW, NUM_ROWS, bits, fit, people, snapshot

from ensemble import folders, predictions, recipe
from ensemble.errors import UserError
from ensemble.pipeline import fit_folder, run
from ensemble.pipeline.settings import config_class
from ensemble.predictor.members import refuse_other_member
from ensemble.recipes.table import prepare as table_prepare
from ensemble.report.run import read as read_run
from ensemble.signals import StopSignals
from ensemble.trees import train
from ensemble.trees.boosting import CannotLearn


class Killed(BaseException):
    """Stands for the end of the process."""


# ------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("binary", {}),
        ("multiclass", {"test": 0.2}),
        ("regression", {"time": "day", "drop": (), "num_folds": 3}),
    ],
)
def test_a_table_becomes_an_ensemble(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """A stage would fail to read the files of the previous stage, or the scores would be those of other rows."""
    people(kind).write_csv(tmp_path / "people.csv")
    out = tmp_path / "out"
    board = fit(tmp_path / "people.csv", out, **settings)
    manifest = folders.read_manifest(out / "prepared")
    assert manifest["task"]["kind"] == kind
    assert {row["split"] for row in board} == {"test" if "test" in settings else "oof"}
    by_name = {row["member"]: row for row in board}
    assert set(by_name) == {"ensemble", "lightgbm", "xgboost", "base rate"}
    assert sum(by_name[name]["weight"] for name in ("lightgbm", "xgboost")) == pytest.approx(1)
    assert by_name["xgboost"]["seconds"] >= 0
    assert by_name["xgboost"]["megabytes"] > 0
    losses = [row["value"] for row in board]
    assert losses == sorted(losses)
    assert board[-1]["member"] == "base rate"
    assert json.loads((out / "leaderboard.json").read_text()) == board
    names = {file.name for file in (out / "predictions").iterdir()}
    splits = ["oof", *(["test"] if "test" in settings else []), "forecast"]
    assert names == {f"{member}.{split}.parquet" for member in ("lightgbm", "xgboost") for split in splits}
    scored = predictions.read(out / "ensemble" / f"{splits[-2]}.parquet")
    num_oof = len(predictions.read(out / "predictions" / "xgboost.oof.parquet").row_id)
    assert num_oof == {"binary": 100, "multiclass": 80}.get(kind, num_oof)
    # Forward in time the first block of rows has no combination that was fitted before it
    assert len(scored.row_id) == {"binary": 100, "multiclass": 20}.get(kind, len(scored.row_id))
    assert len(scored.row_id) < num_oof or kind == "binary"
    forecast = pl.read_csv(out / "ensemble" / "forecast.csv")
    assert sorted(forecast["id"]) == [f"p{row:03}" for row in range(NUM_ROWS - NUM_NEW, NUM_ROWS)]
    assert {path.name for path in out.iterdir()} == {
        "fit.json", "prepared", "members", "predictions", "ensemble", "leaderboard.json", "report.html",
    }  # fmt: skip
    lines = run.lines(board)
    assert "test split" in lines[0] if "test" in settings else "out of fold" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == [row["member"].split()[0] for row in board]


def test_a_relative_path_may_contain_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow takes `lr:0.1/x.parquet` for a URL: a fit would end in a traceback after its first member was trained."""
    monkeypatch.chdir(tmp_path)
    folder = Path("lr:0.1")
    folder.mkdir()
    people().write_parquet(folder / "people.parquet")
    board = fit(folder / "people.parquet", folder / "out")
    assert {row["member"] for row in board} == {"ensemble", "lightgbm", "xgboost", "base rate"}
    report = read_run(folder / "out/ensemble", folder / "out/prepared", folder / "out/predictions", ())
    assert report.forecast is not None
    with pytest.raises(UserError, match=r"has predictions of .*lightgbm: choose another out"):
        refuse_other_member(folder / "out/predictions/lightgbm.oof.parquet", "lightgbm", folder / "out/members/xgboost")


@pytest.mark.parametrize(("value", "shown"), [(None, "undefined"), (0.75, "0.75")])
def test_a_leaderboard_without_intervals_can_be_printed(value: float | None, shown: str) -> None:
    """The command would end with a traceback after all members were trained: a single cluster has no interval."""
    row = {"member": "a", "metric": "roc_auc", "split": "test", "value": value, "low": None, "high": None, "weight": None}
    assert run.lines([{**row, "seconds": None, "megabytes": None}]) == [
        "roc auc on the test split, with its 95 % interval", f"{'a':>20}  {shown}",
    ]  # fmt: skip


def test_large_scores_are_printed_as_in_the_report() -> None:
    """A root mean squared error in euros would be printed as 3.0361e+05, while the report has 303,614."""
    row = {
        "member": "a",
        "metric": "root_mean_squared_error",
        "split": "oof",
        "value": 303614.2,
        "low": 99999.4,
        "high": 2e9,
    }
    line = run.lines([{**row, "weight": None, "seconds": None, "megabytes": None}])[1]
    assert line.split("  ")[-2:] == ["303614", "[99999, 2e+09]"]


def test_the_same_command_gives_the_same_bits(table: Path, tmp_path: Path) -> None:
    """A repeated fit would give another ensemble."""
    result = []
    for name in "ab":
        fit(table, tmp_path / name)
        result.append(bits(tmp_path / name))
    assert result[0].keys() == result[1].keys()
    assert [name for name in result[0] if result[0][name] != result[1][name] and "predictions/" not in name] == []
    files = [predictions.read(tmp_path / name / "predictions/xgboost.forecast.parquet") for name in "ab"]
    assert files[0].prediction.tobytes() == files[1].prediction.tobytes()


# ------------------------------------------------------------------------------------------------ continuing


def kill(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int = 1, is_after: bool = False) -> None:
    """Let call `number` of a function raise `Killed`: before its work, or with `is_after` after it."""
    original, calls = getattr(module, name), []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == number and not is_after:
            raise Killed
        result = original(*arguments, **named)
        if len(calls) == number:
            raise Killed
        return result

    monkeypatch.setattr(module, name, call)


def killed(
    monkeypatch: pytest.MonkeyPatch, table: Path, out: Path, *module: Any, resume: bool = False, **settings: Any
) -> None:
    """Fit, and let `kill`, with the arguments `module`, end the fit."""
    with monkeypatch.context() as patch:
        kill(patch, *module)
        with pytest.raises(Killed):
            fit(table, out, resume, **settings)


def test_a_fit_killed_at_any_stage_continues_to_the_same_bits(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fit of an hour would start again, or end with another ensemble than one that was never killed."""
    from ensemble.predictor import fit as combiner

    fit(table, tmp_path / "whole")
    out = tmp_path / "out"
    killed(monkeypatch, table, out, run.Fit, "print")
    prepared = (out / "prepared/manifest.json").stat().st_mtime_ns
    for number, module in enumerate(
        [(train, "write_member", 1, True), (train, "write_member", 1), (combiner, "fit", 1), (combiner, "fit", 1, True)]
    ):
        killed(monkeypatch, table, out, *module, resume=True)
        assert capsys.readouterr().err.count("is complete already") == [0, 1, 1, 2][number]
    board = fit(table, out, resume=True)
    assert capsys.readouterr().err.count("is complete already") == 2
    assert (out / "prepared/manifest.json").stat().st_mtime_ns == prepared
    assert {row["member"] for row in board} == {"ensemble", "lightgbm", "xgboost", "base rate"}
    expected, result = bits(tmp_path / "whole"), bits(out)
    assert expected.keys() == result.keys()
    assert [name for name in result if result[name] != expected[name] and "predictions/" not in name] == []


def test_a_fit_that_is_stopped_after_the_preparation_goes_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while new data are verified would leave them without fit.json, and neither --resume nor a new fit would do."""
    killed(monkeypatch, table, tmp_path / "out", folders, "read_manifest")
    assert (tmp_path / "out" / "prepared").is_dir()
    fit(table, tmp_path / "out", resume=True)


def test_incomplete_preparation_is_removed(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes of half-written folders would remain, or stop the next fit."""
    out = tmp_path / "out"
    out.mkdir()
    with monkeypatch.context() as patch:
        kill(patch, table_prepare, "write_rows", 1, True)
        patch.setattr(folders.shutil, "rmtree", lambda *words, **more: None)  # a killed process removes nothing
        patch.setattr(fit_folder, "remove_new", lambda *files: None)
        with pytest.raises(Killed):
            fit(table, out)
    assert sorted(path.name.split("-")[0] for path in out.iterdir()) == [".prepared.writing", "fit.json"]
    with pytest.raises(UserError, match=r"out contains a fit: add --resume auto to continue it, or overwrite=true"):
        fit(table, out)
    fit(table, out, resume=True)
    assert not list(out.glob(".*"))


def test_going_on_needs_the_same_settings(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the members would predict another target than the others."""
    out = tmp_path / "out"
    killed(monkeypatch, table, out, run.Fit, "print")
    before = snapshot(out)
    for other, named in (
        ({"seed": 1}, "seed=0, not 1"),
        ({"members": ("xgboost",)}, "members=[], not ['xgboost']"),
        ({"num_folds": 4, "test": 0.2}, "num_folds=3, not 4; test=0.0, not 0.2"),
    ):
        sentence = f"out was fitted with other settings: give the same ({named}), or add overwrite=true without --resume"
        with pytest.raises(UserError, match=re.escape(sentence)):
            fit(table, out, resume=True, **other)
    assert snapshot(out) == before
    fit(table, out, resume=True, time_limit=1e6, num_draws=3)
    with pytest.raises(UserError, match="contains a fit: add --resume auto"):
        fit(table, out)


def test_a_shorter_limit_keeps_what_is_trained(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that are complete would be left out of the ensemble, since no time is left for their training."""
    from ensemble.predictor import fit as combiner

    out = tmp_path / "out"
    killed(monkeypatch, table, out, combiner, "fit", 1)
    board = fit(table, out, resume=True, time_limit=1e-3)
    assert {"lightgbm", "xgboost"} <= {row["member"] for row in board}


def test_one_fit_at_a_time(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second fit with --resume auto would delete the files that the first one is writing."""
    out, begin = tmp_path / "out", run.Fit.print
    monkeypatch.setattr(folders, "LOCK_WAIT_S", 0.1)

    def second_fit(self: run.Fit, sentence: str) -> None:
        monkeypatch.setattr(run.Fit, "print", begin)
        for settings in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match=r"another command is fitting in .*out: wait until it has ended, or choose"):
                fit(table, out, **settings)
        begin(self, sentence)

    monkeypatch.setattr(run.Fit, "print", second_fit)
    fit(table, out)
    fit(table, out, resume=True)


def test_going_on_with_a_moved_file(table: Path, tmp_path: Path) -> None:
    """Rows in Python's memory are written to another file each time, so a fit of them could never continue."""
    first = fit(table, tmp_path / "out")
    moved = table.rename(tmp_path / "moved.csv")
    assert [row["value"] for row in fit(moved, tmp_path / "out", resume=True)] == [row["value"] for row in first]


def test_going_on_with_other_files_is_refused(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a correction of the table, all members would still be trained on the old one, without a message."""
    out = tmp_path / "out"
    killed(monkeypatch, table, out, run.Fit, "print")
    before, content = snapshot(out), table.read_bytes()
    table.write_bytes(content.replace(b"coral", b"denim", 1))
    with pytest.raises(
        UserError, match=r"people\.csv changed since .*prepared was prepared: restore the old content, or start again"
    ):
        fit(table, out, resume=True)
    assert snapshot(out) == before
    table.unlink()
    with pytest.raises(UserError, match=r"people\.csv does not exist"):
        fit(table, out, resume=True)
    table.write_bytes(content)  # with another date
    fit(table, out, resume=True)
    table.write_bytes(content.replace(b"coral", b"denim", 1))
    with pytest.raises(UserError, match=r"people\.csv changed since"):  # also if the fit is complete
        fit(table, out, resume=True)


def test_anew_means_all_of_it(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After overwrite=true and a kill, members or data of the old table would be taken for those of the new one."""
    out = tmp_path / "out"
    fit(table, out)
    changed = people().with_columns(age=80 - pl.col("age"))
    changed.write_csv(table)
    fit(table, tmp_path / "expected")
    # Killed before the new data are written, then after the first member is
    with monkeypatch.context() as patch:
        kill(patch, table_prepare, "write_rows")
        patch.setattr(
            run.folders,
            "write_json",
            lambda file, content, original=folders.write_json: (
                None if file.name == "fit.json" and content.get("prepared") else original(file, content)
            ),
        )
        with pytest.raises(Killed):
            fit(table, out, overwrite=True)
    assert folders.read_json(out / "fit.json")["prepared"] is None
    killed(monkeypatch, table, out, train, "write_member", 1, True, resume=True)
    capsys.readouterr()
    fit(table, out, resume=True)
    assert capsys.readouterr().err.count("is complete already") == 1
    expected, result = bits(tmp_path / "expected"), bits(out)
    assert expected.keys() == result.keys()
    assert [name for name in result if result[name] != expected[name] and "predictions/" not in name] == []


@pytest.mark.parametrize(
    "file", ["tabm/summary.json", "tabm/checkpoints/step-00000004/state.json", "tabm.checkpoint/trees-4/state.json"]
)
def test_a_member_of_other_data_is_trained_anew(file: str, tmp_path: Path) -> None:
    """A training that was stopped before the data changed would be continued and fail, and the fit would lack the member."""
    (tmp_path / file).parent.mkdir(parents=True)
    folders.write_json(tmp_path / file, {"fingerprint": "old"})
    assert [run.is_stale(tmp_path / "tabm", fingerprint) for fingerprint in ("old", "new")] == [False, True]


@pytest.mark.parametrize("status", ["preempted", "done"])
def test_a_stopped_member_stops_the_fit(status: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preempted job would combine members that do not exist, or go on if the signal came after the member's last tree."""

    def stopped(config: Any, resume: str) -> dict[str, str]:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            while not stop.received:
                pass
        return {"status": status}

    with monkeypatch.context() as patch:
        patch.setattr(train, "train", stopped)
        with pytest.raises(run.Preempted, match="lightgbm"):
            fit(table, tmp_path / "out")
    assert not (tmp_path / "out/ensemble").exists()


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"target": "z"}, "target=z: the table has no such column"),
        ({"members": ("xgbost",)}, "names 'xgbost', which is not available for these data: choose from lightgbm, xgboost"),
        (
            {"members": ("lightgbm,xgboost",)},
            "names 'lightgbm,xgboost', which is not available for these data: write a list as members=[lightgbm,xgboost]",
        ),
        ({"num_draws": 0}, "num_draws=0 is impossible: it must be at least 1"),
        ({"threads": -1}, "threads=-1 is impossible: it must be 0 or more"),
        ({"time_limit": -1.0}, "time_limit=-1.0 is impossible: it must be 0 or more"),
        ({"time_limit": float("nan")}, "time_limit=nan is impossible"),
        ({"accelerate_config": "no.yaml"}, "accelerate_config=no.yaml is not a file: name one of Accelerate, or write auto"),
        ({"embargo": 3.0}, "embargo=3 needs an order in time"),
    ],
)
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_mistake_leaves_nothing(
    settings: dict[str, Any], sentence: str, is_begun: bool, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new folder would stop the corrected command, or an earlier fit would be half replaced."""
    out = tmp_path / "deep" / "out"
    if is_begun:
        killed(monkeypatch, table, out, run.Fit, "print")
    before = snapshot(tmp_path)
    with pytest.raises(UserError) as caught:
        fit(table, out, **{"overwrite": is_begun, **settings})
    assert sentence in str(caught.value)
    assert snapshot(tmp_path) == before
    assert is_begun or not (tmp_path / "deep").exists()
    if is_begun and "target" in settings:
        fit(table, out, resume=True)


def test_an_empty_folder_of_the_users_stays(table: Path, tmp_path: Path) -> None:
    """A mistake would delete a folder of the user, who may have set its permissions."""
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="no such column"):
        fit(table, tmp_path / "out", target="z")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"thesis.txt": "irreplaceable"}, "exists and contains no fit of this project: choose another out"),
        ({"fit.json": '{"mine": 1}'}, "fit.json was not written by this project, so nothing is changed: choose another"),
        ({"fit.json": "[1]"}, "fit.json was not written by this project, so nothing is changed: choose another"),
        ({"fit.json": "{"}, "fit.json is damaged"),
        (None, "exists and contains no fit of this project: choose another out"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_the_users_is_refused(content: Any, sentence: str, resume: bool, table: Path, tmp_path: Path) -> None:
    """The user's files would be replaced, or mixed with those of the fit."""
    out = tmp_path / "out"
    if content is None:
        out.write_text("a file")
    else:
        out.mkdir()
        for name, text in content.items():
            (out / name).write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(UserError) as caught:
        fit(table, out, resume, overwrite=not resume)
    assert sentence in str(caught.value)
    assert snapshot(tmp_path) == before


def test_files_of_the_users_stay_in_a_fit(table: Path, tmp_path: Path) -> None:
    """Notes beside the report, or in the prepared data, would be gone after overwrite=true."""
    out = tmp_path / "out"
    fit(table, out)
    (out / "notes.txt").write_text("mine")
    fit(table, out, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    (out / "prepared/notes.txt").write_text("mine")
    before = snapshot(out)
    with pytest.raises(
        UserError, match=r"holds notes\.txt, which its manifest does not list, so the folder is not replaced"
    ):
        fit(table, out, overwrite=True)
    assert snapshot(out) == before


def test_a_source_inside_out_is_not_replaced(table: Path, tmp_path: Path) -> None:
    """overwrite=true would delete the table."""
    out = tmp_path / "out"
    fit(table, out)
    inside = Path(shutil.copy(table, out / "prepared/people.csv"))
    with pytest.raises(UserError, match="lies inside out="):
        fit(inside, out, overwrite=True)
    assert inside.read_bytes() == table.read_bytes()


def test_nothing_is_written_into_prepared_data(table: Path, tmp_path: Path) -> None:
    """The folder would no longer agree with its manifest."""
    fit(table, tmp_path / "out")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match="which is prepared data: choose a place outside of it"):
        fit(table, tmp_path / "out/prepared/deep/new")
    assert snapshot(tmp_path) == before


def test_damaged_data_and_members_are_found(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ensemble of a continued fit would contain a damaged model, or members of damaged data, or no fit would go on."""
    out = tmp_path / "out"
    fit(table, out)
    model = out / "members/lightgbm/model.0.txt"
    content = model.read_bytes()
    model.write_bytes(content.replace(b"leaf_value", b"leaf_valuf", 1))
    capsys.readouterr()
    fit(table, out, resume=True)
    printed = capsys.readouterr().err
    assert f"{out}/members/lightgbm is damaged: it is trained again" in printed
    assert printed.count("is complete already") == 1
    assert model.read_bytes() == content
    rows = next((out / "prepared/rows/train").glob("*.arrow"))
    rows.write_bytes(rows.read_bytes()[:-8] + bytes(8))
    with pytest.raises(UserError, match="was changed after it was written"):
        fit(table, out, resume=True)


def test_a_member_that_cannot_learn_is_left_out(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One library's refusal of the rows would end the whole fit."""
    original = train.train

    def refuse(config: Any, resume: str) -> dict[str, Any]:
        if config.library in refused:
            raise CannotLearn(f"{config.library} cannot learn")
        return original(config, resume)

    monkeypatch.setattr(train, "train", refuse)
    refused = ["lightgbm"]
    board = fit(table, tmp_path / "out")
    assert "warning: lightgbm cannot learn" in capsys.readouterr().err
    assert {row["member"] for row in board} == {"ensemble", "xgboost", "base rate"}
    refused = ["lightgbm", "xgboost"]
    with pytest.raises(UserError, match="no member could be trained, as the warnings explain"):
        fit(table, tmp_path / "none")


def test_settings_of_a_recipe_that_are_those_of_a_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preparation would get the value of the fit, or its default, without a message."""
    mine = dataclasses.make_dataclass("Mine", [("out", str, "???"), ("num_draws", int, 3)], kw_only=True, frozen=True)
    monkeypatch.setattr(recipe, "prepare_config", lambda name: mine)
    with pytest.raises(UserError, match=r"num_draws of Mine of the recipe mine is a setting of scripts/fit.py too"):
        config_class("mine")


def test_a_recipe_of_this_project_that_cannot_be_fitted_is_refused() -> None:
    """A user could not rename the setting of a recipe that is not the user's, as the error asks."""
    with pytest.raises(UserError, match=r"^scripts/fit.py cannot fit the recipe sudoku: run the steps of its README"):
        config_class("sudoku")
    assert all(config_class(name) for name in recipe.FITTED), "--help lists these"
