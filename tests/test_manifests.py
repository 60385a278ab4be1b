"""Manifests of folders: the files that they list, their fingerprint, and damage."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ensemble import folders, verification
from ensemble.errors import UserError


def test_the_manifest_lists_every_file(prepared: Path) -> None:
    """A lost or changed file would not be detected."""
    manifest = folders.verify(prepared)
    files = {str(file.relative_to(prepared)) for file in prepared.rglob("*") if file.is_file()}
    assert set(manifest["files"]) == files - {folders.NAME, verification.NAME}
    assert folders.read_manifest(prepared) == manifest
    assert len(manifest["fingerprint"]) == 16
    assert not [file for file in files - {verification.NAME} if Path(file).name.startswith(".")]


@pytest.mark.parametrize("value", [np.ones(2), torch.ones(2), Path("data")])
def test_a_value_that_json_does_not_have_is_named(value: object, tmp_path: Path) -> None:
    """A recipe with an array, a tensor or a path in its manifest would end in a traceback."""
    with pytest.raises(UserError, match=f"a manifest cannot have a {type(value).__name__}, as .*: write numbers, texts"):
        folders.write_manifest(tmp_path, {"mean": value})


def test_every_damaged_file_is_named(prepared_copy: Path) -> None:
    """A flipped bit would go into training, and a truncated or missing file would end in a later traceback."""
    for name in folders.read_manifest(prepared_copy)["files"]:
        file = prepared_copy / name
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        file.write_bytes(flipped)
        for read in (folders.read_manifest, folders.verify):
            with pytest.raises(UserError, match=f"{file} was changed after it was written"):
                read(prepared_copy)
        file.write_bytes(content[:-1])
        for read in (folders.read_manifest, folders.verify):
            with pytest.raises(UserError, match=f"{file} has {len(content) - 1} bytes, not {len(content)}: run"):
                read(prepared_copy)
        file.unlink()
        with pytest.raises(UserError, match=f"{file} is missing, though the manifest lists it"):
            folders.read_manifest(prepared_copy)
        file.write_bytes(content)
    folders.verify(prepared_copy)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", '{"files": {}}', '{"recipe": "x", "fingerprint": "0"}'])
def test_a_damaged_manifest_is_refused(prepared_copy: Path, content: str) -> None:
    """A manifest of another program, or half of one, would end in a KeyError."""
    (prepared_copy / folders.NAME).write_text(content)
    with pytest.raises(UserError, match=r"manifest.json (is damaged|was changed)"):
        folders.read_manifest(prepared_copy)


def test_an_edited_manifest_is_refused(prepared_copy: Path) -> None:
    """A manifest with an edited number would keep the fingerprint of other data."""
    path = prepared_copy / folders.NAME
    manifest = json.loads(path.read_text())
    manifest["config"]["horizon_weeks"] = 4
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="was changed after it was written"):
        folders.read_manifest(prepared_copy)


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/etc/hostname"])
def test_a_manifest_that_lists_a_file_outside_is_refused(name: str, tmp_path: Path) -> None:
    """A manipulated checkpoint would make a command read files outside of its folder."""
    (tmp_path / "secret").write_text("secret")
    with folders.new_folder(tmp_path / "best", False, "checkpoint") as folder:
        (folder / "a").mkdir()
        (folder / "a" / "weights").write_text("secret")
        manifest = folders.write_manifest(folder, {"kind": "checkpoint"})
    manifest["files"][name] = manifest["files"].pop("a/weights")
    manifest["fingerprint"] = folders.fingerprint_of(manifest)
    (tmp_path / "best" / folders.NAME).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=f"manifest.json lists {name}, a file outside of the folder: use another copy"):
        folders.verify(tmp_path / "best")


def test_a_missing_folder_or_manifest(tmp_path: Path) -> None:
    """A wrong path would end in a traceback."""
    with pytest.raises(
        UserError, match=r"no prepared data at .*nowhere: run scripts/prepare_data.py first, or check the path"
    ):
        folders.read_manifest(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"manifest.json does not exist: check the path"):
        folders.read_manifest(tmp_path)


def test_a_folder_of_another_kind_is_no_prepared_data(tmp_path: Path) -> None:
    """data=MEMBER, a slip between two settings, would end in a KeyError."""
    with folders.new_folder(tmp_path / "best", False, "checkpoint") as folder:
        folders.write_manifest(folder, {"kind": "checkpoint"})
    with pytest.raises(
        UserError, match=r"best is of kind 'checkpoint', not prepared data: give a folder that scripts/prepare_data"
    ):
        folders.read_manifest(tmp_path / "best")
    assert folders.verify(tmp_path / "best")["kind"] == "checkpoint"


def test_the_fingerprint_names_the_content(tmp_path: Path) -> None:
    """Members of different data could be joined, or equal data would pass for different."""
    fingerprints = []
    for name, content, about in (("a", "x", 1), ("b", "x", 1), ("c", "y", 1), ("d", "x", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(content)
        fingerprints.append(folders.write_manifest(tmp_path / name, {"about": about})["fingerprint"])
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3
    shutil.move(tmp_path / "a", tmp_path / "elsewhere")
    assert folders.verify(tmp_path / "elsewhere")["fingerprint"] == fingerprints[0]
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "file").write_text("x")
    assert folders.write_manifest(tmp_path / "e", {"about": np.int64(1)})["fingerprint"] == fingerprints[0]
