"""What tests of the page share: a finished run, its page, and measurements of scaling."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from report_runs import ATTACK, PANEL, SUMMARY, write, write_member, write_predictions, write_scaling

from ensemble import folders
from ensemble.predictor import fit as predictor
from ensemble.recipes.hot_sellers import baselines
from ensemble.recipes.hot_sellers.settings import PrepareConfig


@pytest.fixture(scope="session")
def run(raw_market: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in one folder: prepared, members, predictions, ensemble. Every other product's title is an attack."""
    from ensemble.recipes.hot_sellers import prepare as panel

    folder = tmp_path_factory.mktemp("run")
    review_file, product_file = raw_market
    lines = [json.loads(line) for line in product_file.read_text(encoding="utf-8").splitlines()]
    for line in lines[::2]:
        line["title"] = ATTACK
    (folder / "meta.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shutil.copyfile(review_file, folder / "reviews.jsonl")
    with open(folder / "reviews.jsonl", "a", encoding="utf-8") as stream:
        stream.write("{a line <i>cut</i>\n")
    source, metadata = (str(folder / "reviews.jsonl"),), (str(folder / "meta.jsonl"),)
    panel.prepare(PrepareConfig(out=str(folder / "prepared"), source=source, metadata=metadata, panel=PANEL))

    generator = np.random.default_rng(0)
    for split in ("blend", "test", "forecast"):
        result = baselines.predict(folder / "prepared", split)
        write_predictions(folder, split, "momentum", **result)
        for name, noise, kind in (("net", 1.5, "neural"), ("trees", 1.0, "xgboost")):
            logit = 2 * np.nan_to_num(result["target"]) - 3 + generator.normal(0, noise, len(result["target"]))
            result |= {
                "prediction": 1 / (1 + np.exp(-logit)),
                "config": {"kind": kind, "folder": str(folder / "members" / name)},
            }
            if split == "forecast" and kind == "xgboost":
                result["reasons"] = [
                    [{"feature": "share_4w_of_52w", "value": 0.0167, "contribution": 0.6}] for _ in result["target"]
                ]
            write_predictions(folder, split, name, **result)
    history = [{"kind": "val", "step": step, "average_precision": 0.3 - 1 / step} for step in range(5, 40)]
    losses = [{"kind": "train", "step": step, "loss": 1 / step} for step in range(5, 40)]
    write_member(folder / "members" / "net", {**SUMMARY, "kind": "neural", "parameters": 12345}, [*losses, *history])
    write_member(folder / "members" / "trees", {**SUMMARY, "kind": "xgboost", "trees": 39}, history)
    folders.write_json(folder / "members" / "trees" / "importance.json", {"age": 3.0, "growth_4w": 1.0})
    predictor.fit(folder / "predictions", folder / "prepared", folder / "ensemble", num_draws=20)
    return folder


@pytest.fixture(scope="session")
def page_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write(run, file)
    return file


@pytest.fixture(scope="session")
def page(page_file: Path) -> str:
    return page_file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A measurement on CPUs, and one on GPUs."""
    folder = tmp_path_factory.mktemp("scaling")
    gpus = {
        1: (1000.0, 1020.0, 980.0),
        2: (1900.0, 1980.0, 1800.0),
        4: (3600.0, 3800.0, 3200.0),
        8: (6400.0, 7000.0, 6000.0),
    }
    return [
        write_scaling(folder / "cpu.json", "cpu", {1: (100.0, 101.0, 99.0), 2: (160.0, 172.0, 150.0)}),
        write_scaling(folder / "gpu.json", "NVIDIA A100-SXM4-80GB", gpus, price=3.6),
    ]


@pytest.fixture(scope="session")
def scaled_page_file(run: Path, scaling: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("scaled") / "report.html"
    write(run, file, scaling)
    return file


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, which a test may damage."""
    return Path(shutil.copytree(run, tmp_path / "run"))
