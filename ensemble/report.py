"""A finished run to one HTML page that needs no network: which products, how good is the forecast, what did each member add.

    python scripts/report.py ensemble=runs/demo/ensemble data=runs/demo/prepared predictions=runs/demo/predictions \\
        out=runs/demo/report.html 'scaling=[slurm/results/scaling.json]'

Everything on the page is read from files that the stages before left: the ensemble's folder, the manifest of the prepared
data, the members' prediction files, and their folders, which ensemble.json names; what training gains from more ranks, where
a file of that benchmark is given. The words and their layout are in report.html.j2; here the numbers are gathered and the
pictures drawn. It takes two seconds.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ensemble import (
    metrics,
    predictions,
    report_commands,
    report_forecast,
    report_hot_sellers,
    report_pictures,
    report_tables,
)
from ensemble.combine import Ensemble
from ensemble.data import manifest
from ensemble.data.task import Task, task_of
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import ENSEMBLE, FORECAST
from ensemble.report_words import (
    HOT_SELLERS,
    METHOD_WORDS,
    PLANNED_SPEED_UP,
    SPLIT_USE,
    day,
    duration,
    feature_words,
    megabytes,
    number,
    percent,
    significant,
)

TEMPLATE = "report.html.j2"


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

    folders: dict[str, Path]
    about: dict[str, Any]
    task: Task
    scores: dict[str, Any]
    combiner: Ensemble
    diversity: dict[str, Any]
    forecast: pa.Table | None
    explained_by: str | None
    test: Predictions
    candidates: dict[str, np.ndarray]
    members: list[Member]
    versions: dict[str, str]
    scaling: list[dict[str, Any]]

    @property
    def is_hot_sellers(self) -> bool:
        return self.about["recipe"] == HOT_SELLERS

    @property
    def feature_words(self) -> dict[str, str]:
        """What each feature is, for people: a column of a table is what its header says."""
        return {
            feature["name"]: feature_words(feature) if self.is_hot_sellers else feature["meaning"]
            for feature in self.about["features"]
        }


def write(
    ensemble: str | Path,
    data: str | Path,
    prediction_folder: str | Path,
    out: str | Path,
    scaling: Sequence[str | Path] = (),
) -> Path:
    """Write the page in one rename, over an older one, and return its path.

    `scaling` are JSON files of that benchmark, for a part of the page on training with more ranks.
    Raises `UserError` for whatever is missing, damaged or of other data, before anything is written.
    """
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out} is a folder: name the file, as in out={out / 'report.html'}")
    page = render(read(Path(ensemble), Path(data), Path(prediction_folder), scaling))
    with manifest.new_file(out, "report") as scratch:
        scratch.write_text(page, encoding="utf-8")
    return out


def read(ensemble: Path, data: Path, prediction_folder: Path, scaling: Sequence[str | Path] = ()) -> Run:
    """Gather a run from its folders, and check that all of it belongs together."""
    description = _read_json(ensemble / "ensemble.json", ("fingerprint", "combiner", "diversity", "members"))
    scores = _read_json(ensemble / "scores.json", ("scores", "members", "best_member", "gain_over_best_member", "weights"))
    combiner = Ensemble.from_dict(description["combiner"])
    about = manifest.read_manifest(data)
    of_recipe = ("categories", "last_week") if about["recipe"] == HOT_SELLERS else ("left_out", "target")
    _require(about, ("features", "census", "splits", *of_recipe), data / manifest.NAME)
    task = task_of(about)
    if about["fingerprint"] != description["fingerprint"]:
        raise UserError(
            f"the ensemble {ensemble} was fitted on data {description['fingerprint']}, but {data} is {about['fingerprint']}"
            ": name the data it was fitted on, or fit it again"
        )
    names = combiner.member_names
    files = [ensemble / "test.parquet", *(prediction_folder / f"{name}.test.parquet" for name in names)]
    test, columns = predictions.align([predictions.read(file) for file in files])
    weight = dict(zip(names, combiner.weights, strict=True))
    forecast: pa.Table | None = None
    columns_of: dict[str, list[str]] = {}
    if FORECAST in about["splits"]:
        forecast = _read_parquet(ensemble / "forecast.parquet", pq.read_table)
        if about["recipe"] == HOT_SELLERS:
            needed = (*report_forecast.PRODUCT_COLUMNS, *names)
            _require(dict.fromkeys(forecast.column_names), needed, ensemble / "forecast.parquet")
        columns_of = {name: _schema(prediction_folder / f"{name}.{FORECAST}.parquet").names for name in sorted(names)}
    return Run(
        folders={"ensemble": ensemble, "data": data, "predictions": prediction_folder},
        about=about,
        task=task,
        scores=scores,
        combiner=combiner,
        diversity=description["diversity"],
        forecast=forecast,
        explained_by=max((name for name, of in columns_of.items() if "reasons" in of), key=weight.__getitem__, default=None),
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
        versions=json.loads((_schema(ensemble / "test.parquet").metadata or {})[predictions.KEY]).get("versions", {}),
        scaling=[_scaling(Path(file), position) for position, file in enumerate(scaling, start=1)],
    )


def render(run: Run) -> str:
    """The page, from the template beside this module."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for words in (percent, number, significant, day, duration, megabytes):
        environment.filters[words.__name__] = words
    environment.filters["score"] = partial(report_tables.score, run.task.kind)
    return environment.get_template(TEMPLATE).render(
        series_of={name: report_pictures.fold(position) for position, name in enumerate(run.candidates)},
        dashes=[_dashes(lengths) for lengths in report_pictures.DASHES],
        about=run.about,
        task=run.task,
        hot_sellers=run.is_hot_sellers,
        scores=run.scores,
        headline=report_hot_sellers.headline(run) if run.is_hot_sellers else None,
        forecast=_forecast(run),
        table=report_tables.score_table(run),
        confusion=report_tables.confusion(run) if run.task.kind == "multiclass" else None,
        pictures=report_pictures.draw(run),
        members=[report_tables.member_row(member) for member in run.members],
        combiner=run.combiner,
        ways=report_tables.ways(run.combiner.cross_fitted, run.combiner.method),
        way_metrics=list(next(iter(run.combiner.cross_fitted.values()), {})),
        metric_words=report_tables.metric_words(run),
        rises={name: metric.higher_is_better for name, metric in metrics.METRICS[run.task.kind].items()},
        calibrators=report_tables.ways(run.combiner.cross_fitted_calibrators, run.combiner.calibrator),
        diversity=run.diversity,
        method_words=METHOD_WORDS.get(run.combiner.method, run.combiner.method),
        importance=report_tables.importance(run),
        timeline=report_hot_sellers.timeline(run.about) if run.is_hot_sellers else [],
        split_use=SPLIT_USE,
        feature_words=run.feature_words,
        versions=run.versions,
        commands=report_commands.commands(run),
        scaling=run.scaling,
        planned=PLANNED_SPEED_UP,
        planned_dashes=_dashes(report_pictures.PLANNED_DASHES),
    )


def _forecast(run: Run) -> dict[str, Any] | None:
    if run.forecast is None:
        return None
    return report_forecast.products(run) if run.is_hot_sellers else report_forecast.rows(run)


def _dashes(lengths: Iterable[float]) -> str:
    """A picture's dashes, as a legend draws them."""
    return " ".join(f"{1.5 * length:g}" for length in lengths)


def _read_json(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    content = manifest.read_json(path)
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
        settings=manifest.read_json(folder / "config.json"),
        summary=summary,
        history=history,
        importance={} if summary["kind"] == "neural" else manifest.read_json(folder / "importance.json"),
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
        "series": report_pictures.fold(position),
        "hardware": rows[0]["device"] if unit == "GPU" else cores,
        "unit": unit,
        "price": found["price_per_gpu_hour"] if unit == "GPU" else None,
        "rows": [{**row, "hours": row[hours]} for row in rows],
    }
