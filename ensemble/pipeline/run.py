"""The stages of a fit, one after the other, in the folder `out`:

    fit.json            the settings, and which prepared data are theirs; --resume auto goes on where they are the same
    prepared/           what the recipe's preparation wrote
    rankings/, RECIPE/  with a follow-up (plan.py): the members' predictions, and data of the RECIPE made from them
    members/NAME/       the members
    predictions/        their prediction files
    ensemble/           weights, scores, forecast
    all/                with a follow-up: the comparison of all members
    leaderboard.json    members, their scores, weights, seconds and sizes
    report.html

Tree members are trained and predict in this process; each neural member has processes of its own, since PyTorch and the tree
libraries must not share one. What is whole is not done again with --resume auto, nor is what tasks of a cluster have done
(stages.py).
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import configuration, folders, recipe
from ensemble.errors import UserError
from ensemble.pipeline import network
from ensemble.pipeline.budget import Budget
from ensemble.pipeline.plan import PREPARED, FollowUp, Planned, Preempted, follow_up, plan
from ensemble.pipeline.settings import FILE as SETTINGS
from ensemble.pipeline.settings import FREE_TO_CHANGE, preparation

if TYPE_CHECKING:
    from ensemble.trees.settings import TreesConfig

RANKINGS = "rankings"
MOST_SHOWN = 3
FINISH_S, FINISH_PER_ROW_S = 4.0, 2.5e-4
"""Seconds to combine the members and write the report, at most: measured on one core."""
LEAST_S = 1.0
"""The first member gets at least so much, since a fit needs one."""


def fit(config: Any, name: str, resume: bool, budget: Budget) -> list[dict[str, Any]]:
    """Fit an ensemble of the recipe `name`; returns the leaderboard, the ensemble first.

    config : an instance of `settings.config_class(name)`. Raises `UserError` for a mistake of the user's, and `Preempted`.
    """
    from ensemble.trees import threads

    out = Path(config.out)
    about = prepare(config, name, resume)
    planned = chosen(about, config, threads.configure(config.threads))
    _say(budget, f"prepared {_num_rows(about):,} rows")
    then = follow_up(about, out / PREPARED, out / RANKINGS)
    own, after = ([member for member in planned if (member.data == PREPARED) == is_own] for is_own in (True, False))
    trained: list[Planned] = []
    _train(own, after, trained, about, _finish_seconds(about) + (then.seconds if then else 0), config, resume, budget)
    if then:
        about = _follow(then, about, trained, config, resume, budget)
        _train(after, [], trained, about, _finish_seconds(about), config, resume, budget)
    if not trained:
        raise UserError("no member could be trained, as the warnings explain: name other members, or give other data")
    return _finish(out, about, trained, config, budget, then)


def _train(
    planned: list[Planned],
    after: list[Planned],
    trained: list[Planned],
    about: dict[str, Any],
    finish: float,
    config: Any,
    resume: bool,
    budget: Budget,
) -> None:
    """Train members on data with the manifest `about`, and add those that are whole to `trained`.

    after : members that are trained later. finish : seconds that are kept for the rest of the fit.
    """
    from ensemble.trees import threads
    from ensemble.trees.boosting import CannotLearn

    out, overwrite = Path(config.out), bool(getattr(config, "overwrite", False))
    num_threads = threads.configure(config.threads)
    for position, member in enumerate(planned):
        left, later = budget.left() - finish, [*planned[position + 1 :], *after]
        if left < member.least_seconds and (trained or any(one.least_seconds < member.least_seconds for one in later)):
            _say(budget, f"no time is left for {member.name}")
            continue
        seconds = max(left * share_of(member, later, left), LEAST_S) if config.time_limit else 0.0
        _say(budget, f"{member.name}" + (f": at most {seconds:.0f} s" if config.time_limit else ""))
        folder = out / "members" / member.name
        go_on = resume and not is_stale(folder, about["fingerprint"])
        if member.kind == "neural":
            done = network.train(member, out / member.data, folder, about, config, seconds, go_on)
        else:
            try:
                train_trees(member, config, num_threads, seconds, go_on, overwrite or resume)
                done = True
            except CannotLearn as error:
                print(f"warning: {error}", file=sys.stderr)
                done = False
        if done:
            trained.append(member)


def _finish_seconds(about: dict[str, Any]) -> float:
    """Time to combine the members of data and to write the report, at most."""
    return FINISH_S + FINISH_PER_ROW_S * about["splits"]["train"]["rows"]


def _num_rows(about: dict[str, Any]) -> int:
    return sum(split["rows"] for split in about["splits"].values())


def _follow(
    then: FollowUp, about: dict[str, Any], trained: list[Planned], config: Any, resume: bool, budget: Budget
) -> dict[str, Any]:
    """Predict with the members and baselines, and prepare the data of the follow-up from that; returns their manifest.

    With `resume`, predictions of the same models and data from them are not made again.
    """
    from ensemble.predictor import bag

    out = Path(config.out)
    rankings, folder = out / RANKINGS, out / then.recipe
    models = {member.name: bag.model_of(out / "members" / member.name) for member in trained}
    content = {"kind": RANKINGS, "data": about["fingerprint"], "models": models}
    if not (resume and _holds(rankings, content)):
        _say(budget, f"predicting with {', '.join([*models, 'the baselines'])}")
        with folders.new_folder(rankings, overwrite=True, kind=RANKINGS) as scratch:
            _predict(trained, about, out / PREPARED, scratch, config)
            folders.write_manifest(scratch, content)
    sources = folders.sources(sorted(rankings.glob("*.parquet")))
    if not (resume and _holds(folder, {"recipe": then.recipe, "sources": sources})):
        settings = recipe.prepare_config(then.recipe)(**then.settings, out=str(folder), overwrite=True)
        _write(folder, then.recipe, settings, lambda made: None)
    made = folders.read_manifest(folder)
    _say(budget, f"prepared {_num_rows(made):,} rows of {then.recipe}")
    return made


def _holds(folder: Path, content: dict[str, Any]) -> bool:
    """Whether a folder is sound, and its manifest has this content."""
    try:
        manifest = folders.verify(folder)
    except UserError:
        return False
    return {name: manifest.get(name) for name in content} == content


def share_of(member: Planned, later: list[Planned], seconds: float) -> float:
    """The part of the time that a member may take; none is kept for later members that would have too little of it."""
    whole = member.share + sum(other.share for other in later)
    kept = [other.share for other in later if seconds * other.share / whole >= other.least_seconds]
    return member.share / (member.share + sum(kept))


def prepare(config: Any, name: str, resume: bool) -> dict[str, Any]:
    """Begin the folder and prepare the data, or go on with those that are there; returns their manifest."""
    from ensemble.trees import threads

    _check(config)
    out = Path(config.out)
    with _opened(out, config, name, resume) as begun:
        about = _prepare(out / PREPARED, config, name, begun, threads.configure(config.threads))
        _note(out, about["fingerprint"])
    return about


def prepared(config: Any, name: str) -> dict[str, Any]:
    """The manifest of the data that `prepare` left; `UserError` if they are not there or are of other settings."""
    _check(config)
    out = Path(config.out)
    begun = _begun(out, config, name)
    about = folders.read_manifest(out / PREPARED)
    if about["fingerprint"] != begun.get(PREPARED):
        raise UserError(f"{out / PREPARED} is not of the fit in {out}: prepare the data again with --stage prepare")
    return about


def _check(config: Any) -> None:
    """What would otherwise be refused when all members are trained."""
    configuration.check(
        config,
        time_limit=(config.time_limit >= 0, "0 or more"),
        threads=(config.threads >= 0, "0 or more"),
        num_draws=(config.num_draws >= 1, "at least 1"),
    )
    if config.accelerate_config != "auto" and not Path(config.accelerate_config).is_file():
        raise UserError(f"accelerate_config={config.accelerate_config} is no file: name one of accelerate, or write auto")


@contextmanager
def _opened(out: Path, config: Any, name: str, resume: bool) -> Iterator[dict[str, Any] | None]:
    """Begin a folder, or go on in one that has the same settings; yields its `fit.json` in that case.

    Nothing is left of a folder in which the data could not be prepared; `fit.json` of an earlier fit is put back.
    """
    file, before = out / SETTINGS, None
    if file.is_file():
        before = _begun(out, config, name, resume)
        if not resume and not getattr(config, "overwrite", False):
            raise UserError(f"{out} holds a fit: add --resume auto to go on with it, or overwrite=true to begin anew")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and holds no fit of this project: choose another out")
    folders.refuse_inside(out)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _undo(file, made)
        raise UserError(f"the folder {out} cannot be created: {error.strerror}") from None
    limits = {"time_limit": config.time_limit, "num_draws": config.num_draws}
    try:
        _sweep(out)
        found = before.get(PREPARED) if resume and before else None
        folders.write_json(file, {**_content(config, name), "limits": limits, PREPARED: found})
        yield before if resume else None
    except BaseException:
        if before:
            folders.write_json(file, before)
        else:
            _undo(file, made)
        raise


def _content(config: Any, name: str) -> dict[str, Any]:
    """What a fit with these settings writes to `fit.json`, without its limits and data."""
    settings = {key: value for key, value in configuration.to_dict(config).items() if key not in FREE_TO_CHANGE}
    content: dict[str, Any] = json.loads(json.dumps({"written_by": folders.MARK, "recipe": name, "settings": settings}))
    return content


def _begun(out: Path, config: Any, name: str, must_be_alike: bool = True) -> dict[str, Any]:
    """The `fit.json` in a folder; `UserError` if it is not of this project, or of other settings though it must be alike."""
    begun = folders.read_json(out / SETTINGS)
    if not isinstance(begun, dict) or begun.get("written_by") != folders.MARK:
        raise UserError(f"{out / SETTINGS} is not of this project, so nothing is written beside it: choose another out")
    if must_be_alike and _comparable(begun) != _comparable(_content(config, name)):
        raise UserError(f"{out} was begun with other settings: give the same, or add overwrite=true without --resume")
    return begun


def _comparable(begun: dict[str, Any]) -> dict[str, Any]:
    """What must be the same to go on; files may have moved, and `_refuse_other_sources` compares their content."""
    settings = {name: value for name, value in begun.get("settings", {}).items() if name not in ("source", "metadata")}
    return {"written_by": begun.get("written_by"), "recipe": begun.get("recipe"), "settings": settings}


def _undo(file: Path, made: list[Path]) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()  # which fails unless it is empty


def _sweep(out: Path) -> None:
    """Clear away what a killed command left half-written, and put back what it was about to replace."""
    for old in out.glob(".*.old-*"):
        folders.recover(out / old.name[1:].rpartition(".old-")[0])
    folders.discard_scratch([*out.glob(".*.writing-*"), *(out / "predictions").glob(".*.writing-*")])
    for old in out.glob(".*.old-*"):
        folders.discard(old)


def _note(out: Path, fingerprint: str) -> None:
    """The prepared data are of these settings from now on."""
    folders.write_json(out / SETTINGS, {**folders.read_json(out / SETTINGS), PREPARED: fingerprint})


def _prepare(folder: Path, config: Any, name: str, begun: dict[str, Any] | None, num_threads: int) -> dict[str, Any]:
    """The manifest of the prepared data, which are not made again if the fit that goes on has made them."""
    settings = preparation(config, name, str(folder))
    if begun and begun.get(PREPARED) and (folder / folders.NAME).is_file():
        about = folders.read_manifest(folder)
        if about["fingerprint"] == begun[PREPARED]:
            _refuse_other_sources(config, about, folder)
            return about
    elif begun and hasattr(settings, "overwrite"):
        settings = dataclasses.replace(settings, overwrite=True)  # what is there was killed half-way, or is an older fit's

    _write(folder, name, settings, lambda about: chosen(about, config, num_threads))
    return folders.read_manifest(folder)


def _write(folder: Path, name: str, settings: Any, check: Callable[[dict[str, Any]], Any]) -> None:
    """Prepare data of the recipe `name`; the folder gets its name after `check` of the manifest."""
    from ensemble.data import prepared

    def check_all(scratch: Path) -> None:
        about = folders.read_manifest(scratch)
        prepared.check(name, scratch, about)
        check(about)

    with folders.checked(folder, check_all):
        recipe.named(name).require("prepare", "prepare", "cannot prepare data")(settings)


def _refuse_other_sources(config: Any, about: dict[str, Any], folder: Path) -> None:
    """Members would be of the old files, and the user believe that they were of the new ones."""
    from ensemble.data import reviews

    given = [*getattr(config, "source", ()), *getattr(config, "metadata", ())]
    if not given or "sources" not in about or any(source.startswith("hub:") for source in given):
        return
    before = {source["sha256"]: source["name"] for source in about["sources"]}
    now = {source["sha256"]: source["name"] for source in folders.sources(reviews.expand_sources(given, ""))}
    if changed := sorted({name for sha, name in {**before, **now}.items() if (sha in before) != (sha in now)}):
        raise UserError(
            f"{', '.join(changed[:MOST_SHOWN])} changed since {folder} was made: put the old content back, or begin anew "
            "with overwrite=true and without --resume"
        )


def chosen(about: dict[str, Any], config: Any, num_threads: int) -> list[Planned]:
    """The members that are planned for the data, or those of them that the settings name."""
    planned, names = plan(about, num_threads), config.members
    known = {member.name: member for member in planned}
    for name in names:
        if name not in known:
            raise UserError(f"members={list(names)}: there is no member '{name}' here, there are {', '.join(known)}")
    return [member for member in planned if not names or member.name in names]


def is_stale(folder: Path, fingerprint: str) -> bool:
    """Whether a member, or a checkpoint of it, is of data that a fit with overwrite=true has replaced since."""
    states = sorted(folder.with_name(f"{folder.name}.checkpoint").glob("trees-*/state.json"))
    for file in (folder / "summary.json", *states):
        with suppress(UserError):
            if folders.read_json(file).get("fingerprint") != fingerprint:
                return True
    return False


def trees_config(member: Planned, config: Any, num_threads: int, seconds: float = 0.0) -> "TreesConfig":
    """The settings of the training of a tree member."""
    from ensemble.trees.settings import TreesConfig

    out = Path(config.out)
    where = {"data": str(out / member.data), "out": str(out / "members" / member.name)}
    limits = {"threads": num_threads, "max_seconds": seconds}
    return configuration.from_dict(TreesConfig, {"seed": getattr(config, "seed", 0), **member.settings, **limits, **where})


def train_trees(
    member: Planned, config: Any, num_threads: int, seconds: float = 0.0, resume: bool = True, overwrite: bool = True
) -> None:
    """Train a tree member, or go on with it; with `overwrite` and without `resume` it is trained anew.

    Raises `Preempted`, and `CannotLearn` if the library refuses the rows.
    """
    from ensemble.trees import train

    trees = trees_config(member, config, num_threads, seconds)
    trees = dataclasses.replace(trees, overwrite=overwrite and not resume)
    summary = train.train(trees, "auto" if resume else "")
    if summary["status"] == "preempted":
        raise Preempted(member.name)


def _finish(
    out: Path, about: dict[str, Any], trained: list[Planned], config: Any, budget: Budget, then: FollowUp | None
) -> list[dict[str, Any]]:
    """Predict, combine, compare and report."""
    from ensemble.predictor import fit as combiner
    from ensemble.predictor import leaderboard

    data, predictions = out / (then.recipe if then else PREPARED), out / "predictions"
    names = _predict([member for member in trained if member.data == data.name], about, data, predictions, config)
    _say(budget, "combining")
    combining = recipe.of(about).get("plan", "combining")
    scores = combiner.fit(
        predictions,
        data,
        out / "ensemble",
        tuple(names),
        config.num_draws,
        getattr(config, "seed", 0),
        overwrite=True,
        compare=False,
        **(combining(about) if combining else {}),
    )
    if then:
        compare = recipe.of(folders.read_manifest(out / PREPARED)).require(
            "comparison", "compare", "has a follow-up and no comparison"
        )
        folder_of = (out / "all", out / PREPARED, out / RANKINGS, data, predictions, out / "ensemble")
        compared = compare(*folder_of, tuple(names), num_draws=config.num_draws, seed=getattr(config, "seed", 0))
        scores = {**scores, "split": compared["split"], "scores": compared["members"]}
    board = leaderboard.rows(scores, {member.name: out / "members" / member.name for member in trained})
    folders.write_json(out / "leaderboard.json", board)
    from ensemble.report import page

    page.write(out / "ensemble", data, predictions, out / "report.html")
    _say(budget, f"wrote {out / 'report.html'}")
    return board


def _predict(trained: list[Planned], about: dict[str, Any], data: Path, folder: Path, config: Any) -> list[str]:
    """Write the predictions of members and baselines for `data`, with the manifest `about`; returns their names."""
    from ensemble.predictor import bag, members

    names = [member.name for member in trained]
    for member in trained:
        model = Path(config.out) / "members" / member.name
        if member.kind == "neural":
            network.predict(member.name, model, data, folder)
            continue
        loaded, kind = members.load(model, data, config.threads), members.kind_of(model)
        splits = bag.usual_splits(model, about, is_baseline=False)
        list(members.write_splits(loaded, member.name, kind, splits, data, about, folder, model))
    for name, kind in members.baselines(about).items():
        splits = bag.usual_splits(Path(name), about, is_baseline=True)
        list(members.write_splits(members.load_baseline(name, about), name, kind, splits, data, about, folder))
        names.append(name)
    return names


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
