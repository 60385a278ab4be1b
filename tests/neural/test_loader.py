"""The division of global batches into micro-batches, and the loading of batches."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble.errors import UserError
from ensemble.neural import loader
from ensemble.neural.loader import Batch, BatchPlan, Feed, MicroBatch, in_order

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
LENGTHS = np.random.default_rng(7).geometric(0.05, size=150)
SIZES = st.fixed_dictionaries(
    {
        "num_rows": st.integers(1, 150),
        "micro_batch_size": st.integers(1, 9),
        "num_ranks": st.integers(1, 5),
        "accumulation": st.integers(1, 4),
        "seed": st.integers(0, 3),
        "bucket_batches": st.integers(0, 4),
    }
)


def make(num_rows: int, batch_size: int, micro: int = 0, num_ranks: int = 1, rank: int = 0, **options: int) -> BatchPlan:
    """A plan of rows with lengths."""
    seed, bucket_batches = options.get("seed", 0), options.get("bucket_batches", 0)
    lengths = LENGTHS[:num_rows]
    return BatchPlan(num_rows, batch_size, micro, num_ranks, rank, seed, lengths=lengths, bucket_batches=bucket_batches)


def plans(num_rows: int, micro_batch_size: int, num_ranks: int, accumulation: int, **options: int) -> list[BatchPlan]:
    """The plan of each rank."""
    batch_size = micro_batch_size * num_ranks * accumulation
    return [make(num_rows, batch_size, micro_batch_size, num_ranks, rank, **options) for rank in range(num_ranks)]


def uncut(num_rows: int, micro_batch_size: int, num_ranks: int, accumulation: int, **options: int) -> BatchPlan:
    """The same global batches in one piece."""
    return make(num_rows, micro_batch_size * num_ranks * accumulation, **options)


def by_step(plan: BatchPlan, first_step: int, last_step: int) -> list[list[MicroBatch]]:
    steps: list[list[MicroBatch]] = [[] for _ in range(first_step, last_step)]
    for micro in plan.micro_batches(first_step, last_step):
        steps[micro.step - first_step].append(micro)
    return steps


def counted(micro_batches: Iterable[MicroBatch]) -> np.ndarray:
    """The rows of micro-batches that are not idle."""
    return np.concatenate([np.empty(0, np.int64), *(micro.rows for micro in micro_batches if not micro.idle)])


# Division into micro-batches


@given(sizes=SIZES)
def test_every_row_is_used_once_per_epoch_and_the_short_batch_is_the_last(sizes: dict[str, int]) -> None:
    """A row would be used twice or never, on some number of ranks or with a short last batch."""
    ranks = plans(**sizes)
    num_steps = ranks[0].steps_per_epoch
    for epoch in range(2):
        steps = [by_step(plan, epoch * num_steps, (epoch + 1) * num_steps) for plan in ranks]
        of_step = [np.concatenate([counted(rank[step]) for rank in steps]) for step in range(num_steps)]
        assert np.array_equal(np.sort(np.concatenate(of_step)), np.arange(sizes["num_rows"]))
        assert {len(rows) for rows in of_step[:-1]} <= {ranks[0].batch_size}


@given(sizes=SIZES)
def test_global_batches_do_not_depend_on_how_they_are_divided(sizes: dict[str, int]) -> None:
    """The same settings would use other batches on other hardware or after a resume."""
    whole = uncut(**sizes)
    num_steps = 2 * whole.steps_per_epoch
    ranks = [by_step(plan, 0, num_steps) for plan in plans(**sizes)]
    for step, (batch,) in enumerate(by_step(whole, 0, num_steps)):
        rows = np.full(len(batch.rows), -1)
        for micro in itertools.chain(*(rank[step] for rank in ranks)):
            assert micro.rows.tolist() == batch.rows[micro.begin : micro.begin + len(micro.rows)].tolist()
            if not micro.idle:
                rows[micro.begin : micro.begin + len(micro.rows)] = micro.rows
        assert np.array_equal(rows, batch.rows)


@given(sizes=SIZES)
def test_ranks_have_the_same_number_of_micro_batches(sizes: dict[str, int]) -> None:
    """A rank without rows would leave the others waiting in the all-reduce for ever."""
    ranks = [by_step(plan, 0, 2) for plan in plans(**sizes)]
    for step in range(2):
        assert len({len(rank[step]) for rank in ranks}) == 1
        for rank in ranks:
            assert [micro.is_last_of_step for micro in rank[step]] == [False] * (len(rank[step]) - 1) + [True]
            assert all(1 <= len(micro.rows) <= sizes["micro_batch_size"] for micro in rank[step])
            assert len(rank[step]) <= sizes["accumulation"]


@given(first_step=st.integers(0, 9), sizes=SIZES)
def test_a_plan_can_start_at_any_step(first_step: int, sizes: dict[str, int]) -> None:
    """A resumed run would use other rows than an uninterrupted one."""
    plan = plans(**sizes)[-1]
    for resumed, uninterrupted in zip(by_step(plan, first_step, 10), by_step(plan, 0, 10)[first_step:], strict=True):
        assert [micro.rows.tolist() for micro in resumed] == [micro.rows.tolist() for micro in uninterrupted]
        assert [micro.epoch for micro in resumed] == [micro.epoch for micro in uninterrupted]


@pytest.mark.parametrize("bucket_batches", [0, 3])
def test_the_order_changes_with_epoch_and_seed(bucket_batches: int) -> None:
    """Every epoch would have the same order of rows, or every seed."""
    orders = [
        tuple(counted(make(100, 10, seed=seed, bucket_batches=bucket_batches).micro_batches(10 * epoch, 10 * epoch + 10)))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4
    assert tuple(range(100)) not in orders


@settings(max_examples=300, deadline=None)
@given(batch_size=st.integers(-3, 200), micro_batch_size=st.integers(-3, 60), num_ranks=st.integers(1, 9))
def test_sizes_that_do_not_divide_are_refused_with_the_nearest_that_do(
    batch_size: int, micro_batch_size: int, num_ranks: int
) -> None:
    """A batch would silently be smaller than requested, or the size in the message would be invalid too."""
    if batch_size < 1 or batch_size % num_ranks:
        with pytest.raises(
            UserError, match=rf"batch_size={batch_size} must be .* of {num_ranks} ranks: the nearest one is \d+$"
        ) as raised:
            BatchPlan(500, batch_size, micro_batch_size, num_ranks, 0, 0)
        valid_sizes = list(range(num_ranks, 300, num_ranks))
        nearest = min(abs(size - batch_size) for size in valid_sizes)
        batch_size, invalid = int(str(raised.value).split()[-1]), batch_size
        assert batch_size in valid_sizes
        assert abs(batch_size - invalid) == nearest
    valid_sizes = [size for size in range(1, batch_size + 1) if batch_size % (size * num_ranks) == 0]
    if micro_batch_size not in (0, *valid_sizes):
        with pytest.raises(UserError, match=r"the nearest that does is micro_batch_size=\d+$") as raised:
            BatchPlan(500, batch_size, micro_batch_size, num_ranks, 0, 0)
        nearest = min(abs(size - micro_batch_size) for size in valid_sizes)
        micro_batch_size, invalid = int(str(raised.value).split("=")[-1]), micro_batch_size
        assert micro_batch_size in valid_sizes
        assert abs(micro_batch_size - invalid) == nearest
    plan = BatchPlan(500, batch_size, micro_batch_size, num_ranks, 0, 0)
    assert plan.micro_batch_size * plan.num_ranks * plan.accumulation == plan.batch_size == batch_size


@given(sizes=SIZES)
def test_halving_keeps_the_global_batches(sizes: dict[str, int]) -> None:
    """After running out of memory, the run would use other global batches, or an equally large micro-batch."""
    for rank, plan in enumerate(plans(**sizes)):
        if plan.micro_batch_size == 1:
            with pytest.raises(UserError, match=r"^micro_batch_size=1 .* one example"):
                plan.halved()
            continue
        half = plan.halved()
        valid_sizes = [
            size for size in range(1, plan.micro_batch_size // 2 + 1) if plan.batch_size % (size * plan.num_ranks) == 0
        ]
        assert half == make(
            sizes["num_rows"], plan.batch_size, max(valid_sizes), plan.num_ranks, rank,
            seed=sizes["seed"], bucket_batches=sizes["bucket_batches"],
        )  # fmt: skip
        assert half.lengths is plan.lengths


# Bucketing


def test_batches_of_a_window_differ_in_length_and_are_shuffled() -> None:
    """Rows would be padded as without bucketing, or every epoch would start with the short ones."""
    plan = make(150, 20, bucket_batches=7)
    firsts = []
    for (batch,) in by_step(plan, 0, plan.steps_per_epoch):
        lengths = LENGTHS[batch.rows]
        assert np.array_equal(lengths, np.sort(lengths)), "the slices of a batch would be padded to its longest row"
        firsts.append((lengths[0], lengths[-1]))
    whole = sorted(firsts[:-1])
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(whole))
    assert whole != firsts[:-1]


def test_a_window_holds_no_more_than_its_batches() -> None:
    """The longest rows of an epoch would always be in one batch, or always in the short last one."""
    shuffled = counted(make(147, 10).micro_batches(0, 15))
    bucketed = [set(batch.rows) for (batch,) in by_step(make(147, 10, bucket_batches=3), 0, 15)]
    for begin, num_batches in ((0, 3), (30, 3), (60, 3), (90, 3), (120, 2)):
        window = set(shuffled[begin : begin + 10 * num_batches])
        assert sum(batch <= window for batch in bucketed) == num_batches
    assert bucketed[-1] == set(shuffled[140:])


def test_no_rank_always_has_the_longest_rows() -> None:
    """The other ranks would wait for the last one in every step."""
    lengths = np.arange(1, 17)
    longest = [
        sum(lengths[micro.rows].max() for micro in plan.micro_batches(0, 1))
        for plan in (BatchPlan(16, 16, 4, 2, rank, 0, lengths=lengths, bucket_batches=1) for rank in range(2))
    ]
    assert longest == [4 + 16, 8 + 12]


def test_bucketing_needs_lengths() -> None:
    """The setting would silently do nothing."""
    with pytest.raises(UserError, match=r"^bucket_batches=8 .* no lengths: set bucket_batches=0$"):
        BatchPlan(50, 10, 0, 1, 0, 0, bucket_batches=8)
    with pytest.raises(UserError, match=r"^bucket_batches=-1 is impossible: it must be 0 or more$"):
        make(50, 10, bucket_batches=-1)


# Evaluation


@given(num_rows=st.integers(1, 60), batch_size=st.integers(1, 20), num_ranks=st.integers(1, 5))
def test_evaluation_uses_every_row_once_and_in_order(num_rows: int, batch_size: int, num_ranks: int) -> None:
    """A score would count a row twice or not at all, or ranks would gather arrays of different lengths."""
    pieces = [[micro.rows for micro in in_order(num_rows, batch_size, num_ranks, rank)] for rank in range(num_ranks)]
    assert len({tuple(len(rows) for rows in batches) for batches in pieces}) == 1
    assert all(1 <= len(rows) <= batch_size for rows in pieces[0])
    joined = np.concatenate([rows for batches in pieces for rows in batches])
    assert joined[:num_rows].tolist() == list(range(num_rows))
    assert set(joined[num_rows:]) <= {num_rows - 1}


# The feed


class Numbers:
    """Examples that contain their row number and the epoch."""

    def __len__(self) -> int:
        return 50

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        return {"number": torch.from_numpy(rows), "epoch": torch.tensor(epoch)}


class Damaged(Numbers):
    """Row 13 cannot be read."""

    def __init__(self, error: type[Exception]):
        self.error = error

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        if 13 in rows:
            raise self.error("row 13 is damaged")
        return super().gather(rows)


class Stuck(Numbers):
    """Reading row 13 never ends; the file `sign` is created when it starts."""

    def __init__(self, sign: Path):
        self.sign = sign

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        while 13 in rows:
            self.sign.touch()
            time.sleep(0.1)
        return super().gather(rows)


@pytest.fixture(autouse=True)
def workers_find_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def feed(source: Numbers, micro_batches: Iterator[MicroBatch], num_workers: int = 0) -> Feed:
    return Feed(source, micro_batches, device=CPU, num_workers=num_workers, prefetch_factor=2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_micro_batch_has_its_rows_also_after_a_resume(num_workers: int) -> None:
    """Gradients would be of other rows, and a resumed run would use other rows."""
    plan = make(50, 12, 3, 2, 1)
    with feed(Numbers(), plan.micro_batches(0, 11)) as batches:
        before = list(batches)
    with feed(Numbers(), plan.micro_batches(6, 11), num_workers) as batches:
        after = list(batches)
    assert {micro.epoch for micro, _ in after} == {1, 2}
    for planned, loaded in ((plan.micro_batches(0, 11), before), (plan.micro_batches(6, 11), after)):
        for expected, (micro, batch) in zip(planned, loaded, strict=True):
            assert (micro.step, micro.begin, micro.idle) == (expected.step, expected.begin, expected.idle)
            assert batch["number"].tolist() == micro.rows.tolist() == expected.rows.tolist()
            assert batch["epoch"] == micro.epoch == expected.epoch


def test_the_feed_does_not_use_the_global_generator() -> None:
    """Dropout after --resume would differ from that of the uninterrupted run, since a new loader draws a number."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with feed(Numbers(), in_order(50, 7, 1, 0)) as batches:
        assert len(list(batches)) == 8
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_wait_for_data_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of time spent waiting for data would include training, or be zero."""
    now = [0.0]
    monkeypatch.setattr(loader, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(Numbers):
        def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
            now[0] += 2.0
            return super().gather(rows)

    with feed(Slow(), in_order(50, 10, 1, 0)) as batches:
        for number, _ in enumerate(batches):
            assert batches.waited_s == 2.0 * (number + 1)
            now[0] += 5.0
    assert batches.waited_s == 10.0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_gather_is_raised_unchanged(num_workers: int) -> None:
    """A user would get a traceback of a worker process instead of the sentence."""
    with feed(Damaged(UserError), in_order(50, 10, 1, 0), num_workers) as batches:
        next(batches)
        with pytest.raises(UserError) as raised:
            next(batches)
    assert str(raised.value) == "row 13 is damaged"
    with (
        feed(Damaged(KeyError), in_order(50, 10, 1, 0), num_workers) as batches,
        pytest.raises(KeyError, match="row 13 is damaged"),
    ):
        list(batches)
    with (
        feed(Damaged(StopIteration), in_order(50, 10, 1, 0), num_workers) as batches,
        pytest.raises(AssertionError, match="StopIteration"),
    ):
        list(batches)


def test_close_ends_the_workers_also_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would wait for ever for a worker that hangs, or leave processes behind if it stops before its end."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 2.0)
    pieces, source = in_order(50, 10, 1, 0), Stuck(tmp_path / "stuck")
    batches = Feed(source, pieces, device=CPU, num_workers=2, prefetch_factor=2, timeout_s=15.0)
    next(batches)
    with pytest.raises(UserError, match="the DataLoader workers returned no batch for timeout_s=15 seconds, so `gather` of"):
        list(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    batches.close()
    for worker in workers:
        worker.join(60)
    assert sorted(str(worker.exitcode) for worker in workers) == ["-9", "0"], "the other one exits by itself"
    batches.close()
    assert list(batches) == []


def test_workers_outlive_a_signal_to_the_process_group() -> None:
    """A scheduler's SIGTERM would end the workers before the rank has finished its step and saved."""
    with feed(Numbers(), make(50, 5).micro_batches(0, 60), 2) as batches:
        next(batches)
        workers = [psutil.Process(worker.pid) for worker in multiprocessing.active_children()]
        servers = {worker.parent() for worker in workers} - {psutil.Process()}
        assert len(workers) == 2
        assert len(servers) == 1
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            for process in (*servers, *workers):  # not all children: those of other tests end at a signal
                process.send_signal(number)
        assert len(list(batches)) == 59


UNCLOSED = """
import sys, torch
from ensemble.neural.loader import Feed, in_order

class Numbers:
    def gather(self, rows, epoch=0):
        return {"number": torch.from_numpy(rows)}

if __name__ == "__main__":
    feed = Feed(Numbers(), in_order(50, 5, 1, 0), device=torch.device("cpu"), num_workers=2, prefetch_factor=2)
    next(feed)
    print("fed", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_neither_process_nor_workers_wait_for_the_other_to_end(killed: bool, tmp_path: Path) -> None:
    """A failed job would wait for its workers, or a killed one would leave them running, and occupy the node."""
    script = tmp_path / "unclosed.py"
    script.write_text(UNCLOSED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"fed\n"
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert len(family) >= 4  # itself, the fork server and two workers
        if killed:
            process.kill()
        process.stdin.close()
        remaining = psutil.wait_procs(family, timeout=60)[1]
        for member in remaining:
            member.kill()
    assert remaining == []


def test_signals_are_not_blocked_in_this_process() -> None:
    """The training would not receive the signals of the scheduler."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        loader.worker_context()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# On a GPU


class Column:
    """A mock tensor that records operations and their streams."""

    def __init__(self, rows: np.ndarray, calls: list[Any]):
        self.rows, self.calls = rows, calls

    def to(self, device: torch.device, non_blocking: bool) -> "Column":
        assert (device.type, non_blocking) == ("cuda", True)
        self.calls.append(("copy", self.rows.tolist(), Stream.current.name))
        return self

    def record_stream(self, stream: "Stream") -> None:
        self.calls.append(("record stream", self.rows.tolist(), stream.name))


class Stream:
    """A mock of torch.cuda.Stream and of the context torch.cuda.stream."""

    current: "Stream"
    calls: list[Any]

    def __init__(self, device: torch.device | None = None, name: str = "copies"):
        self.name = name

    def wait_stream(self, other: "Stream") -> None:
        self.calls.append((self.name, "waits for", other.name))

    def __enter__(self) -> None:
        self.before, Stream.current = Stream.current, self

    def __exit__(self, *error: object) -> None:
        Stream.current = self.before


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_the_next_copy_starts_before_a_batch_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would wait for each copy, or use a batch before it is copied or after its memory was freed."""
    calls = Stream.calls = []
    Stream.current = Stream(name="work")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream.current)

    class Columns(Numbers):
        def gather(self, rows: np.ndarray, epoch: int = 0) -> Any:
            return {"number": Column(rows, calls)}

    batches = Feed(Columns(), in_order(3, 1, 1, 0), device=torch.device("cuda"), num_workers=0, prefetch_factor=2)
    for micro, batch in batches:
        assert batch["number"].rows is micro.rows  # type: ignore[attr-defined]
        calls.append(("returned", micro.rows.tolist()))
    assert calls == [
        ("copy", [0], "copies"),
        ("work", "waits for", "copies"), ("record stream", [0], "work"), ("copy", [1], "copies"), ("returned", [0]),
        ("work", "waits for", "copies"), ("record stream", [1], "work"), ("copy", [2], "copies"), ("returned", [1]),
        ("work", "waits for", "copies"), ("record stream", [2], "work"), ("returned", [2]),
    ]  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_gpu_gets_the_same_batches(num_workers: int) -> None:
    """Memory of a batch would be overwritten by the copy of a later one."""
    device = torch.device("cuda", 0)
    with Feed(
        Numbers(), make(50, 5).micro_batches(0, 60), device=device, num_workers=num_workers, prefetch_factor=2
    ) as batches:
        for micro, batch in batches:
            assert batch["number"].device == device
            assert batch["number"].tolist() == micro.rows.tolist()
