"""The benchmarks of next_item: both sides do the same work, alternately, and each kind of work runs."""

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import turns
from benchmarks.next_item import data as next_item_data
from benchmarks.next_item import forecast as next_item_forecast
from benchmarks.next_item import growth as next_item_growth
from benchmarks.next_item import measure as next_item
from benchmarks.next_item import run as next_item_run
from benchmarks.next_item.run import NextItemRun, work_of

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.recipes.next_item import training as recipes
from ensemble.recipes.next_item.settings import RecipeConfig

MODEL = '''
import torch

class SASRec(torch.nn.Module):
    """The part of the reference's interface that the benchmark calls."""

    def __init__(self, num_users, num_items, arguments):
        super().__init__()
        self.item_emb = torch.nn.Embedding(num_items + 1, arguments.hidden_units)

    def forward(self, users, items, *rest):
        *between, targets, negatives = rest
        assert [matrix.shape for matrix in between] == [(*items.shape, items.shape[1])] * self.num_matrices
        known, *of = (self.item_emb(torch.LongTensor(numbers)) for numbers in (items, targets, negatives))
        return tuple((known * other).sum(-1) for other in of)

    num_matrices = 0

class TiSASRec(SASRec):
    num_matrices = 1

    def __init__(self, num_users, num_items, num_times, arguments):
        super().__init__(num_users, num_items, arguments)
        for name in ("abs_pos_K_emb", "abs_pos_V_emb", "time_matrix_K_emb", "time_matrix_V_emb"):
            setattr(self, name, torch.nn.Embedding(arguments.time_span + 1, arguments.hidden_units))
'''
UTILS = """
from pathlib import Path

def data_partition(name):
    rows = [line.split() for line in Path(f"data/{name}.txt").read_text().splitlines()]
    train = {}
    for user, *rest in rows:
        train.setdefault(int(user), []).append(rest)
    times = [7] * (name == "times")
    return [train, train, train, len(train), len({row[1] for row in rows}), *times]

def build_index(name):
    print("printed by the reference", name)

def Relation(train, num_users, max_length, span):
    assert (len(train), span) == (num_users, 256)

def evaluate(model, dataset, arguments):
    assert not model.training
    print("printed by the reference", len(dataset[0]), dataset[3])
"""
USERS, ITEMS = 12, 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated interactions, and modules with the names of the references' modules."""
    folder = tmp_path_factory.mktemp("next_item")
    generator = np.random.default_rng(0)
    next_item_data.write(folder / "made", next_item_data.beauty_lengths(USERS, generator) + 3, ITEMS, generator)
    (folder / "reference").mkdir()
    (folder / "reference" / "model.py").write_text(MODEL)
    (folder / "reference" / "utils.py").write_text(UTILS)
    return folder


@pytest.fixture
def at_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working directory and the modules of a process of the benchmark."""
    monkeypatch.chdir(folder / "made")
    monkeypatch.syspath_prepend(folder / "reference")
    yield
    for name in ("model", "utils"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("at_work")
@pytest.mark.parametrize("time_aware", [False, True])
@pytest.mark.parametrize(("side", "work"), next_item_run.WORKS)
def test_each_piece_of_work_runs(side: str, work: str, time_aware: bool) -> None:
    """After a change of the recipe, the figures of the README could not be measured again."""
    settings = NextItemRun(side=side, work=work, time_aware=time_aware, max_length=6, num_sequences=10)  # type: ignore[arg-type]
    work_of(*settings)()


@pytest.mark.usefixtures("at_work")
def test_both_sides_get_the_same_sequences() -> None:
    """One side would be faster because it does less."""
    length = 6
    rows = recipes.make(RecipeConfig(time_aware=True, max_length=length, num_groups=next_item_run.NUM_GROUPS), "prepared")
    batch = rows.rows("train").gather(np.arange(USERS))
    users, items, between, targets, negatives = next_item_run.padded(batch, length, ITEMS)
    assert len(users) == USERS
    assert (negatives.min(), negatives.max()) >= (1, 2)
    events = open_table(Path("prepared/events")).to_pydict()
    expected = []
    for row in open_table(Path("prepared/rows/train")).to_pylist():
        begin, end = max(row["begin"], row["end"] - 1 - length), row["end"]
        padding = [0] * (length - (end - 1 - begin))
        expected.append((padding + events["item"][begin : end - 1], padding + events["item"][begin + 1 : end]))
        time = np.array(events["time"][begin : end - 1]) - events["time"][begin]
        gaps = np.diff(time)
        scaled = 1 + np.rint(time / min(gaps[gaps > 0], default=1)).astype(int)
        results = next(
            number for number in range(USERS) if (items[number].tolist(), targets[number].tolist()) == expected[-1]
        )
        real = slice(len(padding), None)
        assert between[results][real, real].tolist() == np.minimum(abs(scaled[:, None] - scaled), 256).tolist()
    assert sorted(zip(items.tolist(), targets.tolist(), strict=True)) == sorted(expected)


def test_seconds_are_compared_with_their_neighbours() -> None:
    """A machine that becomes slower would count as a gain of ours, or a cold start as a cost."""
    calls: list[str] = []

    def side(name: str, factor: float) -> turns.Work:
        def work() -> dict[str, float]:
            calls.append(name)
            return {"cpu_s": (100 if len(calls) <= 2 else 5 + len(calls)) * factor, "peak_mb": 7 * factor}

        return work

    results = turns.compared(side("reference", 4.0), side("ours", 1.0), rounds=3, warm_up=True)
    assert calls == ["reference", "ours"] + ["reference", "ours"] * 3 + ["reference"]
    assert results["times_faster"] == {"median": 4.0, "least": 4.0}
    assert (results["times_leaner"], results["noise"]) == (4.0, 0.0)
    assert (results["reference"]["cpu_s"], results["ours"]["cpu_s"]) == (44.0, 11.0)


def test_processes_answer_whatever_the_reference_prints(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The output of a reference would be read as figures, or a reference that is not given would be measured."""
    monkeypatch.setitem(next_item.PARTS, "prepare", dict(list(next_item.PARTS["prepare"].items())[:2]))
    results = next_item.next_item(rounds=2, sasrec=str(folder / "reference"), parts=("prepare",), num_users=30)
    beside, by_itself = results["prepare"].values()
    assert beside["reference"]["cpu_s"] > 0
    assert beside["ours"]["peak_mb"] > 0
    assert by_itself.keys() == {"ours"}
    assert (results["data"]["movielens"]["users"], results["data"].keys()) == (30, {"movielens"})
    assert "printed by the reference" not in capfd.readouterr().out


def test_memory_that_was_freed_before_the_work_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that needs much memory to read its data would seem to need it for its work."""
    (tmp_path / "freed.py").write_text("def make():\n    b'1' * 300_000_000\n    return lambda: None\n")
    monkeypatch.syspath_prepend(tmp_path)
    make = importlib.import_module("freed").make
    with turns.worker(make, folder=tmp_path, modules=str(tmp_path)) as work:
        assert work()["peak_mb"] < 100


def test_the_error_of_a_process_is_repeated(tmp_path: Path) -> None:
    """There would be a traceback of the JSON parser instead of the error."""
    with (
        turns.worker(work_of, "prepare", folder=tmp_path) as work,
        pytest.raises(UserError, match=r"work_of\('prepare',\) ended with 2: .*data/pairs\.txt"),
    ):
        work()


def test_a_worker_that_was_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A BrokenPipeError of its closed input would replace the error, such as for a lack of memory."""
    source = "import os, threading\ndef make():\n    return lambda: threading.Timer(0.5, os._exit, [9]).start()\n"
    (tmp_path / "dies.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    make = importlib.import_module("dies").make

    def call_twice() -> None:
        with turns.worker(make, folder=tmp_path, modules=str(tmp_path)) as work:
            work()
            time.sleep(2)
            work()

    with pytest.raises(UserError, match=r"make\(\) ended with 9"):
        call_twice()


@pytest.mark.usefixtures("at_work")
@pytest.mark.parametrize("axis", next_item_growth.AXES)
def test_each_axis_measures_work_that_exists(axis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After minutes a process would not understand its settings."""
    monkeypatch.setattr(next_item_growth, "ITEMS_SEQUENCES", 8)
    names = set()
    for name, run, data in next_item_growth.works(axis, [20], tmp_path / axis):
        monkeypatch.chdir(data)
        work_of(*run)()
        names.add(name)
    assert len(names) == {"length": 8, "items": 2, "users": 1}[axis]


def test_exponents_are_computed_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exponents would be wrong, or drawing would fail after the measurement."""
    costs = iter([{"cpu_s": 1.0, "peak_mb": 3.0}, {"cpu_s": 2.0, "peak_mb": 3.0}, {"cpu_s": 8.0, "peak_mb": 12.0}])
    monkeypatch.setattr(next_item_growth, "alone", lambda work, rounds: next(costs))
    monkeypatch.setattr(next_item_growth.next_item_data, "write", lambda folder, *_: folder.mkdir(parents=True))
    results = next_item_growth.next_item_growth(axes=("users",), doublings=2, users=20, picture=str(tmp_path / "growth.png"))
    assert results["users"]["prepare"] == {
        "sizes": [20, 40, 80],
        "cpu_s": [1.0, 2.0, 8.0],
        "cpu_s_exponent": {"all": 1.5, "last": 2.0},
        "peak_mb": [3.0, 3.0, 12.0],
        "peak_mb_exponent": {"all": 1.0, "last": 2.0},
    }
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """After ten minutes there would be a traceback."""
    for settings, sentence in (
        ({"rounds": 1}, "rounds=1 is impossible: for quartiles it must be 2 or more"),
        ({"parts": ("steps",)}, "'steps' is unknown, choose from sasrec_step, tisasrec_step, evaluate, prepare"),
        ({"tisasrec": str(tmp_path)}, "holds no model.py and utils.py"),
    ):
        with pytest.raises(UserError, match=sentence):
            next_item.next_item(**settings)
    with pytest.raises(UserError, match="'depth' is unknown, choose from length, items, users"):
        next_item_growth.next_item_growth(axes=("depth",))


def test_forecasts_are_compared_by_ids_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids with leading zeros would be read as numbers, and every forecast would have the score 0."""
    source = tmp_path / "u.data"
    source.write_text("".join(f"00{user} 0{item} 3 {881250949 + item}\n" for user in range(1, 9) for item in (1, 2, 3)))

    def fit(command: list[Any]) -> None:
        """Write forecasts with the hidden item in the first place, except for one user."""
        out = Path(next(word for word in map(str, command) if word.startswith("out=")).removeprefix("out="))
        rows = [f'1,"00{user}","{"03" if user > 1 else "05"}"\n' for user in range(1, 9)]
        for folder in ("ensemble", "all"):
            (out / folder).mkdir(parents=True)
            (out / folder / "forecast.csv").write_text('"rank","user_id","item_id"\n' + "".join(rows))
        folders.write_json(out / "leaderboard.json", [{"member": "ensemble", "value": 0.5}])

    monkeypatch.setattr(next_item_forecast, "timed", fit)
    result = next_item_forecast.next_item_forecast(str(source))
    assert result["users"] == 8
    assert [scores["ndcg_at_10"]["value"] for scores in result["forecast"].values()] == [7 / 8, 7 / 8]
