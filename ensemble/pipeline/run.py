"""The fit of an ensemble, from raw data to the report. It writes the folder `out`:

    fit.json            the settings, and the fingerprint of the prepared data; --resume auto continues if they are the same
    prepared/           the prepared data
    rankings/, RECIPE/  with a follow-up (plan.py): predictions of the first members, and data of RECIPE prepared from them
    members/NAME/       the members
    predictions/        their prediction files
    ensemble/           weights, scores, forecast
    all/                with a follow-up: the comparison of all members
    leaderboard.json    members, their scores, weights, seconds and sizes
    report.html

Tree members are trained in this process, and predict in it. Each neural member has processes of its own, since PyTorch and
the tree libraries must not share one. With --resume auto, complete parts are not computed again, including those
that tasks of a cluster have computed (stages.py).
"""

import dataclasses
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import configuration, folders, recipe
from ensemble.commands import imports
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import TooFewRows, UserError, listed
from ensemble.neural import elastic
from ensemble.pipeline import fit_folder, network
from ensemble.pipeline.budget import Budget
from ensemble.pipeline.fit_folder import ENSEMBLE, PREDICTIONS, RANKINGS, REPORT
from ensemble.pipeline.plan import PREPARED, FollowUp, PlannedMember, Preempted, combining, plan
from ensemble.pipeline.settings import FILE as SETTINGS
from ensemble.signals import StopSignals

if TYPE_CHECKING:
    from ensemble.trees.settings import TreesConfig

FINISH_S, FINISH_PER_ROW_S, FINISH_PER_MEMBER_S, FINISH_PER_CLASS_S = 2.0, 1e-5, 2e-5, 8e-6
"""Upper bounds of the seconds to combine the members and write the report, on a fast machine that does nothing else:
constant, per row, per row and member, and per row and class."""
PREPARED_S, PREPARED_PER_VALUE_S, SLOWEST = 1.5, 3e-7, 2.2
"""Seconds from the start of a fit until a table is prepared on a fast machine, constant and per value. If it takes longer,
more time is reserved for combination and report: in proportion, up to `SLOWEST` times as much."""
VARIANT_TIME_FACTOR = 1.3
"""For a variant of a member: the time that must be left for its training, relative to the expected one."""
LATER_MODULES = ("scipy.optimize", "matplotlib.figure", "matplotlib.backends.backend_svg")
"""Modules that combination and report need; together they take half a second to import."""
LATER_MODULES_WITH = ("xgboost", "lightgbm")
"""Tree libraries during whose training `LATER_MODULES` are imported."""
MIN_TRAINING_S = 1.0
"""The least time limit of a member in seconds, even if no time is left, since a fit needs at least one member."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """A fit in progress, passed to the functions below."""

    config: Any
    """An instance of `settings.config_class(name)`."""
    resume: bool
    budget: Budget
    num_threads: int
    data: str
    """The folder in `out` with the data that the ensemble is fitted on and predicts."""
    trained: list[PlannedMember] = dataclasses.field(default_factory=list)
    """The members whose training succeeded."""

    @property
    def out(self) -> Path:
        return Path(self.config.out)

    @property
    def bootstrap(self) -> dict[str, Any]:
        """The number of draws and the random seed of confidence intervals."""
        return {"num_draws": self.config.num_draws, "seed": getattr(self.config, "seed", 0)}

    def print(self, sentence: str) -> None:
        limit = f" of {self.budget.limit_s:.0f}" if self.budget.limit_s else ""
        print(f"[{self.budget.passed():5.1f}{limit} s] {sentence}", file=sys.stderr, flush=True)


def fit(config: Any, name: str, resume: bool, budget: Budget) -> list[dict[str, Any]]:
    """Fit an ensemble of the recipe `name`; returns the rows of the leaderboard (predictor/leaderboard.py).

    config : an instance of `settings.config_class(name)`. Raises `UserError` for a mistake of the user, and `Preempted`.
    """
    with ExitStack() as lock:
        return _fit(prepare(config, name, resume, lock), config, resume, budget)


def _fit(manifest: dict[str, Any], config: Any, resume: bool, budget: Budget) -> list[dict[str, Any]]:
    """Fit an ensemble to the prepared data with this manifest."""
    from ensemble.trees import threads

    out, num_threads = Path(config.out), threads.configure(config.threads)
    follow_up = recipe.of(manifest).get("plan", "follow_up")
    second: FollowUp | None = follow_up(manifest, out / PREPARED, out / RANKINGS) if follow_up else None
    data = second.recipe if second else PREPARED
    run = Fit(config=config, resume=resume, budget=budget, num_threads=num_threads, data=data)
    planned = chosen_members(manifest, config, run.num_threads)
    run.print(f"prepared {_num_rows(manifest):,} rows")
    slowness = slowness_of(_num_rows(manifest) * len(manifest.get("features", ())), budget.passed())
    first_members = [member for member in planned if member.data == PREPARED]
    second_members = [member for member in planned if member.data != PREPARED]
    finish_s, member_s = (second.finish_seconds, 0.0) if second else finish_seconds(manifest, out / PREPARED)
    finish_s, member_s, later_s = (slowness * each for each in (finish_s, member_s, second.seconds if second else 0.0))
    _train(run, first_members, second_members, manifest, finish_s + later_s, member_s)
    if second:
        try:
            manifest = _prepare_follow_up(run, second, manifest)
        except TooFewRows as error:
            names = ", ".join(member.name for member in second_members) or "an ensemble"
            run.print(f"too few {second.recipe} for {names}: {error.problem}; only the rankings are compared")
            return _leaderboard(run, {"weights": {}, **_compared(run)})
        _train(run, second_members, [], manifest, finish_s, member_s)
    if not run.trained:
        raise UserError("no member could be trained, as the warnings explain: name other members, or give other data")
    return finish(run, manifest, second)


def _train(
    run: Fit,
    planned: list[PlannedMember],
    later_members: list[PlannedMember],
    manifest: dict[str, Any],
    reserved_s: float,
    member_s: float,
) -> None:
    """Train members on data with this manifest.

    later_members : members that are trained afterwards. reserved_s, member_s : seconds that are reserved for the rest of the
    fit, and further ones for each member.
    """
    config, overwrite = run.config, run.resume or getattr(run.config, "overwrite", False)
    for position, member in enumerate(planned):
        left = run.budget.left() - reserved_s - member_s * (len(run.trained) + 1)
        later = [*planned[position + 1 :], *later_members]
        folder = run.out / "members" / member.name
        resume = run.resume and not is_stale(folder, manifest["fingerprint"])
        is_trained = resume and _is_complete(member, folder)  # it needs no more time
        if not is_trained and member.variant_of and left < _seconds_for_variant(run, member):
            continue
        seconds = left * share_of(member, later, left)
        shorter_member_follows = any(other.least_seconds < member.least_seconds for other in later)
        if not is_trained and seconds < member.least_seconds and (run.trained or shorter_member_follows):
            run.print(f"no time is left for {member.name}")
            continue
        seconds = max(seconds, MIN_TRAINING_S) if config.time_limit else 0.0
        run.print(f"{member.name}" + (f": at most {seconds:.0f} s" if config.time_limit else ""))
        if member.kind == "neural":
            data, predict_to = run.out / member.data, run.out / PREDICTIONS if member.data == run.data else None
            is_trained = network.train(member, data, folder, manifest, config, run.num_threads, seconds, resume, predict_to)
        else:
            is_trained = try_to_train(train_trees, member, config, run.num_threads, seconds, resume, overwrite)
        if is_trained:
            run.trained.append(member)


def try_to_train(train: Any, *arguments: Any) -> bool:
    """Call `train`, and return whether it succeeded. If the library cannot be trained on the rows, a warning is printed, and
    the fit goes on without the member."""
    from ensemble.trees.boosting import CannotLearn

    try:
        train(*arguments)
    except CannotLearn as error:
        print(f"warning: {error}", file=sys.stderr)
        return False
    return True


def _seconds_for_variant(run: Fit, variant: PlannedMember) -> float:
    """The seconds that must be left to train a variant; infinite if the member `variant_of` was not trained."""
    if variant.variant_of not in [member.name for member in run.trained]:
        return math.inf
    trained_s = float(folders.read_json(run.out / "members" / variant.variant_of / "summary.json")["seconds"])
    return VARIANT_TIME_FACTOR * variant.relative_seconds * trained_s


def slowness_of(num_values: int, prepared_s: float) -> float:
    """The factor by which this machine is slower than a fast one, at least 1 and at most `SLOWEST`.

    prepared_s : seconds until `num_values` values were prepared.
    """
    usual_s = PREPARED_S + PREPARED_PER_VALUE_S * num_values
    return min(max(1.0, prepared_s / usual_s), SLOWEST)


def finish_seconds(manifest: dict[str, Any], data: Path) -> tuple[float, float]:
    """Upper bounds of the seconds to combine members and write the report, on a fast machine: constant, and per member.

    data : the prepared folder.
    """
    cv, rows = CrossValidation.from_manifest(manifest), {name: split["rows"] for name, split in manifest["splits"].items()}
    num_rows = (cv.num_predicted(data) if cv else rows.get("blend", 0)) + rows.get("test", 0)
    num_classes = len(manifest.get("task", {}).get("classes") or ())
    return FINISH_S + num_rows * (FINISH_PER_ROW_S + FINISH_PER_CLASS_S * num_classes), num_rows * FINISH_PER_MEMBER_S


def _num_rows(manifest: dict[str, Any]) -> int:
    return sum(split["rows"] for split in manifest["splits"].values())


def _prepare_follow_up(run: Fit, second: FollowUp, manifest: dict[str, Any]) -> dict[str, Any]:
    """Predict with members and baselines, and prepare the data of the follow-up from the predictions; returns its manifest.

    With `resume`, predictions are kept if the models are the same, and the data if the predictions are the same.
    """
    from ensemble.data import prepared as prepared_data
    from ensemble.predictor import bag

    rankings, folder = run.out / RANKINGS, run.out / second.recipe
    models = {member.name: bag.model_fingerprint(run.out / "members" / member.name) for member in run.trained}
    content = {"kind": RANKINGS, "data": manifest["fingerprint"], "models": models}
    if not (run.resume and _has_content(rankings, content)):
        run.print(f"predicting with {', '.join([*models, 'the baselines'])}")
        with folders.new_folder(rankings, overwrite=True, kind=RANKINGS) as scratch:
            _predict(run, manifest, run.out / PREPARED, scratch)
            folders.write_manifest(scratch, content)
    sources = folders.sources(sorted(rankings.glob("*.parquet")))
    if not (run.resume and _has_content(folder, {"recipe": second.recipe, "sources": sources})):
        settings = recipe.prepare_config(second.recipe)(**second.settings, out=str(folder), overwrite=True)
        prepare = recipe.named(second.recipe).require("prepare", "prepare", "cannot prepare data")
        prepared_data.write(second.recipe, prepare, settings)
    second_manifest = folders.read_manifest(folder)
    run.print(f"prepared {_num_rows(second_manifest):,} rows of {second.recipe}")
    return second_manifest


def _has_content(folder: Path, content: dict[str, Any]) -> bool:
    """Whether a folder is undamaged, and its manifest has these entries."""
    try:
        manifest = folders.verify(folder)
    except UserError:
        return False
    return {name: manifest.get(name) for name in content} == content


def share_of(member: PlannedMember, later: list[PlannedMember], seconds: float) -> float:
    """The share of `seconds` for a member. Variants, and later members that would get too little time, count as 0."""
    later = [other for other in later if not other.variant_of]
    total = member.share + sum(other.share for other in later)
    counted = [other.share for other in later if seconds * other.share / total >= other.least_seconds]
    return member.share / (member.share + sum(counted))


def prepare(config: Any, name: str, resume: bool, lock: ExitStack) -> dict[str, Any]:
    """Create the folder of the fit and prepare the data; returns their manifest.

    A fit that is continued uses the data that it has prepared before. The folder is locked until `lock` is closed.
    """
    from ensemble.data import prepared as prepared_data
    from ensemble.trees import threads

    _check(config)
    out, num_threads = Path(config.out), threads.configure(config.threads)
    folder = out / PREPARED
    with fit_folder.opened(out, config, name, resume, lock) as earlier:
        schema = recipe.prepare_config(name)
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(schema)}
        settings = schema(**{**values, "out": str(folder)})
        if earlier and earlier.get(PREPARED) and (folder / folders.NAME).is_file():
            manifest = folders.read_manifest(folder)
            if manifest["fingerprint"] == earlier[PREPARED]:
                _refuse_other_sources(config, manifest, folder)
                return manifest
        elif earlier and hasattr(settings, "overwrite"):
            settings = dataclasses.replace(settings, overwrite=True)  # the data there are incomplete, or of an older fit

        def check(manifest: dict[str, Any]) -> None:
            members = chosen_members(manifest, config, num_threads)
            combining(manifest)
            if not earlier:
                fit_folder.refuse_foreign(out, members)

        prepare_data = recipe.named(name).require("prepare", "prepare", "cannot prepare data")
        prepared_data.write(name, prepare_data, settings, check)
        manifest = folders.read_manifest(folder)
        if not earlier or earlier.get(PREPARED) != manifest["fingerprint"]:
            # Before fit.json names the data, so that no kill leaves members of other data, which --resume auto would use
            fit_folder.discard_results(out, plan(manifest, num_threads))
        folders.write_json(out / SETTINGS, {**folders.read_json(out / SETTINGS), PREPARED: manifest["fingerprint"]})
    return manifest


def prepared(config: Any, name: str) -> dict[str, Any]:
    """The manifest of the data that `prepare` wrote; `UserError` if they are missing or were prepared with other
    settings."""
    _check(config)
    out = Path(config.out)
    fit_json = fit_folder.read(out, config, name)
    manifest = folders.read_manifest(out / PREPARED)
    if manifest["fingerprint"] != fit_json.get(PREPARED):
        raise UserError(f"{out / PREPARED} does not belong to this fit: prepare the data again with --stage prepare")
    return manifest


def _check(config: Any) -> None:
    """Raise `UserError` for settings that later stages would reject."""
    configuration.check(config, at_least_0="time_limit threads", at_least_1="num_draws")
    if (file := config.accelerate_config) != "auto":
        if not Path(file).is_file():
            raise UserError(f"accelerate_config={file} is not a file: name one of Accelerate, or write auto")
        elastic.hardware_of(file)


def _refuse_other_sources(config: Any, manifest: dict[str, Any], folder: Path) -> None:
    """Raise `UserError` if raw files have changed since the data were prepared: members learned from the old ones.

    If one of the files is named as `hub:CATEGORY` (data/raw_files.py), nothing is checked.
    """
    from ensemble.data import raw_files

    paths = fit_folder.raw_paths(config)
    if not paths or "sources" not in manifest or any(source.startswith("hub:") for source in paths):
        return
    before = {source["sha256"]: source["name"] for source in manifest["sources"]}
    now = {source["sha256"]: source["name"] for source in folders.sources(raw_files.expand_sources(paths, None))}
    if changed := sorted({name for sha, name in {**before, **now}.items() if (sha in before) != (sha in now)}):
        raise UserError(
            f"{listed(changed, 3)} changed since {folder} was prepared: restore the old content, or start "
            "again with overwrite=true and without --resume"
        )


def chosen_members(manifest: dict[str, Any], config: Any, num_threads: int) -> list[PlannedMember]:
    """The planned members for the data, or those that the setting `members` names. Variants need a time limit."""
    planned, names = plan(manifest, num_threads), config.members
    given = f"members=[{', '.join(names)}]"
    variants = [member.name for member in planned if member.variant_of]
    planned = [member for member in planned if config.time_limit or not member.variant_of]
    known = {member.name: member for member in planned}
    for name in names:
        if name not in known and name in variants:
            rule = "a variant, which is only trained with a time limit: give a time_limit, or leave it out"
            raise UserError(f"time_limit=0, but {given} names '{name}', {rule}")
        if name not in known:
            fix = f"write a list as members=[{name}]" if "," in name else f"choose from {', '.join(known)}"
            raise UserError(f"{given} names '{name}', which is not available for these data: {fix}")
        if (origin := known[name].variant_of) and origin not in names:
            raise UserError(f"{given} names '{name}' without '{origin}', of which it is a variant: name both")
    return [member for member in planned if not names or member.name in names]


def _is_complete(member: PlannedMember, folder: Path) -> bool:
    """Whether the training of a member in `folder` is done."""
    return network.is_complete(folder) if member.kind == "neural" else _has_content(folder, {})


def is_stale(folder: Path, fingerprint: str) -> bool:
    """Whether a member, or a checkpoint of it, was trained on other data than those with this fingerprint."""
    states = [*folder.rglob("state.json"), *folder.with_name(f"{folder.name}.checkpoint").glob("trees-*/state.json")]
    for file in (folder / "summary.json", *states):
        with suppress(UserError):
            if folders.read_json(file).get("fingerprint") != fingerprint:
                return True
    return False


def trees_config(member: PlannedMember, config: Any, num_threads: int, seconds: float = 0.0) -> "TreesConfig":
    """The settings of scripts/train_trees.py for a tree member; `seconds=0` means no limit."""
    from ensemble.trees.settings import TreesConfig

    out = Path(config.out)
    paths = {"data": str(out / member.data), "out": str(out / "members" / member.name)}
    limits = {"threads": num_threads, "max_seconds": seconds}
    return configuration.from_dict(TreesConfig, {"seed": member.seed(config), **member.settings, **limits, **paths})


def train_trees(
    member: PlannedMember, config: Any, num_threads: int, seconds: float = 0.0, resume: bool = True, overwrite: bool = True
) -> None:
    """Train a tree member; with `resume` continue from its last checkpoint, else with `overwrite` replace it.

    A complete member with a damaged file is trained again. Raises `Preempted`, and `CannotLearn` if the library cannot be
    trained on the rows.
    """
    from ensemble.trees import train

    folder = Path(config.out) / "members" / member.name
    if resume and folder.exists() and not _is_complete(member, folder):
        folders.refuse_foreign_folder(folder, train.KIND)
        print(f"{folder} is damaged: it is trained again", file=sys.stderr)
        resume, overwrite = False, True
    settings = trees_config(member, config, num_threads, seconds)
    with _later_modules_imported(settings.library), StopSignals() as stop:  # a signal after the last tree counts, too
        summary = train.train(dataclasses.replace(settings, overwrite=overwrite and not resume), "auto" if resume else "")
    if summary["status"] == "preempted" or stop.received:
        raise Preempted(member.name)


@contextmanager
def _later_modules_imported(library: str) -> Iterator[None]:
    """Import in a thread what the rest of the fit needs, while XGBoost or LightGBM trains outside of Python.

    The library is imported before, so that no two threads import modules that import each other.
    """
    from ensemble.trees.predict import library_module

    if library not in LATER_MODULES_WITH:
        yield
        return
    library_module(library)
    thread = threading.Thread(target=imports.in_advance, args=LATER_MODULES)
    thread.start()
    try:
        yield
    finally:
        thread.join()  # before a process is started


def finish(run: Fit, manifest: dict[str, Any], second: FollowUp | None) -> list[dict[str, Any]]:
    """Predict with the members, fit the ensemble, and write leaderboard and report; returns the leaderboard."""
    from ensemble.predictor.fit import fit as fit_ensemble

    out = run.out
    data, predictions, ensemble = out / run.data, out / PREDICTIONS, out / ENSEMBLE
    names = tuple(_predict(run, manifest, data, predictions))
    run.print("combining")
    methods: Any = combining(manifest)
    scores = fit_ensemble(predictions, data, ensemble, names, overwrite=True, compare=False, **run.bootstrap, **methods)
    board = _leaderboard(run, {**scores, **(_compared(run, data, predictions, ensemble, names) if second else {})})
    from ensemble.report import page

    page.write(ensemble, data, predictions, out / REPORT)
    run.print(f"wrote {out / REPORT}")
    return board


def _compared(run: Fit, *files: Any) -> dict[str, Any]:
    """Write the comparison of all members to the folder `all`, and return what `leaderboard.rows` needs except `weights`.

    files : the further arguments of `compare` of the first recipe; without them, only the rankings are compared.
    """
    first_recipe = recipe.of(folders.read_manifest(run.out / PREPARED))
    compare, metric = (
        first_recipe.require("comparison", name, "has a follow-up and no comparison") for name in ("compare", "METRIC")
    )
    compared = compare(run.out / fit_folder.COMPARISON, run.out / PREPARED, run.out / RANKINGS, *files, **run.bootstrap)
    metrics = {metric: {"higher_is_better": True}}
    return {"split": compared["split"], "metric": metric, "metrics": metrics, "scores": compared["members"]}


def _leaderboard(run: Fit, scores: dict[str, Any]) -> list[dict[str, Any]]:
    """Write the leaderboard and return it. scores : see `leaderboard.rows`."""
    from ensemble.predictor import leaderboard

    board = leaderboard.rows(scores, {member.name: run.out / "members" / member.name for member in run.trained})
    folders.write_json(run.out / fit_folder.LEADERBOARD, board)
    return board


def _predict(run: Fit, manifest: dict[str, Any], data: Path, folder: Path) -> list[str]:
    """Write the predictions of `data` to `folder`, by the members trained on them and baselines; returns their names.

    With accelerate_config=auto, a network has written its predictions for the ensemble already (`network.train`).
    """
    from ensemble.predictor import bag, members

    trained = [member for member in run.trained if member.data == data.name]
    names = [member.name for member in trained]
    for member in trained:
        model = run.out / "members" / member.name
        splits = bag.default_splits(model, manifest, is_baseline=False)
        if member.kind == "neural":
            files = [folder / f"{member.name}.{split}.parquet" for split in splits]
            if not network.has_predicted(files, manifest["fingerprint"], bag.model_fingerprint(model), model):
                network.discard_predictions(files)
                network.predict(member.name, model, data, folder)
            continue
        loaded, kind = members.load(model, data, run.config.threads), members.kind_of(model)
        list(members.write_splits(loaded, member.name, kind, splits, data, manifest, folder, model))
    for name, kind in members.baselines(manifest).items():
        splits = bag.default_splits(Path(name), manifest, is_baseline=True)
        list(members.write_splits(members.load_baseline(name, manifest), name, kind, splits, data, manifest, folder))
        names.append(name)
    return names


def lines(board: list[dict[str, Any]]) -> list[str]:
    """The leaderboard as lines of text."""
    rows = {"oof": "rows predicted out of fold"}.get(board[0]["split"], f"the {board[0]['split']} split")
    text = [f"{board[0]['metric'].replace('_', ' ')} on {rows}, with its 95 % interval"]
    for row in board:
        # A score over a single cluster has no interval
        interval = "" if row["low"] is None else f"  [{_as_text(row['low'])}, {_as_text(row['high'])}]"
        score = "undefined" if row["value"] is None else f"{_as_text(row['value'])}{interval}"
        forms = {"weight": "weight {:.2f}", "seconds": "{:.1f} s", "megabytes": "{:.1f} MB"}
        facts = [form.format(row[name]) for name, form in forms.items() if row[name] is not None]
        text.append(f"{row['member']:>20}  {score}  {'  '.join(facts)}".rstrip())
    return text


def _as_text(score: float) -> str:
    """A score with five significant digits; from 100,000 to a billion as a whole number."""
    return f"{score:.0f}" if 99_999.5 <= abs(score) < 1e9 else f"{score:.5g}"
