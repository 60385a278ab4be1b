"""A finished run to one HTML page that needs no network: which products, how good is the forecast, what did each member add.

    python scripts/report.py ensemble=runs/demo/ensemble data=runs/demo/prepared predictions=runs/demo/predictions \\
        out=runs/demo/report.html 'scaling=[slurm/results/scaling.json]'

Everything on the page is read from files that the stages before left: the ensemble's folder, the manifest of the prepared
data, the members' prediction files, and their folders, which ensemble.json names; what training gains from more ranks, where
a file of that benchmark is given. The words and their layout are in report.html.j2; here the numbers are gathered and the
pictures drawn. It takes two seconds.
"""

import dataclasses
import datetime
import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ensemble import metrics, predictions, report_pictures
from ensemble.combine import Ensemble
from ensemble.data import baseline, manifest
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import ENSEMBLE, FORECAST
from ensemble.report_words import (
    KINDS,
    METHOD_WORDS,
    METRIC_WORDS,
    PLANNED_SPEED_UP,
    SPLIT_USE,
    day,
    duration,
    feature_value,
    feature_words,
    megabytes,
    number,
    percent,
    significant,
)

TEMPLATE = "report.html.j2"
NUM_PRODUCTS = 50
NUM_FEATURES = 15  # in the picture of the trees' feature importance
ACCURACY = ("accuracy", "accuracy_always_no")  # apart from the other metrics, because they say nothing where hot is rare


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """All that the page is made of. `candidates` are the test split's probabilities, the ensemble's first."""

    folders: dict[str, Path]
    about: dict[str, Any]
    scores: dict[str, Any]
    combiner: Ensemble
    diversity: dict[str, Any]
    forecast: pa.Table
    explained_by: str | None
    test: Predictions
    candidates: dict[str, np.ndarray]
    members: list[Member]
    versions: dict[str, str]
    scaling: list[dict[str, Any]]


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
    scratch = out.with_name(f".{out.name}.writing-{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.write_text(page, encoding="utf-8")
            manifest.sync(scratch)
            scratch.rename(out)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"the report {out} cannot be written: {error.strerror or error}") from None
    return out


def read(ensemble: Path, data: Path, prediction_folder: Path, scaling: Sequence[str | Path] = ()) -> Run:
    """Gather a run from its folders, and check that all of it belongs together."""
    description = _read_json(ensemble / "ensemble.json", ("fingerprint", "combiner", "diversity", "members"))
    scores = _read_json(ensemble / "scores.json", ("scores", "members", "best_member", "gain_over_best_member", "weights"))
    combiner = Ensemble.from_dict(description["combiner"])
    about = manifest.read_manifest(data)
    _require(about, ("features", "census", "splits", "categories", "last_week"), data / manifest.NAME)
    if about["fingerprint"] != description["fingerprint"]:
        raise UserError(
            f"the ensemble {ensemble} was fitted on data {description['fingerprint']}, but {data} is {about['fingerprint']}"
            ": name the data it was fitted on, or fit it again"
        )
    names = combiner.member_names
    files = [ensemble / "test.parquet", *(prediction_folder / f"{name}.test.parquet" for name in names)]
    test, columns = predictions.align([predictions.read(file) for file in files])
    forecast = _read_parquet(ensemble / "forecast.parquet", pq.read_table)
    _require(
        dict.fromkeys(forecast.column_names),
        ("rank", "product_id", "title", "category", "probability", "reasons", *names),
        ensemble / "forecast.parquet",
    )
    weight = dict(zip(names, combiner.weights, strict=True))
    columns_of = {name: _schema(prediction_folder / f"{name}.{FORECAST}.parquet").names for name in sorted(names)}
    return Run(
        folders={"ensemble": ensemble, "data": data, "predictions": prediction_folder},
        about=about,
        scores=scores,
        combiner=combiner,
        diversity=description["diversity"],
        forecast=forecast,
        explained_by=max((name for name, of in columns_of.items() if "reasons" in of), key=weight.__getitem__, default=None),
        test=test,
        candidates={
            ENSEMBLE: columns[:, 0],
            **{name: combiner.probabilities(name, column) for name, column in zip(names, columns[:, 1:].T, strict=True)},
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
    return environment.get_template(TEMPLATE).render(
        series_of={name: report_pictures.fold(position) for position, name in enumerate(run.candidates)},
        dashes=[_dashes(lengths) for lengths in report_pictures.DASHES],
        about=run.about,
        scores=run.scores,
        headline=_headline(run),
        forecast=_forecast(run),
        table=_score_table(run),
        pictures=report_pictures.draw(run),
        members=[_member_row(member) for member in run.members],
        combiner=run.combiner,
        ways=_ways(run.combiner.cross_fitted, run.combiner.method),
        calibrators=_ways(run.combiner.cross_fitted_calibrators, run.combiner.calibrator),
        diversity=run.diversity,
        method_words=METHOD_WORDS.get(run.combiner.method, run.combiner.method),
        importance=_importance(run),
        timeline=_timeline(run.about),
        split_use=SPLIT_USE,
        feature_words={feature["name"]: feature_words(feature) for feature in run.about["features"]},
        versions=run.versions,
        commands=_commands(run),
        scaling=run.scaling,
        planned=PLANNED_SPEED_UP,
        planned_dashes=_dashes(report_pictures.PLANNED_DASHES),
    )


def _ways(cross_fitted: dict[str, dict[str, float]], taken: str) -> list[dict[str, Any]]:
    """What each way to combine, or to calibrate, would have given on later weeks, and which was taken."""
    return [
        {"name": name.replace("_", " "), "words": METHOD_WORDS.get(name, ""), "taken": name == taken, **of}
        for name, of in cross_fitted.items()
    ]


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
    summary = _read_json(folder / "summary.json", ("kind", "seconds", "validation_average_precision"))
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


def _headline(run: Run) -> dict[str, Any]:
    scores = run.scores["scores"][ENSEMBLE]
    week = datetime.date.fromisoformat(run.about["last_week"])
    horizon_weeks = run.about["config"]["horizon_weeks"]
    return {
        "week": week,
        "until": week + datetime.timedelta(weeks=1 + horizon_weeks, days=-1),
        "horizon_weeks": horizon_weeks,
        "products": run.forecast.num_rows,
        "precision": scores["precision_at_5pct"]["value"],
        "lift": scores["lift_at_5pct"]["value"],
        "base_rate": run.scores["base_rate"],
        "top_fraction": metrics.TOP_FRACTION,
    }


def _forecast(run: Run) -> dict[str, Any]:
    """The first products, each with its probability, its members' and the reasons in words."""
    table = run.forecast.slice(0, NUM_PRODUCTS)
    probability = table["probability"].to_numpy()
    of_members = np.stack([table[name].to_numpy() for name in run.combiner.member_names], axis=1)
    features = {feature["name"]: feature for feature in run.about["features"]}
    scale = min(1.0, np.ceil(10 * max(probability.max(), of_members.max())) / 10)
    rows = []
    for number_of_row, row in enumerate(table.to_pylist()):
        reasons = []
        for reason in row["reasons"] or ():
            feature = features.get(reason["feature"], {"name": reason["feature"], "meaning": reason["feature"], "unit": ""})
            value = feature_value(reason["value"], feature["unit"], run.about["categories"])
            odds = np.exp(reason["contribution"])
            reasons.append({**feature, "words": feature_words(feature), "value": value, "odds": number(float(odds), 1)})
        members = dict(zip(run.combiner.member_names, of_members[number_of_row].tolist(), strict=True))
        rows.append({**row, "title": row["title"] or row["product_id"], "reasons": reasons, "members": members})
    return {
        "rows": rows,
        "scale": float(scale),
        "expected": float(probability.sum()),
        "expected_blindly": len(rows) * run.scores["base_rate"],
        "explained_by": run.explained_by,
    }


def _score_table(run: Run) -> dict[str, Any]:
    """Columns, rows and the gain over the best member, written out."""
    scores = run.scores["scores"]
    names = [name for name in metrics.METRICS if name not in ACCURACY]
    rows = []
    for candidate, of in scores.items():
        kind = "" if candidate == ENSEMBLE else "member" if candidate in run.scores["members"] else "baseline"
        cells = [_interval(name, of[name]) for name in names]
        rows.append({"name": candidate, "kind": kind, "cells": cells, "accuracy": of["accuracy"]["value"]})
    for column, name in enumerate(names):
        known = [of[name]["value"] for of in scores.values() if of[name]["value"] is not None]
        choose = max if metrics.METRICS[name].higher_is_better else min
        best = _written(name, choose(known)) if known else None
        for row in rows:
            row["cells"][column]["best"] = row["cells"][column]["value"] == best  # as written: equal to the eye is equal
    gain = run.scores["gain_over_best_member"]
    return {
        "columns": [{**metrics.METRICS[name]._asdict(), "words": METRIC_WORDS[name]} for name in names],
        "rows": rows,
        "gain": [{**_interval(name, gain[name], signed=True), "verdict": _verdict(name, gain[name])} for name in names],
        "gain_of_average_precision": gain["average_precision"],
        "verdict": _verdict("average_precision", gain["average_precision"]),
        "always_no": scores[ENSEMBLE]["accuracy_always_no"]["value"],
    }


def _interval(name: str, interval: dict[str, float | None], signed: bool = False) -> dict[str, Any]:
    value, low, high = (_written(name, interval[end], signed) for end in ("value", "low", "high"))
    return {"value": value, "interval": f"{low} to {high}" if interval["low"] is not None else ""}


def _written(name: str, value: float | None, signed: bool = False) -> str:
    digits = {"lift_at_5pct": 2, "log_loss": 4, "brier": 4, "calibration_error": 4}.get(name, 3)
    return f"{'+' if signed and value is not None and value > 0 else ''}{number(value, digits)}"


def _verdict(name: str, gain: dict[str, float | None]) -> str:
    if gain["low"] is None or gain["high"] is None:
        return ""
    if gain["low"] <= 0 <= gain["high"]:
        return "may be chance"
    return "better" if (gain["low"] > 0) == metrics.METRICS[name].higher_is_better else "worse"


def _member_row(member: Member) -> dict[str, Any]:
    summary = member.summary
    size = f"{summary['trees']:,} trees" if "trees" in summary else ""
    size = f"{summary['parameters']:,} weights" if "parameters" in summary else size
    return {
        "name": member.name,
        "weight": member.weight,
        "kind": KINDS.get(summary.get("kind", ""), summary.get("kind", "–")),
        "size": size or "–",
        "seconds": summary.get("seconds"),
        "validation": summary.get("validation_average_precision"),
    }


def _importance(run: Run) -> dict[str, Any]:
    """Each tree member's gain by feature, as a part of its whole gain; the features that gained most first."""
    trees = {member.name: member.importance for member in run.members if sum(member.importance.values())}
    shares = {
        name: {feature: gain / sum(importance.values()) for feature, gain in importance.items()}
        for name, importance in trees.items()
    }
    features = {feature["name"]: feature_words(feature) for feature in run.about["features"]}
    rows = [
        {"name": name, "words": words, "shares": {member: of.get(name, 0.0) for member, of in shares.items()}}
        for name, words in features.items()
    ]
    rows = sorted(rows, key=lambda row: -sum(row["shares"].values()))[:NUM_FEATURES] if shares else []
    return {"members": list(shares), "rows": rows, "scale": max((max(row["shares"].values()) for row in rows), default=1.0)}


def _timeline(about: dict[str, Any]) -> list[dict[str, Any]]:
    """Where each split lies between the first week and the end of the forecast's horizon, in percent."""
    first = datetime.date.fromisoformat(about["first_week"])
    horizon = datetime.timedelta(weeks=about["config"]["horizon_weeks"])
    week = datetime.timedelta(weeks=1)
    whole = datetime.date.fromisoformat(about["last_week"]) + week + horizon - first
    spans = {
        split: (datetime.date.fromisoformat(of["first_week"]), datetime.date.fromisoformat(of["last_week"]) + week)
        for split, of in about["splits"].items()
    }
    if FORECAST in spans:
        spans[FORECAST] = (spans[FORECAST][1], spans[FORECAST][1] + horizon)
    return [
        {"name": split, "left": 100 * ((begin - first) / whole), "width": 100 * ((end - begin) / whole)}
        for split, (begin, end) in spans.items()
    ]


def _commands(run: Run) -> list[str]:
    """The command lines that make this page again, run where the raw files lie: the manifest has their names, no folders.

    The settings of panel and members are written out, since defaults may change.
    """
    about, data, predicted = run.about, run.folders["data"], run.folders["predictions"]
    raw = {
        key: [file["file"] for file in about.get(census, {}).get("files", ())]
        for key, census in (("source", "census"), ("metadata", "product_census"))
    }
    files = [f"{key}=[{','.join(names)}]" for key, names in raw.items() if names]
    lines = [["python", "scripts/prepare_data.py", f"out={data}", *files, *_settings(about["config"], "panel.")]]
    for member in run.members:
        if member.folder is None:
            continue
        script = ["python", "scripts/train_trees.py"]
        if member.summary["kind"] == "neural":
            hardware = "gpu" if "cuda" in str(member.summary.get("device")) else "cpu"
            number_of = "multi" if member.summary.get("ranks", 1) > 1 else "single"
            launch = ["accelerate", "launch", "--config_file", f"accelerate_configs/{number_of}_{hardware}.yaml"]
            script = [*launch, "scripts/train.py", "--recipe", about["recipe"]]
        settings = {key: value for key, value in member.settings.items() if key not in ("data", "out", "overwrite")}
        lines.append([*script, f"data={data}", f"out={member.folder}", *_settings(settings)])
    for member in run.members:
        if member.folder:
            words = [f"member={member.folder}", f"data={data}", f"out={predicted}", f"name={member.name}"]
            lines.append(["python", "scripts/predict.py", *words])
    if baseline.NAME in run.scores["scores"]:
        lines.append(["python", "scripts/predict.py", f"member={baseline.NAME}", f"data={data}", f"out={predicted}"])
    fit = [f"predictions={predicted}", f"data={data}", f"out={run.folders['ensemble']}"]
    lines.append(["python", "scripts/ensemble_predictor.py", "fit", *fit])
    scaling = [f"scaling=[{','.join(of['file'] for of in run.scaling)}]"] if run.scaling else []
    folders = [f"{name}={folder}" for name, folder in run.folders.items()]
    lines.append(["python", "scripts/report.py", *folders, *scaling, "out=report.html"])
    return [shlex.join(line) for line in lines]


def _settings(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """The `key=value` words of nested settings."""
    words = []
    for key, value in settings.items():
        if isinstance(value, dict):
            words += _settings(value, f"{prefix}{key}.")
        else:
            words.append(f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value)}")
    return words
