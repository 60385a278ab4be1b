"""Arrow folders: what is written is what `datasets` and our own gather read, however the file is cut in chunks."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble.arrow import FILE, Column, TableWriter, open_table, ranges
from ensemble.errors import UserError

TOKENS = pa.list_(pa.uint16(), 3)
SCHEMA = pa.schema({"number": pa.int64(), "share": pa.float32(), "tokens": TOKENS, "title": pa.large_string()})


def some_rows(begin: int, num: int) -> pa.Table:
    number = np.arange(begin, begin + num)
    tokens = pa.FixedSizeListArray.from_arrays(pa.array((number[:, None] * 3 + np.arange(3)).ravel(), pa.uint16()), 3)
    title = [None if n % 5 == 0 else f"title {n}" for n in number]
    columns = {"number": pa.array(number), "share": pa.array(number / 7), "tokens": tokens, "title": pa.array(title)}
    return pa.table(columns).cast(SCHEMA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty rows, written in three blocks and an empty one."""
    with TableWriter(tmp_path / "deep" / "table", SCHEMA) as writer:
        for begin, num in ((0, 8), (8, 0), (8, 1), (9, 11)):
            writer.write(some_rows(begin, num))
        assert writer.num_rows == 20
    return tmp_path / "deep" / "table"


def test_datasets_opens_the_folder(folder: Path) -> None:
    """Prepared data could not be opened with the most widely used library."""
    dataset = datasets.load_from_disk(str(folder))
    assert dataset.to_list() == some_rows(0, 20).to_pylist()
    assert dataset.features.arrow_schema.field("tokens").type == TOKENS
    assert open_table(folder).equals(some_rows(0, 20))
    assert open_table(folder)["number"].num_chunks == 3


def test_datasets_opens_every_prepared_table(prepared: Path) -> None:
    """A table of the prepared folder would not be one that `datasets` can open, or hold other values for it."""
    tables = sorted(file.parent for file in prepared.rglob(FILE))
    names = [str(table.relative_to(prepared)) for table in tables]
    rows = [f"rows/{split}" for split in ("blend", "forecast", "test", "train", "validation")]
    assert names == ["products", "reviews", *rows, "weeks"]
    for table in tables:
        with pa.memory_map(str(table / FILE)) as source:
            written = pa.ipc.open_stream(source).read_all()
        assert written.num_rows > 0
        dataset = datasets.load_from_disk(str(table))
        assert len(dataset) == written.num_rows
        for rows in (slice(0, 100), slice(len(dataset) - 100, len(dataset))):
            np.testing.assert_equal(dataset[rows], written[rows].to_pydict())


def test_an_empty_table_is_a_table(tmp_path: Path) -> None:
    """Data without text, or a split without rows, could not be opened."""
    with TableWriter(tmp_path / "table", SCHEMA):
        pass
    table = open_table(tmp_path / "table")
    assert table.num_rows == 0
    assert Column(table, "number").take(np.empty(0, int)).shape == (0,)
    assert Column(table, "tokens").take(np.empty((0, 4), int)).shape == (0, 4, 3)
    assert len(Column(table, "tokens")) == 0


def test_no_description_of_a_failed_table(tmp_path: Path) -> None:
    """A table whose writing stopped half-way would open as if it were whole."""

    def stop_half_way() -> None:
        with TableWriter(tmp_path / "table", SCHEMA) as writer:
            writer.write(some_rows(0, 5))
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        stop_half_way()
    with pytest.raises(UserError, match="is not valid prepared data"):
        open_table(tmp_path / "table")


@pytest.mark.parametrize("name", [FILE, "state.json", "dataset_info.json"])
@pytest.mark.parametrize("damage", [None, b"", b"null", b"[1]", b"\xff\xfe\x00"])
def test_damage_is_reported_in_one_sentence(folder: Path, name: str, damage: bytes | None) -> None:
    """A damaged or missing file would end in a traceback from inside a library."""
    (folder / name).unlink() if damage is None else (folder / name).write_bytes(damage)
    with pytest.raises(UserError, match=r"table is not valid prepared data \(.*\): prepare it again$"):
        open_table(folder)


def test_a_truncated_table_is_refused(folder: Path) -> None:
    """A file that a full disk has cut would be read as complete."""
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="is not valid prepared data"):
        open_table(folder)


def test_another_schema_is_not_cast_in_silence(tmp_path: Path) -> None:
    """A number that does not fit its column would wrap around."""
    with TableWriter(tmp_path / "table", pa.schema({"small": pa.int8()})) as writer, pytest.raises(pa.ArrowInvalid):
        writer.write(pa.table({"small": [1000]}))


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    shape=st.sampled_from([(0,), (1,), (7,), (3, 4), (2, 0)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_take_is_fancy_indexing(lengths: list[int], shape: tuple[int, ...], seed: int) -> None:
    """A batch would hold other rows than were asked for, as soon as a file has several chunks."""
    begins = np.cumsum([0, *lengths])
    chunks = [some_rows(begin, num) for begin, num in zip(begins, lengths, strict=False)]
    table = pa.concat_tables(chunks)
    num_rows = len(table)
    rows = np.random.default_rng(seed).integers(0, num_rows, shape) if num_rows else np.zeros((0, 2), int)
    for name in ("number", "share", "tokens"):
        column = Column(table, name)
        whole = np.array(table[name].to_pylist(), table[name].type.to_pandas_dtype() if name != "tokens" else np.uint16)
        whole = whole.reshape((num_rows, 3) if name == "tokens" else (num_rows,))
        assert len(column) == num_rows
        np.testing.assert_array_equal(column.all(), whole, strict=True)
        np.testing.assert_array_equal(column.take(rows), whole[rows], strict=True)


def test_take_from_a_slice() -> None:
    """A table that begins in the middle of a chunk would give the chunk's first rows."""
    table = some_rows(0, 10).slice(4, 5)
    assert Column(table, "number").all().tolist() == [4, 5, 6, 7, 8]
    assert Column(table, "tokens").take(np.array([1])).tolist() == [[15, 16, 17]]


def test_a_null_among_floats_is_nan() -> None:
    """A network could not be trained on a feature whose missing values are nulls, although trees can be."""
    table = pa.table({"share": pa.chunked_array([[0.5], [None, 2.0]], pa.float32())})
    taken = Column(table, "share").take(np.array([2, 1, 0]))
    np.testing.assert_array_equal(taken, np.array([2.0, np.nan, 0.5], np.float32), strict=True)


def test_a_column_is_not_copied(folder: Path) -> None:
    """Every member would hold the whole prepared data in memory."""
    table = open_table(folder)
    assert all(not view.flags.owndata for name in ("number", "tokens") for view in Column(table, name).views)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9))))
def test_ranges(spans: list[tuple[int, int]]) -> None:
    """The weeks of a row would be assigned to another row."""
    begin, length = np.array(spans, int).reshape(-1, 2).T
    members, owner = ranges(begin, begin + length)
    expected = [(number, row) for row, (first, count) in enumerate(spans) for number in range(first, first + count)]
    assert list(zip(members.tolist(), owner.tolist(), strict=True)) == expected


def test_a_table_without_permission_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of another user, who has the umask 077, would be called damaged, and would be prepared again."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pa, "memory_map", refuse)
    with pytest.raises(UserError, match=r"table cannot be read .Permission denied.: check its permissions$"):
        open_table(folder)
