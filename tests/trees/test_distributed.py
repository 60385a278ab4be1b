"""Trees on several ranks, each a process of its own: alike on all, as good as on one, and no rank is lost without a word."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensemble import folders, metrics
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import prepare
from ensemble.recipes.hot_sellers.settings import MarketConfig, PrepareConfig
from ensemble.trees import distributed, train
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.distributed import LIBRARIES, SINGLE_RANK, RankInfo
from ensemble.trees.predict import TreeMember
from ensemble.trees.rows import NUM_BLOCKS, TreeData
from ensemble.trees.settings import TreesConfig

ROOT = Path(__file__).resolve().parents[2]
FILES = {"xgboost": "model.ubj", "lightgbm": "model.txt"}
LIMIT_S = 180
SETTINGS: dict[str, Any] = {
    "num_rounds": 40, "early_stopping_rounds": 40, "learning_rate": 0.1, "max_leaves": 8, "threads": 1, "chunk_rounds": 5,
    "checkpoint_s": 0.0,
}  # fmt: skip
TOLERANCE = 0.05
"""Of average precision on the test split of the small market, where the seed alone moves it by as much."""

GROUP = """
import os, sys, time
from pathlib import Path
from ensemble import errors
from ensemble.errors import UserError
from ensemble.trees import distributed
distributed.PULSE_S, distributed.SILENCE_S = 0.1, 1.5
def main():
    where = distributed.rank_info(os.environ)
    lost = lambda sentence: Path(sys.argv[1], f"lost{{where.rank}}").write_text(sentence)
    with distributed.RankGroup(where, {timeout_s}, lost) as group:
        print("met", group.gather([where.rank, group.address]), flush=True)
        {body}
errors.run(main)
"""


class Ranks:
    """Processes that were started as the ranks of one training."""

    def __init__(self, processes: list[subprocess.Popen[str]]):
        self.processes = processes

    def ends(self) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of each."""
        shown = [process.communicate(timeout=LIMIT_S) for process in self.processes]
        return [(process.returncode, *texts) for process, texts in zip(self.processes, shown, strict=True)]


@pytest.fixture
def start() -> Iterator[Any]:
    """Starts one line on several ranks; `words` and `environments` are single ranks' own."""
    started: list[subprocess.Popen[str]] = []

    def start(
        line: list[str],
        num_ranks: int,
        words: dict[int, list[str]] | None = None,
        environments: dict[int, dict[str, str]] | None = None,
    ) -> Ranks:
        shared = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(distributed.free_port())}
        processes = [
            subprocess.Popen(
                [sys.executable, *line, *(words or {}).get(rank, [])],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, **shared, "RANK": str(rank), **(environments or {}).get(rank, {})},
            )
            for rank in range(num_ranks)
        ]
        started.extend(processes)
        return Ranks(processes)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def group_line(folder: Path, body: str = "pass", timeout_s: float = 60) -> list[str]:
    return ["-c", GROUP.format(body=body, timeout_s=timeout_s), str(folder)]


def training_line(library: str, data: Path, out: Path, *words: str) -> list[str]:
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    script = str(ROOT / "scripts/train_trees.py")
    return [script, f"library={library}", f"data={data}", f"out={out}", *settings, *words]


def wait_for(ranks: Ranks, out: Path, num_trees: int) -> None:
    """Until there is a checkpoint of at least so many trees."""
    deadline = time.monotonic() + LIMIT_S
    while not any(int(folder.name[6:]) >= num_trees for folder in Checkpoints(out, "").all()):
        assert all(process.poll() is None for process in ranks.processes), ranks.ends()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def model(out: Path) -> bytes:
    (file,) = (out / name for name in FILES.values() if (out / name).exists())
    return file.read_bytes()


# The names in the environment


def test_without_names_a_process_is_alone() -> None:
    """What runs on one node would wait for others."""
    assert distributed.rank_info({}) == SINGLE_RANK
    assert distributed.rank_info({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "node", "MASTER_PORT": "1"}) == SINGLE_RANK


NAMES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"MASTER_ADDR": None},
            "the environment has RANK=1, WORLD_SIZE=2, MASTER_PORT=29500 but no MASTER_ADDR: set all of",
        ),
        ({"WORLD_SIZE": None}, "but no WORLD_SIZE: set all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or none"),
        ({"RANK": ""}, "but no RANK: set all"),
        ({"RANK": "2"}, "RANK=2 is impossible with WORLD_SIZE=2: ranks count from 0 to 1"),
        ({"RANK": "-1"}, "RANK=-1 in the environment is not a number: a launcher such as srun sets it"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two in the environment is not a number: a launcher such as srun sets it"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is impossible: it must be a free port"),
    ],
)
def test_half_set_and_impossible_names_are_refused(change: dict[str, str | None], sentence: str) -> None:
    """Each node would train a member of its own, or wait for a rank that cannot come."""
    assert distributed.rank_info(NAMES) == RankInfo(1, 2, "node", 29500)
    with pytest.raises(UserError, match=sentence):
        distributed.rank_info({name: value for name, value in {**NAMES, **change}.items() if value is not None})


# The group


def test_everyone_hears_everyone(tmp_path: Path, start: Any) -> None:
    """Ranks would go on with different words, and wait for each other for ever."""
    body = "[print(group.gather({'round': n, 'of': where.rank})) for n in range(3)]"
    ends = start(group_line(tmp_path, body), 3).ends()
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    first, *rounds = ends[0][1].splitlines()
    assert first == "met [[0, '127.0.0.1'], [1, '127.0.0.1'], [2, '127.0.0.1']]"
    assert rounds == [str([{"round": n, "of": rank} for rank in range(3)]) for n in range(3)]
    assert ends[0][1] == ends[1][1] == ends[2][1]
    assert not any(errors for _, _, errors in ends)


def test_who_does_not_come_is_named(tmp_path: Path, start: Any) -> None:
    """A node that did not boot would leave the others waiting, and nobody would know for which."""
    ranks = start(group_line(tmp_path, timeout_s=3), 3)
    ranks.processes[1].kill()
    ends = ranks.ends()
    assert ends[0][0] == 1
    assert ends[0][2].startswith("failed: rank 1 of 3 did not connect to 127.0.0.1:")
    assert "timeout_s=3" in ends[0][2]
    assert ends[2][0] == 1
    assert ends[2][2].startswith("failed: rank 0 of 3 at 127.0.0.1:")
    assert (tmp_path / "lost0").read_text() in ends[0][2]

    ranks = start(group_line(tmp_path, timeout_s=3), 2)
    ranks.processes[0].kill()
    code, _, errors = ranks.ends()[1]
    assert (code, errors.startswith("failed: rank 0 of 2 did not answer at 127.0.0.1:")) == (1, True)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"RANK": "1"}, "two processes were started with RANK=1: one is host "),
        ({"WORLD_SIZE": "4"}, "rank 2 (host "),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(
    names: dict[str, str], sentence: str, tmp_path: Path, start: Any
) -> None:
    """Two jobs that were given one port would mix, or a wrong variable end in a wait."""
    environments = {2: names}
    ends = start(group_line(tmp_path, timeout_s=30), 3, environments=environments).ends()
    output = [errors.strip() for code, _, errors in ends if code == 2]
    assert ends[0][0] == 2, ends
    assert len(output) >= 2, "rank 0, and the one that does not fit; the third may connect too late"
    for errors in output:
        assert errors.startswith(f"error: {sentence}")
        assert errors.endswith(
            "start every rank with the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and with a RANK of its own"
        )
    assert 0 not in [code for code, _, _ in ends]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_dies_is_named_at_once(victim: int, tmp_path: Path, start: Any) -> None:
    """The others would wait in their library for minutes, and print only that a socket broke."""
    # A lock that is never released stands for a collective: the main thread runs no Python until it returns
    ranks = start(group_line(tmp_path, "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", 600), 3)
    for process in ranks.processes:
        assert process.stdout
        assert process.stdout.readline().startswith("met")
    ranks.processes[victim].kill()
    ends = ranks.ends()
    sentence = f"rank {victim} of 3 (host {os.uname().nodename}, pid {ranks.processes[victim].pid}) died: "
    for rank in {0, 1, 2} - {victim}:
        assert ends[rank][0] == 1
        assert ends[rank][2].startswith(f"\nfailed: {sentence}"), ends[rank]
        assert ends[rank][2].count("\n") == 2
        assert (tmp_path / f"lost{rank}").read_text().startswith(sentence)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_silent_is_named(victim: int, tmp_path: Path, start: Any) -> None:
    """A cable that is pulled closes no socket: the others would wait for ever."""
    ranks = start(group_line(tmp_path, "time.sleep(600)", 600), 2)
    for process in ranks.processes:
        assert process.stdout
        assert process.stdout.readline().startswith("met")
    ranks.processes[victim].send_signal(signal.SIGSTOP)
    survivor = ranks.processes[1 - victim]
    _, errors = survivor.communicate(timeout=LIMIT_S)
    assert survivor.returncode == 1
    assert f"failed: rank {victim} of 2 " in errors
    assert "has not responded for 1.5 s" in errors


def test_a_rank_that_hangs_is_named(tmp_path: Path, start: Any) -> None:
    """A rank that lives, and waits for a dead disk, would hold all the others till the job's time is over."""
    ends = start(group_line(tmp_path, "time.sleep(600 * (where.rank == 2)); group.gather(0)", 3), 3).ends()
    for code, _, errors in ends:
        assert code == 1
        assert "failed: rank 2 of 3 " in errors
        assert "finished no round within timeout_s=3" in errors


@pytest.mark.parametrize(
    ("raised", "code", "sentence"),
    [("UserError('mend this')", 2, "error: mend this"), ("ValueError('a bug')", 1, "failed: rank 1 of 2 ")],
)
def test_what_one_rank_raises_ends_all(raised: str, code: int, sentence: str, tmp_path: Path, start: Any) -> None:
    """The others would call it lost, and the job be started again and again with the same mistake."""
    body = f"\n        if where.rank == 1: raise {raised}\n        time.sleep(600)"
    ends = start(group_line(tmp_path, body, 600), 2).ends()
    assert [end[0] for end in ends] == [code, code]
    assert ends[0][2].strip().startswith(sentence)
    assert not list(tmp_path.iterdir())


# Shards


@pytest.mark.parametrize("num_ranks", [2, 3, 7])
def test_shards_are_a_fair_partition(num_ranks: int, prepared: Path) -> None:
    """Rows would be learned from twice or never; or a rank would know some weeks only, and bin the features by them."""
    about = folders.read_manifest(prepared)
    shards = [TreeData(prepared, "train", about, rank, num_ranks) for rank in range(num_ranks)]
    whole = TreeData(prepared, "train", about)
    row_ids = np.concatenate([shard.column("row_id") for shard in shards])
    assert np.array_equal(np.sort(row_ids), np.sort(whole.column("row_id")))
    assert max(map(len, shards)) - min(map(len, shards)) <= len(whole) // NUM_BLOCKS + 1
    weeks = [len(set(shard.column("week"))) for shard in shards]
    assert min(weeks) > 0.9 * len(set(whole.column("week")))
    features = shards[1].matrix()
    assert np.array_equal(features[:, 3], shards[1].column(whole.features[3]), equal_nan=True)


def test_too_many_ranks_are_refused(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without rows would end in a library's abort."""
    about = folders.read_manifest(prepared)
    num_rows = len(TreeData(prepared, "train", about))
    with pytest.raises(UserError, match=f"{num_rows + 1} ranks cannot share the {num_rows} rows"):
        TreeData(prepared, "train", about, num_rows, num_rows + 1)
    assert len(TreeData(prepared, "train", about, num_rows - 1, num_rows)) == 1


# Training


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data with enough hot sellers on test, some 120, for a score to tell something."""
    folder = tmp_path_factory.mktemp("market") / "prepared"
    prepare.prepare(PrepareConfig(out=str(folder), market=MarketConfig(num_products=600, num_reviews=40_000)))
    return folder


def score(out: Path, data: Path, split: str) -> float:
    result = TreeMember(out).predict(data, split)
    return metrics.binary_scores(result["target"], result["prediction"], result["group"])["average_precision"]


@pytest.fixture(scope="module", params=LIBRARIES)
def trained(request: pytest.FixtureRequest, market: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the member `two`, grown on two ranks, and `one`."""
    folder = tmp_path_factory.mktemp("ranks") / request.param
    folder.mkdir()
    line = training_line(request.param, market, folder / "two", "checkpoint_s=1000")
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(distributed.free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**shared, "RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    ends = Ranks(ranks).ends()
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert " trees  average_precision " in ends[0][2]
    assert " trees  average_precision " not in ends[1][2], "one rank shows how far it is"
    train.train(TreesConfig(library=request.param, data=str(market), out=str(folder / "one"), **SETTINGS))
    return folder


def test_two_ranks_are_as_good_as_one(trained: Path, market: Path) -> None:
    """Each rank would learn from its shard alone, or early stopping look at a part of the validation split."""
    assert sorted(path.name for path in trained.iterdir()) == ["one", "two"], "nothing else is left"
    for name in ("one", "two"):
        summary = json.loads((trained / name / "summary.json").read_text())
        assert summary["rows"] == folders.read_manifest(market)["splits"]["train"]["rows"]
        whole = score(trained / name, market, "validation")
        assert summary["validation_average_precision"] == pytest.approx(whole, abs=1e-6), "of the whole split"
    assert abs(score(trained / "one", market, "test") - score(trained / "two", market, "test")) < TOLERANCE
    assert model(trained / "one") != model(trained / "two"), "this test could not fail"


def test_no_address_stands_in_the_model(trained: Path) -> None:
    """Two trainings of the same data would give other bytes, which name the machines of a cluster."""
    assert b"127.0.0.1" not in model(trained / "two")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_recovered_from(victim: int, trained: Path, market: Path, tmp_path: Path, start: Any) -> None:
    """The rest of the job would hang, or end without its trees, or go on to another model."""
    line = training_line(trained.name, market, tmp_path / "out", "--resume", "auto")
    ranks = start(line, 2)
    wait_for(ranks, tmp_path / "out", 10)
    ranks.processes[victim].kill()
    code, _, errors = ranks.ends()[1 - victim]
    assert code == 1
    assert f"failed: rank {victim} of 2 (host {os.uname().nodename}, pid {ranks.processes[victim].pid}) died" in errors
    assert "Traceback" not in errors
    status, reason = (tmp_path / "out.checkpoint/status").read_text().splitlines()
    assert status == "lost"
    assert reason in errors
    assert not (tmp_path / "out").exists()
    ends = start(line, 2).ends()
    assert [end[0] for end in ends] == [0, 0], ends
    assert "continuing after " in ends[0][2]
    assert model(tmp_path / "out") == model(trained / "two")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_signal_to_one_rank_stops_all(trained: Path, market: Path, tmp_path: Path, start: Any) -> None:
    """One rank would leave, and the others call it lost; then a training goes on with as many ranks as there are."""
    line = training_line(trained.name, market, tmp_path / "out", "--resume", "auto")
    ranks = start(line, 2)
    wait_for(ranks, tmp_path / "out", 5)
    ranks.processes[1].send_signal(signal.SIGTERM)
    ends = ranks.ends()
    assert [code for code, _, _ in ends] == [75, 75], ends
    assert (tmp_path / "out.checkpoint/status").read_text() == "preempted\n"
    ((code, _, errors),) = start(line, 1).ends()
    assert code == 0, errors
    sentence = "these were trained on 2 ranks, the next trees will be trained on 1: the member will be as good, but not bit-"
    assert f"{sentence}identical" in errors
    assert abs(score(tmp_path / "out", market, "test") - score(trained / "two", market, "test")) < TOLERANCE


def test_ranks_that_were_started_otherwise_are_refused(prepared: Path, tmp_path: Path, start: Any) -> None:
    """Each rank would stop at another tree, and wait for ever or mix two trainings."""
    words = {0: ["seed=1"], 1: ["seed=2"]}
    ends = start(training_line("xgboost", prepared, tmp_path / "out"), 2, words).ends()
    for code, _, errors in ends:
        assert code == 2
        assert "error: rank 1 has seed=2, rank 0 1: use equal settings" in errors
    assert not list(tmp_path.iterdir())


def test_what_rank_0_refuses_ends_all(prepared: Path, tmp_path: Path, start: Any) -> None:
    """The others would wait for rank 0 until their time is over."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    ends = start(training_line("lightgbm", prepared, tmp_path / "out"), 2).ends()
    for code, _, errors in ends:
        assert code == 2
        assert "exists already: choose another folder" in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_rank_0_cannot_write_ends_all(library: str, prepared: Path, tmp_path: Path, start: Any) -> None:
    """With a full disk, rank 0 would close the collective while other ranks train, and wait for them."""
    line = training_line(library, prepared, tmp_path / "out")
    program = f"""
import runpy, sys
from ensemble.errors import UserError
from ensemble.trees.checkpoint import Checkpoints
def write(*_):
    raise UserError("there is no room")
Checkpoints.write = write
sys.argv = {line!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    for code, _, errors in start(["-c", program], 2).ends():
        assert code == 2
        assert "error: there is no room" in errors
        assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())
