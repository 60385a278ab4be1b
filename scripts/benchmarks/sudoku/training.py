"""Networks that solve 6 × 6 and 9 × 9 boards: exact accuracy on orbits that no training has, and CPU seconds."""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.sudoku.running import PRESET, PRESETS, examined, prepare, train
from ensemble import folders

DATA = ("side=6", "clues=18", "num_train=1000", "num_validation=500", "num_test=300")
NINE = ("side=9", "num_train=20000", "num_validation=300", "num_blend=300", "num_test=2000")
VARIANTS: dict[str, tuple[str, ...]] = {
    "trm": (),
    "hrm": ("recipe.variant=hrm", "recipe.continue_loss=true"),
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


def measured(seeds: int) -> dict[str, Any]:
    """By variant and seed the scores of the test puzzles and the CPU seconds; of the first TRM also joined candidates."""
    found: dict[str, Any] = {name: {} for name in VARIANTS}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "prepared"
        prepare(data, *DATA)
        for name, words in VARIANTS.items():
            for seed in range(seeds if name == "trm" else 1):
                member = Path(scratch) / f"{name}_{seed}"
                used = train(PRESET, data, member, f"seed={seed}", *words)
                found[name][str(seed)] = {"cpu_s": used["cpu_s"], **_scores(member, data)}
                print(f"{name} {seed}: {found[name][str(seed)]}", flush=True)
        joined = {name: _scores(Path(scratch) / "trm_0", data, *words) for name, words in JOINED.items()}
    exact = [of_seed["exact"] for of_seed in found["trm"].values()]
    return {"settings": list(DATA), **found, "trm_exact_mean": statistics.mean(exact), "joined": joined}


def _scores(member: Path, data: Path, *words: str) -> dict[str, Any]:
    """Exact accuracy with its interval, and the segments that a prediction took."""
    scores = examined(member, data, *words)
    return {name: scores[name] for name in ("exact", "exact_interval", "calls")}


def nine(folder: Path, clues: tuple[int, ...], epochs: int) -> dict[str, Any]:
    """By number of clues the scores of the test puzzles, CPU seconds, and scores of validation puzzles during training.

    A training in `folder` that was cut off goes on, by `--resume auto`, and one that is done is not repeated; `cpu_s` adds
    up.
    """
    found = {}
    for number in clues:
        data, member, spent = folder / f"prepared_{number}", folder / f"trm_{number}", folder / f"cpu_s_{number}.json"
        if not data.exists():
            prepare(data, *NINE, f"clues={number}")
        cpu_s = folders.read_json(spent)["cpu_s"] if spent.exists() else 0.0
        if not (member / "final").exists():  # that a training writes as its last
            words = [f"max_epochs={epochs}"] if epochs else []
            cpu_s += train(PRESETS / "sudoku_9x9_cpu.yaml", data, member, *words, "--resume", "auto")["cpu_s"]
            folders.write_json(spent, {"cpu_s": cpu_s})
        config = folders.read_json(member / "config.json")
        summary = folders.read_json(member / "summary.json")
        lines = [json.loads(line) for line in (member / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        scores = examined(member, data)
        found[str(number)] = {
            "cpu_s": cpu_s,
            "data": folders.read_manifest(data)["config"],
            **{name: summary[name] for name in ("status", "steps", "best_step")},
            "epochs": config["max_epochs"],
            "settings": config["recipe"],
            "curve": {str(line["step"]): [line["exact"], line["blanks"]] for line in lines if line["kind"] == "val"},
            **{name: scores[name] for name in ("puzzles", "exact", "exact_interval", "blanks", "by_backtracks")},
        }
        print(f"{number} clues: {found[str(number)]}", flush=True)
    return {"clues": found}
