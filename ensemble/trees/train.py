"""A tree member: the features of prepared data to a trained booster in a folder; predict.py asks it.

    python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/members/xgboost

Both libraries train on the same rows, stop early on the validation split by the task's metric, and leave in their folder

    model.ubj | model.txt   config.json  metrics.jsonl  importance.json  importance.png  summary.json  manifest.json
    known.json              the values that training had (unknown.py)
    target_encoding.json    of features with many categories, the number of each category (target_encoding.py)

On data for cross-validation (ensemble/data/cross_validation.py) a copy grows on each fold (copies.py). The folder then has
model.0.ubj, model.1.ubj …, whose mean predicts new rows, out_of_fold.parquet, the predictions of the rows held out, and
permutation.json, the importance of the features by permutation, if that takes no long time.

On several ranks each learns from its shard of the training rows, all end with the same trees, and rank 0 writes the folder.
The manifest's checksums are compared before a model is read: on a damaged one both libraries abort the process.
"""

import base64
import dataclasses
import hashlib
import json
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ensemble import configuration, folders
from ensemble.data import inputs, out_of_fold
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import Failure, UserError
from ensemble.signals import STOP, StopSignals
from ensemble.task import task_of
from ensemble.trees import copies, memory, objective, rows, stored, target_encoding, unknown
from ensemble.trees.boosting import CannotLearn, Stopped, Training
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.distributed import ALONE, Place, RankGroup
from ensemble.trees.pictures import bars
from ensemble.trees.predict import model_files, module_of
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import FREE_TO_CHANGE, TreesConfig

KIND = "tree member"


def train(config: TreesConfig, resume: str = "", where: Place = ALONE) -> dict[str, Any]:
    """Grow a member and write its folder; returns the summary. Call `threads.settle` first.

    `resume`: '' starts, 'last' goes on from the newest sound checkpoint, 'auto' does so if there is one, and leaves a member
    that is whole already as it is. `where` is this process's place among the ranks that grow the trees together; what any
    of them raises ends all. The summary's `status` is done, or preempted after SIGTERM, SIGINT or SIGUSR1.
    """
    check(config)
    began, peak_mb = time.monotonic(), memory.peak()
    library = module_of(config.library)
    checkpoints = Checkpoints(config.out, library.FILE)
    with StopSignals() as stop, _signals_elsewhere(), RankGroup(where, config.timeout_s, checkpoints.set_lost) as group:
        about = rows.description(config.data)
        train_rows = rows.TreeData(config.data, "train", about, group.rank, group.num_ranks)
        config, goal, settings = settled(config, train_rows)
        if goal.objective == "ranking" and group.num_ranks > 1:
            raise UserError(f"objective=ranking keeps the rows of a {goal.task.group} together: train it on one rank")
        state = {"fingerprint": about["fingerprint"], "num_ranks": group.num_ranks, "config": settings}
        state["scaling"] = dataclasses.asdict(goal.scaling)
        cv = CrossValidation.from_manifest(about)
        if config.library == "catboost" and not cv:
            raise UserError(f"library=catboost is for data for cross-validation, and {config.data} has none: take another")
        if cv and group.num_ranks > 1:
            raise UserError(f"{config.data} is for cross-validation, whose copies grow side by side: train it on one rank")
        if cv and config.memory == "low":
            raise UserError(f"memory=low is not for cross-validation, and {config.data} has folds: leave it out")
        state["memory"] = "in_core" if cv else memory_mode(config, about, group)
        _refuse_unlike(group, state)
        start = group.gather(_start(config, resume, checkpoints, state) if group.rank == 0 else None)[0]
        if "summary" in start:
            return {**start["summary"], "status": "done"}
        config = dataclasses.replace(config, memory=start["memory"])
        state["memory"] = config.memory
        with checkpoints.failure_marked(), _pages(config, checkpoints, group.rank) as pages:
            # With a time limit another learning rate may be chosen
            grown_before = stored.read(config.out, cv.num_folds, state) if cv and not config.max_seconds else {}
            training = Training(
                group=group,
                model=base64.b64decode(start["model"]) if start["model"] else None,
                history=tuple(start["history"]),
                pages=pages,
                asked=lambda: stop.asked,
                seconds_left=lambda: (config.max_seconds or math.inf) - (time.monotonic() - began),
                keep=lambda model, history: checkpoints.write(model, {**state, "history": history}),
                stored=grown_before,
            )
            learned = [train_rows]
            try:
                if cv:
                    folds = cv.folds(config.data, goal.task.cluster)
                    with refusals_explained(config):
                        grown = copies.train(library, config, train_rows, folds, training, cv.scheme == "forward")
                else:
                    validation_rows = rows.TreeData(config.data, "validation", about)
                    booster, history, best_round = library.train(config, train_rows, validation_rows, training)
                    if config.refit:
                        shard = rows.TreeData(config.data, "validation", about, group.rank, group.num_ranks)
                        anew = dataclasses.replace(config, num_rounds=best_round)
                        again = Training(group=group, pages=_anew(pages), asked=training.asked, is_refit=True)
                        booster, _, _ = library.train(anew, train_rows.joined(shard), validation_rows, again)
                        learned.append(validation_rows)
                    model = copies.Model(booster=booster, scaling=goal.scaling)
                    grown = copies.Grown(models=[model], history=history, best_round=best_round)
            except Stopped:
                if group.rank == 0:
                    checkpoints.set_status("preempted")
                return {"status": "preempted", "out": config.out}
            for model in grown.models:
                _refuse_parted(group, library, model.booster)
    scalings = [dataclasses.asdict(model.scaling) for model in grown.models if not model.scaling.is_identity]
    scores = grown.history[grown.best_round - 1] if grown.history else {}
    summary = {
        "kind": config.library,
        "recipe": about["recipe"],
        "fingerprint": about["fingerprint"],
        "inputs": inputs.meaning(about),
        "rows": sum(len(part.whole) for part in learned),
        "ranks": group.num_ranks,
        "objective": goal.objective,
        "target": goal.target,
        "metric": goal.metric,
        "output": goal.output,
        **({"scaling": scalings[0]} if len(scalings) == 1 else {"scalings": scalings} if scalings else {}),
        "trees": grown.best_round,
        **({} if grown.learning_rate is None else {"learning_rate": grown.learning_rate}),
        **({"models": len(grown.models)} if cv else {}),
        "memory": config.memory,
        "peak_memory_mb": round(memory.peak() - peak_mb, 1),
        "seconds": round(time.monotonic() - began, 1),
        **{f"validation_{name}": value for name, value in scores.items() if name == goal.metric or cv},
    }
    if group.rank == 0:
        with checkpoints.failure_marked():
            _write(config, library, grown, summary, unknown.learn(goal, learned))
        checkpoints.clear()
        stored.clear(config.out)
    return {**summary, "status": "done"}


def settled(config: TreesConfig, train_rows: rows.TreeData) -> tuple[TreesConfig, objective.Goal, dict[str, Any]]:
    """The settings with those of the data's task in place of the empty ones, the goal, and what must not change later."""
    goal = objective.goal_of(config, train_rows)
    config = dataclasses.replace(config, objective=goal.objective, target=goal.target, metric=goal.metric)
    return config, goal, {key: value for key, value in configuration.to_dict(config).items() if key not in FREE_TO_CHANGE}


def _start(config: TreesConfig, resume: str, checkpoints: Checkpoints, state: dict[str, Any]) -> dict[str, Any]:
    """The model and the history to begin with, or the summary of a member that is whole; `UserError` if it cannot be."""
    if resume:
        checkpoints.sweep()
        if not config.overwrite and (summary := _finished(config, state)):
            checkpoints.clear()
            stored.clear(config.out)
            print(f"{config.out} is whole already", file=sys.stderr)
            return {"summary": summary}
    with suppress(_Probed), folders.new_folder(config.out, config.overwrite, KIND):
        raise _Probed  # what would be refused at the end is refused now
    found = checkpoints.newest_sound() if resume else None
    if resume == "last" and not found:
        raise UserError(f"there is no checkpoint to go on from in {checkpoints.folder}: start without --resume")
    if not resume and checkpoints.found() and not config.overwrite:
        raise UserError(
            f"{checkpoints.folder} holds a training that was not finished: add --resume auto to go on with it, or "
            "overwrite=true to begin anew"
        )
    if not found:
        checkpoints.clear()
        checkpoints.set_status("running")
        return {"model": None, "history": [], "memory": state["memory"]}
    model, its = found
    _refuse_foreign(checkpoints.folder, its, state)
    if config.library == "lightgbm" and its["memory"] != state["memory"]:
        if config.memory != "auto":
            raise UserError(
                f"{checkpoints.folder} was written with memory={its['memory']}, and with {config.memory} LightGBM would bin "
                "otherwise: give it that again, or begin anew without --resume and with overwrite=true"
            )
        state = {**state, "memory": its["memory"]}
    print(f"going on after {len(its['history'])} trees", file=sys.stderr)
    if its["num_ranks"] != state["num_ranks"]:
        print(
            f"they were grown on {its['num_ranks']} ranks, the others will be on {state['num_ranks']}: "
            "the member will be as good, not the same to the bit",
            file=sys.stderr,
        )
    checkpoints.set_status("running")
    return {"model": base64.b64encode(model).decode(), "history": its["history"], "memory": state["memory"]}


def memory_mode(config: TreesConfig, about: dict[str, Any], group: RankGroup) -> memory.Mode:
    """The mode that was asked for; or low, when what training in core needs is not left to each of the ranks."""
    if config.memory != "auto":
        return config.memory
    num_rows_of = {split: facts["rows"] for split, facts in about["splits"].items()}
    num_rows = math.ceil(num_rows_of["train"] / group.num_ranks) + num_rows_of["validation"]
    task, num_features, left = task_of(about), len(about["features"]), memory.left()
    needed = memory.needed(config.library, num_rows, num_features, max(1, len(task.classes)))
    if (config.objective or task.kind) == "ranking" and config.library == "lightgbm":
        needed += 4 * num_rows_of["train"] * num_features  # the table by groups is a copy
    modes = group.gather(memory.mode_for(needed, left))
    if "low" not in modes:
        return "in_core"
    if left is not None and modes[group.rank] == "low":
        print(
            f"memory=low: training in core may take {needed / 1e6:,.0f} MB, {left / 1e6:,.0f} MB are left", file=sys.stderr
        )
    return "low"


def _pages(config: TreesConfig, checkpoints: Checkpoints, rank: int) -> AbstractContextManager[Path | None]:
    return checkpoints.pages(rank) if (config.library, config.memory) == ("xgboost", "low") else nullcontext()


def _anew(pages: Path | None) -> Path | None:
    """A folder for other rows than those whose bins lie in `pages`."""
    if pages is None:
        return None
    (pages / "refit").mkdir()
    return pages / "refit"


@contextmanager
def _signals_elsewhere() -> Iterator[None]:
    """Leave signals to the other threads: LightGBM 4.7 gives its network up when one interrupts it ("Socket recv error")."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def refusals_explained(config: TreesConfig) -> Iterator[None]:
    """Raise `CannotLearn` for an error of the library's own."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0].lstrip("_") != config.library:
            raise
        why = " ".join(str(error).split())
        raise CannotLearn(f"{config.library} cannot learn from the folds of {config.data} ({why}): leave it out") from None


class _Probed(Exception):
    """The folder could be written."""


def _finished(config: TreesConfig, state: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of the member at `out`, if it is one that these settings have grown on these data."""
    try:
        folders.verify(config.out)
        its = folders.read_json(Path(config.out) / "config.json")
        summary = folders.read_json(Path(config.out) / "summary.json")
    except UserError:
        return None
    same = all(its.get(name) == value for name, value in state["config"].items())
    return summary if same and summary["fingerprint"] == state["fingerprint"] else None


def _refuse_foreign(folder: Path, its: dict[str, Any], state: dict[str, Any]) -> None:
    mend = "give it those again, or begin anew without --resume and with overwrite=true"
    if its["fingerprint"] != state["fingerprint"]:
        raise UserError(f"{folder} was trained on other prepared data: {mend}")
    if its.get("scaling", dataclasses.asdict(Scaling())) != state["scaling"]:
        raise UserError(f"{folder} was written by a version that learned the target on another scale: {mend}")
    before, now = its["config"], state["config"]
    changed = [
        f"{name}={before.get(name, 'not there')} (now {value})" for name, value in now.items() if before.get(name) != value
    ]
    if changed:
        raise UserError(f"{folder} was written with {', '.join(changed)}: {mend}")


def _refuse_unlike(group: RankGroup, state: dict[str, Any]) -> None:
    """All ranks must have been started alike; each sees all of them, and says the same."""
    states = group.gather(state)
    for rank, its in enumerate(states):
        if its["fingerprint"] != states[0]["fingerprint"]:
            raise UserError(f"the data of rank {rank} are not those of rank 0: give every node a copy of the same folder")
        for name, value in its["config"].items():
            if value != states[0]["config"][name]:
                raise UserError(f"rank {rank} has {name}={value}, rank 0 {states[0]['config'][name]}: start all ranks alike")


def _refuse_parted(group: RankGroup, library: ModuleType, booster: Any) -> None:
    digests = group.gather(hashlib.sha256(library.to_bytes(booster)).hexdigest())
    if len(set(digests)) > 1:
        raise Failure("the ranks ended with different trees, as machines of different kinds may: use nodes of one kind")


def _write(
    config: TreesConfig, library: ModuleType, grown: copies.Grown, summary: dict[str, Any], known: dict[str, Any]
) -> None:
    with folders.new_folder(config.out, config.overwrite, KIND) as folder:
        names = model_files(library.FILE, len(grown.models))
        gains = Counter[str]()
        for name, model in zip(names, grown.models, strict=True):
            library.save(model.booster, folder / name)
            gains.update(library.importance(model.booster))
        folders.write_json(folder / unknown.FILE, known)
        if any(model.encoding.numbers for model in grown.models):
            names = library.feature_names(grown.models[0].booster)
            folders.write_json(folder / target_encoding.FILE, [model.encoding.to_dict(names) for model in grown.models])
        importance = {name: gain / len(names) for name, gain in sorted(gains.items(), key=lambda item: -item[1])}
        folders.write_json(folder / "importance.json", importance)
        if grown.out_of_fold is None:
            draw_importance(importance, folder / "importance.png", config.library)
        else:  # the report has the picture
            out_of_fold.write(folder, summary["fingerprint"], grown.out_of_fold)
        if grown.permutation is not None:
            folders.write_json(folder / "permutation.json", grown.permutation)
        folders.write_json(folder / "config.json", configuration.to_dict(config))
        with open(folder / "metrics.jsonl", "w", encoding="utf-8") as lines:
            for number, values in enumerate(grown.history, start=1):
                lines.write(json.dumps({"kind": "val", "step": number, **values}) + "\n")
        folders.write_json(folder / "summary.json", summary)
        folders.write_manifest(folder, {"kind": KIND})


def draw_importance(importance: dict[str, float], file: Path, title: str) -> None:
    """A bar for each of the twenty features that gained most, as a part of the whole gain."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    total = sum(importance.values()) or 1.0
    top = list(importance.items())[:20][::-1]
    figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    shares = [100 * gain / total for _, gain in top]
    bars(axes, [name for name, _ in top], shares, f"{title}: what the trees split on", color="#3a6ea5")
    axes.set_xlabel("share of the gain, %")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def check(config: TreesConfig) -> None:
    configuration.check(
        config,
        learning_rate=(0 < config.learning_rate <= 1, "above 0 and at most 1"),
        num_rounds=(config.num_rounds >= 1, "at least 1"),
        early_stopping_rounds=(config.early_stopping_rounds >= 1, "at least 1"),
        max_leaves=(config.max_leaves >= 2, "at least 2"),
        min_leaf_weight=(config.min_leaf_weight >= 0, "0 or more"),
        row_fraction=(0 < config.row_fraction <= 1, "above 0 and at most 1"),
        column_fraction=(0 < config.column_fraction <= 1, "above 0 and at most 1"),
        l2=(config.l2 >= 0, "0 or more"),
        seed=(config.seed >= 0, "0 or more"),
        chunk_rounds=(config.chunk_rounds >= 1, "at least 1"),
        checkpoint_s=(config.checkpoint_s >= 0, "0 or more"),
        timeout_s=(config.timeout_s > 0, "more than 0"),
    )
