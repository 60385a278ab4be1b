"""A finished run, gathered from the folders that the stages before left, and checked to belong together."""

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
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.predictions import Predictions
from ensemble.predictor import bag, members
from ensemble.predictor.fit import ENSEMBLE
from ensemble.recipe import Recipe, Words
from ensemble.task import Task, task_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """What a member's folder says of it; all empty for a member that has no folder, only prediction files."""

    name: str
    weight: float
    folder: Path | None
    settings: dict[str, Any]
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    importance: dict[str, float]
    permutation: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Its permutation.json, if it has one."""

    @property
    def higher_is_better(self) -> bool:
        """Of `metric`."""
        known = METRIC_FUNCTIONS.get(self.metric)
        return self.summary.get("higher_is_better", known.higher_is_better if known else True)

    @property
    def metric(self) -> str:
        """The one that its training was stopped by; empty if unknown."""
        names = [name for name in self.summary if name.startswith("validation_")]
        return names[0].removeprefix("validation_") if names else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """All that the page is made of.

    `candidates` are forecasts of the test split, the ensemble's first: probabilities of a yes, on the members' own scales
    values and scores, each (num_rows,), or probabilities of classes (num_rows, num_classes).
    """

    folder_of: dict[str, Path]
    about: dict[str, Any]
    task: Task
    scores: dict[str, Any]
    combiner: Ensemble
    diversity: dict[str, Any]
    forecast: pa.Table | None
    explained_by: tuple[str, ...]
    """Members whose contributions are the reasons of the forecast."""
    test: Predictions
    candidates: dict[str, np.ndarray]
    members: list[Member]
    versions: dict[str, str]
    scaling: list[dict[str, Any]]

    @property
    def recipe(self) -> Recipe:
        return recipe.of(self.about)

    @property
    def words(self) -> Words:
        """What the recipe calls rows and positive answers."""
        return self.recipe.words

    @property
    def feature_words(self) -> dict[str, str]:
        """What each feature is, for people: what the recipe calls it, or its meaning in the folders."""
        words = self.recipe.get("page", "feature_words") or (lambda feature: feature["meaning"])
        return {feature["name"]: words(feature) for feature in self.about.get("features", ())}


def read(ensemble: Path, data: Path, prediction_folder: Path, scaling: Sequence[str | Path] = ()) -> Run:
    """Gather a run from its folders, and check that all of it belongs together."""
    description = _read_json(ensemble / "ensemble.json", ("fingerprint", "combiner", "diversity", "members"))
    folders.verify(ensemble)
    needed_scores = ("scores", "members", "best_member", "gain_over_best_member", "weights", "clusters", "groups")
    scores = _read_json(ensemble / "scores.json", needed_scores)
    combiner = Ensemble.from_dict(description["combiner"])
    about = folders.read_manifest(data)
    its_recipe = recipe.of(about)
    _require(about, ("splits", "features", "config", *(its_recipe.get("page", "NEEDED") or ())), data / folders.NAME)
    task = task_of(about)
    if about["fingerprint"] != description["fingerprint"]:
        raise UserError(
            f"the ensemble {ensemble} was fitted on data {description['fingerprint']}, but {data} is {about['fingerprint']}"
            ": name the data it was fitted on, or fit it again"
        )
    names = combiner.member_names
    scored = scores.get("split", "test")
    own = predictions.read(ensemble / f"{scored}.parquet")
    files = [predictions.read(prediction_folder / f"{name}.{scored}.parquet") for name in names]
    if scored != "test":  # rows that no weights were fitted before have no forecast of the ensemble
        files = [predictions.select_rows(file, np.isin(file.row_id, own.row_id)) for file in files]
    test, columns = predictions.align([own, *files])
    weight = dict(zip(names, combiner.weights, strict=True))
    forecast: pa.Table | None = None
    columns_of: dict[str, list[str]] = {}
    if FORECAST in about["splits"]:
        forecast = _read_parquet(ensemble / "forecast.parquet", pq.read_table)
        if needed := its_recipe.get("page", "FORECAST_COLUMNS"):
            _require(dict.fromkeys(forecast.column_names), (*needed, *names), ensemble / "forecast.parquet")
        columns_of = {name: _schema(prediction_folder / f"{name}.{FORECAST}.parquet").names for name in sorted(names)}
    return Run(
        folder_of={"ensemble": ensemble, "data": data, "predictions": prediction_folder},
        about=about,
        task=task,
        scores=scores,
        combiner=combiner,
        diversity=description["diversity"],
        forecast=forecast,
        explained_by=tuple(name for name, of in columns_of.items() if "reasons" in of and weight[name]),
        test=test,
        candidates={
            ENSEMBLE: columns[:, 0],
            **{
                name: combiner.probabilities(name, column) if task.kind == "binary" else column
                for name, column in zip(names, np.moveaxis(columns[:, 1:], 1, 0), strict=True)
            },
        },
        members=[
            _member(name, weight, ensemble, description["members"].get(name))
            for name, weight in zip(names, combiner.weights, strict=True)
        ],
        versions=json.loads((_schema(ensemble / f"{scored}.parquet").metadata or {})[predictions.KEY]).get("versions", {}),
        scaling=[_scaling(Path(file), position) for position, file in enumerate(scaling, start=1)],
    )


def _read_json(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    content = folders.read_json(path)
    _require(content, keys, path)
    return content


def _require(content: Any, keys: Iterable[str], path: Path) -> None:
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise UserError(f"{path} lacks '{key}': it is of another version or recipe, run the stage that wrote it again")


def _read_parquet(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: check the path, or run the stage that writes it") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a sound Parquet file ({' '.join(str(error).split())}): write it again") from None


def _schema(path: Path) -> pa.Schema:
    return _read_parquet(path, pq.read_schema)


def _member(name: str, weight: float, ensemble: Path, where: dict[str, str] | None) -> Member:
    """`where` is what ensemble.json says of the member: its folder, relative to the ensemble's, and its model."""
    if where is None:
        return Member(name=name, weight=weight, folder=None, settings={}, summary={}, history=[], importance={})
    folder = (ensemble / where["folder"]).resolve()
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    if not folder.is_dir():
        raise UserError(f"member {name} of the ensemble is not at {folder}: put it back, or fit the ensemble again")
    summary = _read_json(folder / "summary.json", ("kind", "seconds"))
    bag.model_of(folder)  # compares checksums
    try:
        history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise UserError(f"{folder / 'metrics.jsonl'} does not exist: train member {name} again") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{folder / 'metrics.jsonl'} is damaged ({error}): train member {name} again") from None
    return Member(
        name=name,
        weight=weight,
        folder=folder,
        settings=folders.read_json(folder / "config.json"),
        summary=summary,
        history=history,
        importance=folders.read_json(folder / "importance.json") if summary["kind"] in members.TREES else {},
        permutation=folders.read_json(folder / "permutation.json") if (folder / "permutation.json").is_file() else {},
    )


def _scaling(file: Path, position: int) -> dict[str, Any]:
    """What a file of `benchmark.py scaling` measured, on what, and what its hours are of: GPUs, or ranks on CPUs."""
    found = _read_json(file, ("environment", "batch_size", "rounds", "by_ranks", "price_per_gpu_hour"))
    rows, environment = found["by_ranks"], found["environment"]
    unit = "GPU" if "gpu_hours" in rows[0] else "rank"
    hours = f"{unit.lower()}_hours"
    for row in rows:
        _require(row, ("ranks", "nodes", "device", "samples_per_s", "speed_up", "efficiency", "data_wait", hours), file)
    cores = f"{environment['processor']}, {environment['cores']} cores"
    return {
        **found,
        "file": str(file),
        "series": position,
        "hardware": rows[0]["device"] if unit == "GPU" else cores,
        "unit": unit,
        "price": found["price_per_gpu_hour"] if unit == "GPU" else None,
        "rows": [{**row, "hours": row[hours]} for row in rows],
    }
