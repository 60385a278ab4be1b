"""Copies of prepared data on a node's own disk, and what the command says if it cannot make one."""

import os
import shutil
from pathlib import Path

import flat_data
import pytest

from ensemble import folders
from ensemble.data import staging
from ensemble.errors import UserError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return flat_data.write(tmp_path / "source", {"train": flat_data.columns(20)})


def test_two_commands_may_copy_at_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two jobs on a node would end with an error, although its data are there."""
    out, copyfile = tmp_path / "out", shutil.copyfile

    def copy_after_another_command(file: Path, copy: Path) -> Path:
        monkeypatch.setattr(shutil, "copyfile", copyfile)
        assert staging.stage(source, out)[1]
        return copyfile(file, copy)

    monkeypatch.setattr(shutil, "copyfile", copy_after_another_command)
    num_bytes, copied = staging.stage(source, out)
    assert (copied, folders.verify(out)) == (False, folders.verify(source))
    assert num_bytes == sum(entry["bytes"] for entry in folders.verify(source)["files"].values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_each_refusal_names_what_helps(source: Path, tmp_path: Path) -> None:
    """The command would end with a traceback, advise a setting that it lacks, or advise to copy again, which it refuses."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/a/b cannot be created: Not a directory$"):
        staging.stage(source, tmp_path / "file/a/b")
    with pytest.raises(UserError, match=r"file is a file: choose another folder$"):
        staging.stage(source, tmp_path / "file")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/letter.txt").touch()
    with pytest.raises(UserError, match=r"own holds files that are no copy of prepared data: choose another folder$"):
        staging.stage(source, tmp_path / "own")
    staging.stage(source, tmp_path / "copy")
    (tmp_path / "copy/rows/train/state.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"copy is no complete copy of .*state\.json has 2 bytes.*: choose another folder, or delete"
    ):
        staging.stage(source, tmp_path / "copy")


def test_a_damaged_file_is_named_as_in_the_source(source: Path, tmp_path: Path) -> None:
    """The user would look for a file in the half-written copy, which is deleted."""
    file = source / "rows/train/data-00000-of-00001.arrow"
    times = (10**18, 10**18)
    os.utime(file, ns=times)
    folders.read_manifest(source)  # from now on, a file with this size and time counts as unchanged
    with open(file, "r+b") as stream:
        stream.seek(200)
        stream.write(b"damaged")
    os.utime(file, ns=times)
    with pytest.raises(UserError, match=rf"^the copy of {file} differs from its checksum: prepare the data again, or check"):
        staging.stage(source, tmp_path / "copy")
