"""Training of a tree member: from the features of prepared data to a folder with a booster, which predict.py loads.

Training stops early by `config.metric` on the validation split, by default the task's metric. The folder contains

    model.ubj | .txt | .cbm | .safetensors  config.json  metrics.jsonl  importance.json | .png  summary.json  manifest.json
    known.json              the values of the training rows (unknown.py)
    target_encoding.json    the codes of features with many categories (target_encoding.py)
    newest/                 with refit=true and a split blend: a second member, also trained on blend, for later splits

On data for cross-validation (ensemble/data/cross_validation.py) a copy is trained on each fold (copies.py). The folder then
contains model.0.ubj, model.1.ubj …, whose mean predicts new rows, out_of_fold.parquet, the predictions of held-out rows, and
permutation.json, the importance of features by permutation, if it is computed (permutation.py); not importance.png.

Each of several ranks trains on its shard of the training rows. All ranks end with the same trees, and rank 0 writes the
folder. Checksums are compared before a model is read: XGBoost and LightGBM abort the process if it is damaged.
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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ensemble import configuration, folders
from ensemble.commands import imports
from ensemble.data import inputs, out_of_fold
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import Failure, UserError
from ensemble.signals import STOP, StopSignals
from ensemble.task import ABSOLUTE_ERROR, task_of
from ensemble.trees import copies, memory, refit, rows, stored, target_encoding, unknown
from ensemble.trees.boosting import CannotLearn, Stopped, Training
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.distributed import LIBRARIES, SINGLE_RANK, RankGroup, RankInfo
from ensemble.trees.objective import ORDER_METRICS, Objective, are_learned, default_min_leaf_weight, objective_of
from ensemble.trees.pictures import bars
from ensemble.trees.predict import library_module, model_files
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import FREE_TO_CHANGE, TreesConfig

KIND = "tree member"
LEAST_FOR_ORDER = 20
"""If the rows for early stopping have fewer of the rarer class, the log loss is the default metric: a metric of the order of
so few rows changes in large steps, and is often best after the first tree."""


def train(config: TreesConfig, resume: str = "", rank_info: RankInfo = SINGLE_RANK, bag: str = "") -> dict[str, Any]:
    """Train a member, write its folder, and return the summary. Call `threads.configure` first.

    resume : '' starts, 'last' resumes from the newest valid checkpoint, 'auto' does so if there is one; both return the
    summary of a member that is finished already. rank_info : this process among those that train together; an exception on
    one of them ends all. bag : the folder of the bag that the member is a copy of. The summary's `status` is done. After
    a signal of `signals.STOP` only `status` (preempted) and `out` are returned.
    """
    with ExitStack() as lock:
        return _train(config, resume, rank_info, bag, lock)


def _train(config: TreesConfig, resume: str, rank_info: RankInfo, bag: str, lock: ExitStack) -> dict[str, Any]:
    """As `train`. No other command may train this member until `lock` is closed."""
    check(config)
    memory.reset_peak()
    began, peak_mb = time.monotonic(), memory.peak()
    library = library_module(config.library)
    checkpoints = Checkpoints(config.out, library.FILE, status_of=bag)
    with StopSignals() as stop, _signals_blocked(), RankGroup(rank_info, config.timeout_s, checkpoints.set_lost) as group:
        manifest = rows.tree_manifest(config.data)
        train_rows = rows.TreeData(config.data, "train", manifest, group.rank, group.num_ranks)
        cv = CrossValidation.from_manifest(manifest)
        stopping = stopping_rows(cv, config.data, train_rows) if cv else rows.TreeData(config.data, "validation", manifest)
        has_default_metric = not config.metric
        config, objective, settings = resolve(config, train_rows, stopping)
        if group.rank == 0 and has_default_metric and objective.metric != objective.task.metric != "accuracy":
            print(
                f"early stopping by {objective.metric}: too few rows of one class for {objective.task.metric}",
                file=sys.stderr,
            )
        _check_fit(config, objective, cv is not None, group)
        state = {
            "fingerprint": manifest["fingerprint"],
            "num_ranks": group.num_ranks,
            "config": settings,
            "scaling": dataclasses.asdict(objective.scaling),
            "memory": "in_core" if cv or config.library not in LIBRARIES else memory_mode(config, manifest, group),
        }
        _check_ranks_agree(group, state)
        start = group.gather(_start(config, resume, checkpoints, state, lock) if group.rank == 0 else None)[0]
        if "summary" in start:
            return {**start["summary"], "status": "done"}
        config = dataclasses.replace(config, memory=start["memory"])
        state["memory"] = config.memory
        is_paged = (config.library, config.memory) == ("xgboost", "low")
        pages: AbstractContextManager[Path | None] = checkpoints.page_folder(group.rank) if is_paged else nullcontext()
        with checkpoints.failure_marked(), pages as page_folder:
            # With a time limit another learning rate may be chosen
            stored_copies = stored.read(config.out, cv.num_folds, state) if cv and not config.max_seconds else {}
            training = Training(
                group=group,
                model=base64.b64decode(start["model"]) if start["model"] else None,
                history=tuple(start["history"]),
                page_folder=page_folder,
                stop_requested=lambda: stop.received,
                seconds_left=lambda: (config.max_seconds or math.inf) - (time.monotonic() - began),
                save_checkpoint=lambda model, history, learning_rate: checkpoints.write(
                    model, {**state, "history": history, "learning_rate": learning_rate}
                ),
                stored_copies=stored_copies,
            )
            try:
                started = dataclasses.replace(config, learning_rate=start["learning_rate"])
                result, newest, learned = _train_models(library, started, objective, train_rows, manifest, training)
            except Stopped:
                if group.rank == 0:
                    checkpoints.set_status("preempted")
                return {"status": "preempted", "out": config.out}
            if group.num_ranks > 1:
                for model in [*result.models, *(newest.models if newest else [])]:
                    _check_same_trees(group, library, model.booster)
    cost = {"peak_memory_mb": round(memory.peak() - peak_mb, 1), "seconds": round(time.monotonic() - began, 1)}
    summary = _summary(config, manifest, objective, result, sum(len(part.whole) for part in learned), group.num_ranks, cost)
    if group.rank == 0:
        with StopSignals(), checkpoints.failure_marked():  # a signal does not end a training that is complete
            write_member(config, library, objective, manifest, result, newest, learned, summary)
        checkpoints.clear()
        stored.clear(config.out)
    return {**summary, "status": "done"}


def _summary(
    config: TreesConfig,
    manifest: dict[str, Any],
    objective: Objective,
    result: copies.TrainingResult,
    num_rows: int,
    num_ranks: int,
    cost: dict[str, float],
) -> dict[str, Any]:
    """The content of summary.json. num_rows : the number of training rows. cost : time and memory of the training."""
    cv = CrossValidation.from_manifest(manifest)
    scalings = [dataclasses.asdict(model.scaling) for model in result.models]
    is_scaled = any(not model.scaling.is_identity for model in result.models)
    scores = result.history[result.best_round - 1] if result.history else {}
    reported = scores if cv or objective.metric not in scores else [objective.metric]
    return {
        "kind": config.library,
        "recipe": manifest["recipe"],
        "fingerprint": manifest["fingerprint"],
        "inputs": inputs.meaning(manifest),
        "rows": num_rows,
        "ranks": num_ranks,
        "objective": objective.loss,
        "target": objective.target,
        "metric": objective.metric,
        "output": objective.output,
        **({} if not is_scaled else {"scalings": scalings} if len(scalings) > 1 else {"scaling": scalings[0]}),
        "candidate" if config.library == "linear" else "trees": result.best_round,
        **({} if result.learning_rate == config.learning_rate else {"learning_rate": result.learning_rate}),
        **({"models": len(result.models)} if cv or len(result.models) > 1 else {}),
        "memory": config.memory,
        **cost,
        **{f"validation_{name}": value for name, value in scores.items() if name in reported},
    }


def _check_fit(config: TreesConfig, objective: Objective, is_cross_validation: bool, group: RankGroup) -> None:
    """Raise `UserError` for settings that do not fit the data or the number of ranks."""
    if objective.kind == "ranking" and group.num_ranks > 1:
        raise UserError(f"objective=ranking keeps the rows of a {objective.task.group} together: train it on one rank")
    if objective.kind == "ranking" and config.refit and not is_cross_validation:
        refit.refuse_common_groups(config, objective.task.group)
    if config.library not in LIBRARIES or is_cross_validation:
        unsupported = f"the folds of {config.data}" if is_cross_validation else f"library={config.library}"
        if group.num_ranks > 1:
            raise UserError(f"{unsupported} cannot be trained by {group.num_ranks} ranks together: use one rank")
        if config.memory == "low":
            raise UserError(f"memory=low does not support {unsupported}: leave memory=low out")


def _train_models(
    library: ModuleType,
    config: TreesConfig,
    objective: Objective,
    train_rows: rows.TreeData,
    manifest: dict[str, Any],
    training: Training,
) -> tuple[copies.TrainingResult, copies.TrainingResult | None, list[rows.TreeData]]:
    """Train a copy on each fold, or one booster. With `config.refit`, boosters trained on validation too replace it.

    Returns the result, a second one of models that also learned blend (or None), and the training rows of the first.
    """
    if cv := CrossValidation.from_manifest(manifest):
        folds = cv.folds(config.data, objective.task.cluster)
        with refusals_explained(config):
            return copies.train(library, config, train_rows, folds, training, cv.scheme == "forward"), None, [train_rows]
    validation = rows.TreeData(config.data, "validation", manifest)
    reserved = config.max_seconds * refit.share_of_time(config)
    first = dataclasses.replace(training, seconds_left=lambda: training.seconds_left() - reserved)
    # With several ranks, an error may come from a rank or a machine that failed, so it is not blamed on the rows
    with nullcontext() if training.group.num_ranks > 1 else refusals_explained(config):
        config = copies.in_time(library, config, train_rows, 1, first.seconds_left())
        booster, history, best_round = copies.train_one(library, config, train_rows, validation, first)
    boosters, learned = [booster], [train_rows]
    if config.refit:
        boosters = list(refit.boosters(library, config, refit.BEFORE_BLEND, best_round, manifest, training))
        learned.append(validation)
    models = [copies.Model(booster=booster, scaling=objective.scaling) for booster in boosters]
    result = copies.TrainingResult(models=models, history=history, best_round=best_round, learning_rate=config.learning_rate)
    newest = refit.on_blend(library, config, result, manifest, training) if config.refit else None
    return result, newest, learned


def stopping_rows(cv: CrossValidation, data: str, train_rows: rows.TreeData) -> rows.TreeData:
    """The training rows on which copies stop early, of all copies."""
    return train_rows.take(np.concatenate([fold.stop for fold in cv.folds(data, train_rows.task.cluster)]))


def resolve(
    config: TreesConfig, train_rows: rows.TreeData, stopping: rows.TreeData | None = None
) -> tuple[TreesConfig, Objective, dict[str, Any]]:
    """The settings with defaults from the task, the objective, and the settings that a resumed training must share.

    stopping : the rows whose score stops the training; None for the training rows. Raises `UserError` for a metric that is
    constant or not defined on them, with which the training would end after the first tree.
    """
    objective, scored = objective_of(config, train_rows), stopping or train_rows
    if not config.metric and objective.output == "probability" and objective.metric in ORDER_METRICS:
        is_positive = scored.column_of_all(objective.target)[are_learned(scored, objective.target)] == 1
        count = min(is_positive.sum(), (~is_positive).sum())
        objective = dataclasses.replace(objective, metric="log_loss") if count < LEAST_FOR_ORDER else objective
    if not config.metric and objective.metric == "accuracy":  # with a frequent class it is constant for the first trees
        objective = dataclasses.replace(objective, metric=copies.LOSS_OF[objective.kind])
    if config.library in LIBRARIES and objective.metric in ORDER_METRICS:
        name = objective.task.target
        is_binary = objective.task.kind == "binary"
        needed, fix = ("both classes", "choose metric=log_loss, or ") if is_binary else ("different relevances", "")
        if len(values := np.unique(scored.column_of_all(name)[are_learned(scored, name)])) == 1:
            raise UserError(
                f"metric={objective.metric} needs {needed} in the rows that stop the training, and all of them have the "
                f"{name} {values[0]:g}: {fix}prepare the data with rows of {needed} in validation"
            )
    config = dataclasses.replace(
        config,
        objective=objective.loss,
        target=objective.target,
        metric=objective.metric,
        min_leaf_weight=config.min_leaf_weight or default_min_leaf_weight(config.library, objective, train_rows),
    )
    return config, objective, configuration.to_dict(config, FREE_TO_CHANGE)


def _start(
    config: TreesConfig, resume: str, checkpoints: Checkpoints, state: dict[str, Any], lock: ExitStack
) -> dict[str, Any]:
    """The model, history, memory mode and learning rate to start with, or the summary of a finished member; `UserError` if
    `out` cannot be written, or if its checkpoints must not be resumed or replaced."""
    folders.refuse_inside(config.out)  # before a folder is created there
    lock.enter_context(checkpoints.locked())
    if resume:
        checkpoints.sweep()
        if not config.overwrite and (summary := _finished_summary(config, state)):
            checkpoints.clear()
            stored.clear(config.out)
            print(f"{config.out} is complete already", file=sys.stderr)
            return {"summary": summary}
    with suppress(_Probed), folders.new_folder(config.out, config.overwrite, KIND):
        raise _Probed  # an `out` that cannot be written is refused before the training
    checkpoint = checkpoints.newest_valid() if resume else None
    if resume == "last" and not checkpoint:
        raise UserError(f"there is no checkpoint to resume from in {checkpoints.folder}: start without --resume")
    if not resume and checkpoints.all() and not config.overwrite:
        raise UserError(
            f"{checkpoints.folder} holds a training that was not finished: add --resume auto to continue it, or "
            "overwrite=true to start again"
        )
    if not checkpoint:
        checkpoints.clear()
        checkpoints.set_status("running")
        return {"model": None, "history": [], "memory": state["memory"], "learning_rate": config.learning_rate}
    model, saved = checkpoint
    check_same_training(checkpoints.folder, saved, state)
    mode = state["memory"]
    if (config.library == "lightgbm" or config.objective == ABSOLUTE_ERROR) and saved["memory"] != mode:
        if config.memory != "auto":
            raise UserError(
                f"{checkpoints.folder} was written with memory={saved['memory']}, and with {config.memory} the trees would "
                "differ: use the previous value, or start again without --resume and with overwrite=true"
            )
        mode = saved["memory"]
    print(f"continuing after {len(saved['history'])} trees", file=sys.stderr)
    if saved["num_ranks"] != state["num_ranks"]:
        print(
            f"the trees so far were trained on {saved['num_ranks']} ranks, the next will be trained on {state['num_ranks']}"
            ": the member will be as good, but not bit-identical",
            file=sys.stderr,
        )
    checkpoints.set_status("running")
    start = {"model": base64.b64encode(model).decode(), "history": saved["history"], "memory": mode}
    return {**start, "learning_rate": saved.get("learning_rate", config.learning_rate)}


def memory_mode(config: TreesConfig, manifest: dict[str, Any], group: RankGroup) -> memory.Mode:
    """The mode of the settings; for auto, low if any rank has less memory than a training in core needs."""
    modes = group.gather(config.memory)
    if len(set(modes)) > 1:
        raise UserError(f"the ranks have different values of memory=: {', '.join(sorted(set(modes)))}: give all the same")
    if config.memory != "auto":
        return config.memory
    needed, available = bytes_needed(config.library, config, manifest, group.num_ranks), memory.available()
    modes = group.gather(memory.mode_for(needed, available))
    if "low" not in modes:
        return "in_core"
    if available is not None and modes[group.rank] == "low":
        print(
            f"memory=low: training in memory may need {needed / 1e6:,.0f} MB, but {available / 1e6:,.0f} MB are available",
            file=sys.stderr,
        )
    return "low"


def bytes_needed(library: str, config: TreesConfig, manifest: dict[str, Any], num_ranks: int = 1) -> int:
    """An upper bound of the memory of one of the ranks for a training in core."""
    task, num_features, num_learned = task_of(manifest), len(manifest["features"]), refit.num_learned(config, manifest)
    num_rows = math.ceil(num_learned / num_ranks) + manifest["splits"]["validation"]["rows"]
    needed = memory.needed(library, num_rows, num_features, max(1, len(task.classes)))
    if library == "lightgbm" and ((config.objective or task.kind) == "ranking" or task.weight):
        needed += 4 * num_learned * num_features  # a copy of the table, sorted by group or without rows of weight 0
    return needed


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in this thread: a signal in it makes LightGBM 4.7 close its network ("Socket recv error")."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def refusals_explained(config: TreesConfig) -> Iterator[None]:
    """Convert exceptions that the library itself raises to `CannotLearn`."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0].lstrip("_") != config.library:
            raise
        reason = " ".join(str(error).split())
        raise CannotLearn(f"{config.library} cannot learn from the rows of {config.data} ({reason}): leave it out") from None


class _Probed(Exception):
    """Ends the test of whether a folder can be written."""


def _finished_summary(config: TreesConfig, state: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of the member at `out`, if it was trained with these settings on these data."""
    try:
        folders.verify(config.out)
        saved = folders.read_json(Path(config.out) / "config.json")
        summary = folders.read_json(Path(config.out) / "summary.json")
    except UserError:
        return None
    is_same = all(saved.get(name) == value for name, value in state["config"].items())
    return summary if is_same and summary["fingerprint"] == state["fingerprint"] else None


def check_same_training(folder: Path, saved: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise `UserError` if a checkpoint with the state `saved` was written with other data or settings."""
    fix = "use those again, or start again without --resume and with overwrite=true"
    if saved["fingerprint"] != state["fingerprint"]:
        raise UserError(f"{folder} was trained on other prepared data: {fix}")
    if saved.get("scaling", dataclasses.asdict(Scaling())) != state["scaling"]:
        raise UserError(f"{folder} was written by a version that learned the target on another scale: {fix}")
    before, now = saved["config"], state["config"]
    changed = [
        f"{name}={before.get(name, 'missing')} (now {value})" for name, value in now.items() if before.get(name) != value
    ]
    if changed:
        raise UserError(f"{folder} was written with {', '.join(changed)}: {fix}")


def _check_ranks_agree(group: RankGroup, state: dict[str, Any]) -> None:
    """Raise `UserError` on every rank if one was started with other data or settings than rank 0."""
    states = group.gather(state)
    for rank, other in enumerate(states):
        if other["fingerprint"] != states[0]["fingerprint"]:
            raise UserError(f"rank {rank} has other data than rank 0: give every node a copy of the same folder")
        for name, value in other["config"].items():
            if value != (first := states[0]["config"][name]):
                raise UserError(f"rank {rank} has {name}={value}, but rank 0 has {first}: use equal settings")


def _check_same_trees(group: RankGroup, library: ModuleType, booster: Any) -> None:
    digests = group.gather(hashlib.sha256(library.to_bytes(booster)).hexdigest())
    if len(set(digests)) > 1:
        raise Failure("the ranks ended with different trees, as machines of different kinds may: use nodes of one kind")


def write_member(
    config: TreesConfig,
    library: ModuleType,
    objective: Objective,
    manifest: dict[str, Any],
    result: copies.TrainingResult,
    newest: copies.TrainingResult | None,
    learned: list[rows.TreeData],
    summary: dict[str, Any],
) -> None:
    """Write the member's folder. learned : the training rows of `result`; those of `newest` are these and blend."""
    with folders.new_folder(config.out, config.overwrite, KIND) as folder:
        _write_models(folder, config, library, result, summary, unknown.describe(objective, learned))
        if newest:
            blend = rows.TreeData(config.data, inputs.BLEND, manifest)
            newest_summary = summary | {"rows": summary["rows"] + len(blend), "models": len(newest.models)}
            if "scalings" in summary:  # `newest` has fewer models if the time ended before the last one
                newest_summary["scalings"] = summary["scalings"][: len(newest.models)]
            seen = unknown.describe(objective, [*learned, blend])
            _write_models(folder / folders.NEWEST, config, library, newest, newest_summary, seen)
            folders.write_manifest(folder / folders.NEWEST, {"kind": KIND})
        gains = Counter[str]()
        for model in result.models:
            gains.update(library.importance(model.booster))
        importance = {name: gain / len(result.models) for name, gain in gains.most_common()}
        folders.write_json(folder / "importance.json", importance)
        if result.out_of_fold is None:
            draw_importance(importance, folder / "importance.png", config.library)
        else:  # the report has the picture
            out_of_fold.write(folder, summary["fingerprint"], result.out_of_fold)
        if result.permutation is not None:
            folders.write_json(folder / "permutation.json", result.permutation)
        with open(folder / "metrics.jsonl", "w", encoding="utf-8") as lines:
            for number, values in enumerate(result.history, start=1):
                lines.write(json.dumps({"kind": "val", "step": number, **values}) + "\n")
        folders.write_manifest(folder, {"kind": KIND})


def _write_models(
    folder: Path,
    config: TreesConfig,
    library: ModuleType,
    result: copies.TrainingResult,
    summary: dict[str, Any],
    seen: dict[str, Any],
) -> None:
    """Write the files from which `predict.TreeMember` predicts."""
    folder.mkdir(exist_ok=True)
    for file, model in zip(model_files(library.FILE, len(result.models)), result.models, strict=True):
        (folder / file).write_bytes(library.to_bytes(model.booster))
    folders.write_json(folder / unknown.FILE, seen)
    if any(model.encoding.codes for model in result.models):
        names = library.feature_names(result.models[0].booster)
        folders.write_json(folder / target_encoding.FILE, [model.encoding.to_dict(names) for model in result.models])
    folders.write_json(folder / "config.json", configuration.to_dict(config))
    folders.write_json(folder / "summary.json", summary)


def draw_importance(importance: dict[str, float], file: Path, title: str) -> None:
    """Draw a bar for each of the twenty features with the largest importance, as a share of the total."""
    total = sum(importance.values()) or 1.0
    top = list(importance.items())[:20][::-1]
    figure = imports.figure_class()(figsize=(7, 6), layout="constrained")
    axes = figure.add_subplot()
    shares = [100 * value / total for _, value in top]
    bars(axes, [name for name, _ in top], shares, f"{title}: importance by feature", color="#3a6ea5")
    axes.set_xlabel("share of the importance, %")
    figure.savefig(file, dpi=120)


def check(config: TreesConfig) -> None:
    """Raise `UserError` for a setting outside of its range."""
    configuration.check(
        config,
        at_least_1="num_rounds num_refits early_stopping_rounds chunk_rounds",
        at_least_0="min_leaf_weight l2 seed checkpoint_s max_seconds",
        learning_rate=(0 < config.learning_rate <= 1, "above 0 and at most 1"),
        max_leaves=(2 <= config.max_leaves <= 131_072, "from 2 to 131072, LightGBM's limit"),
        row_fraction=(0 < config.row_fraction <= 1, "above 0 and at most 1"),
        column_fraction=(0 < config.column_fraction <= 1, "above 0 and at most 1"),
        timeout_s=(0 < config.timeout_s < math.inf, "more than 0, and finite"),
    )
