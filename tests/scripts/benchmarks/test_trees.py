"""The benchmarks of trees: their figures, and one measurement of each kind of process."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks import trees

from ensemble.errors import UserError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    trees.write_data(folder / "data", 3000)
    trees.write_data_to_predict(folder / "to_predict", folder / "data", 3000)
    return folder


@pytest.mark.parametrize("library", trees.LIBRARIES)
def test_each_kind_of_process_runs(library: str, data: Path) -> None:
    """After a change of the trees, the figures of the README could not be measured again."""
    for work in ("ours", "bare", "defaults"):
        run = trees.run_one(data / "data", library, work, "low", 2)
        assert run["wall_s"] > 0
        assert run["cpu_s"] > 0
        assert 0 < run["peak_mb"] < 500
    run = trees.run_one(data / "to_predict", library, "predict", "in_core", 4)
    assert len(run["rows_per_s"]["native"]) == len(run["rows_per_s"]["ours"]) + 1
    assert min(run["rows_per_s"]["ours"]) > 0
    assert 1 <= run["trees"] <= 4


def test_ratios_are_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that becomes slower would count as a cost of ours, or the ratio would be inverted."""
    works: list[str] = []

    def run(data: Path, library: str, work: str, *_: Any) -> dict[str, Any]:
        """Each process takes a second more than the previous one, and ours 10 % more than that."""
        works.append(work)
        if work == "predict":
            return {"trees": 9, "threads": 2, "rows_per_s": {"native": [100, 200, 300], "ours": [135, 225]}}
        ours = 1.1 if work == "ours" else 1.0
        return {"wall_s": 1.0, "cpu_s": (9 + len(works)) * ours, "peak_mb": 50 * ours}

    monkeypatch.setattr(trees, "run_one", run)
    results = trees.trees(rounds=2, num_rows=1000, num_trees=1)
    for library in trees.LIBRARIES:
        for memory in ("in_core", "low"):
            assert results[library][memory]["cpu_by_bare"]["median"] == pytest.approx(1.1)
            assert results[library][memory]["noise"] == pytest.approx(0)
            assert results[library][memory]["peak_mb"]["median"] == pytest.approx(55)
            assert results[library][memory]["bare_peak_mb"]["median"] == 50
        assert results[library]["predict"]["by_native"]["median"] == pytest.approx(0.9)
    assert works[:11] == [*["bare", "ours"] * 2, "bare", *["bare", "ours"] * 2, "bare", "predict"]


def test_threads_are_compared_with_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gain would be relative to other settings than the defaults, or it would be that of our fastest run."""
    seconds = {"defaults": [30.0, 40.0, 20.0], "bare": [2.0, 4.0]}

    def run(data: Path, library: str, work: str, *_: Any) -> dict[str, Any]:
        return {"wall_s": left[work].pop(0)}

    for library in trees.LIBRARIES:
        left = {work: 2 * values for work, values in seconds.items()}
        monkeypatch.setattr(trees, "run_one", run)
        results = trees.threads(rounds=2, num_rows=1000)[library]
        assert (results["times_faster"], results["times_faster_least"]) == (10.0, 5.0)


def test_too_few_rounds_are_refused() -> None:
    """After hours there would be no quartiles."""
    for benchmark in (trees.trees, trees.threads):
        with pytest.raises(UserError, match="rounds=1 is impossible: for quartiles it must be 2 or more"):
            benchmark(rounds=1)
