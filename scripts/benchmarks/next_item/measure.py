"""next_item compared with the unmodified public references: training steps, preparing data, ranking; CPU time of one thread.

    python scripts/benchmark.py next_item sasrec=../SASRec.pytorch/python tisasrec=../TiSASRec.pytorch

Both sides work alternately, each in a process of its own (turns.py), on the same generated interactions.

step     : a step on a batch in memory; ours draws one negative for each item, the reference gets negatives with the batch
evaluate : ours gathers the batches and ranks all items new to the user; the reference ranks 101 items, user by user
prepare  : preparing the same file; ours reads, applies the 5-core, sorts, splits and writes with checksums; the reference
           calls data_partition and build_index, or for tisasrec Relation, each user's matrix of intervals. No warm-up
peak_mb  : the peak memory less the memory after the same work on two sequences, or for prepare after the imports
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import command
from benchmarks.next_item import data as next_item_data
from benchmarks.next_item.run import NextItemRun, work_of
from benchmarks.runs import enough, refuse_unknown, shown
from benchmarks.turns import alone, compared, worker
from ensemble.errors import UserError

PARTS: dict[str, dict[str, tuple[str, NextItemRun]]] = {
    "sasrec_step": {
        "movielens, 128 sequences of 200": ("movielens", NextItemRun(max_length=200)),
        "beauty, 128 sequences of 50": ("beauty", NextItemRun()),
    },
    "tisasrec_step": {
        "movielens, 128 sequences of 50": ("movielens", NextItemRun(time_aware=True)),
        "movielens, 32 sequences of 200": ("movielens", NextItemRun(time_aware=True, num_sequences=32, max_length=200)),
    },
    "evaluate": {
        "sasrec, 200 items": ("movielens", NextItemRun(work="evaluate", num_sequences=512, max_length=200)),
        "tisasrec, 50 items": ("movielens", NextItemRun(work="evaluate", time_aware=True, num_sequences=256)),
    },
    "prepare": {
        "sasrec": ("movielens", NextItemRun(work="prepare", max_length=200)),
        "tisasrec, 50 items": ("movielens", NextItemRun(work="prepare", time_aware=True)),
        "tisasrec, 200 items": ("movielens", NextItemRun(work="prepare", time_aware=True, max_length=200)),
    },
}
"""The data and the work of each comparison. `num_sequences` is the number of sequences of a batch, or of users."""
NUM_USERS = 6040
SETS = {
    "movielens": (next_item_data.movielens_lengths, NUM_USERS, 3416),
    "beauty": (next_item_data.beauty_lengths, 22363, 12101),
}
"""For each generated set, the function that draws the lengths of sequences, the number of users and the number of items."""


@command
def next_item(
    rounds: int = 10, sasrec: str = "", tisasrec: str = "", parts: tuple[str, ...] = (), num_users: int = NUM_USERS
) -> dict[str, Any]:
    """next_item and the public references, in CPU seconds of one thread and peak memory; ten minutes.

    rounds : measurements of this project, each between two of the reference; at least 2. Preparations have a fifth as many
    sasrec : the folder of model.py and utils.py in a checkout of pmixer/SASRec.pytorch; empty measures this project alone
    tisasrec : the same for pmixer/TiSASRec.pytorch
    parts : the parts to measure, of sasrec_step, tisasrec_step, evaluate and prepare; empty for all
    num_users : users of the generated set movielens, by default as many as in MovieLens 1M; other sizes are in proportion
    """
    enough(rounds, 2)
    refuse_unknown("parts", parts, PARTS)
    references = {"sasrec": sasrec, "tisasrec": tisasrec}
    for name, folder in references.items():
        if folder and not all((Path(folder) / file).is_file() for file in ("model.py", "utils.py")):
            raise UserError(f"{name}={folder} holds no model.py and utils.py: name their folder in the reference's checkout")
    share = num_users / NUM_USERS
    results: dict[str, Any] = {"threads": 1}
    with tempfile.TemporaryDirectory() as scratch:
        results["data"] = {
            name: generate(Path(scratch) / name, share)
            for name in sorted({data for part in parts or PARTS for data, _ in PARTS[part].values()})
        }
        for part in parts or PARTS:
            results[part] = {}
            for name, (data, run) in PARTS[part].items():
                folder = references["tisasrec" if run.time_aware else "sasrec"]
                run = run._replace(num_sequences=max(2, round(share * run.num_sequences)))
                results[part][name] = shown(f"{part}, {name}", _measure(Path(scratch) / data, run, rounds, folder))
    return results


def generate(folder: Path, share: float) -> dict[str, int]:
    """Write the set of `SETS` that the folder is named after, with a share of its users and items; returns its size."""
    generator = np.random.default_rng(0)
    draw, num_users, num_items = SETS[folder.name]
    lengths = draw(round(share * num_users), generator)
    next_item_data.write(folder, lengths, round(share * num_items), generator)
    return {"users": len(lengths), "items": round(share * num_items), "interactions": int(lengths.sum())}


def _measure(folder: Path, run: NextItemRun, rounds: int, reference: str) -> dict[str, Any]:
    """The result of `compared`, or without a reference of `alone`."""
    is_preparation = run.work == "prepare"
    rounds = max(2, rounds // 5) if is_preparation else rounds
    with worker(work_of, *run, folder=folder) as ours:
        if not reference:
            return {"ours": alone(ours, rounds)}
        reference_run = run._replace(side="reference")
        with worker(work_of, *reference_run, folder=folder, modules=str(Path(reference).resolve())) as theirs:
            return compared(theirs, ours, rounds, warm_up=not is_preparation)
