"""An emulator in place of the model; the table, the page and the script."""

import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pytest
import torch
from scripts_run import fork
from small_rings import euler, euler_step

from ensemble.errors import UserError
from ensemble.recipes.emulator import lorenz96
from ensemble.recipes.emulator.assimilation import experiment, page
from ensemble.recipes.emulator.assimilation.models import Emulated
from ensemble.recipes.emulator.assimilation.settings import METHODS, AssimilateConfig

SETTINGS = AssimilateConfig(model="truth", out="page.html", cycles=40, seeds=2, spin_up=20)


@pytest.fixture(scope="module")
def result() -> experiment.Assimilated:
    return experiment.run(SETTINGS, Emulated(euler()))


@pytest.fixture(scope="module")
def page_file(result: experiment.Assimilated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    page.write(result, SETTINGS, path)
    return path


def test_an_emulator_is_its_network() -> None:
    """Values or derivatives would be lost between torch and NumPy."""
    states = lorenz96.trajectory(3, seed=0, every=10)
    directions = np.random.default_rng(0).normal(size=states.shape)
    emulator = Emulated(euler())
    np.testing.assert_allclose(emulator.step(states), euler_step(states), rtol=1e-12)
    difference = (euler_step(states + 1e-5 * directions) - euler_step(states - 1e-5 * directions)) / 2e-5
    change = euler().tangent(torch.from_numpy(states), torch.from_numpy(directions)).detach().numpy()
    np.testing.assert_allclose(change, difference, atol=1e-8)
    product = np.einsum("boi,bi->bo", emulator.jacobian(states), directions)
    np.testing.assert_allclose(product, difference, atol=1e-8)
    transposed = np.einsum("boi,bo->bi", emulator.jacobian(states), directions)
    np.testing.assert_allclose(emulator.adjoint(states, directions), transposed, rtol=1e-10)


def test_every_method_runs_with_both_models(result: experiment.Assimilated) -> None:
    """The emulator's column would hold the truth's errors: an Euler step is worse than Runge–Kutta for every method."""
    rows = experiment.table(result.errors)
    assert len(rows) == 6
    ratios = {(row["method"], row["model"]): row["ratio"] for row in rows}
    for method in METHODS.values():
        assert ratios[method, experiment.TRUTH] == 1
        assert ratios[method, experiment.EMULATOR] > 1.01
    assert all(values.shape == (40, 2) for models in result.errors.values() for values in models.values())


def test_errors_of_jacobians(result: experiment.Assimilated) -> None:
    """The page would call an emulator good that is not: the errors of an Euler step are known."""
    assert result.jacobians is not None
    states = result.twin.truth[20:].reshape(-1, 40)
    assert result.jacobians.one_step == pytest.approx(
        np.sqrt(np.mean((euler_step(states) - lorenz96.step(states)) ** 2)), rel=0.3
    )
    assert 0.02 < result.jacobians.relative < 0.2


def test_a_diverging_emulator_is_reported() -> None:
    """The run would end with an error, or the emulator would have a small error, or none."""

    class Exploding(Emulated):
        def step(self, states: np.ndarray) -> np.ndarray:
            return states * np.inf

    settings = dataclasses.replace(SETTINGS, methods=("ekf", "4dvar", "letkf"), cycles=5, seeds=1)
    result = experiment.run(settings, Exploding(euler()))
    assert all(np.isposinf(errors[experiment.EMULATOR]).all() for errors in result.errors.values())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"methods": ("ekf", "3dvar")}, "3dvar.* is impossible: it must be one or more of ekf, 4dvar, letkf"),
        ({"cycles": 0}, "cycles=0"),
        ({"members": 1}, "members=1"),
        ({"inflation": 0.5}, "inflation=0.5"),
        ({"inflation": math.inf}, "inflation=inf is impossible: it must be finite"),
        ({"background_variance": math.inf}, "background_variance=inf is impossible: it must be more than 0, and finite"),
        ({"model": "emulator"}, "give model=truth"),
        ({"model": ""}, "give model=truth"),
        ({"member": "runs/m"}, "give model=truth"),
        ({"model": "", "member": "runs/m"}, "go together"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any], match: str) -> None:
    """A run of minutes would end in a traceback, or without a method that was requested."""
    with pytest.raises(UserError, match=match):
        experiment.check(dataclasses.replace(SETTINGS, **change))


def test_the_page_needs_no_network(page_file: Path) -> None:
    """The page would be empty on a node without internet, or would not name the methods."""
    html = page_file.read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", html)
    assert html.count("<svg") == 6
    for words in ("extended Kalman filter", "4D-Var", "LETKF", "Jacobian against truth", "Trajectory"):
        assert words in html


def test_a_page_replaces_no_file_of_the_user(result: experiment.Assimilated, tmp_path: Path) -> None:
    """A file of the user would be lost."""
    (tmp_path / "notes.html").write_text("mine")
    with pytest.raises(UserError, match="this project did not write it, so the page does not replace it"):
        page.write(result, SETTINGS, tmp_path / "notes.html")
    assert (tmp_path / "notes.html").read_text() == "mine"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium.started(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_in_a_browser(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    """A picture would be missing, the page would scroll sideways on a phone, or a line would have the paper's colour."""
    chromium.show(browser, page_file, width, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    heights = browser.execute_script("return [...document.querySelectorAll('figure svg')].map(s => s.clientHeight)")
    assert len(heights) == 6
    assert min(heights) > 150
    strokes = browser.execute_script(
        "return [...document.querySelectorAll('figure path')].map(p => getComputedStyle(p).stroke)"
    )
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert len({stroke for stroke in strokes if stroke.startswith("rgb")}) > 2
    assert paper not in strokes
    assert not browser.get_log("browser")


def test_the_script_prints_a_table_and_writes_the_page(tmp_path: Path) -> None:
    """The command of the README would not run."""
    printed = fork(  # without a member, no torch
        "assimilate", "model=truth", f"out={tmp_path / 'p.html'}", "cycles=20", "spin_up=40", "seeds=1", "methods=[ekf]"
    )
    assert re.search(r"extended Kalman filter +true model +0\.\d{4} .* 1\.000", printed)
    assert "<svg" in (tmp_path / "p.html").read_text(encoding="utf-8")
