"""Ranking files with given scores on data of next_item, for tests that need a member without training one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ensemble import folders
from ensemble.arrow import open_table
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
    """Write the ranking files of a member for validation and test.

    score : (num_rows of validation + num_rows of test, num_items), in the order of the rows.
    """
    manifest, item = folders.read_manifest(data), open_table(data / "events")["item"].to_numpy()
    for split in ("validation", "test"):
        rows = open_table(data / "rows" / split).to_pydict()
        begin, end = np.array(rows["begin"]), np.array(rows["end"])
        here, score = score[: len(begin)].astype(np.float32), score[len(begin) :]
        target = item[end - 1].astype(np.int64)
        for row, (first, last) in enumerate(zip(begin, end, strict=True)):
            seen = np.setdiff1d(item[first : last - 1], target[row])
            here[row, seen - 1] = -np.inf
        order = np.argsort(-here, axis=1, kind="stable")[:, :num_top]
        best = np.take_along_axis(here, order, 1)
        shown = np.isfinite(best)
        rank = 1.0 + (here > np.take_along_axis(here, target[:, None] - 1, 1)).sum(1)
        rankings.write(
            folder / f"{member}.{split}.parquet",
            rankings.Rankings(
                row_id=np.array(rows["row_id"]),
                user=np.array(rows["user"], np.int64),
                target=target,
                length=end - begin - 1,
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
