"""The report of emulator: shares of the ceiling, Jacobians of networks and true ones, and the page in a browser."""

import dataclasses
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chromium
import numpy as np
import pyarrow as pa
import pytest
import scripts_run
import small_emulators
from accelerate import Accelerator
from matplotlib.figure import Figure
from scripts_run import fork

from ensemble import configuration, folders, predictions
from ensemble.arrow import write_table
from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.settings import config_class
from ensemble.predictor import fit as predictor
from ensemble.recipes.emulator import examine, lorenz96, page, sea_ice
from ensemble.recipes.emulator.settings import RecipeConfig
from ensemble.recipes.table import training as table
from ensemble.report import page as report
from ensemble.report import run as report_run

NETWORKS: dict[str, dict[str, Any]] = {
    "sea_ice": {"widths": (16,), "output": "sigmoid", "jacobian_weight": 0.1},
    "lorenz96": {"network": "bilinear", "widths": (4,)},
}


@pytest.fixture(scope="module", params=NETWORKS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a network that was trained for a moment, and a made-up member, the formula itself."""
    system, folder = request.param, tmp_path_factory.mktemp(request.param)
    data = getattr(small_emulators, system)(folder).rename(folder / "prepared")
    member = folder / "members" / "net"
    small_emulators.train(data, member, RecipeConfig(**NETWORKS[system]), batch_size=50, max_epochs=3.0, warmup_steps=0)
    fork("predict", f"member={member}", f"data={data}", f"out={folder / 'predictions'}", libraries=scripts_run.NETWORKS)
    for split in ("blend", "test"):
        result = predictions.read(folder / "predictions" / f"net.{split}.parquet")
        rows = small_emulators.columns(data, "rows", split)
        inputs = small_emulators.columns(data, "pairs", split)["inputs"].astype(np.float64)
        exact = sea_ice.concentration(inputs)[:, None] if system == "sea_ice" else lorenz96.step(inputs)
        made_up = {**vars(result), "member": "formula", "prediction": exact[rows["pair"], rows["output"]], "config": {}}
        predictions.write(folder / "predictions" / f"formula.{split}.parquet", predictions.Predictions(**made_up))
    predictor.fit(folder / "predictions", data, folder / "ensemble", num_draws=10)
    report.write(folder / "ensemble", data, folder / "predictions", folder / "report.html")
    return folder


def parts(run: Path) -> dict[str, Any]:
    return page.parts(report_run.read(run / "ensemble", run / "prepared", run / "predictions"))


def test_the_formula_reaches_the_ceiling(run: Path) -> None:
    """R² would be computed from other rows, or from rows in another order than the predictions."""
    result = parts(run)
    rows = {row["name"]: row for row in result["values"]["rows"]}
    if result["is_sea_ice"]:
        assert rows["formula"]["share"] == pytest.approx(1, abs=1e-9)
        assert 0.9 < result["values"]["ceiling"] < 1
        assert rows["net"]["share"] < 0.999
    else:
        assert result["values"]["ceiling"] is None
        assert rows["formula"]["r_squared"] > 1 - 1e-9


def test_the_jacobian_is_that_of_the_member(run: Path) -> None:
    """The table would show another network, or an error of other inputs."""
    expected = examine.scores(str(run / "members" / "net"), str(run / "prepared"), "test")["jacobian"]
    result = parts(run)["jacobians"]
    assert list(result["members"]) == ["net"]  # the formula is no network
    assert result["members"]["net"] == expected["all"]
    names = ["-3", "-2", "-1", "+0", "+1", "+2", "+3"] if run.name.startswith("lorenz96") else list(sea_ice.INPUTS)
    assert [row["input"] for row in result["rows"]] == names
    for row in result["rows"]:
        assert row["members"]["net"] == expected["inputs"][row["input"]]
    text = re.sub(r"<.*?>", "", (run / "report.html").read_text(encoding="utf-8"))
    assert f"{expected['all']['error']:.3f}" in text


def test_folders_may_have_any_name(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of folders in `a ${b}` would end with an error about a setting b, or import a random.py in the current folder
    instead of the module."""
    (tmp_path / "random.py").write_text("raise SystemExit('mine')")
    expected, moved = parts(run)["jacobians"], shutil.copytree(run, tmp_path / "a ${b}")
    monkeypatch.chdir(tmp_path)
    assert parts(moved)["jacobians"] == expected


def test_a_network_of_another_recipe_has_no_jacobian(run: Path, tmp_path: Path) -> None:
    """An ensemble with a network of the recipe table would have no page, and examine.py would end in a traceback."""
    member, data = tmp_path / "table", str(run / "prepared")
    config: Any = configuration.from_dict(
        config_class("table"),
        {"data": data, "out": str(member), "max_epochs": 0.1, "trackers": (), "recipe": {"num_submodels": 2, "width": 8}},
    )
    loop.train(table.make(config.recipe, data), config, Accelerator(cpu=True))
    with pytest.raises(UserError, match=f"^{member} is a network of the recipe table, not of emulator: name another member"):
        examine.scores(str(member), data, "test")
    of_run = report_run.read(run / "ensemble", run / "prepared", run / "predictions")
    (network,) = (known for known in of_run.members if known.name == "net")
    foreign = dataclasses.replace(
        network, name="table", folder=member, copies=(member,), summary=folders.read_json(member / "summary.json")
    )
    both = dataclasses.replace(of_run, members=[*of_run.members, foreign])
    assert list(page.parts(both)["jacobians"]["members"]) == list(both.networks) == ["net"]


def test_the_map_shows_each_tile_at_its_place(tmp_path: Path) -> None:
    """The error of a tile would stand at another place, or a tile at a low latitude beyond the edge of the map. Of data
    without a formula, the Jacobians of networks would be computed, which nothing shows."""
    draw = np.random.default_rng(0)
    tile = draw.permuted(np.arange(600) % 7)
    latitude, longitude = (np.array([85, 70, 60, 50, 40, 15, -60])[tile], (np.arange(7) * 50.0)[tile])
    rows = {"row_id": draw.permutation(600), "tile": tile, "latitude": latitude + 0.5, "longitude": longitude}
    write_table(tmp_path / "rows" / "test", pa.table(rows))
    order = np.argsort(rows["row_id"])
    test = SimpleNamespace(row_id=rows["row_id"][order], target=draw.normal(size=600), split="test")
    made_up: Any = SimpleNamespace(
        manifest={"emulator": {"system": "sea_ice", "formula": ""}}, networks={"net": tmp_path / "none"}, test=test,
        task=SimpleNamespace(target="aice"), folder_of={"data": tmp_path},
        candidates={predictor.ENSEMBLE: draw.normal(size=600)},
    )  # fmt: skip
    painters = {title: paint for title, *_, paint in page.pictures(made_up, {predictor.ENSEMBLE: {"color": "black"}})}
    axes = Figure().add_subplot()
    painters["Errors in the Arctic"](axes)
    squared = (made_up.candidates[predictor.ENSEMBLE] - test.target) ** 2
    error = np.sqrt([squared[tile[order] == number].mean() for number in range(7)])
    (dots,) = axes.collections
    places = np.asarray(dots.get_offsets())
    np.testing.assert_allclose(np.hypot(*places.T), 90 - np.array([85, 70, 60, 50, 40, 15]) - 0.5)
    np.testing.assert_allclose(np.degrees(np.arctan2(*places.T[::-1])) % 360, np.arange(6) * 50.0, atol=1e-9)
    np.testing.assert_allclose(dots.get_sizes(), page.LARGEST_DOT * error[:6] / error.max())
    assert np.abs(places).max() < axes.get_xlim()[1]


def test_a_single_test_row_has_a_page(tmp_path: Path) -> None:
    """A report would end in a traceback: the entries of a Jacobian are drawn relative to the deviation of the inputs."""
    data = small_emulators.sea_ice(tmp_path, tile=1, shares=(0.6, 0.2, 0.1987, 0.0013), seed=3)
    small_emulators.train(data, tmp_path / "net", RecipeConfig(**NETWORKS["sea_ice"]), batch_size=50, max_epochs=0.1)
    row = small_emulators.columns(data, "rows", "test")
    test = SimpleNamespace(row_id=row["row_id"], target=row["aice"], split="test")
    made_up: Any = SimpleNamespace(
        manifest=folders.read_manifest(data), networks={"net": tmp_path / "net"}, test=test, folder_of={"data": data},
        task=SimpleNamespace(target="aice"), candidates={predictor.ENSEMBLE: row["aice"] + 0.1},
    )  # fmt: skip
    assert len(test.row_id) == 1
    series = {predictor.ENSEMBLE: {"color": "black"}, "net": {"color": "red"}}
    for *_, paint in page.pictures(made_up, series):
        paint(Figure().add_subplot())


def test_a_true_jacobian_has_no_error() -> None:
    """An error would be relative to the network's Jacobian, or signs would not be compared with the truth."""
    truth = np.random.default_rng(0).normal(size=(50, 3, 3))
    assert examine.compare_jacobians(truth, truth) == {
        "error": 0.0, "mean": truth.mean(), "true_mean": truth.mean(), "right_sign": pytest.approx(1.0),
    }  # fmt: skip
    doubled = examine.compare_jacobians(2 * truth, truth)
    assert doubled["error"] == pytest.approx(1)
    assert examine.compare_jacobians(-truth, truth)["right_sign"] == 0
    ring = np.arange(3 * 16).reshape(3, 4, 4)
    assert lorenz96.diagonal(ring, 1)[0].tolist() == [1, 6, 11, 12]
    assert lorenz96.diagonal(ring, -1)[0].tolist() == [3, 4, 9, 14]


def test_the_commands_of_the_page_prepare_the_same_data(run: Path) -> None:
    """The command on the page would prepare other data, or the page would describe a random split of rows, not of tiles."""
    text = (run / "report.html").read_text(encoding="utf-8")
    command = re.search(r"python scripts/prepare_data.py --recipe emulator [^<]*", text)
    assert command
    assert "Clusters were drawn at random for each split, with seed 0." in re.sub(r"<.*?>", "", text)
    is_ring = run.name.startswith("lorenz96")
    assert ("system=lorenz96" in command[0]) == is_ring
    assert ("num_points=8" if is_ring else "num_columns=48") in command[0]


def test_the_page_in_a_browser(run: Path, tmp_path: Path) -> None:
    """A picture would be missing, the label of an axis cut off, or the page wider than a phone's screen."""
    with chromium.started(tmp_path) as browser:
        for width, scheme in ((1200, "light"), (390, "dark")):
            chromium.show(browser, run / "report.html", width, scheme)
            assert browser.get_log("browser") == []
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(
            "return [...document.querySelectorAll('figure svg text')].filter(text => {"
            "const [inner, outer] = [text, text.closest('svg')].map(element => element.getBoundingClientRect());"
            "return inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1}).map(text => text.textContent)"
        ) == []  # fmt: skip
        titles = [title.text for title in browser.find_elements("css selector", "figure h3")]
        expected = {"Predicted and true", "Jacobian and truth"}
        expected |= (
            {"Phase plot"} if run.name.startswith("lorenz96") else {"Errors in the Arctic", "Errors in the Antarctic"}
        )
        assert expected <= set(titles)
