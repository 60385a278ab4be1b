"""Files that are missing, damaged or of another run: the report is refused with a sentence."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from report_runs import seal, write

from ensemble import folders, predictions
from ensemble.errors import UserError


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cpu.json does not exist"),
        ("{", "cpu.json is damaged"),
        ({"efficiency": {"median": 0.8}}, "cpu.json lacks 'environment'"),
        ({"by_ranks": [{"ranks": 1}]}, "cpu.json lacks 'nodes'"),
        ({"by_ranks": []}, "cpu.json has no measurement in 'by_ranks'"),
    ],
)
def test_refuses_a_measurement_of_another_version(
    run: Path, scaling: list[Path], tmp_path: Path, content: Any, sentence: str
) -> None:
    """The person would see a traceback, or a page without the part."""
    file = tmp_path / "cpu.json"
    if isinstance(content, str):
        file.write_text(content)
    elif content:
        whole = folders.read_json(scaling[0])
        folders.write_json(file, {**whole, **content} if "by_ranks" in content else content)
    with pytest.raises(UserError, match=re.escape(sentence)):
        write(run, tmp_path / "report.html", [file])
    assert not (tmp_path / "report.html").exists()


def test_replaces_an_older_page_whole(run: Path, tmp_path: Path) -> None:
    """A second run would fail, or leave its scratch file behind."""
    out = tmp_path / "deep" / "report.html"
    out.parent.mkdir()
    out.write_text(f"an old page, {folders.MARK}")
    assert write(run, out).endswith("</html>")
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]
    assert write(run, out).endswith("</html>"), "a page has the mark of one"
    out.write_text('{"review": "precious"}')
    with pytest.raises(
        UserError, match=r"report.html exists and this project did not write it, so the report does not replace it"
    ):
        write(run, out)
    assert out.read_text() == '{"review": "precious"}'
    with pytest.raises(UserError, match=r"lies inside .*prepared, which is prepared data"):
        write(run, run / "prepared/report.html")


@pytest.mark.parametrize(
    "lost",
    [
        "ensemble/ensemble.json",
        "ensemble/scores.json",
        "ensemble/forecast.parquet",
        "ensemble/test.parquet",
        "prepared",
        "prepared/rows/test/data-00000-of-00001.arrow",
        "predictions/net.test.parquet",
        "predictions/trees.forecast.parquet",
        "members/net",
        "members/net/summary.json",
        "members/net/config.json",
        "members/trees/metrics.jsonl",
        "members/trees/importance.json",
    ],
)
def test_names_what_is_missing(copy: Path, tmp_path: Path, lost: str) -> None:
    """The person would see a traceback, or a page without the part."""
    path = copy / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    with pytest.raises(UserError, match=re.escape(path.name)) as caught:
        write(copy, tmp_path / "report.html")
    assert re.search("does not exist|is missing|is not at|there is no", str(caught.value))
    if "is not at" in str(caught.value):
        assert str(caught.value).endswith("put it back, or predict with it and fit the ensemble again")
    assert not (tmp_path / "report.html").exists()


def damage_lines(folder: Path) -> str:
    (folder / "members" / "net" / "metrics.jsonl").write_text('{"kind": "val"\n')
    return "metrics.jsonl is damaged"


def damage_parquet(folder: Path) -> str:
    (folder / "ensemble" / "forecast.parquet").write_bytes(b"PAR1 no")
    seal(folder)
    return "forecast.parquet is not a valid Parquet file"


def change_fingerprint(folder: Path) -> str:
    path = folder / "ensemble" / "ensemble.json"
    folders.write_json(path, {**folders.read_json(path), "fingerprint": "0123456789abcdef"})
    seal(folder)
    return "was fitted on data with the fingerprint 0123456789abcdef"


def drop_key(folder: Path) -> str:
    folders.write_json(folder / "ensemble" / "scores.json", {"scores": {}})
    seal(folder)
    return "scores.json lacks 'members'"


def rename_column(folder: Path) -> str:
    path = folder / "ensemble" / "forecast.parquet"
    pq.write_table(pq.read_table(path).rename_columns({"net": "other"}), path)
    seal(folder)
    return "forecast.parquet lacks 'net'"


def edit_ensemble(folder: Path) -> str:
    path = folder / "ensemble" / "ensemble.json"
    path.write_text(path.read_text().replace('"platt"', '"PLATT"').replace('"equal"', '"eQual"'))
    return r"ensemble.json was changed after it was written"


def edit_member(folder: Path) -> str:
    member = folder / "members" / "trees"
    folders.write_manifest(member, {"kind": "tree member"})
    path = member / "config.json"
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8'))
    return r"config.json was changed after it was written"


def train_again(folder: Path) -> str:
    path = folder / "ensemble" / "ensemble.json"
    description = folders.read_json(path)
    description["members"]["trees"]["model"] = "0123456789abcdef"
    folders.write_json(path, description)
    seal(folder)
    file = predictions.read(folder / "predictions" / "trees.test.parquet")
    config = {**file.config, "model": "0123456789abcdef"}
    predictions.write(folder / "predictions" / "trees.test.parquet", dataclasses.replace(file, config=config))
    return r"member trees at .* was trained again after the ensemble was fitted"


def predict_again(folder: Path) -> str:
    path = folder / "predictions" / "trees.test.parquet"
    file = predictions.read(path)
    predictions.write(path, dataclasses.replace(file, config={**file.config, "model": "0123456789abcdef"}))
    return r"predictions has predictions by another model trees than that of the ensemble"


@pytest.mark.parametrize(
    "damage",
    [damage_lines, damage_parquet, change_fingerprint, drop_key, rename_column, edit_ensemble, edit_member, train_again,
     predict_again],
)  # fmt: skip
def test_refuses_what_is_damaged_or_foreign(copy: Path, tmp_path: Path, damage: Callable[[Path], str]) -> None:
    """The page would mix two runs, or the person see a traceback."""
    with pytest.raises(UserError, match=damage(copy)):
        write(copy, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_refuses_a_folder_as_its_file(run: Path, tmp_path: Path) -> None:
    """The person would see the rename's traceback."""
    with pytest.raises(UserError, match="is a folder: name the file"):
        write(run, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write(run, tmp_path / "file" / "report.html")


def test_a_file_without_permission_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of another user, whose umask is 077, would be called damaged, and the advice would be to write it again."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pq, "read_schema", refuse)
    with pytest.raises(UserError, match=r"cannot be read .Permission denied.: check its permissions$"):
        write(run, tmp_path / "report.html")
