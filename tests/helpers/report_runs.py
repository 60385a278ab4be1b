"""Finished runs with generated predictions, and their reports, for tests of the page."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import prepared_folders
import pyarrow as pa
from benchmarks.scaling import Launch, Training, table
from blends import blend_of

from ensemble import folders, predictions
from ensemble.combine.fitting import OUTPUTS_OF
from ensemble.data.cross_validation import CrossValidation
from ensemble.predictions import Predictions
from ensemble.predictor import fit as predictor
from ensemble.recipes.hot_sellers.settings import PanelConfig
from ensemble.report import page as report
from ensemble.report import words as report_words
from ensemble.task import METRICS, Task

ATTACK = "<script>alert('title')</script> & <b>Fox</b>"
PANEL = PanelConfig(horizon_weeks=4, top_fraction=0.1)
SUMMARY = {"recipe": "hot_sellers", "seconds": 83.4, "validation_average_precision": 0.31}


def write_predictions(folder: Path, split: str, member: str, **result: Any) -> None:
    path = folder / "predictions" / f"{member}.{split}.parquet"
    predictions.write(path, Predictions(**result, split=split, member=member))


def write_member(folder: Path, summary: dict[str, Any], history: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    folders.write_json(folder / "summary.json", summary)
    folders.write_json(folder / "config.json", {"data": "x", "seed": 7, "recipe": {"width": 32, "text_encoder": ""}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in history), encoding="utf-8")


def write(folder: Path, out: Path, scaling: Sequence[Path] = ()) -> str:
    report.write(folder / "ensemble", folder / "prepared", folder / "predictions", out, scaling)
    return out.read_text(encoding="utf-8")


def write_table(
    folder: Path,
    kind: str,
    column: str = "x",
    names: tuple[str, ...] = ("no", "yes"),
    scheme: str = "random",
    num_members: int = 2,
    num_new: int = 1,
    fit: dict[str, Any] | None = None,
    **entries: Any,
) -> str:
    """The page of a table with one feature, predicted out of fold by trees, and with `num_new` rows to forecast.

    column : the feature. names : of the classes. fit : settings of the ensemble. entries : of the
    manifest.
    """
    num_rows, cv = 400, CrossValidation(scheme=scheme, num_folds=4, begins=(0.0,) * 6 if scheme == "forward" else ())
    blend, ids = blend_of(kind, num_rows), np.arange(num_rows)
    config = {"seed": 0, **entries.pop("config", {})}
    weight = np.full(num_rows, 2.0) if config.get("weight") else None
    task = Task(
        kind=kind,
        target="target",
        metric=METRICS[kind][0],
        group="group",
        cluster="cluster",
        weight="weight" if config.get("weight") else "",
        classes=names if kind == "multiclass" else (),
    )
    tables = {
        split: pa.table({"row_id": rows, "x": np.sin(rows).astype(np.float32)})
        for split, rows in (("train", ids), ("forecast", ids[:num_new]))
    }
    features = [{"name": "x", "unit": "", "meaning": column}]
    target = {"column": "y", "names": list(names) if kind == "binary" else []}
    content = {"recipe": "table", "target": target, "config": config, "cross_validation": cv.to_dict(), **entries}
    fingerprint = prepared_folders.write(folder / "prepared", tables, task, features, **content)
    group = blend.group if scheme == "forward" else ids
    for member in range(num_members):
        history = [{"kind": "val", "step": step, METRICS[kind][0]: 1 / step} for step in (1, 2)]
        summary = {"recipe": "table", "kind": "xgboost", "seconds": 1.0, "trees": 2, f"validation_{METRICS[kind][0]}": 0.5}
        write_member(folder / "members" / f"m{member}", summary, history)
        folders.write_json(folder / "members" / f"m{member}" / "importance.json", {"x": 1.0})
        for split, rows in (("oof", ids), ("forecast", ids[:num_new])):
            reason = {"feature": "x", "value": -1.26, "contribution": 0.5}
            write_predictions(
                folder, split, f"m{member}", row_id=rows, cluster=rows, group=group[rows],
                target=np.where(split == "oof", blend.target[rows], np.nan), prediction=blend.predictions[rows, member],
                recipe="table", fingerprint=fingerprint, output=OUTPUTS_OF[kind][0], classes=task.classes,
                weight=None if weight is None else weight[rows],
                config={"kind": "xgboost", "folder": str(folder / "members" / f"m{member}")},
                reasons=None if split == "oof" else [[reason] for _ in rows],
            )  # fmt: skip
    predictor.fit(folder / "predictions", folder / "prepared", folder / "ensemble", on="oof", num_draws=2, **(fit or {}))
    return write(folder, folder / "report.html")


def write_scaling(file: Path, device: str, speeds: dict[int, tuple[float, ...]], price: float = 0.0) -> Path:
    """The file of `benchmark.py scaling`, given the speed of each round by ranks, for trainings of 100,000 samples."""
    runs = {
        ranks: [
            Training(ranks=ranks, device=device, seconds=1e5 / speed, samples_per_s=speed, data_wait=0.0123)
            for speed in measured
        ]
        for ranks, measured in speeds.items()
    }
    launches = [Launch(ranks=ranks, nodes=-(-ranks // 4), words=[]) for ranks in speeds]
    folders.write_json(
        file,
        {
            "environment": {"processor": "Some <i>CPU</i>", "cores": 2, "date": "2026-11-20"},
            "batch_size": 4096,
            "rounds": len(speeds[1]),
            "price_per_gpu_hour": price or None,
            "by_ranks": table(launches, runs, price),
        },
    )
    return file


def seal(folder: Path) -> None:
    """Write a new manifest of an ensemble whose files were changed, so that they are accepted."""
    ensemble = folder / "ensemble"
    (ensemble / folders.NAME).unlink()
    folders.write_manifest(ensemble, {"kind": predictor.ENSEMBLE})


def text(page: str) -> str:
    """The visible text of a page: without tags and styles, and with ordinary spaces."""
    body = re.sub(r"<style.*?</style>|</?bdi>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).replace(report_words.THIN, " ").split())
