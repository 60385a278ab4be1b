"""The stages of a fit, one after the other, in the folder `out`:

    fit.json            the settings; --resume auto goes on where they are the same
    prepared/           what the recipe's preparation wrote
    members/NAME/       the members
    predictions/        their prediction files
    ensemble/           weights, scores, forecast
    leaderboard.json    members, their scores, weights, seconds and sizes
    report.html

Tree members are trained and predict in this process; each neural member has processes of its own, since PyTorch and the tree
libraries must not share one. What is whole is not done again with --resume auto.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from ensemble import configuration, folders, recipe
from ensemble.errors import UserError
from ensemble.pipeline import network
from ensemble.pipeline.budget import Budget
from ensemble.pipeline.plan import Planned, Preempted, plan
from ensemble.pipeline.settings import FILE as SETTINGS
from ensemble.pipeline.settings import FREE_TO_CHANGE, preparation

FINISH_S, FINISH_PER_ROW_S = 4.0, 2.5e-4
"""Seconds to combine the members and write the report, at most: measured on one core."""


def fit(config: Any, name: str, resume: bool, budget: Budget) -> list[dict[str, Any]]:
    """Fit an ensemble of the recipe `name`; returns the leaderboard, the ensemble first.

    config : an instance of `settings.config_class(name)`. Raises `UserError` for a mistake of the user's, and `Preempted`.
    """
    configuration.check(config, time_limit=(config.time_limit >= 0, "0 or more"), threads=(config.threads >= 0, "0 or more"))
    out = Path(config.out)
    _open(out, config, name, resume)
    overwrite = bool(getattr(config, "overwrite", False))
    about = _prepare(out / "prepared", config, name, resume)
    _say(budget, f"prepared {sum(split['rows'] for split in about['splits'].values()):,} rows")

    from ensemble.trees import threads

    num_threads = threads.settle(config.threads)
    planned = _chosen(plan(about, num_threads), config.members)
    finish = FINISH_S + FINISH_PER_ROW_S * about["splits"]["train"]["rows"]
    trained: list[Planned] = []
    for position, member in enumerate(planned):
        left = budget.left() - finish
        if left < member.least_seconds and trained:
            _say(budget, f"no time is left for {member.name}")
            continue
        seconds = left * member.share / sum(other.share for other in planned[position:]) if config.time_limit else 0.0
        _say(budget, f"{member.name}" + (f": at most {max(seconds, 1):.0f} s" if config.time_limit else ""))
        folder = out / "members" / member.name
        if member.kind == "neural":
            done = network.train(member, out / "prepared", folder, about, config, seconds, resume)
        else:
            done = _train_trees(member, out / "prepared", folder, config, num_threads, seconds, resume, overwrite)
        if done:
            trained.append(member)
    if not trained:
        raise UserError("no member was trained: give more time, or name other members")
    return _finish(out, about, trained, config, budget)


def _open(out: Path, config: Any, name: str, resume: bool) -> None:
    """Begin a folder, or go on in one that has the same settings."""
    settings = {key: value for key, value in configuration.to_dict(config).items() if key not in FREE_TO_CHANGE}
    mine = json.loads(json.dumps({"written_by": folders.MARK, "recipe": name, "settings": settings}))
    limits = {"time_limit": config.time_limit, "num_draws": config.num_draws}
    file = out / SETTINGS
    if file.is_file():
        if folders.read_json(file).get("written_by") != folders.MARK:
            raise UserError(f"{file} is not of this project, so nothing is written beside it: choose another out")
        if resume and {**folders.read_json(file), "limits": limits} != {**mine, "limits": limits}:
            raise UserError(f"{out} was begun with other settings: give the same, or add overwrite=true without --resume")
        if not resume and not getattr(config, "overwrite", False):
            raise UserError(f"{out} holds a fit: add --resume auto to go on with it, or overwrite=true to begin anew")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and holds no fit of this project: choose another out")
    folders.refuse_inside(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {out} cannot be created: {error.strerror}") from None
    folders.write_json(file, {**mine, "limits": limits})


def _prepare(folder: Path, config: Any, name: str, resume: bool) -> dict[str, Any]:
    """The manifest of the prepared data, which are not made again if they are whole and of the same files."""
    from ensemble.data import prepared

    settings = preparation(config, name, str(folder))
    if resume and (folder / folders.NAME).is_file():
        return folders.read_manifest(folder)
    its = recipe.named(name).require("prepare", "prepare", "cannot prepare data")
    try:
        with folders.checked(folder, lambda scratch: prepared.check(name, scratch, folders.read_manifest(scratch))):
            its(settings)
    except BaseException:
        _remove_if_empty(folder.parent)
        raise
    return folders.read_manifest(folder)


def _remove_if_empty(out: Path) -> None:
    """Leave nothing of a fit whose data could not be prepared."""
    if [file.name for file in out.iterdir()] == [SETTINGS]:
        (out / SETTINGS).unlink()
        out.rmdir()


def _chosen(planned: list[Planned], names: tuple[str, ...]) -> list[Planned]:
    known = {member.name: member for member in planned}
    for name in names:
        if name not in known:
            raise UserError(f"members={list(names)}: there is no member '{name}' here, there are {', '.join(known)}")
    return [member for member in planned if not names or member.name in names]


def _train_trees(
    member: Planned, data: Path, folder: Path, config: Any, num_threads: int, seconds: float, resume: bool, overwrite: bool
) -> bool:
    from ensemble.trees import train
    from ensemble.trees.settings import TreesConfig

    settings = {
        "seed": getattr(config, "seed", 0),
        **member.settings,
        "threads": num_threads,
        "max_seconds": max(seconds, 0),
    }
    trees = configuration.from_dict(TreesConfig, {**settings, "data": str(data), "out": str(folder)})
    trees = dataclasses.replace(trees, overwrite=overwrite and not resume)
    summary = train.train(trees, "auto" if resume else "")
    if summary["status"] == "preempted":
        raise Preempted(member.name)
    return True


def _finish(out: Path, about: dict[str, Any], trained: list[Planned], config: Any, budget: Budget) -> list[dict[str, Any]]:
    """Predict, combine and report."""
    from ensemble.predictor import bag, leaderboard, members
    from ensemble.predictor import fit as combiner

    data, predictions = out / "prepared", out / "predictions"
    names = [member.name for member in trained]
    for member in trained:
        folder = out / "members" / member.name
        if member.kind == "neural":
            network.predict(member.name, folder, data, predictions)
            continue
        loaded = members.load(folder, data, config.threads)
        for split in bag.usual_splits(folder, about, is_baseline=False):
            columns = loaded.predict(data, split)
            columns["config"] = {**columns["config"], "kind": members.kind_of(folder), "folder": str(folder.resolve())}
            members.write(predictions / f"{member.name}.{split}.parquet", about, columns, split, member.name)
    for name, kind in members.baselines(about).items():
        loaded = members.load_baseline(name, about)
        for split in bag.usual_splits(Path(name), about, is_baseline=True):
            columns = loaded.predict(data, split)
            columns["config"] = {**columns["config"], "kind": kind}
            members.write(predictions / f"{name}.{split}.parquet", about, columns, split, name)
        names.append(name)
    _say(budget, "combining")
    scores = combiner.fit(
        predictions,
        data,
        out / "ensemble",
        tuple(names),
        config.num_draws,
        getattr(config, "seed", 0),
        overwrite=True,
        combiner=recipe.of(about).get("plan", "COMBINER") or "auto",
    )
    board = leaderboard.rows(scores, {member.name: out / "members" / member.name for member in trained})
    folders.write_json(out / "leaderboard.json", board)
    from ensemble.report import page

    page.write(out / "ensemble", data, predictions, out / "report.html")
    _say(budget, f"wrote {out / 'report.html'}")
    return board


def _say(budget: Budget, sentence: str) -> None:
    limit = f" of {budget.limit:.0f}" if budget.limit else ""
    print(f"[{budget.passed():5.1f}{limit} s] {sentence}", file=sys.stderr, flush=True)


def lines(board: list[dict[str, Any]]) -> list[str]:
    """The leaderboard as a table of text."""
    words = {"oof": "rows predicted out of fold"}.get(board[0]["split"], f"the {board[0]['split']} split")
    found = [f"{board[0]['metric'].replace('_', ' ')} on {words}, with its 95 % interval"]
    for row in board:
        score = "undefined" if row["value"] is None else f"{row['value']:.5g}  [{row['low']:.5g}, {row['high']:.5g}]"
        facts = [
            "" if row["weight"] is None else f"weight {row['weight']:.2f}",
            "" if row["seconds"] is None else f"{row['seconds']:.1f} s",
            "" if row["megabytes"] is None else f"{row['megabytes']:.1f} MB",
        ]
        found.append(f"{row['member']:>20}  {score}  {'  '.join(fact for fact in facts if fact)}".rstrip())
    return found
