"""How long training waits for a checkpoint of 10, 100 and 500 million parameters, and how much memory that takes.

Weights and AdamW's two moments in float32. `synchronous` writes files, checksums and syncs before training goes on.
`asynchronous`, which training does, copies the state and writes it in the background. Seconds in the main thread are by the
clock, and CPU seconds of that thread beside them, which other load changes little. `more_mb` is the peak of memory above
that of the training.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.runs import enough, launcher
from benchmarks.timing import ROOT, SCRIPTS, timed
from ensemble import folders

MB_A_MILLION = {"synchronous": 12, "asynchronous": 24}
"""Weights and two moments in float32; and a copy of them."""
RESERVE_MB = 1500
PER_CHECKPOINT_S = 60.0


def checkpoints(millions: Sequence[int], rounds: int) -> dict[str, Any]:
    """For each size and kind: seconds in the main thread and until it is written, and memory."""
    enough(rounds, 2)
    return {"rounds": rounds, **{f"{size} M": _both_kinds(size, rounds, [sys.executable]) for size in millions}}


def checkpoints_sharded(millions: Sequence[int], rounds: int) -> dict[str, Any]:
    """The same for weights sharded over two ranks: seconds and memory of the first."""
    enough(rounds, 2)
    launch = launcher(2, configuration=str(ROOT / "accelerate_configs" / "multi_cpu_sharded.yaml"))
    return {"rounds": rounds, "ranks": 2, **{f"{size} M": _both_kinds(size, rounds, launch) for size in millions}}


def _both_kinds(size: int, rounds: int, launch: Sequence[str | Path]) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    for kind, mb_a_million in MB_A_MILLION.items():
        needed_mb, free_mb = mb_a_million * size + RESERVE_MB, psutil.virtual_memory().available / 1e6
        if needed_mb > free_mb:
            sides[kind] = f"not measured: needs {needed_mb:,} MB, {free_mb:,.0f} MB were available"
        else:
            with tempfile.TemporaryDirectory() as out:
                words = [f"millions={size}", f"rounds={rounds}", f"kind={kind}", f"out={out}"]
                timed([*launch, SCRIPTS / "benchmark.py", "checkpoints-run", *words])
                figures = folders.read_json(Path(out) / "figures.json")
            sides[kind] = {**figures, "share_at_one_a_minute": round(figures["main_thread_s"] / PER_CHECKPOINT_S, 5)}
        print(f"{size} M, {kind}: {sides[kind]}", flush=True)
    return sides
