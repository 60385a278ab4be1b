"""A search for the settings of a tree member by Optuna: each trial trains with other settings, and is scored on validation.

Any number of processes, called tasks here and in trials.py, share a search through the same `out` and --resume auto. Each
task that ends writes the results so far: best.yaml, trials.csv and search.png.

The first trial has the given settings, so the best settings are at least as good on validation. They are the best of many
trials, so a part of their gain is chance: only blend and test show the true gain.
"""

import csv
import dataclasses
import io
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ensemble import configuration, folders
from ensemble.commands import imports
from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.signals import StopSignals
from ensemble.trees import boosting, rows
from ensemble.trees import train as member
from ensemble.trees.boosting import Scores, Stopped, Training
from ensemble.trees.distributed import LIBRARIES, SINGLE_RANK, RankGroup, RankInfo
from ensemble.trees.predict import library_module
from ensemble.trees.settings import FREE_TO_CHANGE, TreesConfig
from ensemble.trees.trials import JOURNAL, EndedTrial, Range, Trial, Trials

FIRST_RUNG = 1.0
"""Trials are compared when their number of trees times their learning rate reaches this value, and at each doubling
of it. So trials with a low learning rate are compared after more trees."""
RANGES = {
    "learning_rate": Range(0.01, 0.3, True),
    "max_leaves": Range(4, 256, True),
    "min_leaf_weight": Range(0.1, 100.0, True),
    "row_fraction": Range(0.4, 1.0, False),
    "column_fraction": Range(0.2, 1.0, False),
    "l2": Range(0.01, 100.0, True),
}
"""Below a learning rate of 0.01, `num_rounds` ends the training before early stopping; above 0.3 the steps are coarse. With
4 leaves a tree can still combine two features; 256 leaves are more than is ever best. In a binary task a row has the weight
p (1 − p), about 0.05 if one in twenty rows is positive: then a leaf weight of 0.1 is two rows, and one of 100 is 2,000 rows.
With lower fractions of rows or features, a tree seldom has the informative ones."""
NUM_SHOWN, MIN_FOR_IMPORTANCE = 10, 20
"""The number of trials in the table, and of completed trials that are needed to compute the importance of settings."""


def search(config: TreesConfig, resume: str = "", rank_info: RankInfo = SINGLE_RANK) -> dict[str, Any]:
    """Run trials until the budget is spent, and write the results. Call `threads.configure` first.

    Returns `status` (done, or preempted after a signal of `signals.STOP`, which ends the current trial), the number of ended
    `trials`, a `table`, and if a trial was completed the scores of the `given` and the `best` settings. resume : '' starts,
    'last' joins or resumes a search, 'auto' does so if there is one. Raises `UserError` if `out` contains a search and
    neither `resume` nor `config.overwrite` is set, a search with other data or settings, or a running search that
    `config.overwrite` would replace.
    """
    _check(config, rank_info)
    library = library_module(config.library)
    with StopSignals() as stop, RankGroup() as group:
        manifest = rows.tree_manifest(config.data)
        if "validation" not in manifest["splits"]:
            raise UserError(
                f"{config.data} has no validation split, which search.trials and search.seconds need: leave them out"
            )
        train, validation = rows.TreeData(config.data, "train", manifest), rows.TreeData(config.data, "validation", manifest)
        config, objective, _ = member.resolve(config, train, validation)
        config = dataclasses.replace(config, memory=member.memory_mode(config, manifest, group))
        folder = _search_folder(config, resume)
        bins: list[Any] = []
        with (
            folders.locked(folder, "searching in", folders.LOCK_WAIT_S, shared=True),
            _trials(folder, config, manifest) as trials,
        ):
            with trials.page_folder() as page_folder:

                def work(trial: Trial) -> tuple[float, dict[str, Any]]:
                    training = Training(
                        page_folder=page_folder,
                        stop_requested=lambda: stop.received,
                        on_chunk=_reporter(trial, objective.metric),
                        bins=bins,
                    )
                    trial_config = dataclasses.replace(config, **trial.settings)
                    _, history, best_round = library.train(trial_config, train, validation, training)
                    return _score(history, best_round, objective.metric), {"trees": best_round}

                with suppress(Stopped):
                    while trial := trials.take(lambda: stop.received):
                        trials.run(trial, work)
                bins.clear()  # before the files with the bins are deleted
            summary = write_results(folder, trials, config, manifest["fingerprint"])
            trials.preempted = bool(stop.received)
    return {"status": "preempted" if stop.received else "done", **summary}


def _score(history: list[Scores], best_round: int, metric: str) -> float:
    score = history[best_round - 1][metric]
    if math.isnan(score):
        raise UserError(f"{metric} is not defined on the validation split, so it cannot rank trials: choose another metric")
    return score


def _reporter(trial: Trial, metric: str) -> Callable[[list[Scores]], None]:
    """A function that reports the trial's best score up to each rung that the trial has reached, without later trees."""
    rung = 0

    def report(history: list[Scores]) -> None:
        nonlocal rung
        while (num_trees := math.ceil(FIRST_RUNG * 2**rung / trial.settings["learning_rate"])) <= len(history):
            reached = history[:num_trees]
            trial.report(_score(reached, boosting.best_round(reached, metric), metric), rung)
            rung += 1

    return report


def _trials(folder: Path, config: TreesConfig, manifest: dict[str, Any]) -> Trials:
    fixed = {name: value for name, value in configuration.to_dict(config, FREE_TO_CHANGE).items() if name not in RANGES}
    first = {name: getattr(config, name) for name in RANGES}
    agreed = {
        "data": manifest["fingerprint"],
        **fixed,
        **first,
        "search.seed": config.search.seed,
        "ranges": {name: list(span) for name, span in RANGES.items()},
    }
    return Trials(folder, config.search, RANGES, first, agreed, METRIC_FUNCTIONS[config.metric].higher_is_better)


def _search_folder(config: TreesConfig, resume: str) -> Path:
    """The folder of the search, created if it does not exist; `UserError` if it contains something else."""
    folder = Path(config.out).resolve()
    folders.refuse_inside(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{config.out} cannot be written ({error}): name another out=") from None
    names = {file.name for file in folder.iterdir()}  # at once: other tasks may start now
    has_search = JOURNAL in names
    if has_search and not resume and not config.overwrite:
        fix = "add --resume auto to join or continue it, or overwrite=true to start again"
        raise UserError(f"{config.out} holds a search: {fix}")
    if resume == "last" and not has_search:
        raise UserError(f"there is no search to join at {config.out}: start without --resume")
    if has_search and not resume:
        with folders.locked(folder, "searching in"):
            if foreign := _foreign(folder):
                raise UserError(
                    f"{config.out} holds {foreign}, which no search wrote, so the folder is not replaced: move that file "
                    "elsewhere, or choose another folder"
                )
            shutil.rmtree(folder)
    elif not has_search and names - {"tasks", "claim.lock", *folders.FILES_OF_DESKTOPS}:
        raise UserError(f"{config.out} holds files that no search wrote, and is not replaced: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _foreign(folder: Path) -> str | None:
    """The first file in the folder of a search that no search wrote."""
    own = {JOURNAL, "best.yaml", "trials.csv", "search.png"}
    # To release a lock, Optuna renames its file to NAME.lock… and deletes it
    locks = {file.name for name in (JOURNAL, "claim") for file in folder.glob(f"{name}.lock*")}
    tasks = {f"tasks/{task.name}/status" for task in folder.glob("tasks/*")}
    pages = {str(file.relative_to(folder)) for file in folder.glob(".pages-*/**/*")}
    return folders.foreign(folder, own | locks | tasks | pages)


def write_results(folder: Path, trials: Trials, config: TreesConfig, fingerprint: str) -> dict[str, Any]:
    """Write best.yaml, trials.csv and search.png of the ended trials; return the part of `search`'s result about them."""
    ended = trials.ended()
    completed = [trial for trial in ended if not trial.pruned]
    if not completed:
        return {"trials": len(ended), "table": "no trial was trained to its end"}
    higher_is_better = METRIC_FUNCTIONS[config.metric].higher_is_better
    ranking = sorted(completed, key=lambda trial: trial.score, reverse=higher_is_better)
    best = ranking[0]
    given = next((trial.score for trial in completed if trial.place == 0), None)
    folders.write_text(folder / "trials.csv", _csv(ended))
    origin = f"# Trial {best.place}, the best of {len(ended)}, numbered from 0, on the data {fingerprint}"
    score = f"# {config.metric} on validation: {best.score:.6g}"
    score += "" if given is None else f", {given:.6g} with the given settings"
    hint = "# The best of many trials on validation, so a part of the gain is chance: only blend and test show the true gain"
    settings = {**configuration.to_dict(config, FREE_TO_CHANGE), **best.settings}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    folders.write_text(folder / "best.yaml", f"{origin}\n{score}\n{hint}\n{text}")
    # Where the worst trial is as good as the best tenth, no setting has an importance
    has_importance = len(ranking) >= MIN_FOR_IMPORTANCE and ranking[(len(ranking) - 1) // 10].score != ranking[-1].score
    draw(ended, trials.importance() if has_importance else {}, folder / "search.png", config)
    return {"trials": len(ended), "given": given, "best": best.score, "table": _table(ranking[:NUM_SHOWN])}


def _csv(ended: list[EndedTrial]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["trial", "pruned", "score", "trees", "seconds", *RANGES])
    for trial in ended:
        facts = [trial.facts.get(name, "") for name in ("trees", "seconds")]
        table.writerow([trial.place, int(trial.pruned), trial.score, *facts, *trial.settings.values()])
    return text.getvalue()


def _table(ranking: list[EndedTrial]) -> str:
    lines = [["trial", "score", "trees", "seconds", *RANGES]]
    for trial in ranking:
        facts = [str(trial.place), f"{trial.score:.6g}", str(trial.facts["trees"]), f"{trial.facts['seconds']:.1f}"]
        lines.append([*facts, *(f"{value:.4g}" for value in trial.settings.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def draw(ended: list[EndedTrial], importance: dict[str, float], file: Path, config: TreesConfig) -> None:
    """Draw the score of each trial and the best so far; and, if given, the importance of the settings."""
    figure = imports.figure_class()(figsize=(11 if importance else 6.6, 4.5), layout="constrained")
    left = figure.add_subplot(1, 2 if importance else 1, 1)
    for pruned, face, label in ((False, "#3a6ea5", "trained to its end"), (True, "none", "pruned: best score until then")):
        shown = [trial for trial in ended if trial.pruned == pruned]
        places, scores = [trial.place for trial in shown], [trial.score for trial in shown]
        left.scatter(places, scores, s=22, facecolors=face, edgecolors="#3a6ea5", label=label)
    completed = [trial for trial in ended if not trial.pruned]
    better = np.maximum if METRIC_FUNCTIONS[config.metric].higher_is_better else np.minimum
    best = better.accumulate([trial.score for trial in completed])
    left.step([trial.place for trial in completed], best, where="post", color="#c0504d", label="best so far")
    left.set(xlabel="trial (0: the given settings)", ylabel=f"{config.metric} on validation")
    left.set_title(f"{config.library}: {len(ended)} trials", pad=24)
    left.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    if importance:
        right = figure.add_subplot(1, 2, 2)
        names = list(importance)[::-1]
        right.barh(names, [100 * importance[name] for name in names], color="#3a6ea5")
        right.set_xlabel("importance for being among the best tenth, %")
        right.set_title("importance of the settings", pad=24)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    with folders.replacing(file) as scratch:
        figure.savefig(scratch, format="png", dpi=120)


def _check(config: TreesConfig, rank_info: RankInfo) -> None:
    member.check(config)
    name = config.search.task
    configuration.check(
        config.search,
        "search.",
        at_least_0="trials seconds seed",
        lost_after_s=(0 < config.search.lost_after_s < math.inf, "more than 0, and finite"),
        task=("/" not in name and not name.startswith("."), "a name without / that does not begin with ."),
    )
    if config.max_seconds:
        raise UserError("max_seconds= ends a single training, and this is a search: leave it out, or use search.seconds=")
    if config.library not in LIBRARIES:
        raise UserError(f"a search does not support library={config.library}: choose {' or '.join(LIBRARIES)}")
    if rank_info.num_ranks > 1:
        raise UserError(
            f"a search is shared by independent tasks, not by {rank_info.num_ranks} ranks: start one task per node with "
            "the same `out` and --resume auto, as `sbatch --nodes=1 --array=0-3` does"
        )
