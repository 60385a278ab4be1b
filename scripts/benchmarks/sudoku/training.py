"""Networks that solve 6 × 6 boards with 18 clues: exact accuracy on orbits that no training has, and CPU seconds."""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT, SCRIPTS, timed
from ensemble import folders

DATA = ("side=6", "clues=18", "num_train=1000", "num_validation=500", "num_test=300")
PRESET = "ensemble/recipes/sudoku/presets/sudoku_demo.yaml"
VARIANTS: dict[str, tuple[str, ...]] = {
    "trm": (),
    "direct": ("recipe.variant=direct", "recipe.segments=1"),
}
"""The words of scripts/train.py beside the preset."""
JOINED: dict[str, tuple[str, ...]] = {
    "4 starts, mean": ("starts=4", "select=mean"),
    "4 starts, vote": ("starts=4", "select=vote"),
    "4 starts, first to halt": ("starts=4", "select=first"),
    "4 symmetries, mean": ("votes=4", "select=mean"),
    "4 symmetries, vote": ("votes=4", "select=vote"),
    "4 symmetries, first to halt": ("votes=4", "select=first"),
}
"""How the candidates of one network are joined: words of examine.py."""
ONE_THREAD = ("env", "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE")


def measured(seeds: int) -> dict[str, Any]:
    """By variant and seed the scores of the test puzzles and the CPU seconds; of the first TRM also joined candidates."""
    found: dict[str, Any] = {name: {} for name in VARIANTS}
    with tempfile.TemporaryDirectory() as scratch:
        data = f"data={scratch}/prepared"
        _run("prepare_data.py", "--recipe", "sudoku", *DATA, f"out={scratch}/prepared")
        for name, words in VARIANTS.items():
            for seed in range(seeds if name == "trm" else 1):
                member = f"{scratch}/{name}_{seed}"
                chosen = ("--recipe", "sudoku", "--config", str(ROOT / PRESET), f"seed={seed}", data, f"out={member}")
                used = _run("train.py", *chosen, *words)
                found[name][str(seed)] = {"cpu_s": used["cpu_s"], **_examined(member, data)}
                print(f"{name} {seed}: {found[name][str(seed)]}", flush=True)
        joined = {name: _examined(f"{scratch}/trm_0", data, *words) for name, words in JOINED.items()}
    exact = [of_seed["exact"] for of_seed in found["trm"].values()]
    return {"settings": list(DATA), **found, "trm_exact_mean": statistics.mean(exact), "joined": joined}


def _run(script: str, *words: str) -> dict[str, float]:
    return timed([*ONE_THREAD, sys.executable, SCRIPTS / script, *words])


def _examined(member: str, data: str, *words: str) -> dict[str, Any]:
    """Exact accuracy with its interval, and the segments that a prediction took."""
    out = Path(f"{member}.scores")
    examine = [sys.executable, "-m", "ensemble.recipes.sudoku.examine", f"member={member}", data, f"out={out}"]
    timed([*ONE_THREAD, *examine, *words, "overwrite=true"])
    scores = folders.read_json(out / "scores.json")
    return {name: scores[name] for name in ("exact", "exact_interval", "calls")}
