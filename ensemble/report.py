"""A finished run to one HTML page that needs no network: which products, how good is the forecast, what did each member add.

    python scripts/report.py ensemble=runs/demo/ensemble data=runs/demo/prepared predictions=runs/demo/predictions \\
        out=runs/demo/report.html

Everything on the page is read from files that the stages before left: the ensemble's folder, the manifest of the prepared
data, the members' prediction files, and their folders, which ensemble.json names. The words and their layout are in
report.html.j2; here the numbers are gathered and the pictures drawn. It takes two seconds.
"""

import dataclasses
import datetime
import io
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup, escape

from ensemble import metrics, predictions
from ensemble.combine import Ensemble
from ensemble.data import baseline, manifest
from ensemble.data.weekly import monday
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import ENSEMBLE, FORECAST

TEMPLATE = "report.html.j2"
NUM_PRODUCTS = 50
NUM_FEATURES = 15  # in the picture of the trees' feature importance
ACCURACY = ("accuracy", "accuracy_always_no")  # apart from the other metrics, because they say nothing where hot is rare
THIN = "\u202f"  # a narrow space that does not break, between a number and its unit

KINDS = {"neural": "neural network", "xgboost": "XGBoost", "lightgbm": "LightGBM"}
SPLIT_USE = {
    "train": "members learn",
    "validation": "members stop learning in time",
    "blend": "weights and calibration are fitted",
    "test": "the scores above",
    FORECAST: "the forecast above",
}
METHOD_WORDS = {
    "best member": "all weight on the member of lowest log loss",
    "greedy": "members added one by one, with replacement, while that helps",
    "simplex": "the weights of lowest log loss, none negative, 1 together",
}
METRIC_WORDS = {
    "average_precision": "The area under the precision-recall curve: 1 is perfect, the base rate is blind.",
    "roc_auc": "How often a hot product is ranked above one that is not: 1 is perfect, 0.5 is blind.",
    "log_loss": "The mean surprise at what happened: confident mistakes cost most.",
    "brier": "The mean squared distance between the probability and what happened.",
    "calibration_error": "How far the probability lies from the share that became hot; saying the base rate has none.",
    "precision_at_5pct": "Of the products in each week's top 5 %, the part that became hot.",
    "lift_at_5pct": "That precision as a multiple of the base rate.",
}
FEATURE_WORDS = (
    (r"reviews_total", "reviews ever"),
    (r"reviews_per_week", "reviews a week since its first"),
    (r"reviews_same_(\d+)w_last_year", "reviews in the same {} weeks a year ago"),
    (r"reviews_(\d+)w", "reviews in {} weeks"),
    (r"growth_last_year", "growth in reviews a year ago, in the weeks that now lie ahead"),
    (r"growth_(\d+)w_a_month_ago", "growth in reviews over {} weeks, a month ago"),
    (r"growth_(\d+)w", "growth in reviews over {} weeks"),
    (r"acceleration_(\d+)w", "change in a month of the growth over {} weeks"),
    (r"share_1w_of_(\d+)w", "share of {} weeks’ reviews in the last week"),
    (r"share_(\d+)w_of_(\d+)w", "share of {1} weeks’ reviews in the last {0}"),
    (r"share_(\d+)w_of_total", "share of all its reviews in the last {} weeks"),
    (r"active_weeks_(\d+)w", "weeks with a review, of the last {}"),
    (r"weekly_deviation_(\d+)w", "spread of weekly reviews in {} weeks"),
    (r"age", "weeks since its first review"),
    (r"weeks_since_review", "weeks since a week with a review"),
    (r"weeks_since_second", "weeks since the second last week with a review"),
    (r"expected_by_last_year", "last year’s reviews in the weeks ahead, by those of the last 4 weeks"),
    (r"year_(sine|cosine)", "time of the year ({})"),
    (r"weeks_to_thanksgiving", "weeks to Thanksgiving"),
    (r"weeks_to_christmas", "weeks to Christmas"),
    (r"holidays_next_(\d+)w", "public holidays in the next {} weeks"),
    (r"rating_total", "mean rating ever"),
    (r"rating_change_4w", "rating in 4 weeks, less that in 52"),
    (r"rating_change_12w", "rating in 12 weeks, less the 12 before"),
    (r"rating_deviation_(\d+)w", "spread of ratings in {} weeks"),
    (r"rating_(\d+)w", "mean rating in {} weeks"),
    (r"fives_(\d+)w", "share of five-star ratings in {} weeks"),
    (r"ones_(\d+)w", "share of one-star ratings in {} weeks"),
    (r"verified_(\d+)w", "share of verified purchases in {} weeks"),
    (r"images_(\d+)w", "pictures a review in {} weeks"),
    (r"words_(\d+)w", "words a review in {} weeks"),
    (r"sentiment_(\d+)w", "good less bad words a review in {} weeks"),
    (r"helpful_(\d+)w", "helpful votes a review in {} weeks"),
    (r"category", "category"),
    (r"category_reviews_(\d+)w", "its category’s reviews in {} weeks"),
    (r"category_growth_last_year", "its category’s growth a year ago, in the weeks that now lie ahead"),
    (r"category_growth_(\d+)w", "its category’s growth over {} weeks"),
    (r"share_of_category_(\d+)w", "share of its category’s reviews in {} weeks"),
    (r"market_growth_(\d+)w", "the whole market’s growth over {} weeks"),
    (r"price", "price"),
    (r"price_missing", "price unknown"),
)
"""What a feature is, for people, with `{}` for the numbers in its name; the formulas are in the page's table of features."""


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
    forecast: pa.Table
    explained_by: str | None
    test: Predictions
    candidates: dict[str, np.ndarray]
    members: list[Member]
    versions: dict[str, str]


def write(ensemble: str | Path, data: str | Path, prediction_folder: str | Path, out: str | Path) -> Path:
    """Write the page in one rename, over an older one, and return its path.

    Raises `UserError` for whatever is missing, damaged or of other data, before anything is written.
    """
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out} is a folder: name the file, as in out={out / 'report.html'}")
    page = render(read(Path(ensemble), Path(data), Path(prediction_folder)))
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


def read(ensemble: Path, data: Path, prediction_folder: Path) -> Run:
    """Gather a run from its folders, and check that all of it belongs together."""
    description = _read_json(ensemble / "ensemble.json", ("fingerprint", "combiner", "members"))
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
    columns_of = {name: _schema(prediction_folder / f"{name}.{FORECAST}.parquet").names for name in sorted(names)}
    return Run(
        folders={"ensemble": ensemble, "data": data, "predictions": prediction_folder},
        about=about,
        scores=scores,
        combiner=combiner,
        forecast=forecast,
        explained_by=next((name for name, of in columns_of.items() if "reasons" in of), None),
        test=test,
        candidates=dict(zip((ENSEMBLE, *names), columns.T, strict=True)),
        members=[
            _member(name, weight, ensemble, description["members"].get(name))
            for name, weight in zip(names, combiner.weights, strict=True)
        ],
        versions=json.loads((_schema(ensemble / "test.parquet").metadata or {})[predictions.KEY]).get("versions", {}),
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
    environment.filters |= {"percent": percent, "number": number, "day": day, "duration": duration, "megabytes": megabytes}
    return environment.get_template(TEMPLATE).render(
        series_of={name: _fold(position) for position, name in enumerate(run.candidates)},
        dashes=[" ".join(f"{1.5 * length:g}" for length in dashes) for dashes in DASHES],
        about=run.about,
        scores=run.scores,
        headline=_headline(run),
        forecast=_forecast(run),
        table=_score_table(run),
        pictures=_pictures(run),
        members=[_member_row(member) for member in run.members],
        combiner=run.combiner,
        ways=[{"name": name, "words": METHOD_WORDS.get(name, ""), **of} for name, of in run.combiner.cross_fitted.items()],
        method_words=METHOD_WORDS.get(run.combiner.method, run.combiner.method),
        importance=_importance(run),
        timeline=_timeline(run.about),
        split_use=SPLIT_USE,
        feature_words={feature["name"]: feature_words(feature) for feature in run.about["features"]},
        versions=run.versions,
        commands=_commands(run),
    )


def feature_words(feature: dict[str, Any]) -> str:
    """What a feature of the manifest's table is, for people; its documented meaning where we have no better words."""
    for pattern, words in FEATURE_WORDS:
        if found := re.fullmatch(pattern, feature["name"]):
            return words.format(*found.groups()).replace(" 1 weeks", " 1 week")
    return feature["meaning"]


def feature_value(value: float, unit: str, categories: list[str]) -> str:
    """A feature's value with as many digits as a person wants, and its unit where the words do not say it."""
    if np.isnan(value):
        return "unknown"
    if unit == "share":
        return percent(value)
    if unit == "ratio":
        return f"{number(value)}{THIN}×"
    if unit == "dollars":
        return f"${value:,.2f}"
    if unit == "stars":
        return f"{number(value)}{THIN}★"
    if unit == "0 or 1":
        return "yes" if value else "no"
    if unit == "code" and 0 <= value < len(categories):
        return categories[int(value)] or "unknown"
    return number(value)


def percent(value: float | None, digits: int | None = None) -> str:
    """0.0489 as "4.9 %": one digit below 10 %, none above, unless `digits` says."""
    if value is None:
        return "–"
    digits = (1 if abs(value) < 0.0995 else 0) if digits is None else digits
    return f"{100 * value:,.{digits}f}{THIN}%".replace("-", "−")


def number(value: float | None, digits: int | None = None) -> str:
    """A number with thousands separators; about three significant digits and no idle zeros, unless `digits` says."""
    if value is None or np.isnan(value):
        return "–"
    text = f"{value:,.{(0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2) if digits is None else digits}f}"
    if digits is None and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def day(date: str | datetime.date) -> str:
    """2023-09-25 as "25 September 2023"."""
    date = datetime.date.fromisoformat(date) if isinstance(date, str) else date
    return f"{date.day} {date:%B %Y}"


def duration(seconds: float) -> str:
    """109.4 s as "1 min 49 s"."""
    if seconds < 60:
        return f"{seconds:.1f}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}{THIN}h {minutes}{THIN}min" if hours else f"{minutes}{THIN}min {rest}{THIN}s"


def megabytes(size: int) -> str:
    return f"{number(size / 1e6, 1)}{THIN}MB"


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


def _member(name: str, weight: float, ensemble: Path, where: str | None) -> Member:
    """`where` is the member's folder as ensemble.json has it, relative to the ensemble's."""
    if where is None:
        return Member(name=name, weight=weight, folder=None, settings={}, summary={}, history=[], importance={})
    folder = (ensemble / where).resolve()
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
    """The command lines that make this page again from the raw files. Every setting is written out: defaults may change."""
    about, data, predicted = run.about, run.folders["data"], run.folders["predictions"]
    raw = {
        key: [file["file"] for file in about.get(census, {}).get("files", ())]
        for key, census in (("source", "census"), ("metadata", "product_census"))
    }
    files = [f"{key}=[{','.join(names)}]" for key, names in raw.items() if names]
    lines = [["python", "scripts/prepare_data.py", f"out={data}", *files, *_settings(about["config"], "panel.")]]
    folders = {member.name: member.folder for member in run.members if member.folder}
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
    for name, folder in folders.items():
        lines.append(
            ["python", "scripts/predict.py", f"member={folder}", f"data={data}", f"out={predicted}", f"name={name}"]
        )
    if baseline.NAME in run.scores["scores"]:
        lines.append(["python", "scripts/predict.py", f"member={baseline.NAME}", f"data={data}", f"out={predicted}"])
    fit = [f"predictions={predicted}", f"data={data}", f"out={run.folders['ensemble']}"]
    lines.append(["python", "scripts/ensemble_predictor.py", "fit", *fit])
    lines.append(
        ["python", "scripts/report.py", *(f"{name}={folder}" for name, folder in run.folders.items()), "out=report.html"]
    )
    return [shlex.join(line) for line in lines]


def _settings(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """The `key=value` words of nested settings."""
    words = []
    for key, value in settings.items():
        if isinstance(value, dict):
            words += _settings(value, f"{prefix}{key}.")
        else:
            words.append(f"{prefix}{key}={value if isinstance(value, str) and value else json.dumps(value)}")
    return words


# Pictures. matplotlib writes SVG with numbered colours, which become the page's own, so that they follow its dark mode.

PALETTE = ("ink", "muted", "line", "series-0", "series-1", "series-2", "series-3", "series-4", "series-5", "series-6")
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.5), (7, 1.5, 1.5, 1.5), (3, 3), (9, 3), (1, 3))


def _colour(name: str) -> str:
    """The stand-in for a colour of the page; black, matplotlib's default, is its ink."""
    return f"#0000{PALETTE.index(name):02x}"


def _fold(position: int) -> int:
    """With more members than colours, members share them; the ensemble's stays its own."""
    return 1 + (position - 1) % (len(DASHES) - 1) if position else 0


def _series(position: int) -> dict[str, Any]:
    """How the candidate at a position is drawn, everywhere alike: the ensemble, at 0, strongest."""
    position = _fold(position)
    dashes = DASHES[position] or (None, None)
    colour, width, order = _colour(f"series-{position}"), (1.5 if position else 2.4), (2.5 if position else 3)
    return {"color": colour, "dashes": dashes, "linewidth": width, "zorder": order}


def _pictures(run: Run) -> dict[str, Any]:
    target = run.test.target
    series = {name: _series(position) for position, name in enumerate(run.candidates)}
    base_rate = float(target.mean())

    def precision_recall(axes: Any) -> None:
        for name, probability in run.candidates.items():
            curve = metrics.precision_recall(target, probability)
            axes.plot(curve.recall, curve.precision, **series[name])
        axes.axhline(base_rate, color=_colour("muted"), linewidth=1)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="recall: found, of all hot sellers", ylabel="precision: hot, of all named")
        _in_percent(axes.xaxis, axes.yaxis)

    def reliability(axes: Any) -> None:
        curves = {name: metrics.reliability(target, probability) for name, probability in run.candidates.items()}
        top = max(max(curve.prediction.max(), curve.observed.max()) for curve in curves.values())
        top = min(1.0, np.ceil(20 * top + 0.2) / 20)
        axes.plot([0, 1], [0, 1], color=_colour("muted"), linewidth=1)
        for name, curve in curves.items():
            axes.plot(curve.prediction, curve.observed, marker="o", markersize=3.5, **series[name])
        # Most products are far from hot: the square root gives their end of the scale room.
        for axis in ("x", "y"):
            getattr(axes, f"set_{axis}scale")("function", functions=(_root, np.square))
            ticks = [tick for tick in (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0) if tick <= top]
            getattr(axes, f"set_{axis}ticks")(ticks)
        axes.set(xlim=(0, top), ylim=(0, top), xlabel="said: mean probability", ylabel="seen: became hot")
        _in_percent(axes.xaxis, axes.yaxis)

    def by_week(axes: Any) -> None:
        weeks = np.unique(run.test.group)
        for name, probability in run.candidates.items():
            scores = [_average_precision(run.test, probability, run.test.group == week) for week in weeks]
            axes.plot(weeks, scores, marker="o", markersize=3, **series[name])
        hot = [target[run.test.group == week].mean() for week in weeks]
        axes.plot(weeks, hot, color=_colour("muted"), linewidth=1)
        ticks = weeks[:: max(1, -(-len(weeks) // 5))]
        axes.set_xticks(ticks, [f"{monday(week).day} {monday(week):%b}" for week in ticks])
        years = "–".join(sorted({f"{monday(week):%Y}" for week in weeks}))
        axes.set(ylim=(0, None), xlabel=f"test week, {years}", ylabel="average precision")

    picture = {
        "precision_recall": _draw("precision-recall", precision_recall, "Precision against recall on the test split."),
        "reliability": _draw("reliability", reliability, "The share that became hot against the probability that was said."),
        "by_week": _draw("by-week", by_week, "Average precision in each test week."),
    }
    learning = []
    for position, member in enumerate(run.members, start=1):
        learning += _learning_curves(member, _series(position), f"learning-{position}")
    return {**picture, "learning": learning}


def _learning_curves(member: Member, style: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The score on validation of every evaluation, and the loss in training where the member wrote it down."""
    unit = "tree" if "trees" in member.summary else "step"
    pictures = []
    for kind, key, words in (
        ("val", "average_precision", "average precision on validation"),
        ("train", "loss", "loss in training"),
    ):
        # By step, so that what a resumed run repeated stands once.
        points = {entry["step"]: entry[key] for entry in member.history if entry.get("kind") == kind and key in entry}
        steps = np.array(sorted(step for step, value in points.items() if np.isfinite(value)))
        if not steps.size:
            continue
        values = np.array([points[step] for step in steps])
        best = int(np.argmax(values)) if kind == "val" else None

        def paint(axes: Any, steps: np.ndarray = steps, values: np.ndarray = values, best: int | None = best) -> None:
            axes.plot(steps, values, color=style["color"], linewidth=1.8)
            if best is not None:
                axes.plot(steps[best], values[best], "o", markersize=7, color=style["color"])
            axes.set(xlim=(0, None), xlabel=f"{unit}s")

        note = "" if best is None else f"best {values[best]:.3f} at {unit} {steps[best]:,}"
        svg = _draw(f"{name}-{kind}", paint, f"{member.name}: {words} by {unit}; {note}")
        pictures.append({"member": member.name, "words": words, "best": note, "svg": svg})
    return pictures


def _average_precision(test: Predictions, probability: np.ndarray, rows: np.ndarray) -> float:
    return metrics.binary_scores(test.target[rows], probability[rows], test.group[rows])["average_precision"]


def _root(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(values, 0))


def _in_percent(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_formatter(lambda value, position: f"{100 * value:.0f}{THIN}%")


def _draw(name: str, paint: Callable[[Any], None], label: str) -> Markup:
    """The axes that `paint` fills, as SVG with the page's colours and font, ids of its own, and a label to read out."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 11.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": _colour("line"),
        "axes.labelcolor": _colour("muted"),
        "xtick.color": _colour("line"),
        "ytick.color": _colour("line"),
        "xtick.labelcolor": _colour("muted"),
        "ytick.labelcolor": _colour("muted"),
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "axes.grid": True,
        "grid.color": _colour("line"),
        "grid.linewidth": 0.7,
    }
    stream = io.StringIO()
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5, 3.6), layout="constrained")
        paint(figure.add_subplot())
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    svg = stream.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it would rule the whole page
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r' id="', f' id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{name}-", body)
    body = re.sub(r"#0000([0-9a-f]{2})", lambda found: f"var(--{PALETTE[int(found[1], 16)]})", body)
    return Markup(f'<svg viewBox="0 0 360 259.2" role="img" aria-label="{escape(label)}">{body}')
