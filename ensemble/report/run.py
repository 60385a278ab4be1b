"""`Run`: what the report reads from the folders of an ensemble, of its data and of its prediction files."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ensemble import folders, predictions, recipe
from ensemble.combine import Ensemble
from ensemble.combine.fitting import counted_rows
from ensemble.data.inputs import FORECAST
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.predictions import Predictions
from ensemble.predictor import bag, members
from ensemble.predictor.fit import ENSEMBLE
from ensemble.recipe import Recipe, Words
from ensemble.report.svg import series_number
from ensemble.task import Task, task_of

OPTIONS = ("starts", "votes", "select")
"""The settings of scripts/predict.py on which predictions depend; they are in the `config` of prediction files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """The content of the files in a member's folder; empty for a member without a folder, which has prediction files alone.

    For a bag it is the content of the last copy's files, with the sum of the seconds of all copies.
    """

    name: str
    weight: float
    folder: Path | None = None
    copies: tuple[Path, ...] = ()
    """The folders of the copies of a bag, or `folder` alone."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """config.json."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings `OPTIONS` with which it was predicted, without empty ones."""
    summary: dict[str, Any] = dataclasses.field(default_factory=dict)
    """summary.json."""
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """The lines of metrics.jsonl."""
    importance: dict[str, float] = dataclasses.field(default_factory=dict)
    """importance.json of a tree or linear member."""
    permutation: dict[str, Any] = dataclasses.field(default_factory=dict)
    """permutation.json of a tree or linear member, or `importance` of the out-of-fold prediction file of a network."""

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of `metric` is better."""
        known = METRIC_FUNCTIONS.get(self.metric)
        return self.summary.get("higher_is_better", known.higher_is_better if known else True)

    @property
    def metric(self) -> str:
        """The metric of early stopping; empty if unknown."""
        names = [name.removeprefix("validation_") for name in self.summary if name.startswith("validation_")]
        chosen = self.summary.get("metric", "")
        return chosen if chosen in names else names[0] if names else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The data that the page shows."""

    folder_of: dict[str, Path]
    """The folders with the keys `ensemble`, `data` and `predictions`."""
    manifest: dict[str, Any]
    """The manifest of the prepared data."""
    task: Task
    scores: dict[str, Any]
    """scores.json."""
    combiner: Ensemble
    diversity: dict[str, Any]
    """Error correlations of the members, and the loss without each of them; see combine/diversity.py."""
    forecast: pa.Table | None
    explained_by: tuple[str, ...]
    """The members whose contributions give the reasons of a forecast on the page."""
    test: Predictions
    """The ensemble's prediction file of the scored rows."""
    candidates: dict[str, np.ndarray]
    """By name, the predictions of the scored rows by the ensemble, then by each member: probabilities of a binary target,
    values, or ranking scores on the scale of the member, each (num_rows,); or probabilities of classes, (num_rows,
    num_classes)."""
    members: list[Member]
    versions: dict[str, str]
    """The versions of the libraries with which the ensemble's prediction file was written."""
    scaling: list[dict[str, Any]]
    """Measurements of training on more ranks, one for each file; see `_scaling`."""

    @property
    def recipe(self) -> Recipe:
        return recipe.of(self.manifest)

    @property
    def words(self) -> Words:
        """The recipe's words for rows and positive targets."""
        return self.recipe.words

    @property
    def networks(self) -> dict[str, Path]:
        """The folders of the members that are single networks of the data's recipe, by name. In a bag only the folders of
        copies have weights."""
        kind = {"kind": "neural", "recipe": self.manifest["recipe"]}
        folder_of = {member.name: member.folder for member in self.members if kind.items() <= member.summary.items()}
        return {name: folder for name, folder in folder_of.items() if folder and (folder / "best").is_dir()}

    @property
    def feature_labels(self) -> dict[str, str]:
        """The label of each feature on the page: from `page.feature_label` of the recipe, or its meaning in the manifest."""
        label = self.recipe.get("page", "feature_label") or (lambda feature: feature.get("meaning", feature["name"]))
        return {feature["name"]: label(feature) for feature in self.manifest.get("features", ())}


def read(ensemble: Path, data: Path, prediction_folder: Path, scaling: Sequence[str | Path] = ()) -> Run:
    """Read the data of the page. Raises `UserError` for files that are missing, damaged, or of other data or models."""
    description = _read_json(ensemble / "ensemble.json", ("fingerprint", "combiner", "diversity", "members"))
    folders.verify(ensemble)
    needed_scores = ("scores", "members", "best_member", "gain_over_best_member", "weights", "clusters", "groups")
    scores = _read_json(ensemble / "scores.json", needed_scores)
    combiner = Ensemble.from_dict(description["combiner"])
    manifest = folders.read_manifest(data)
    needed = recipe.of(manifest).get("page", "NEEDED") or ()
    _require(manifest, ("splits", "features", "config", *needed), data / folders.NAME)
    task = task_of(manifest)
    if manifest["fingerprint"] != description["fingerprint"]:
        raise UserError(
            f"the ensemble {ensemble} was fitted on data with the fingerprint {description['fingerprint']}, but {data} has "
            f"the fingerprint {manifest['fingerprint']}: name the data that it was fitted on, or fit it again"
        )
    names = combiner.member_names
    scored = scores.get("split", "test")
    ensemble_file = predictions.read(ensemble / f"{scored}.parquet")
    files = [predictions.read(prediction_folder / f"{name}.{scored}.parquet") for name in names]
    for file in files:
        entry = description["members"].get(file.member)
        if entry and file.config.get("model") != entry["model"]:
            raise UserError(
                f"{prediction_folder} has predictions by another model {file.member} than that of the ensemble {ensemble}: "
                "fit the ensemble again"
            )
    if scored != "test":  # the ensemble has no cross-fitted prediction of some rows, such as those of the first block
        files = [predictions.select_rows(file, np.isin(file.row_id, ensemble_file.row_id)) for file in files]
    test, columns = predictions.align([ensemble_file, *files])
    counted = counted_rows(test.weight)[1]  # the rows that are scored
    test, columns = predictions.select_rows(test, counted), columns[counted]
    weights = dict(zip(names, combiner.weights, strict=True))
    of_members = {name: combiner.probabilities(name, columns[:, 1 + number]) for number, name in enumerate(names)}
    forecast: pa.Table | None = None
    explained_by: tuple[str, ...] = ()
    if FORECAST in manifest["splits"]:
        forecast = _read_parquet(ensemble / "forecast.parquet", pq.read_table)
        if needed := recipe.of(manifest).get("page", "FORECAST_COLUMNS"):
            _require(dict.fromkeys(forecast.column_names), (*needed, *names), ensemble / "forecast.parquet")
        schemas = {name: _schema(prediction_folder / f"{name}.{FORECAST}.parquet") for name in sorted(names)}
        explained_by = tuple(name for name, schema in schemas.items() if "reasons" in schema.names and weights[name])
    return Run(
        folder_of={"ensemble": ensemble, "data": data, "predictions": prediction_folder},
        manifest=manifest,
        task=task,
        scores=scores,
        combiner=combiner,
        diversity=description["diversity"],
        forecast=forecast,
        explained_by=explained_by,
        test=test,
        candidates={ENSEMBLE: columns[:, 0], **of_members},
        members=[
            _member(name, weights[name], file.config, ensemble, description["members"].get(name), prediction_folder)
            for name, file in zip(names, files, strict=True)
        ],
        versions=json.loads((_schema(ensemble / f"{scored}.parquet").metadata or {})[predictions.KEY]).get("versions", {}),
        scaling=[_scaling(Path(file), position) for position, file in enumerate(scaling, start=1)],
    )


def _read_json(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    content = folders.read_json(path)
    _require(content, keys, path)
    return content


def _require(content: Any, keys: Iterable[str], path: Path) -> None:
    """Raise `UserError`, which names the file `path`, if `content` is no dict with all these keys."""
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise UserError(f"{path} lacks '{key}': another version or recipe wrote it, run that stage again")


def _read_parquet(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path.absolute())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: check the path, or run the stage that writes it") from None
    except PermissionError:
        raise UserError(f"{path} cannot be read (Permission denied): check its permissions") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a valid Parquet file ({' '.join(str(error).split())}): write it again") from None


def _schema(path: Path) -> pa.Schema:
    return _read_parquet(path, pq.read_schema)


def _member(
    name: str,
    weight: float,
    config: dict[str, Any],
    ensemble: Path,
    entry: dict[str, str] | None,
    prediction_folder: Path,
) -> Member:
    """Read the files of a member. config : that of its prediction file. entry : its entry in ensemble.json, with a folder
    relative to that of the ensemble; None for a member without a folder."""
    if entry is None:
        return Member(name=name, weight=weight)
    folder = (ensemble / entry["folder"]).resolve()
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    if not folder.is_dir():
        fix = "put it back, or predict with it and fit the ensemble again"
        raise UserError(f"member {name} of the ensemble is not at {folder}: {fix}")
    copies = tuple(bag.copies(folder))
    summaries = [_read_json(copy / "summary.json", ("kind", "seconds")) for copy in copies]
    if bag.model_fingerprint(folder) != entry["model"]:
        raise UserError(f"member {name} at {folder} was trained again after the ensemble was fitted: predict and fit again")
    last = copies[-1]
    try:
        history = [json.loads(line) for line in (last / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    except (ValueError, OSError) as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise UserError(f"{last / 'metrics.jsonl'} {what}: train member {name} again") from None
    return Member(
        name=name,
        weight=weight,
        folder=folder,
        copies=copies,
        settings=folders.read_json(last / "config.json"),
        options={option: config[option] for option in OPTIONS if config.get(option)},
        summary={**summaries[-1], "seconds": sum(summary["seconds"] for summary in summaries)},
        history=history,
        importance=folders.read_json(last / "importance.json") if summaries[-1]["kind"] in members.TREES else {},
        permutation=(
            folders.read_json(last / "permutation.json")
            if (last / "permutation.json").is_file()
            else _importance(prediction_folder / f"{name}.{OUT_OF_FOLD}.parquet", entry["model"])
        ),
    )


def _importance(file: Path, model: str) -> dict[str, Any]:
    """`importance` in a prediction file, if there is one, and if it is of the model with this fingerprint; otherwise {}."""
    if not file.is_file():
        return {}
    metadata = json.loads((_schema(file).metadata or {}).get(predictions.KEY, b"{}"))
    importance = metadata.get("importance", {}) if metadata.get("config", {}).get("model") == model else {}
    if importance:
        _require(importance, ("metric", "rows", "worse"), file)
    return importance


def _scaling(file: Path, position: int) -> dict[str, Any]:
    """The content of a file of `benchmark.py scaling`, with the hardware, the number of the file's colour, and the unit of
    `hours`: a GPU, or a rank on CPUs. The price is None on CPUs."""
    content = _read_json(file, ("environment", "batch_size", "rounds", "by_ranks", "price_per_gpu_hour"))
    rows, environment = content["by_ranks"], content["environment"]
    if not rows:
        raise UserError(f"{file} has no measurement in 'by_ranks': run scripts/benchmark.py scaling again")
    unit = "GPU" if "gpu_hours" in rows[0] else "rank"
    hours = f"{unit.lower()}_hours"
    for row in rows:
        _require(row, ("ranks", "nodes", "device", "samples_per_s", "speed_up", "efficiency", "data_wait", hours), file)
    cores = f"{environment['processor']}, {environment['cores']} cores"
    return {
        **content,
        "file": str(file),
        "series": series_number(position),
        "hardware": rows[0]["device"] if unit == "GPU" else cores,
        "unit": unit,
        "price": content["price_per_gpu_hour"] if unit == "GPU" else None,
        "rows": [{**row, "hours": row[hours]} for row in rows],
    }
