"""A finished run of hot_sellers with generated predictions, and its report, for tests of the page."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.scaling import Launch, Training, table

from ensemble import folders, predictions
from ensemble.predictions import Predictions
from ensemble.predictor import fit as predictor
from ensemble.recipes.hot_sellers.settings import PanelConfig
from ensemble.report import page as report
from ensemble.report import words as report_words

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


def write_scaling(file: Path, device: str, speeds: dict[int, tuple[float, ...]], price: float = 0.0) -> Path:
    """What the benchmark writes, from speeds of each round by ranks, on trainings of 100,000 samples."""
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
    """Write the manifest of an ensemble anew, as if its files had been written like this."""
    ensemble = folder / "ensemble"
    (ensemble / folders.NAME).unlink()
    folders.write_manifest(ensemble, {"kind": predictor.ENSEMBLE})


def text(page: str) -> str:
    """What a person reads: without tags and styles, spaces made plain."""
    body = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).replace(report_words.THIN, " ").split())
