"""Networks that solve 6 × 6 and 9 × 9 boards: the share of test puzzles solved, and CPU seconds.

No test puzzle is a symmetric image of a training puzzle.
"""

import itertools
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.runs import Commands, picture_of, shown
from benchmarks.timing import called
from ensemble import folders
from ensemble.errors import UserError

SUDOKU = Commands("sudoku")
DATA = ("side=6", "clues=18", "num_train=1000", "num_validation=500", "num_test=300")
DATA_9X9 = ("side=9", "num_train=20000", "num_validation=300", "num_blend=300", "num_test=2000")
VARIANTS: dict[str, tuple[str, ...]] = {
    "trm": (),
    "hrm": ("recipe.variant=hrm", "recipe.continue_loss=true"),
    "direct": ("recipe.variant=direct", "recipe.segments=1"),
}
"""Settings of scripts/train.py for each variant, in addition to the preset."""
NUM_TRAININGS = {"prototype": 1, "trm": 3, "hrm": 1, "direct": 1}
CURVE = ("evaluations_per_epoch=2",)
"""Settings of every training of `sudoku_demo`, so that its curve has twice as many points as with the preset."""
LABELS = {
    "trm": ("TRM, one line for each seed", "#1f77b4"),
    "hrm": ("HRM", "#2ca02c"),
    "direct": ("the same modules in one pass", "#d62728"),
    "prototype": ("prototype of HRM, rebuilt", "#7f7f7f"),
}
"""Labels and colours in the picture."""
COLOURS = ("#1f77b4", "#2ca02c", "#d62728", "#7f7f7f", "#9467bd")
CANDIDATES = {"starts": "starts", "votes": "symmetries"}
SELECTIONS = {"mean": "mean", "vote": "vote", "first": "first to halt"}
"""Settings of examine.py that determine the 4 candidates of a network, and how they are combined; with names for results."""


@command
def sudoku_demo(picture: str = "slurm/results/sudoku_demo.png") -> dict[str, Any]:
    """The preset sudoku_demo and the rebuilt research prototype of HRM, trained in turn and tested; 18 CPU minutes.

    The 4 candidates of the first TRM for each test puzzle are also combined in several ways, and scored. A curve is a list
    of pairs: CPU seconds since the start of the process, and the share of validation puzzles solved.

    picture : the file for a picture of the learning curves; empty for none
    """
    from benchmarks.sudoku import prototype

    results: dict[str, Any] = {name: {} for name in NUM_TRAININGS}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "prepared"
        SUDOKU.prepare(data, *DATA)
        for seed in range(max(NUM_TRAININGS.values())):
            for name in [name for name, number in NUM_TRAININGS.items() if seed < number]:
                member = Path(scratch) / f"{name}_{seed}"
                if name == "prototype":
                    trained = called(prototype.train, str(data), seed)
                else:
                    trained = train_one(member, data, seed, name)
                results[name][str(seed)] = shown(f"{name} {seed}", trained)
        joined = {
            f"4 {candidates}, {selection}": _scores(Path(scratch) / "trm_0", data, f"{setting}=4", f"select={select}")
            for setting, candidates in CANDIDATES.items()
            for select, selection in SELECTIONS.items()
        }
    if picture:
        curves = [
            (label, colour, [list(values) for values in zip(*trained["curve"], strict=True)])
            for name, (label, colour) in LABELS.items()
            for trained in results[name].values()
        ]
        draw(curves, "CPU seconds; evaluations are included, except those of the prototype", Path(picture))
    return {"settings": list(DATA), **results, "joined": joined}


def train_one(member: Path, data: Path, seed: int, name: str) -> dict[str, Any]:
    """Train and test. A curve has CPU seconds as if the process always had the same share of a core."""
    began = time.time()
    used = SUDOKU.train("sudoku_demo", data, member, f"seed={seed}", *CURVE, *VARIANTS[name])
    share = used["cpu_s"] / used["wall_s"]
    curve = [[round(share * (line["time_s"] - began), 2), line["exact"]] for line in _validation(member)]
    return {"cpu_s": used["cpu_s"], "curve": curve, **_scores(member, data)}


def _validation(member: Path) -> list[dict[str, Any]]:
    """The log line of each evaluation; `exact` is the share of validation puzzles solved, `time_s` the time of day."""
    lines = (member / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "val"]


def _scores(member: Path, data: Path, *words: str) -> dict[str, Any]:
    """Exact accuracy with its interval, and `calls`: the mean number of segments of all candidates of a puzzle together."""
    scores = SUDOKU.examine(member, data, *words)
    return {name: scores[name] for name in ("exact", "exact_interval", "calls")}


Curve = tuple[str, str, list[list[float]]]
"""Label, colour, and the values of both axes."""


def draw(curves: Sequence[Curve], x_label: str, file: Path) -> None:
    """Draw learning curves; those with the same label have one entry in the legend."""
    with picture_of(file, (7, 4)) as axes:
        labelled: set[str] = set()
        for label, colour, (cost, solved) in curves:
            axes.plot(
                cost, solved, "o-", color=colour, markersize=3, linewidth=1, label=None if label in labelled else label
            )
            labelled.add(label)
        axes.set_xlabel(x_label)
        axes.set_ylabel("validation puzzles solved")
        axes.set_ylim(-0.03, 1.03)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="best")


def curves_9x9(results: dict[str, Any]) -> list[Curve]:
    """The learning curves of `sudoku_9x9`, as if all steps of a training took the same CPU time."""
    curves = []
    for colour, (number, trained) in zip(itertools.cycle(COLOURS), results.items(), strict=False):
        minutes = [int(step) / trained["steps"] * trained["cpu_s"] / 60 for step in trained["curve"]]
        curves.append((f"{number} clues", colour, [minutes, [exact for exact, _ in trained["curve"].values()]]))
    return curves


@command
def sudoku_9x9(
    folder: str = "runs/sudoku_9x9",
    clues: tuple[int, ...] = (45, 36, 30),
    training: tuple[str, ...] = (),
    picture: str = "slurm/results/sudoku_9x9.png",
) -> dict[str, Any]:
    """The preset sudoku_9x9_cpu, trained and tested for several numbers of clues, on one thread.

    An interrupted training in `folder` continues, by `--resume auto`; a finished training is not repeated, and with other
    settings it is refused. `cpu_s` is the sum over the parts of a training.

    folder : for data and trainings
    clues : numbers of given digits of a puzzle, one training for each
    training : settings of scripts/train.py in addition to the preset, such as [max_epochs=4]
    picture : the file for a picture of the learning curves; empty for none
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    results = {}
    for number in clues:
        data, member = (Path(folder) / f"{name}_{number}" for name in ("prepared", "trm"))
        spent = Path(folder) / f"cpu_s_{number}.json"
        if not data.exists():
            SUDOKU.prepare(data, *DATA_9X9, f"clues={number}")
        earlier = folders.read_json(spent) if spent.exists() else {}
        cpu_s, used = earlier.get("cpu_s", 0.0), earlier.get("training", list(training))
        if not (member / "final").exists():  # which a training writes last
            cpu_s -= sum(os.times()[2:4])  # user and system time of the processes that have ended
            try:
                SUDOKU.train("sudoku_9x9_cpu", data, member, *training, "--resume", "auto")
            finally:  # also of a part that is interrupted
                cpu_s += sum(os.times()[2:4])
                folders.write_json(spent, {"cpu_s": round(cpu_s, 2), "training": list(training)})
        elif used != list(training):
            raise UserError(f"{member} was trained with training=[{','.join(used)}]: give it again, or another folder=…")
        config, summary = (folders.read_json(member / f"{name}.json") for name in ("config", "summary"))
        scores = SUDOKU.examine(member, data)
        trained = {
            "cpu_s": cpu_s,
            "data": folders.read_manifest(data)["config"],
            **{name: summary[name] for name in ("status", "steps", "best_step")},
            "epochs": config["max_epochs"],
            "settings": config["recipe"],
            "curve": {str(line["step"]): [line["exact"], line["blanks"]] for line in _validation(member)},
            **{name: scores[name] for name in ("puzzles", "exact", "exact_interval", "blanks", "by_backtracks")},
        }
        results[str(number)] = shown(f"{number} clues", trained)
    if picture:
        draw(curves_9x9(results), "CPU minutes", Path(picture))
    return {"clues": results}
