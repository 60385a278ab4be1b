"""Folders that are complete or absent, and single files."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ensemble import folders, verification
from ensemble.errors import UserError


def write(path: Path, content: str = "new", overwrite: bool = False) -> None:
    with folders.new_folder(path, overwrite, "checkpoint") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text(content)
        folders.write_manifest(folder, {"kind": "checkpoint", "recipe": "test"})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    """A reader would find a folder that is still being written, or the scratch folder would stay."""
    with folders.new_folder(tmp_path / "runs" / "a" / "out", False, "checkpoint") as folder:
        assert folder.parent == tmp_path / "runs" / "a"
        (folder / "file").write_text("x")
        assert not (tmp_path / "runs" / "a" / "out").exists()
    assert names(tmp_path / "runs" / "a") == ["out"]
    assert names(tmp_path / "runs" / "a" / "out") == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, UserError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("exists", [False, True])
def test_nothing_half_written_stays(tmp_path: Path, error: type[BaseException], exists: bool) -> None:
    """An interrupted run would leave a folder that looks done, or take the old one with it."""
    out = tmp_path / "out"
    if exists:
        write(out, "old")

    def stop() -> None:
        with folders.new_folder(out, exists, "checkpoint") as folder:
            (folder / "file").write_text("half")
            raise error

    with pytest.raises(error):
        stop()
    assert names(tmp_path) == (["out"] if exists else [])
    assert not exists or (out / "deep" / "file").read_text() == "old"


def test_an_existing_folder_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    """A second run would destroy the first, or overwrite=true would leave files of it."""
    out = tmp_path / "out"
    write(out, "old")
    with pytest.raises(UserError, match=r"out exists already: choose another folder, or add overwrite=true to replace it$"):
        write(out)
    assert (out / "deep" / "file").read_text() == "old"
    with folders.new_folder(out, True, "checkpoint") as folder:
        (folder / "other").write_text("new")
        assert (out / "deep" / "file").read_text() == "old", "the old folder must stay until the new one is whole"
    assert names(out) == ["other"]
    assert names(tmp_path) == ["out"]


def test_the_old_folder_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or a full disk, between the two renames would leave neither."""
    out = tmp_path / "out"
    write(out, "old")
    rename = Path.rename

    def fail_for_scratch(self: Path, target: Path) -> Path:
        if "writing" in self.name and target == out:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_scratch)
    with pytest.raises(KeyboardInterrupt):
        write(out, overwrite=True)
    assert (out / "deep" / "file").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_overwrite_spares_what_no_stage_wrote(tmp_path: Path) -> None:
    """A slip such as out=runs or out=. with overwrite=true would delete everything in it."""
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path / "runs", tmp_path / "notes.txt", Path("/"), Path(".")):
        with pytest.raises(UserError, match=r"was not written by this stage.*choose another folder$"):
            write(path, overwrite=True)
    assert names(tmp_path) == ["notes.txt", "runs"]
    write(tmp_path / "runs" / "demo", overwrite=True)
    assert names(tmp_path / "runs" / "demo") == ["deep", "manifest.json"]


def test_a_folder_with_a_file_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    """overwrite=true would delete notes, and members that were trained inside a folder."""
    out = tmp_path / "out"
    for foreign in ("notes.txt", "deep/notes.txt", ".hidden", "members/xgboost/manifest.json"):
        write(out, "old", overwrite=out.exists())
        (out / foreign).parent.mkdir(parents=True, exist_ok=True)
        (out / foreign).write_text("{}")
        with pytest.raises(UserError, match=f"out holds {foreign}, which its manifest does not list, .*: move that file"):
            write(out, overwrite=True)
        assert (out / foreign).read_text() == "{}"
        assert (out / "deep/file").read_text() == "old"
        (out / foreign).unlink()
    (out / "deep/.DS_Store").touch()  # macOS writes it when a user looks at the folder
    write(out, "new", overwrite=True)
    (out / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="out holds link, which"):
        write(out, overwrite=True)


def test_a_check_that_was_killed_leaves_no_file_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """overwrite=true would refuse data during whose check a command was killed, because of a file that the check wrote."""
    out, killed, rename = tmp_path / "out", tmp_path / "killed", Path.rename
    write(out, "old")
    for file in out.rglob("*"):
        os.utime(file, (1, 1))  # files that were just written are not recorded
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda path, target: [shutil.copytree(out, killed), rename(path, target)][1])
        folders.read_manifest(out)
    assert len(names(killed)) == len(names(out)) == 3
    assert verification.NAME in names(out)
    assert verification.NAME not in names(killed)
    write(killed, "new", overwrite=True)
    assert names(killed) == ["deep", "manifest.json"]


def test_what_is_added_while_a_folder_is_replaced_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training takes hours: notes that were written into the old folder meanwhile would be gone, or the training."""
    out = tmp_path / "out"
    write(out, "old")
    with folders.new_folder(out, True, "checkpoint") as folder:
        (folder / "file").write_text("new")
        (out / "notes.txt").write_text("mine")
    assert names(out) == ["file"]
    (kept,) = tmp_path.glob("out.replaced-*")
    assert (kept / "notes.txt").read_text() == "mine"
    assert f"{kept} keeps notes.txt, which was added to" in capsys.readouterr().out


def test_data_with_folds_are_replaced(tmp_path: Path, folded: Path) -> None:
    """The manifest of the whole data does not list the files of the folds; that of each fold does."""
    data = Path(shutil.copytree(folded, tmp_path / "data"))
    folders.read_manifest(data)
    folders.read_manifest(data / "folds/1")
    assert folders.foreign(data) is None
    (data / "folds/1/notes.txt").write_text("mine")
    assert folders.foreign(data) == "folds/1/notes.txt"
    (data / "folds/1/notes.txt").unlink()
    shutil.copytree(data / "folds/0", data / "folds/9")
    assert str(folders.foreign(data)).startswith("folds/9/")


def test_an_empty_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mkdir out` before the first command would make every command refuse it."""
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert names(tmp_path / "out") == ["deep", "manifest.json"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match=r"^\. is the current folder or a mounted disk, which cannot be replaced: name a"):
        write(Path("."))


def test_nothing_is_written_inside_a_whole_folder(tmp_path: Path) -> None:
    """Members trained inside prepared data would be deleted with them, and their manifest would no longer be complete."""
    write(tmp_path / "data")
    with pytest.raises(UserError, match=r"data/members/a lies inside .*data, which is prepared data: choose a place"):
        write(tmp_path / "data" / "members" / "a")
    page = folders.new_file(tmp_path / "data/report.html", "report")
    with pytest.raises(UserError, match=r"data/report.html lies inside"), page:
        pass
    with folders.new_folder(tmp_path / "member", False, "tree member") as folder:
        folders.write_manifest(folder, {"kind": "tree member"})
    with pytest.raises(UserError, match=r"member/best lies inside .*member, which is a finished tree member"):
        write(tmp_path / "member" / "best")
    (tmp_path / "app").mkdir()
    (tmp_path / "app/manifest.json").write_text('{"name": "an app of the web"}')
    write(tmp_path / "app" / "data")


def test_a_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    """out=copy.jsonl, a slip between two words, would replace reviews by a report."""
    path = tmp_path / "precious.csv"
    path.write_text("1,2\n" * 200_000)
    with (
        pytest.raises(
            UserError, match=r"precious.csv exists and this project did not write it, so the report does not replace it"
        ),
        folders.new_file(path, "report") as scratch,
    ):
        scratch.write_text("new")
    assert path.read_text().startswith("1,2")
    for ours in (f"{folders.MARK}{'x' * 600_000}", f"{'x' * 600_000}{folders.MARK}", ""):
        path.write_text(ours)
        with folders.new_file(path, "report") as scratch:
            scratch.write_text("new")
        assert path.read_text() == "new"
    assert names(tmp_path) == ["precious.csv"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a file"), folders.new_file(tmp_path / "pipe", "report"):
        pass


def test_a_file_with_thousands_of_columns_is_replaced(tmp_path: Path) -> None:
    """The contributions of a member with 5,000 features could not be written again."""
    table = pa.table({f"feature_{number}": [0.5] for number in range(5000)})
    pq.write_table(table.replace_schema_metadata({"metadata": folders.MARK}), tmp_path / "contributions.parquet")
    folders.refuse_foreign_file(tmp_path / "contributions.parquet", "contributions")


def test_a_folder_is_checked_before_it_gets_its_name(tmp_path: Path) -> None:
    """Data that members could not use would stay, or would replace those that they can."""

    def refuse(folder: Path) -> None:
        assert (folder / "deep/file").exists()
        raise UserError("no")

    for exists in (False, True):
        with pytest.raises(UserError, match=r"^no$"), folders.checked(tmp_path / "out", refuse):
            write(tmp_path / "out", overwrite=exists)
        assert names(tmp_path) == (["out"] if exists else [])
        write(tmp_path / "out", "old", overwrite=exists)
    assert (tmp_path / "out/deep/file").read_text() == "old"


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    """On a cluster `runs` or the data are links to a larger disk: overwriting would replace the link, or fail."""
    (tmp_path / "large_disk").mkdir()
    write(tmp_path / "large_disk" / "data", "old")
    (tmp_path / "data").symlink_to(tmp_path / "large_disk" / "data")
    write(tmp_path / "data", "new", overwrite=True)
    assert (tmp_path / "data").is_symlink()
    assert (tmp_path / "large_disk" / "data" / "deep" / "file").read_text() == "new"
    assert names(tmp_path / "large_disk") == ["data"]


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    """A report that a web server shows through a link would be written beside it, and the old one would be shown."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text(f"old, {folders.MARK}")
    (tmp_path / "report.html").symlink_to("site/index.html")
    with folders.new_file(tmp_path / "report.html", "report") as scratch:
        scratch.write_text("new")
    assert (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "site/index.html").read_text() == "new"
    assert (names(tmp_path), names(tmp_path / "site")) == (["report.html", "site"], ["index.html"])


def test_what_a_killed_run_left_does_not_stop_the_next(tmp_path: Path) -> None:
    """In a container every run may have process id 1: the scratch folder of a killed run would block all that follow."""
    (tmp_path / f".out.writing-{os.getpid()}").mkdir()
    write(tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "file").exists()


def test_the_next_run_deletes_what_a_killed_one_wrote(tmp_path: Path) -> None:
    """Each killed preparation would leave gigabytes in a hidden folder, or a running one would lose its own."""
    write(tmp_path / ".out.writing-1234abcd", "half")
    with folders.new_folder(tmp_path / "out", True, "checkpoint") as folder:
        assert names(tmp_path) == [folder.name]
        (folder / "file").write_text("slow")
        write(tmp_path / "out", "fast")
        assert names(tmp_path) == [folder.name, "out"]
        folders.write_manifest(folder, {"kind": "checkpoint"})
    assert (tmp_path / "out/file").read_text() == "slow"


def test_the_next_run_deletes_what_a_killed_one_replaced(tmp_path: Path) -> None:
    """The earlier data would stay in a hidden folder after a kill between the second rename and the deletion."""
    write(tmp_path / ".out.old-1234abcd", "earlier")
    write(tmp_path / ".out.old-5678abcd", "with a file of the user's")
    (tmp_path / ".out.old-5678abcd/notes.txt").touch()
    write(tmp_path / "out")
    write(tmp_path / "out", overwrite=True)
    assert names(tmp_path) == [".out.old-5678abcd", "out"]


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    """A path through a file would end in a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"the folder .*file/out cannot be created: Not a directory$"):
        write(tmp_path / "file" / "out")


def test_json_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that reads during the write would get half a file."""
    path = tmp_path / "x.json"
    folders.write_json(path, {"a": "ä"})
    before = path.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        folders.write_json(path, {"a": object()})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", None)
        with pytest.raises(TypeError):
            folders.write_json(path, "new")
    assert path.read_text(encoding="utf-8") == before
    folders.write_json(path, [1, None])
    assert folders.read_json(path) == [1, None]
    assert names(tmp_path) == ["x.json"]
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"x.json is damaged \(.*\): run the stage that wrote it again"):
        folders.read_json(path)


def test_two_runs_with_one_name(tmp_path: Path) -> None:
    """The slower of two runs would replace the folder of the faster one, although overwrite=true was not given."""

    def slow() -> None:
        with folders.new_folder(tmp_path / "out", False, "checkpoint") as folder:
            (folder / "file").write_text("slow")
            write(tmp_path / "out", "fast")

    with pytest.raises(UserError, match="was written by another run in the meantime"):
        slow()
    assert (tmp_path / "out" / "deep" / "file").read_text() == "fast"
    assert names(tmp_path) == ["out"]


def test_a_replacement_that_was_killed_halfway_is_put_back(tmp_path: Path) -> None:
    """After a kill between the two renames, no command would find the last checkpoint."""
    for name in ("last", "last[1]"):
        write(tmp_path / f".{name}.old-1234abcd", "whole")
        folders.recover(tmp_path / name)
        assert (tmp_path / name / "deep" / "file").read_text() == "whole"
        write(tmp_path / f".{name}.old-5678abcd", "older")
        folders.recover(tmp_path / name)
        assert (tmp_path / name / "deep" / "file").read_text() == "whole"


def test_the_last_folder_that_was_replaced_is_put_back(tmp_path: Path) -> None:
    """After a kill during the deletion of a replaced folder, and one between the next two renames, the first of the two
    folders, or what is left of it, would be restored."""
    older, newer = tmp_path / ".out.old-00000000", tmp_path / ".out.old-ffffffff"
    write(older, "older")
    write(newer, "newer")
    while newer.stat().st_ctime_ns <= older.stat().st_ctime_ns:  # the clock of the file system has ticks of milliseconds
        newer.touch()
    folders.recover(tmp_path / "out")
    assert (tmp_path / "out/deep/file").read_text() == "newer"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("was_replaced", [False, True])
def test_a_deletion_that_was_killed_leaves_no_folder(was_replaced: bool, tmp_path: Path) -> None:
    """Half a folder would look damaged, or what is left would stay under a name that no later command looks for."""
    write(tmp_path / "out")

    def killed(*arguments: object, **options: object) -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            write(tmp_path / "out", overwrite=True) if was_replaced else folders.delete(tmp_path / "out")
    folders.recover(tmp_path / "out")
    folders.discard_scratch([*tmp_path.glob(".out.writing-*"), *tmp_path.glob(".out.old-*")])
    assert names(tmp_path) == (["out"] if was_replaced else [])


def test_a_link_to_a_folder_is_deleted_without_its_content(tmp_path: Path) -> None:
    """The link would stay under another name, and the folder look deleted."""
    write(tmp_path / "elsewhere")
    (tmp_path / "out").symlink_to("elsewhere")
    assert folders.discard(tmp_path / "out")
    assert names(tmp_path) == ["elsewhere"]


def test_a_new_folder_keeps_what_another_one_with_a_longer_name_has_set_aside(tmp_path: Path) -> None:
    """The only copy of the folder out.writing-2, if its replacement was killed between two renames, would be deleted."""
    aside = tmp_path / ".out.writing-2.old-12345678"
    aside.mkdir()
    (aside / "rows").write_text("1")
    with folders.new_folder(tmp_path / "out", False, "test") as scratch:
        (scratch / "rows").write_text("2")
    assert (aside / "rows").is_file()


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    """From step 100,000,000 on, each new checkpoint would be deleted as the oldest, and an older one resumed."""
    steps = [7, 99_999_999, 100_000_000]
    for step in steps:
        (tmp_path / f"checkpoints/step-{step:08d}").mkdir(parents=True)
    assert [int(path.name.removeprefix("step-")) for path in folders.checkpoints(tmp_path)] == steps
