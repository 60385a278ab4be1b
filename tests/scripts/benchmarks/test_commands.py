"""The commands of benchmark.py; and the benchmarks of the user's commands: seeds, sets, and figures from their runs."""

import importlib
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import commands as of_benchmark
from benchmarks import demo as commands

from ensemble import configuration
from ensemble.errors import UserError


@pytest.mark.parametrize("name", of_benchmark.known())
def test_every_setting_of_a_benchmark_is_described(name: str) -> None:
    """--help would not describe a setting, or a command would be missing since its source is written in another way."""
    measure = getattr(importlib.import_module(of_benchmark.known()[name].module), name)
    described = re.findall(r"^(\w+(?:, \w+)*) : \S", inspect.getdoc(measure) or "", re.MULTILINE)
    assert [one for names in described for one in names.split(", ")] == [*inspect.signature(measure).parameters]
    assert "=slurm/results\n      Folder of the JSON file." in configuration.describe(of_benchmark.schema(measure))


def test_all_marked_functions_are_commands() -> None:
    """A benchmark could not be called."""
    files = of_benchmark.FOLDER.rglob("*.py")
    num_marked = sum(file.read_text(encoding="utf-8").count("\n@command\n") for file in files)
    assert len(of_benchmark.known()) == num_marked > 30


def pipeline_result(base_rate: float, ensemble: float, xgboost: float, lightgbm: float) -> dict[str, Any]:
    """A result of `pipeline`."""
    scores = {"ensemble": ensemble, "xgboost": xgboost, "lightgbm": lightgbm, "momentum": 0.05, "base rate": base_rate}
    return {
        "base_rate": base_rate,
        "weights": {"xgboost": 0.5, "lightgbm": 0.5},
        "average_precision": {name: {"value": value} for name, value in scores.items()},
    }


def test_the_requested_seeds_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison would use the seeds by which settings were chosen, or would not be relative to the best member."""
    calls: list[tuple[Sequence[str], Sequence[str]]] = []
    results = iter([pipeline_result(0.05, 0.3, 0.25, 0.2), pipeline_result(0.1, 0.3, 0.2, 0.4)])

    def pipeline(folder: Path, prepare: Sequence[str], train: Sequence[str]) -> dict[str, Any]:
        calls.append((prepare, train))
        return next(results)

    monkeypatch.setattr(commands, "pipeline", pipeline)
    summary = commands.seeds(num_seeds=2, first_seed=40)
    assert calls == [(["market.seed=40"], ["seed=40"]), (["market.seed=41"], ["seed=41"])]
    assert [run["seed"] for run in summary["runs"]] == [40, 41]
    by_base_rate = summary["average_precision_by_base_rate"]
    assert set(by_base_rate) == {"ensemble", "xgboost", "lightgbm", "momentum"}
    assert by_base_rate["ensemble"]["mean"] == pytest.approx(4.5)
    assert by_base_rate["ensemble"]["least"] == pytest.approx(3)
    assert summary["gain_over_best_member"]["each"] == pytest.approx([0.05, -0.1])


def test_one_seed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After minutes there would be no deviation."""
    monkeypatch.setattr(commands, "pipeline", lambda *_: pytest.fail("something was measured"))
    with pytest.raises(UserError, match="num_seeds=1 is impossible: for a deviation it must be 2 or more"):
        commands.seeds(num_seeds=1)


def test_missing_sets_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A set would be missing from the table without a message, or be prepared without its metadata."""
    (tmp_path / "amazon").mkdir()
    (tmp_path / "amazon/Gift_Cards_5.json.gz").touch()
    (tmp_path / "amazon/AMAZON_FASHION_5.json.gz").touch()
    file = tmp_path / "amazon/AMAZON_FASHION_5.json.gz"
    words = [f"source=[{file}]", "panel.top_fraction=0.5", "panel.horizon_weeks=4"]
    assert commands.real_sets(str(tmp_path)) == {"AMAZON_FASHION_5": words}
    printed = capsys.readouterr().out
    assert f"Gift_Cards_5: left out, {tmp_path / 'amazon/meta_Gift_Cards.json.gz'} is not there" in printed
    assert "ml-100k: left out" in printed
    with pytest.raises(UserError, match="has none of these sets"):  # the committed scores would be replaced by nothing
        commands.real(str(tmp_path / "movielens"))
