"""Trees on several ranks, each a process: equal on all, as good as on one rank, and each lost rank is named."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import prepared_folders
import pyarrow as pa
import pytest
from tree_members import SCRIPT, TIMEOUT_S, Start, ends, model, rows_of, start_ranks, starting, wait_for_trees, words

from ensemble import folders, metrics
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import prepare
from ensemble.recipes.hot_sellers.settings import MarketConfig, PrepareConfig
from ensemble.task import Task
from ensemble.trees import distributed, train
from ensemble.trees.distributed import LIBRARIES, SINGLE_RANK, RankInfo
from ensemble.trees.predict import TreeMember
from ensemble.trees.rows import NUM_BLOCKS, TreeData
from ensemble.trees.settings import TreesConfig

SETTINGS: dict[str, Any] = {
    "num_rounds": 40, "early_stopping_rounds": 40, "learning_rate": 0.1, "max_leaves": 8, "threads": 1, "chunk_rounds": 5,
    "checkpoint_s": 0.0,
}  # fmt: skip
TOLERANCE = 0.05
"""Of average precision on the test split of the small market; another seed alone changes it by as much."""

GROUP = """
import os, sys, time
from pathlib import Path
from ensemble import errors
from ensemble.errors import UserError
from ensemble.trees import distributed
distributed.PULSE_S, distributed.SILENCE_S = 0.1, {silence_s}
def main():
    rank_info = distributed.rank_info(os.environ)
    lost = lambda sentence: Path(sys.argv[1], f"lost{{rank_info.rank}}").write_text(sentence)
    with distributed.RankGroup(rank_info, {timeout_s}, lost) as group:
        print("met", group.gather([rank_info.rank, group.address]), flush=True)
        {body}
errors.run(main)
"""


def group_line(folder: Path, body: str = "pass", timeout_s: float = 60, silence_s: float = 1.5) -> list[str]:
    return ["-c", GROUP.format(body=body, timeout_s=timeout_s, silence_s=silence_s), str(folder)]


def connect(port: int, **hello: Any) -> Any:
    """A connection to rank 0, of a rank that the test plays, or without `hello` of another program; a line is a message."""
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    with connection:  # which stays open as long as its file
        messages = connection.makefile("rw", encoding="utf-8")
    if hello:
        print(json.dumps({"name": "played", **hello}), file=messages, flush=True)
    return messages


def training_line(library: str, data: Path, out: Path, *arguments: str) -> list[str]:
    return [SCRIPT, *words(library=library, data=data, out=out, **SETTINGS), *arguments]


# The environment variables


def test_without_variables_a_process_is_the_only_rank() -> None:
    """A training on one node would wait for other ranks."""
    assert distributed.rank_info({}) == SINGLE_RANK
    assert distributed.rank_info({"WORLD_SIZE": "", "RANK": ""}) == SINGLE_RANK
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
        ({"RANK": "-1"}, "RANK=-1 in the environment is not a whole number of 0 or more: a launcher such as srun sets it"),
        (
            {"WORLD_SIZE": "two"},
            "WORLD_SIZE=two in the environment is not a whole number of 0 or more: a launcher such as srun sets it",
        ),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is impossible: it must be a free port"),
    ],
)
def test_missing_and_impossible_variables_are_refused(change: dict[str, str | None], sentence: str) -> None:
    """Each node would train a member of its own, or wait for a rank that does not exist."""
    assert distributed.rank_info(NAMES) == RankInfo(1, 2, "node", 29500)
    with pytest.raises(UserError, match=sentence):
        distributed.rank_info({name: value for name, value in {**NAMES, **change}.items() if value is not None})


# The group


def test_gather_returns_the_values_of_all_ranks_to_each(tmp_path: Path, start: Start) -> None:
    """Ranks would continue with different values, and wait for each other for ever."""
    body = "[print(group.gather({'round': n, 'of': rank_info.rank})) for n in range(3)]"
    results = ends(start_ranks(start, [group_line(tmp_path, body)] * 3))
    assert [code for code, _, _ in results] == [0, 0, 0], results
    first, *rounds = results[0][1].splitlines()
    assert first == "met [[0, '127.0.0.1'], [1, '127.0.0.1'], [2, '127.0.0.1']]"
    assert rounds == [str([{"round": n, "of": rank} for rank in range(3)]) for n in range(3)]
    assert results[0][1] == results[1][1] == results[2][1]
    assert not any(errors for _, _, errors in results)


def test_a_rank_that_does_not_start_is_named(tmp_path: Path, start: Start) -> None:
    """A node that did not boot would leave the others waiting, and no message would say for which node."""
    ranks = start_ranks(start, [group_line(tmp_path, timeout_s=3)] * 3)
    ranks[1].kill()
    results = ends(ranks)
    assert results[0][0] == 1
    assert results[0][2].startswith("failed: rank 1 of 3 did not connect to 127.0.0.1:")
    assert "timeout_s=3" in results[0][2]
    assert results[2][0] == 1
    assert results[2][2].startswith("failed: rank 0 of 3 at 127.0.0.1:")
    assert (tmp_path / "lost0").read_text() in results[0][2]

    ranks = start_ranks(start, [group_line(tmp_path, timeout_s=1)] * 2)
    ranks[0].kill()
    code, _, errors = ends(ranks)[1]
    assert (code, errors.startswith("failed: rank 0 of 2 did not answer at 127.0.0.1:")) == (1, True)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"RANK": "1"}, "two processes were started with RANK=1: one is host "),
        ({"WORLD_SIZE": "4"}, "rank 2 (host "),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(
    names: dict[str, str], sentence: str, tmp_path: Path, start: Start
) -> None:
    """Two jobs that were given one port would mix, or ranks would wait for ever after a mistake in a variable."""
    ranks = start_ranks(start, [group_line(tmp_path, timeout_s=30)] * 3, **names)
    for process in (ranks[0], ranks[2]):
        process.wait(TIMEOUT_S)
    ranks[1].kill()  # if it connects too late, it waits until timeout_s
    results = ends(ranks)
    output = [errors.strip() for code, _, errors in results if code == 2]
    assert results[0][0] == 2, results
    assert len(output) >= 2, "rank 0, and the one that does not fit; the third may connect too late"
    for errors in output:
        assert errors.startswith(f"error: {sentence}")
        assert errors.endswith(
            "start every rank with the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and with a RANK of its own"
        )
    assert 0 not in [code for code, _, _ in results]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_dies_is_named_at_once(victim: int, tmp_path: Path, start: Start) -> None:
    """The others would wait in their library for minutes, and print only that a socket was closed."""
    # A lock that is never released stands for a collective: the main thread runs no Python until it returns
    body = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
    ranks = start_ranks(start, [group_line(tmp_path, body, 600)] * 3)
    wait_until_connected(ranks)
    ranks[victim].kill()
    results = ends(ranks)
    sentence = f"rank {victim} of 3 (host {os.uname().nodename}, pid {ranks[victim].pid}) died: "
    for rank in {0, 1, 2} - {victim}:
        assert results[rank][0] == 1
        assert results[rank][2].startswith(f"\nfailed: {sentence}"), results[rank]
        assert results[rank][2].count("\n") == 2
        assert (tmp_path / f"lost{rank}").read_text().startswith(sentence)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_silent_is_named(victim: int, tmp_path: Path, start: Start) -> None:
    """A cable that is pulled closes no socket: the others would wait for ever."""
    ranks = start_ranks(start, [group_line(tmp_path, "time.sleep(600)", 600)] * 2)
    wait_until_connected(ranks)
    ranks[victim].send_signal(signal.SIGSTOP)
    survivor = ranks[1 - victim]
    _, errors = survivor.communicate(timeout=TIMEOUT_S)
    assert survivor.returncode == 1
    assert f"failed: rank {victim} of 2 " in errors
    assert "has not responded for 1.5 s" in errors


def test_a_job_that_was_suspended_continues(tmp_path: Path, start: Start) -> None:
    """Each rank would report the other as silent, since no message arrived while Slurm had suspended the job."""
    body = "[(group.gather(n), time.sleep(0.05)) for n in range(20)]; print('done')"
    ranks = start_ranks(start, [group_line(tmp_path, body, 3)] * 2)
    wait_until_connected(ranks)
    for process in ranks:
        process.send_signal(signal.SIGSTOP)
    time.sleep(3.5)  # longer than silence_s and timeout_s
    for process in ranks:  # rank 0 looks for silent ranks before the other rank continues
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
    for code, output, errors in ends(ranks):
        assert (code, output.split()[-1], errors) == (0, "done", "")


def test_a_rank_that_hangs_is_named(tmp_path: Path, start: Start) -> None:
    """A rank that waits for a broken disk would delay all the others until the time limit of the job."""
    line = group_line(tmp_path, "time.sleep(600 * (rank_info.rank == 2)); group.gather(0)", 3)
    for code, _, errors in ends(start_ranks(start, [line] * 3)):
        assert code == 1
        assert "failed: rank 2 of 3 " in errors
        assert "finished no round within timeout_s=3" in errors


def test_ranks_may_start_long_after_each_other(tmp_path: Path, start: Start) -> None:
    """A job would fail if one node boots later than the others: the rank that waited would count as silent."""
    port = distributed.free_port()
    names = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = start(group_line(tmp_path, silence_s=4), RANK="0", **names)
    ranks = [connect(port, rank=1, num_ranks=3)]
    time.sleep(4.5)  # longer than silence_s
    ranks.append(connect(port, rank=2, num_ranks=3))
    for messages in ranks:  # a second pulse shows that rank 0 has looked for silent ranks
        assert [sorted(json.loads(messages.readline())) for _ in range(3)] == [["begin"], ["pulse"], ["pulse"]]
        print(json.dumps({"value": "here"}), file=messages, flush=True)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, output) == (0, "met [[0, '127.0.0.1'], 'here', 'here']\n"), errors


def test_another_program_that_connects_and_sends_nothing_is_ignored(tmp_path: Path, start: Start) -> None:
    """A port scanner would stop the training for ever, before the ranks are connected."""
    port = distributed.free_port()
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = start(group_line(tmp_path), RANK="0", **names)
    silent = connect(port)
    messages = connect(port, rank=1, num_ranks=2)
    assert "begin" in json.loads(messages.readline())
    print(json.dumps({"value": "here"}), file=messages, flush=True)
    assert process.communicate(timeout=TIMEOUT_S)[0] == "met [[0, '127.0.0.1'], 'here']\n"
    assert not silent.readline()


def test_a_rank_that_died_before_the_start_can_start_again(tmp_path: Path, start: Start) -> None:
    """It would be refused as a second process with the same RANK, and all ranks would have to start again."""
    port = distributed.free_port()
    names = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = start(group_line(tmp_path), **names)
    connect(port, rank=1, num_ranks=3).close()
    ranks = [connect(port, rank=rank, num_ranks=3) for rank in (1, 2)]
    for messages in ranks:
        assert "begin" in json.loads(messages.readline())
        print(json.dumps({"value": "here"}), file=messages, flush=True)
    assert process.communicate(timeout=TIMEOUT_S)[0] == "met [[0, '127.0.0.1'], 'here', 'here']\n"


def test_a_rank_0_that_hangs_before_the_start_is_named(tmp_path: Path, start: Start) -> None:
    """The other ranks would wait for ever if the machine of rank 0 fails while it waits for a rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        process = start(group_line(tmp_path, timeout_s=1), RANK="1", **names)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert errors.startswith("failed: rank 0 of 2 at 127.0.0.1:")
    assert (tmp_path / "lost1").read_text() in errors


def test_a_rank_that_has_finished_is_not_lost(tmp_path: Path, start: Start) -> None:
    """Rank 0, which still writes the member, would report the other rank as silent, and end without the member."""
    body = "time.sleep(2.5 * (rank_info.rank == 0))"
    assert [result[0] for result in ends(start_ranks(start, [group_line(tmp_path, body)] * 2))] == [0, 0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raised", "code", "sentence"),
    [("UserError('mend this')", 2, "error: mend this"), ("ValueError('a bug')", 1, "failed: rank 1 of 2 ")],
)
def test_an_exception_of_one_rank_ends_all(raised: str, code: int, sentence: str, tmp_path: Path, start: Start) -> None:
    """The others would report the rank as lost, and the job would be started again and again with the same mistake."""
    body = f"\n        if rank_info.rank == 1: raise {raised}\n        time.sleep(600)"
    results = ends(start_ranks(start, [group_line(tmp_path, body, 600)] * 2))
    assert [result[0] for result in results] == [code, code]
    assert results[0][2].strip().startswith(sentence)
    assert not list(tmp_path.iterdir())


# Shards


@pytest.mark.parametrize("num_ranks", [2, 3, 7])
def test_shards_are_a_fair_partition(num_ranks: int, prepared: Path) -> None:
    """Rows would be learned from twice or never; or a rank would know some weeks only, and bin the features by them."""
    manifest, whole = folders.read_manifest(prepared), rows_of(prepared)
    shards = [TreeData(prepared, "train", manifest, rank, num_ranks) for rank in range(num_ranks)]
    row_ids = np.concatenate([shard.column("row_id") for shard in shards])
    assert np.array_equal(np.sort(row_ids), np.sort(whole.column("row_id")))
    assert max(map(len, shards)) - min(map(len, shards)) <= 2 * (len(whole) // NUM_BLOCKS + 1)
    weeks = [len(set(shard.column("week"))) for shard in shards]
    assert min(weeks) > 0.9 * len(set(whole.column("week")))
    features = shards[1].matrix()
    assert np.array_equal(features[:, 3], shards[1].column(whole.features[3]), equal_nan=True)


def test_a_shard_has_rows_of_all_products(tmp_path: Path) -> None:
    """With the same products in each week, every second block has half of them, and LightGBM would split by these alone."""
    product = np.tile(np.arange(64), 64)
    columns = {"row_id": np.arange(len(product)), "target": np.zeros(len(product)), "product": product.astype(np.float32)}
    task = Task(kind="regression", target="target", metric="root_mean_squared_error", group="product", cluster="product")
    prepared_folders.write(tmp_path, {"train": pa.table(columns)}, task, [{"name": "product", "categories": 64}])
    manifest = folders.read_manifest(tmp_path)
    for rank in range(2):
        assert len(set(TreeData(tmp_path, "train", manifest, rank, 2).column("product"))) == 64


def test_too_many_ranks_are_refused(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without rows would end in a library's abort."""
    manifest, num_rows = folders.read_manifest(prepared), len(rows_of(prepared))
    with pytest.raises(UserError, match=f"{num_rows + 1} ranks cannot share the {num_rows} rows"):
        TreeData(prepared, "train", manifest, num_rows, num_rows + 1)
    assert len(TreeData(prepared, "train", manifest, num_rows - 1, num_rows)) == 1


# Training


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data with some 120 hot sellers on test, enough for a meaningful score."""
    folder = tmp_path_factory.mktemp("market") / "prepared"
    prepare.prepare(PrepareConfig(out=str(folder), market=MarketConfig(num_products=600, num_reviews=40_000)))
    return folder


def wait_until_connected(ranks: list[subprocess.Popen[str]]) -> None:
    for process in ranks:
        assert process.stdout
        assert process.stdout.readline().startswith("met")


def score(out: Path, data: Path, split: str) -> float:
    result = TreeMember(out).predict(data, split)
    return metrics.binary_scores(result["target"], result["prediction"], result["group"])["average_precision"]


@pytest.fixture(scope="module", params=LIBRARIES)
def trained(request: pytest.FixtureRequest, market: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the members `two`, trained on two ranks, and `one`."""
    folder = tmp_path_factory.mktemp("ranks") / request.param
    folder.mkdir()
    line = training_line(request.param, market, folder / "two", "checkpoint_s=1000")
    with starting() as start:
        results = ends(start_ranks(start, [["-W", "error", *line]] * 2))
    assert [code for code, _, _ in results] == [0, 0], results
    assert " trees  average_precision " in results[0][2]
    assert " trees  average_precision " not in results[1][2], "only one rank prints the progress"
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
    """Two trainings on the same data would give different files, which contain addresses of machines of a cluster."""
    assert b"127.0.0.1" not in model(trained / "two")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_training_resumes_after_a_killed_rank(
    victim: int, trained: Path, market: Path, tmp_path: Path, start: Start
) -> None:
    """The other rank would hang, its trees would be lost, or the resumed training would end with another model."""
    line = training_line(trained.name, market, tmp_path / "out", "--resume", "auto")
    ranks = start_ranks(start, [line] * 2)
    wait_for_trees(ranks, tmp_path / "out", 10)
    ranks[victim].kill()
    code, _, errors = ends(ranks)[1 - victim]
    assert code == 1
    assert f"failed: rank {victim} of 2 (host {os.uname().nodename}, pid {ranks[victim].pid}) died" in errors
    assert "Traceback" not in errors
    status, reason = (tmp_path / "out.checkpoint/status").read_text().splitlines()
    assert status == "lost"
    assert reason in errors
    assert not (tmp_path / "out").exists()
    results = ends(start_ranks(start, [line] * 2))
    assert [result[0] for result in results] == [0, 0], results
    assert "continuing after " in results[0][2]
    assert model(tmp_path / "out") == model(trained / "two")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_signal_to_one_rank_stops_all(trained: Path, market: Path, tmp_path: Path, start: Start) -> None:
    """One rank would stop, and the other would report it as lost; or the training could not resume on one rank."""
    line = training_line(trained.name, market, tmp_path / "out", "--resume", "auto")
    ranks = start_ranks(start, [line] * 2)
    wait_for_trees(ranks, tmp_path / "out", 5)
    ranks[1].send_signal(signal.SIGTERM)
    results = ends(ranks)
    assert [code for code, _, _ in results] == [75, 75], results
    assert (tmp_path / "out.checkpoint/status").read_text() == "preempted\n"
    ((code, _, errors),) = ends(start_ranks(start, [line]))
    assert code == 0, errors
    sentence = "the trees so far were trained on 2 ranks, the next will be trained on 1: the member will be as good, but not"
    assert f"{sentence} bit-identical" in errors
    assert abs(score(tmp_path / "out", market, "test") - score(trained / "two", market, "test")) < TOLERANCE


def test_ranks_with_other_settings_are_refused(prepared: Path, tmp_path: Path, start: Start) -> None:
    """Each rank would stop at another tree, and wait for ever or mix two trainings."""
    lines = [training_line("xgboost", prepared, tmp_path / "out", f"seed={seed}") for seed in (1, 2)]
    for code, _, errors in ends(start_ranks(start, lines)):
        assert code == 2
        assert "error: rank 1 has seed=2, but rank 0 has 1: use equal settings" in errors
    assert not list(tmp_path.iterdir())


def test_an_output_that_rank_0_refuses_ends_all(prepared: Path, tmp_path: Path, start: Start) -> None:
    """The others would wait for rank 0 until `timeout_s` is over."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    for code, _, errors in ends(start_ranks(start, [training_line("lightgbm", prepared, tmp_path / "out")] * 2)):
        assert code == 2
        assert "exists already: choose another folder" in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_checkpoint_that_rank_0_cannot_write_ends_all(library: str, prepared: Path, tmp_path: Path, start: Start) -> None:
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
    for code, _, errors in ends(start_ranks(start, [["-c", program]] * 2)):
        assert code == 2
        assert "error: there is no room" in errors
        assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())
