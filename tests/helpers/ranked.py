"""Ranking files with given scores on data of next_item, for tests that need a member without training one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.data.inputs import FORECAST
from ensemble.recipes.next_item import rankings
from ensemble.recipes.next_item.item_ranks import tie_key

NUM_TOP = 200


def rank_in_loops(
    target: int, others: Sequence[int], score: Mapping[int, float] | Sequence[float], tolerance: float = 0.0
) -> float:
    """The rank of the target among other items by a plain loop; a score within the tolerance of its score is a tie."""
    higher = sum(score[item] > score[target] + tolerance for item in others)
    tied = np.array([item for item in others if abs(score[item] - score[target]) <= tolerance], np.int64)
    return 1 + higher + int((tie_key(tied) < tie_key(np.array([target]))).sum())


def write(folder: Path, data: Path, member: str, score: np.ndarray, fingerprint: str = "", num_top: int = NUM_TOP) -> None:
    """Write the ranking files of a member for validation and test, and for forecast if there are scores for its rows.

    score : (num_rows of validation, test and forecast, num_items), in the order of the rows.
    """
    manifest, item = folders.read_manifest(data), open_table(data / "events")["item"].to_numpy()
    for split in ("validation", "test", FORECAST):
        if not len(score):
            return
        rows = open_table(data / "rows" / split).to_pydict()
        begin, end = np.array(rows["begin"]), np.array(rows["end"])
        here, score = score[: len(begin)].astype(np.float32), score[len(begin) :]
        last = end - (split != FORECAST)
        target = np.zeros(len(last), np.int64) if split == FORECAST else item[last].astype(np.int64)
        for row, (first, stop) in enumerate(zip(begin, last, strict=True)):
            seen = np.setdiff1d(item[first:stop], target[row])
            here[row, seen - 1] = -np.inf
        order = np.argsort(-here, axis=1, kind="stable")[:, :num_top]
        best = np.take_along_axis(here, order, 1)
        shown = np.isfinite(best)
        rank = 1.0 + (here > np.take_along_axis(here, np.maximum(target, 1)[:, None] - 1, 1)).sum(1)
        rank[target == 0] = np.inf
        rankings.write(
            folder / f"{member}.{split}.parquet",
            rankings.Rankings(
                row_id=np.array(rows["row_id"]),
                user=np.array(rows["user"], np.int64),
                target=target,
                length=last - begin,
                rank=rank,
                rank_of_101=np.ones(len(rank)),
                items=np.where(shown, order + 1, 0).astype(np.int32),
                scores=np.where(shown, best, np.where(shown, best, np.inf).min(1, keepdims=True)),
                recipe="next_item",
                split=split,
                member=member,
                fingerprint=fingerprint or manifest["fingerprint"],
                config={"kind": "neural"},
            ),
        )
