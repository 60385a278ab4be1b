"""Prepared data are read only as they were written, and their checksums are read once."""

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scripts_run

from ensemble import folders, verification
from ensemble.arrow import FILE, open_table, write_table
from ensemble.errors import UserError

ROWS = Path("rows/test") / FILE


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose checksums are read; nothing is known from tests before."""
    result: list[str] = []

    def sha256(file: Path) -> str:
        result.append(file.name)
        return folders.sha256(file)

    monkeypatch.setattr(verification, "sha256", sha256)
    monkeypatch.setattr(verification, "KNOWN", {})
    return result


def age(folder: Path) -> None:
    """Date all files back by an hour: files that were just written are not recorded."""
    for file in folder.rglob("*"):
        status = file.stat()
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - 3_600_000_000_000))


def test_a_deleted_folder_is_forgotten(hashed: list[str], prepared_copy: Path, tmp_path: Path) -> None:
    """A service, which prepares each request in a new folder, would need more memory from week to week."""
    folders.read_manifest(shutil.copytree(prepared_copy, tmp_path / "first"))
    age(tmp_path / "first")
    folders.read_manifest(tmp_path / "first")
    assert len(verification.KNOWN) == 1
    shutil.rmtree(tmp_path / "first")
    age(prepared_copy)
    folders.read_manifest(prepared_copy)
    assert [key.split()[0] for key in verification.KNOWN] == [str(prepared_copy)]


def test_permuted_features_are_noticed(prepared_copy: Path) -> None:
    """Members would predict from the values of other rows, with the same fingerprint."""
    folders.read_manifest(prepared_copy)
    folder = prepared_copy / "rows/test"
    table = open_table(folder)
    name = folders.read_manifest(prepared_copy)["features"][0]["name"]
    order = np.random.default_rng(0).permutation(len(table))
    permuted = table.set_column(table.column_names.index(name), table.schema.field(name), table[name].take(order))
    size = (folder / FILE).stat().st_size
    del table
    shutil.rmtree(folder)
    write_table(folder, permuted.combine_chunks())
    if (folder / FILE).stat().st_size == size:
        with pytest.raises(UserError, match=r"rows/test/.* was changed after it was written: run the stage"):
            folders.read_manifest(prepared_copy)
    else:
        with pytest.raises(UserError, match=r"rows/test/.* has \d+ bytes, not \d+"):
            folders.read_manifest(prepared_copy)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_checksums_are_read_once(prepared_copy: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command would read all data, or would not notice later changes."""
    age(prepared_copy)
    manifest = folders.read_manifest(prepared_copy)
    assert len(hashed) == len(manifest["files"])
    for _ in range(2):  # the record is first in this process, then in the file
        folders.read_manifest(prepared_copy)
        monkeypatch.setattr(verification, "KNOWN", {})
    assert len(hashed) == len(manifest["files"])
    os.utime(prepared_copy / ROWS)
    folders.read_manifest(prepared_copy)
    assert hashed[len(manifest["files"]) :] == [FILE], "only what looks changed is read"
    flip(prepared_copy / ROWS)
    for _ in range(2):
        with pytest.raises(UserError, match=f"{prepared_copy / ROWS} was changed after it was written"):
            folders.read_manifest(prepared_copy)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--recipe", "hot_sellers", "out=new"),
        ("train_trees", "library=xgboost", "out=new"),
        ("predict", "member=baselines", "out=new"),
        ("ensemble_predictor", "fit", "predictions=none", "out=new"),
        ("report", "predictions=none", "ensemble=none", "out=new.html"),
    ],
    ids=lambda words: words[0],
)
def test_each_command_reads_all_data_with_verify_full(
    words: tuple[str, ...], prepared_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command would accept verify=full and not read the files, or read all of them always."""
    monkeypatch.chdir(prepared_copy.parent)
    age(prepared_copy)
    folders.read_manifest(prepared_copy)
    before = (prepared_copy / ROWS).stat()
    flip(prepared_copy / ROWS)
    os.utime(prepared_copy / ROWS, ns=(before.st_atime_ns, before.st_mtime_ns))
    start = scripts_run.started if words[0] == "train" else scripts_run.forked
    done = start(*words, "data=prepared", "verify=full")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{'prepared' / ROWS} was changed after it was written" in done.stderr
    if words[0] == "predict":
        assert start(*words, "data=prepared").returncode == 0


def test_only_a_full_check_notices_a_change_that_restores_the_time(prepared_copy: Path) -> None:
    """The documentation states it. If a full check did not notice it either, no check would find a damaged disk."""
    age(prepared_copy)
    folders.read_manifest(prepared_copy)
    before = (prepared_copy / ROWS).stat()
    flip(prepared_copy / ROWS)
    os.utime(prepared_copy / ROWS, ns=(before.st_atime_ns, before.st_mtime_ns))
    folders.read_manifest(prepared_copy)
    with pytest.raises(UserError, match="was changed after it was written"):
        folders.read_manifest(prepared_copy, is_full=True)


def test_what_was_written_this_moment_is_not_recorded(prepared_copy: Path, hashed: list[str]) -> None:
    """A second change within one tick of the clock can keep size and time."""
    now = verification.time.time_ns() + 10**12
    for file in (prepared_copy / "rows/test").iterdir():
        os.utime(file, ns=(now, now))
    folders.read_manifest(prepared_copy)
    first = len(hashed)
    folders.read_manifest(prepared_copy)
    assert set(hashed[first:]) == {file.name for file in (prepared_copy / "rows/test").iterdir()}


def test_a_copied_folder_is_read_once(prepared_copy: Path, hashed: list[str], tmp_path: Path) -> None:
    """A copied record would hide files that were damaged while they were copied."""
    age(prepared_copy)
    manifest = folders.read_manifest(prepared_copy)
    copy = Path(shutil.copytree(prepared_copy, tmp_path / "copy"))
    assert (copy / verification.NAME).exists()
    hashed.clear()
    folders.read_manifest(copy)
    assert len(hashed) == len(manifest["files"])
    hashed.clear()
    folders.read_manifest(copy)
    assert hashed == []


@pytest.mark.parametrize("record", ["", "{", "[]", '{"fingerprint": "x", "files": 3}', "[" * 3000])
def test_a_damaged_record_counts_for_nothing(prepared_copy: Path, hashed: list[str], record: str) -> None:
    """A damaged record would end in a traceback."""
    age(prepared_copy)
    (prepared_copy / verification.NAME).write_text(record)
    manifest = folders.read_manifest(prepared_copy)
    assert len(hashed) == len(manifest["files"])
    assert json.loads((prepared_copy / verification.NAME).read_text())["fingerprint"] == manifest["fingerprint"]


def test_a_folder_that_cannot_be_written(prepared_copy: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that belong to somebody else could not be used, or would be read again and again by one process."""
    age(prepared_copy)
    (prepared_copy / verification.NAME).unlink(missing_ok=True)  # it may have come with the copy
    monkeypatch.setattr(verification.os, "access", lambda *_: False)
    manifest = folders.read_manifest(prepared_copy)
    folders.read_manifest(prepared_copy)
    assert len(hashed) == len(manifest["files"])
    assert not (prepared_copy / verification.NAME).exists()


def test_of_several_readers_one_reads_the_files(prepared_copy: Path, hashed: list[str]) -> None:
    """Eight ranks of a node would each read all data when they start."""
    age(prepared_copy)
    threads = [threading.Thread(target=folders.read_manifest, args=(prepared_copy,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hashed) == len(folders.read_manifest(prepared_copy)["files"])


def test_the_record_is_no_part_of_the_data(prepared_copy: Path) -> None:
    """The record would change the fingerprint of folders that hold prepared data, such as those of forecasts."""
    age(prepared_copy)
    before = folders.read_manifest(prepared_copy)
    (prepared_copy / folders.NAME).unlink()
    content = {name: value for name, value in before.items() if name not in ("files", "fingerprint")}
    leave_out = "folds" if (prepared_copy / "folds").exists() else None
    assert folders.write_manifest(prepared_copy, content, leave_out=leave_out)["fingerprint"] == before["fingerprint"]


def test_an_added_column_of_any_type_is_named() -> None:
    """A column of true and false, added by the user, would end in a traceback of Arrow."""
    table = pa.table({"prediction": [0.5, 0.25]})
    checksums = verification.column_checksums(table)
    verification.refuse_changed_columns("p.parquet", table, checksums, "ensemble")
    for values in ([True, None], pa.array([1, 2], pa.date32()), [[True], []], [{"a": b"1"}, None]):
        added = table.append_column("mine", pa.array(values))
        with pytest.raises(UserError, match=r"^the column 'mine' of p.parquet was changed after the file was written"):
            verification.refuse_changed_columns("p.parquet", added, checksums, "ensemble")
