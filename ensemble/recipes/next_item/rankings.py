"""Ranking files: predictions of the next item by a member or baseline, MEMBER.SPLIT.parquet.

A ranking file is Parquet, one row per sequence whose next item is predicted:

    row_id        int64     id of the sequence in the prepared data
    user          int64
    target        int64     number of the next item, from 1 on; 0 in the split forecast, where it is unknown
    length        int64     number of events before the target
    rank          float64   rank of the target among all items except those taken before; infinite if the target was taken
                            before or is unknown; items with equal scores are in a random order (see item_ranks.py)
    rank_of_101   float64   rank of the target among itself and 100 sampled items that are not in the sequence, which are
                            the same for each member (see item_ranks.py); only for comparison with published metrics
    items         fixed_size_list<int32>[K]     the best items, best first, without those taken before; 0 if there are fewer
    scores        fixed_size_list<float32>[K]   scores of `items`; the lowest score of the row where the item is 0 (any
                                                finite number if all are 0)

and in its metadata, under the key `ensemble`, a JSON object with `recipe`, `split`, `member`, `fingerprint` (of the prepared
data), `config` and `versions`, as in a prediction file. K is 200, or the number of items if that is smaller.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble.arrow import Column, array
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.predictions import ORIGIN, check_origins, read_checked, refuse_repeated_rows, write_checked
from ensemble.recipes.next_item.item_ranks import NUM_SAMPLED

COLUMNS = {
    "row_id": pa.int64(),
    "user": pa.int64(),
    "target": pa.int64(),
    "length": pa.int64(),
    "rank": pa.float64(),
    "rank_of_101": pa.float64(),
    "items": pa.int32(),
    "scores": pa.float32(),
}
LISTS = ("items", "scores")
"""The columns of fixed-size lists, whose elements have the type in `COLUMNS`."""
DOCUMENT = "ensemble/recipes/next_item/rankings.py"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rankings:
    """The predictions of one member for one split; items and scores are (num_rows, K), other arrays (num_rows,)."""

    row_id: np.ndarray
    user: np.ndarray
    target: np.ndarray
    length: np.ndarray
    rank: np.ndarray
    rank_of_101: np.ndarray
    items: np.ndarray
    scores: np.ndarray
    recipe: str
    split: str
    member: str
    fingerprint: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)


def write(path: str | Path, rankings: Rankings) -> None:
    """Write a ranking file in one rename, with checksums that `read` verifies.

    Raises `UserError` for NaN, infinite values other than `rank`, repeated row ids, and a path that cannot be written.
    """
    path = Path(path)
    _check(rankings, path)
    arrays = {name: array(getattr(rankings, name), kind) for name, kind in COLUMNS.items()}
    metadata = {name: getattr(rankings, name) for name in (*ORIGIN, "config")}
    write_checked(path, "ranking file", pa.table(arrays), metadata)


def read(path: str | Path) -> Rankings:
    """Read and check a ranking file.

    Raises `UserError` if the file is missing or damaged, lacks a column or the metadata, or has a NaN or a repeated row id.
    """
    table, metadata = read_checked(path, "ranking file", COLUMNS, DOCUMENT)
    for name, expected in COLUMNS.items():
        kind = table.schema.field(name).type
        fits = pa.types.is_fixed_size_list(kind) and kind.value_type == expected if name in LISTS else kind == expected
        if not fits or table[name].null_count:
            raise UserError(f"{path}: the column {name} is {kind}, not {expected} without nulls; see {DOCUMENT}")
    arrays: dict[str, Any] = {name: Column(table, name).all() for name in COLUMNS}
    origin = {name: metadata[name] for name in ORIGIN}
    rankings = Rankings(**arrays, **origin, config=metadata.get("config", {}))
    _check(rankings, Path(path))
    return rankings


def read_together(paths: Sequence[str | Path]) -> list[Rankings]:
    """Read ranking files of several members for the same split of the same data, with rows sorted by row id.

    Raises `UserError` as `read` does, and if `paths` is empty, two files differ in fingerprint, split, rows, users, targets
    or lengths, or two members share a name.
    """
    if not paths:
        raise UserError("there is no ranking file to read: write some with scripts/predict.py")
    members = [sorted_by_row(read(path)) for path in paths]
    check_origins(members)
    first = members[0]
    for member in members[1:]:
        for name in ("row_id", "user", "target", "length"):
            if not np.array_equal(getattr(member, name), getattr(first, name)):
                difference = "other rows" if name == "row_id" else f"another {name}"
                raise UserError(
                    f"member {member.member} has {difference} than {first.member}: predict again with both on the same split"
                )
    return members


def check_items(rankings: Rankings, num_items: int) -> None:
    """Raise `UserError` if a row has an item or target that is none of the `num_items` of the data, or an item twice."""
    items = np.sort(rankings.items, axis=1)
    if (unknown := max(int(items[:, -1].max()), int(rankings.target.max()))) > num_items:
        raise UserError(
            f"{rankings.member} ranks the item {unknown} for {rankings.split}, but the data have {num_items:,} items, "
            "numbered from 1 on: predict again with this data"
        )
    row, column = np.nonzero((items[:, 1:] == items[:, :-1]) & (items[:, 1:] > 0))
    if len(row):
        raise UserError(
            f"{rankings.member} ranks the item {items[row[0], column[0]]} twice in row {rankings.row_id[row[0]]} of "
            f"{rankings.split}: write each item of a row once; see {DOCUMENT}"
        )


def sorted_by_row(rankings: Rankings) -> Rankings:
    """The same rankings, sorted by row id."""
    order = np.argsort(rankings.row_id, kind="stable")
    columns = {name: getattr(rankings, name)[order] for name in COLUMNS}
    return dataclasses.replace(rankings, **columns)


def _check(rankings: Rankings, path: Path) -> None:
    lengths = {name: len(getattr(rankings, name)) for name in COLUMNS}
    if len(set(lengths.values())) > 1 or rankings.items.shape != rankings.scores.shape or rankings.items.ndim != 2:
        raise UserError(f"{path}: the columns have different lengths: {lengths}")
    row_id = rankings.row_id
    if row_id.size == 0:
        raise UserError(f"{path} has no rows: check the split '{rankings.split}'")
    least_target = int(rankings.split != FORECAST)
    for name, least in (("rank", 1), ("rank_of_101", 1), ("scores", -np.inf), ("items", 0), ("target", least_target)):
        values = getattr(rankings, name).reshape(len(row_id), -1)
        is_valid = (values >= least) & (np.isfinite(values) | (name == "rank"))
        bad = np.flatnonzero(~is_valid.all(axis=1))
        if bad.size:
            defect = f"values of {name} that are NaN{'' if name == 'rank' else ', infinite'} or below {least}"
            fix = f"first row {row_id[bad[0]]}: check the member's training log"
            raise UserError(f"{path}: {bad.size} of {len(row_id)} rows have {defect}, {fix}")
    if rankings.rank_of_101.max() > NUM_SAMPLED + 1:
        raise UserError(f"{path}: a rank among {NUM_SAMPLED + 1} items is {rankings.rank_of_101.max():g}: predict again")
    refuse_repeated_rows(path, row_id)
