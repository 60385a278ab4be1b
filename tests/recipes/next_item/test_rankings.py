"""The ranking file: reading returns what was written, and invalid files raise an error."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ensemble.errors import UserError
from ensemble.recipes.next_item import rankings
from ensemble.recipes.next_item.rankings import Rankings

SOUND = Rankings(
    row_id=np.array([7, 3, 5]),
    user=np.array([1, 0, 1], np.int32),
    target=np.array([4, 2, 9], np.int32),
    length=np.array([3, 1, 60]),
    rank=np.array([1, 2.5, np.inf], np.float32),  # the target of the last row was taken before
    rank_of_101=np.array([1, 1.5, 101]),
    items=np.array([[4, 1], [3, 2], [8, 0]], np.int32),
    scores=np.array([[0.5, 0.25], [3, 3], [-2, -2]], np.float32),
    recipe="next_item",
    split="test",
    member="sasrec",
    fingerprint="f00d",
    config={"kind": "neural"},
)
ARRAYS = [field.name for field in dataclasses.fields(Rankings) if field.type is np.ndarray or field.type == "np.ndarray"]


def test_targets_of_a_forecast_are_unknown(tmp_path: Path) -> None:
    """No member could say what follows a user's last event."""
    path = tmp_path / "sasrec.forecast.parquet"
    unknown = dataclasses.replace(SOUND, split="forecast", target=np.zeros(3, int), rank=np.full(3, np.inf))
    rankings.write(path, unknown)
    assert rankings.read(path).target.tolist() == [0, 0, 0]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A column would be read as another, or rounded."""
    rankings.write(tmp_path / "new" / "sasrec.test.parquet", SOUND)
    stored = rankings.read(tmp_path / "new" / "sasrec.test.parquet")
    assert len(ARRAYS) == 8
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(stored, name), getattr(SOUND, name))
    assert (stored.recipe, stored.split, stored.member, stored.fingerprint) == ("next_item", "test", "sasrec", "f00d")
    assert stored.config == {"kind": "neural"}
    kinds = {name: str(pq.read_schema(tmp_path / "new" / "sasrec.test.parquet").field(name).type) for name in ARRAYS}
    assert kinds == {
        "row_id": "int64", "user": "int64", "target": "int64", "length": "int64", "rank": "double", "rank_of_101": "double",
        "items": "fixed_size_list<element: int32>[2]", "scores": "fixed_size_list<element: float>[2]",
    }  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [
    ({"rank": np.array([1, np.nan, 3])}, "1 of 3 rows have values of rank that are NaN or below 1, first row 3"),
    ({"rank": np.array([1, 0.5, 3])}, "rank that are NaN or below 1"),
    ({"rank_of_101": np.array([1, 1, 102.0])}, "a rank among 101 items is 102"),
    ({"scores": np.array([[1, 2], [1, -np.inf], [1, 2]])}, "scores that are NaN, infinite"),
    ({"row_id": np.array([7, 7, 5])}, "row 7 is predicted more than once"),
    ({"target": np.array([0, 2, 3])}, "target that are NaN, infinite or below 1"),
    ({"rank": np.array([1.0, 2.0])}, "the columns have different lengths"),
    ({name: getattr(SOUND, name)[:0] for name in ARRAYS}, "has no rows: check the split"),
], ids=lambda value: value[:30] if isinstance(value, str) else "")  # fmt: skip
def test_what_is_no_ranking_is_not_written(change: dict[str, np.ndarray], sentence: str, tmp_path: Path) -> None:
    """A model that diverged would be in the table, with the best of all ranks, since comparisons with NaN are false."""
    with pytest.raises(UserError, match=re.escape(sentence)):
        rankings.write(tmp_path / "sasrec.test.parquet", dataclasses.replace(SOUND, **change))
    assert not list(tmp_path.iterdir())


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    """An incomplete file, or a prediction file, would be read as a ranking."""
    path = tmp_path / "sasrec.test.parquet"
    with pytest.raises(UserError, match=r"does not exist: write it with scripts/predict\.py"):
        rankings.read(path)
    rankings.write(path, SOUND)
    table = pq.read_table(path)
    edited = table.set_column(0, "row_id", pa.array(SOUND.row_id[::-1]))
    pq.write_table(edited, path)
    with pytest.raises(UserError, match=r"the column 'row_id' of .* was changed after the file was written"):
        rankings.read(path)
    rankings.write(path, SOUND)
    whole = path.read_bytes()
    start = whole.index(b"\x28\xb5\x2f\xfd") + 12  # inside the first compressed page
    flipped = whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :]
    for damaged in (whole[:-20], b"not Parquet at all", flipped):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is not a valid Parquet file"):
            rankings.read(path)
    metadata = {name: value for name, value in json.loads(table.schema.metadata[b"ensemble"]).items() if name != "checksums"}
    table = table.replace_schema_metadata({"ensemble": json.dumps(metadata)})  # as of another program
    pq.write_table(table.drop_columns("rank"), path)
    with pytest.raises(UserError, match="is not a ranking file, it lacks: rank;"):
        rankings.read(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(UserError, match="it lacks: metadata 'recipe'"):
        rankings.read(path)
    pq.write_table(table.set_column(0, "row_id", table["row_id"].cast("string")), path)
    with pytest.raises(UserError, match="the column row_id is string, not int64"):
        rankings.read(path)


def test_files_read_together_have_one_order(tmp_path: Path) -> None:
    """The rank of one sequence would be compared with the rank of another."""
    other = dataclasses.replace(rankings.sorted_by_row(SOUND), member="popularity")
    rankings.write(tmp_path / "a", SOUND)
    rankings.write(tmp_path / "b", other)
    for stored in rankings.read_together([tmp_path / "a", tmp_path / "b"]):
        assert stored.row_id.tolist() == [3, 5, 7]
        assert stored.rank.tolist() == [2.5, np.inf, 1]
        assert stored.items.tolist() == [[3, 2], [8, 0], [4, 1]]


@pytest.mark.parametrize(("change", "sentence"), [
    ({"fingerprint": "beef"}, "member other has fingerprint beef, but sasrec has f00d"),
    ({"split": "validation"}, "member other has split validation"),
    ({"row_id": np.array([7, 3, 6])}, "member other has other rows than sasrec"),
    ({"target": np.array([4, 2, 8])}, "member other has another target than sasrec"),
    ({"member": "sasrec"}, "two members have one name"),
], ids=lambda value: value[:30] if isinstance(value, str) else "")  # fmt: skip
def test_files_that_do_not_fit_are_not_read_together(change: dict[str, object], sentence: str, tmp_path: Path) -> None:
    """Members of other data or splits would be compared."""
    rankings.write(tmp_path / "a", SOUND)
    rankings.write(tmp_path / "b", dataclasses.replace(SOUND, **{"member": "other", **change}))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=re.escape(sentence)):
        rankings.read_together([tmp_path / "a", tmp_path / "b"])
