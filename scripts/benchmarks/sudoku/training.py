"""Networks that solve 6 × 6 and 9 × 9 boards: exact accuracy on orbits without a training puzzle, and CPU seconds.

python scripts/benchmark.py sudoku_demo
python scripts/benchmark.py sudoku_9x9
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runs import Commands
from ensemble import folders

SUDOKU = Commands("sudoku")
DATA = ("side=6", "clues=18", "num_train=1000", "num_validation=500", "num_test=300")
DATA_9X9 = ("side=9", "num_train=20000", "num_validation=300", "num_blend=300", "num_test=2000")
VARIANTS: dict[str, tuple[str, ...]] = {
    "trm": (),
    "hrm": ("recipe.variant=hrm", "recipe.continue_loss=true"),
    "direct": ("recipe.variant=direct", "recipe.segments=1"),
}
"""Settings of scripts/train.py over the preset."""
CANDIDATES = {"starts": "starts", "votes": "symmetries"}
SELECTIONS = {"mean": "mean", "vote": "vote", "first": "first to halt"}
"""Settings of examine.py: which 4 candidates a network has, and how they are combined."""


def sudoku_demo(seeds: int) -> dict[str, Any]:
    """For each variant and seed the scores on test and the CPU seconds; for the first TRM also with several candidates."""
    results: dict[str, Any] = {name: {} for name in VARIANTS}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "prepared"
        SUDOKU.prepare(data, *DATA)
        for name, words in VARIANTS.items():
            for seed in range(seeds if name == "trm" else 1):
                member = Path(scratch) / f"{name}_{seed}"
                usage = SUDOKU.train("sudoku_demo", data, member, f"seed={seed}", *words)
                results[name][str(seed)] = {"cpu_s": usage["cpu_s"], **_scores(member, data)}
                print(f"{name} {seed}: {results[name][str(seed)]}", flush=True)
        joined = {
            f"4 {candidates}, {selection}": _scores(Path(scratch) / "trm_0", data, f"{setting}=4", f"select={select}")
            for setting, candidates in CANDIDATES.items()
            for select, selection in SELECTIONS.items()
        }
    exact = [scores["exact"] for scores in results["trm"].values()]
    return {"settings": list(DATA), **results, "trm_exact_mean": statistics.mean(exact), "joined": joined}


def _scores(member: Path, data: Path, *words: str) -> dict[str, Any]:
    """Exact accuracy with its interval, and the segments that a prediction took."""
    scores = SUDOKU.examine(member, data, *words)
    return {name: scores[name] for name in ("exact", "exact_interval", "calls")}


def sudoku_9x9(folder: str, clues: tuple[int, ...], epochs: int) -> dict[str, Any]:
    """For each number of clues the scores on test, CPU seconds, and the validation scores during training.

    An interrupted training in `folder` continues, by `--resume auto`; a finished one is not repeated. `cpu_s` is the sum.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    results = {}
    for number in clues:
        data, member, spent = (Path(folder) / f"{name}_{number}" for name in ("prepared", "trm", "cpu_s"))
        spent = spent.with_suffix(".json")
        if not data.exists():
            SUDOKU.prepare(data, *DATA_9X9, f"clues={number}")
        cpu_s = folders.read_json(spent)["cpu_s"] if spent.exists() else 0.0
        if not (member / "final").exists():  # which a training writes last
            words = [f"max_epochs={epochs}"] if epochs else []
            cpu_s += SUDOKU.train("sudoku_9x9_cpu", data, member, *words, "--resume", "auto")["cpu_s"]
            folders.write_json(spent, {"cpu_s": cpu_s})
        config, summary = (folders.read_json(member / f"{name}.json") for name in ("config", "summary"))
        lines = [json.loads(line) for line in (member / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        scores = SUDOKU.examine(member, data)
        results[str(number)] = {
            "cpu_s": cpu_s,
            "data": folders.read_manifest(data)["config"],
            **{name: summary[name] for name in ("status", "steps", "best_step")},
            "epochs": config["max_epochs"],
            "settings": config["recipe"],
            "curve": {str(line["step"]): [line["exact"], line["blanks"]] for line in lines if line["kind"] == "val"},
            **{name: scores[name] for name in ("puzzles", "exact", "exact_interval", "blanks", "by_backtracks")},
        }
        print(f"{number} clues: {results[str(number)]}", flush=True)
    return {"clues": results}
