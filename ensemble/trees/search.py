"""Settings of a tree member, searched by Optuna: a trial trains with some, and is scored on validation.

    python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/search search.trials=50
    python scripts/train_trees.py --config runs/demo/search/best.yaml data=runs/demo/prepared out=runs/demo/members/tuned

Any number of tasks share a search by the same `out` and --resume auto (trials.py says how). Each that ends writes what came
of it so far: best.yaml, trials.csv and search.png.

The first trial has the settings that were given, so the best is never worse than those on validation. It is chosen there
among many, though, by luck as well as by worth: only blend and test show what is left of the gain.
"""

import csv
import dataclasses
import io
import math
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ensemble import configuration, folders
from ensemble.errors import UserError
from ensemble.metrics import METRIC_OF
from ensemble.signals import StopSignals
from ensemble.trees import boosting, rows
from ensemble.trees import train as member
from ensemble.trees.boosting import Scores, Stopped, Training
from ensemble.trees.distributed import ALONE, Place, RankGroup
from ensemble.trees.objective import goal_of
from ensemble.trees.predict import module_of
from ensemble.trees.settings import FREE_TO_CHANGE, TreesConfig
from ensemble.trees.trials import JOURNAL, Ended, Range, Trial, Trials

FIRST_RUNG = 1.0
"""Trials are compared when their trees times their learning rate reach this, and whenever that has doubled: so a slow
learner is held against a fast one when both have come as far."""
RANGES = {
    "learning_rate": Range(0.01, 0.3, True),
    "max_leaves": Range(4, 256, True),
    "min_leaf_weight": Range(0.1, 100.0, True),
    "row_fraction": Range(0.4, 1.0, False),
    "column_fraction": Range(0.2, 1.0, False),
    "l2": Range(0.01, 100.0, True),
}
"""Slower than 0.01, and `num_rounds` ends the training first; faster than 0.3 is coarse. 4 leaves still join two features,
256 are more than early stopping lets rows of this kind use. In a binary task a row weighs p (1 − p), about 0.05 where one in
twenty is hot: 0.1 is two rows in a leaf, 100 are 2,000. With less than these parts of the rows or features, a tree seldom
sees what it is to learn."""
NUM_SHOWN, NUM_TELLING = 10, 20
"""Trials in the table, and those that it takes to say which settings mattered."""


def search(config: TreesConfig, resume: str = "", where: Place = ALONE) -> dict[str, Any]:
    """Try settings until the budget is spent, and write what came of it. Call `threads.settle` first.

    Returns `status` (done, or preempted after SIGTERM, SIGINT or SIGUSR1, which give up the trial under way), how many
    `trials` have ended, the `given` and the `best` score, and a `table`. `resume`: '' begins, 'last' joins a search or goes
    on with it, 'auto' does so if there is one. Raises `UserError` for one that is there and is not to be joined, or that
    has other data or settings.
    """
    _check(config, where)
    library = module_of(config.library)
    with StopSignals() as stop, RankGroup() as group:
        about = rows.description(config.data)
        train, validation = rows.TreeData(config.data, "train", about), rows.TreeData(config.data, "validation", about)
        goal = goal_of(config, train)
        config = dataclasses.replace(
            config,
            objective=goal.objective,
            target=goal.target,
            metric=goal.metric,
            memory=member.memory_mode(config, about, group),
        )
        folder = _folder(config, resume)
        bins: list[Any] = []
        with _trials(folder, config, about) as trials:
            with trials.pages() as pages:
                while trial := trials.take(lambda: stop.asked):
                    its = dataclasses.replace(config, **trial.settings)
                    training = Training(pages=pages, asked=lambda: stop.asked, watch=_watch(trial, goal.metric), bins=bins)

                    def work(its: TreesConfig = its, training: Training = training) -> tuple[float, dict[str, Any]]:
                        _, history, best_round = library.train(its, train, validation, training)
                        return _score(history, best_round, goal.metric), {"trees": best_round}

                    try:
                        trials.run(trial, work)
                    except Stopped:
                        break
                bins.clear()  # before the files that they may be in
            summary = write_results(folder, trials, config, about["fingerprint"])
            trials.preempted = bool(stop.asked)
    return {"status": "preempted" if stop.asked else "done", **summary}


def _score(history: list[Scores], best_round: int, metric: str) -> float:
    score = history[best_round - 1][metric]
    if math.isnan(score):
        raise UserError(f"{metric} is not defined on the validation split, so nothing can be searched by it: name another")
    return score


def _watch(trial: Trial, metric: str) -> Callable[[list[Scores]], None]:
    """Reports a trial's best score at each rung that it passes."""
    rung = 0

    def watch(history: list[Scores]) -> None:
        nonlocal rung
        while len(history) * trial.settings["learning_rate"] >= FIRST_RUNG * 2**rung:
            trial.report(_score(history, boosting.best_round(history, metric), metric), rung)
            rung += 1

    return watch


def _trials(folder: Path, config: TreesConfig, about: dict[str, Any]) -> Trials:
    kept = {*FREE_TO_CHANGE, *RANGES}
    fixed = {name: value for name, value in configuration.to_dict(config).items() if name not in kept}
    given = {name: getattr(config, name) for name in RANGES}
    agreed = {
        "data": about["fingerprint"],
        **fixed,
        **given,
        "search.seed": config.search.seed,
        "ranges": {name: list(its) for name, its in RANGES.items()},
    }
    return Trials(folder, config.search, RANGES, given, agreed, METRIC_OF[config.metric].higher_is_better)


def _folder(config: TreesConfig, resume: str) -> Path:
    """The folder of the search, made if it is not there; `UserError` if it must not be used."""
    folder = Path(config.out).resolve()
    found = (folder / JOURNAL).exists()
    if found and not resume and not config.overwrite:
        raise UserError(
            f"{config.out} holds a search: add --resume auto to join it or go on, or overwrite=true to begin anew"
        )
    if resume == "last" and not found:
        raise UserError(f"there is no search to join at {config.out}: start without --resume")
    if found and not resume:
        if foreign := _foreign(folder):
            raise UserError(
                f"{config.out} holds {foreign}, which is no part of a search, so the folder is not replaced: move that file "
                "elsewhere, or choose another folder"
            )
        shutil.rmtree(folder)
    elif not found and folder.exists() and any(file.name not in ("tasks", "claim.lock") for file in folder.iterdir()):
        raise UserError(f"{config.out} holds something that is no search, and is not replaced: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _foreign(folder: Path) -> str | None:
    """The first file in a search's folder that no search wrote."""
    own = {JOURNAL, f"{JOURNAL}.lock", "best.yaml", "trials.csv", "search.png", "claim", "claim.lock"}
    tasks = {f"tasks/{task.name}/status" for task in folder.glob("tasks/*")}
    pages = {str(file.relative_to(folder)) for file in folder.glob(".pages-*/**/*")}
    return folders.foreign(folder, own | tasks | pages)


def write_results(folder: Path, trials: Trials, config: TreesConfig, fingerprint: str) -> dict[str, Any]:
    """best.yaml, trials.csv and search.png of the trials that have ended; what `search` returns of them."""
    ended = trials.ended()
    whole = [trial for trial in ended if not trial.pruned]
    if not whole:
        return {"trials": len(ended), "table": "no trial has ended"}
    sign = 1 if METRIC_OF[config.metric].higher_is_better else -1
    ranking = sorted(whole, key=lambda trial: -sign * trial.score)
    best = ranking[0]
    given = next((trial.score for trial in whole if trial.place == 0), None)
    folders.write_text(folder / "trials.csv", _csv(ended))
    learning = {name: value for name, value in configuration.to_dict(config).items() if name not in FREE_TO_CHANGE}
    said = f"# Trial {best.place} of {len(ended)} on the data {fingerprint}: {config.metric} {best.score:.4f} on validation"
    said += "" if given is None else f", {given:.4f} with the settings given"
    hint = "# Chosen on validation among many, so partly by luck: what is left of the gain shows on blend and test"
    text = yaml.safe_dump({**learning, **best.settings}, sort_keys=False, allow_unicode=True)
    folders.write_text(folder / "best.yaml", f"{said}\n{hint}\n{text}")
    draw(ended, trials.importance() if len(whole) >= NUM_TELLING else {}, folder / "search.png", config)
    return {"trials": len(ended), "given": given, "best": best.score, "table": _table(ranking[:NUM_SHOWN])}


def _csv(ended: list[Ended]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["trial", "pruned", "score", "trees", "seconds", *RANGES])
    for trial in ended:
        facts = [trial.facts.get(name, "") for name in ("trees", "seconds")]
        table.writerow([trial.place, int(trial.pruned), trial.score, *facts, *trial.settings.values()])
    return text.getvalue()


def _table(ranking: list[Ended]) -> str:
    lines = [["trial", "score", "trees", "seconds", *RANGES]]
    for trial in ranking:
        facts = [str(trial.facts["trees"]), f"{trial.facts['seconds']:.1f}"]
        lines.append(
            [str(trial.place), f"{trial.score:.4f}", *facts, *(f"{value:.4g}" for value in trial.settings.values())]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def draw(ended: list[Ended], importance: dict[str, float], file: Path, config: TreesConfig) -> None:
    """The score of each trial with the best so far, and beside it what part of the differences each setting explains."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11 if importance else 6.6, 4.5), layout="constrained")
    left = figure.add_subplot(1, 2 if importance else 1, 1)
    for pruned, face, label in ((False, "#3a6ea5", "trained to its end"), (True, "none", "pruned: the score it had")):
        its = [trial for trial in ended if trial.pruned == pruned]
        left.scatter(
            [trial.place for trial in its],
            [trial.score for trial in its],
            s=22,
            facecolors=face,
            edgecolors="#3a6ea5",
            label=label,
        )
    whole = [trial for trial in ended if not trial.pruned]
    best_of = np.maximum if METRIC_OF[config.metric].higher_is_better else np.minimum
    best = best_of.accumulate([trial.score for trial in whole])
    left.step([trial.place for trial in whole], best, where="post", color="#c0504d", label="best so far")
    left.set_xlabel("trial (0: the settings given)")
    left.set_ylabel(f"{config.metric} on validation")
    left.set_title(f"{config.library}: {len(ended)} trials", pad=24)
    left.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    if importance:
        right = figure.add_subplot(1, 2, 2)
        names = list(importance)[::-1]
        right.barh(names, [100 * importance[name] for name in names], color="#3a6ea5")
        right.set_xlabel("part in what sets the best tenth of them apart, %")
        right.set_title("which settings mattered", pad=24)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    scratch = file.with_name(f".{uuid.uuid4().hex[:8]}-{file.name}")
    figure.savefig(scratch, dpi=120)
    plt.close(figure)
    scratch.rename(file)


def _check(config: TreesConfig, where: Place) -> None:
    member.check(config)
    configuration.check(
        config.search,
        "search.",
        trials=(config.search.trials >= 0, "0 or more"),
        seconds=(config.search.seconds >= 0, "0 or more"),
        seed=(config.search.seed >= 0, "0 or more"),
        lost_after_s=(config.search.lost_after_s > 0, "more than 0"),
        task=("/" not in config.search.task, "a name without a slash"),
    )
    if where.num_ranks > 1:
        raise UserError(
            f"a search is shared by tasks that train alone, not by {where.num_ranks} ranks: start one task a node with the "
            "same `out` and --resume auto, as `sbatch --nodes=1 --array=0-3` does"
        )
