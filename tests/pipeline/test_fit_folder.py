"""The folder of a fit: what a fit that is replaced leaves, and what is refused before the training."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fits import fit, planned, snapshot

from ensemble import folders
from ensemble.errors import UserError
from ensemble.pipeline import run
from ensemble.pipeline.plan import PlannedMember


@pytest.fixture
def fitted(table: Path, tmp_path: Path) -> Path:
    fit(table, tmp_path / "out")
    return tmp_path / "out"


def test_a_killed_replacement_uses_no_member_of_the_old_fit(
    fitted: Path, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Members that were to be replaced would be in the new ensemble, without a message."""
    kill_when_prepared(monkeypatch, fitted, table)
    fit(table, fitted, resume=True)
    assert "is complete already" not in capsys.readouterr().err


def kill_when_prepared(monkeypatch: pytest.MonkeyPatch, out: Path, table: Path, **settings: Any) -> None:
    """Replace a fit, and interrupt the new one once its data are prepared."""

    def killed(self: run.Fit, sentence: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run.Fit, "print", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(table, out, overwrite=True, **settings)


def test_a_replacement_leaves_only_the_users_files(fitted: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of an old fit, with other data, would stay, or a note or a member of the user would be deleted."""
    members, predictions = fitted / "members", fitted / "predictions"
    monkeypatch.setattr(run, "plan", lambda manifest, num_threads: planned("lightgbm", "xgboost", "catboost", "tabm"))
    for name in (".old.writing-0123abcd/model", "notes/a.txt", "lightgbm.checkpoint/status", "tabm/status"):
        (members / name).parent.mkdir(parents=True)
        (members / name).write_text("mine")
    shutil.copytree(members / "xgboost", members / "catboost")
    (members / "catboost" / "notes.txt").write_text("mine")
    (predictions / "notes.parquet").write_text("mine")
    shutil.copytree(members / "xgboost", members / "mine")  # trained by the user
    shutil.copytree(members / "xgboost", members / "xgboost.old")  # a copy of the user
    for name in ("mine.oof.parquet", "mine.oof.contributions.parquet", "xgboost.oof.contributions.parquet"):
        shutil.copy(predictions / "xgboost.oof.parquet", predictions / name)
    (predictions / "xgboost.oof.contributions.png").write_text(folders.MARK)
    shutil.copytree(fitted / "ensemble", fitted / "all")  # as of a recipe with a follow-up
    kill_when_prepared(monkeypatch, fitted, table, members=("lightgbm",))
    assert not (fitted / "ensemble").exists(), "it names members that are gone"
    assert not [name for name in ("report.html", "leaderboard.json", "all") if (fitted / name).exists()]
    fit(table, fitted, overwrite=True, members=("lightgbm",))
    assert sorted(path.name for path in members.iterdir()) == [
        "catboost",
        "lightgbm",
        "mine",
        "notes",
        "xgboost.old",
    ]
    assert {path.name.split(".")[0] for path in predictions.iterdir()} == {"lightgbm", "mine", "notes"}


def test_a_fit_killed_before_its_settings_are_written_starts_again(table: Path, tmp_path: Path) -> None:
    """No command would use the folder, which seems to be of another program."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".fit.json.writing-0123abcd").write_text("{")
    fit(table, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("again", [{"resume": True}, {"overwrite": True}])
def test_a_fit_that_has_only_downloaded_its_raw_files_can_be_corrected(
    again: dict[str, bool], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a mistake in `members`, the folder with the raw files would be refused as one of another program."""
    out = tmp_path / "out"

    def download_and_stop(*arguments: Any) -> None:
        (out / "prepared-raw").mkdir()
        raise UserError("there is no member xgbost")

    with monkeypatch.context() as patch:
        patch.setattr("ensemble.data.prepared.write", download_and_stop)
        with pytest.raises(UserError, match="no member xgbost"):
            fit(table, out, members=("xgbost",))
    fit(table, out, **again)
    assert (out / "report.html").is_file()
    assert (out / "prepared-raw").is_dir()


@pytest.mark.parametrize("settings", [{"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "ensemble/notes.txt",
            "mine",
            "holds notes.txt, which its manifest does not list, so the folder is not replaced: move",
        ),
        ("report.html", "mine", "exists and this project did not write it, so the report does not replace it"),
        ("leaderboard.json", "mine", "leaderboard.json was not written by this project, so it is not replaced: move it"),
        ("leaderboard.json", '[{"player": "me"}]', "leaderboard.json was not written by this project"),
    ],
)
def test_a_file_of_the_users_is_found_before_the_training(
    name: str, content: str, sentence: str, settings: dict[str, bool], fitted: Path, table: Path
) -> None:
    """An hour of training would end in an error about a note in the folder, or the file would be replaced."""
    (fitted / name).write_text(content)
    before = snapshot(fitted)
    with pytest.raises(UserError, match=sentence):
        fit(table, fitted, **settings)
    assert snapshot(fitted) == before


@pytest.mark.parametrize(
    ("name", "rule"), [("xgboost", "its manifest does not list"), ("tabm", "not written by a training")]
)
def test_a_file_in_a_members_folder_is_found_before_anything_is_deleted(
    name: str, rule: str, fitted: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old ensemble, its report and the other members would be gone when the fit ends in an error about a note."""
    tabm = PlannedMember(name="tabm", kind="neural")
    monkeypatch.setattr(run, "plan", lambda manifest, num_threads: [*planned("lightgbm", "xgboost"), tabm])
    (fitted / "members" / name).mkdir(exist_ok=True)
    (fitted / "members" / name / "notes.txt").write_text("mine")
    before = snapshot(fitted)
    with pytest.raises(UserError, match=rule):
        fit(table, fitted, overwrite=True)
    assert snapshot(fitted) == before


@pytest.mark.parametrize(("number", "kind"), [(13, UserError), (28, OSError)])
def test_a_folder_that_cannot_be_written_is_no_error_of_ours(
    number: int, kind: type[Exception], fitted: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user would see a traceback, or the message about a full disk would be another one."""

    def refuse(*arguments: Any) -> None:
        raise OSError(number, {13: "Permission denied", 28: "No space left on device"}[number])

    monkeypatch.setattr(folders, "write_json", refuse)
    with pytest.raises(kind) as caught:
        fit(table, fitted, resume=True)
    sentence = "fit.json cannot be written (Permission denied): check the permissions, or choose another out"
    assert str(caught.value).endswith(sentence if number == 13 else "No space left on device")


def test_a_link_to_a_folder_that_does_not_exist_yet_is_followed(table: Path, tmp_path: Path) -> None:
    """A link to an empty disk would be refused with `File exists`, or a refused fit would leave the folder behind."""
    link, far = tmp_path / "link", tmp_path / "disk" / "out"
    link.symlink_to(far)
    with pytest.raises(UserError, match="the table has no such column"):
        fit(table, link, target="nothing")
    assert not far.parent.exists()
    fit(table, link)
    assert link.is_symlink()
    assert (far / "report.html").is_file()


def test_a_fit_that_is_continued_waits_for_the_end_of_another(fitted: Path, table: Path) -> None:
    """After a restart of a notebook's kernel, the fit that is still ending would cause an error."""
    held = threading.Event()

    def ending() -> None:
        with folders.locked(fitted, "fitting in"):
            held.set()
            time.sleep(0.5)

    thread = threading.Thread(target=ending)
    thread.start()
    held.wait()
    fit(table, fitted, resume=True)
    thread.join()


@pytest.mark.parametrize(
    ("pattern", "is_refused"),
    [
        ("{}/**/*.csv", True),
        ("{}/**", True),
        ("{}/*/predictions/*.parquet", True),
        ("{}/o?t/ensemble/forecast.csv", True),
        ("{}/*.csv", False),
        ("{}/out/raw/*.csv", False),
        ("{}/other/**/*.csv", False),
        ("{}/**/people*.csv", False),
        ("{}/out/ensemble/forecast.csv", False),
    ],
)
@pytest.mark.parametrize("parent", ["", ".hidden"])
def test_a_pattern_that_matches_files_of_the_fit_is_refused(
    parent: str, pattern: str, is_refused: bool, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forecast would be among the rows of the next fit, and a killed fit could not be continued."""

    def accepted(out: Path) -> None:
        raise KeyError("accepted")

    monkeypatch.setattr(folders, "refuse_inside", accepted)
    is_refused = is_refused and not parent  # wildcards match no hidden folder
    with pytest.raises(UserError if is_refused else KeyError) as caught:
        fit(Path(pattern.format(tmp_path)), tmp_path / parent / "out")
    assert ("would match files of the fit, such as" in str(caught.value)) == is_refused
    assert not (tmp_path / parent / "out").exists()


def test_a_running_forecast_in_the_folder_goes_on(fitted: Path, table: Path) -> None:
    """A fit that begins meanwhile would delete the folder to which the forecast is written."""
    running, killed, empty = (fitted / f".new.writing-{number}123abcd" for number in range(3))
    for folder in (running, killed):
        (folder / "prepared").mkdir(parents=True)
    empty.mkdir()
    with folders.locked(running, "writing"):
        fit(table, fitted, resume=True)
        assert (running.exists(), killed.exists(), empty.exists()) == (True, False, False)
