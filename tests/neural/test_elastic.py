"""The number of ranks after a loss, and the outcomes after which a job is not started again."""

import signal
from pathlib import Path
from typing import Any

import pytest

from ensemble import errors
from ensemble.errors import UserError
from ensemble.neural import elastic
from ensemble.neural.division import divisors
from ensemble.neural.settings import TrainConfig


@pytest.mark.parametrize(
    ("batch_size", "left", "ranks", "micro"),
    [(1536, 3, 3, 256), (1024, 3, 2, 256), (1024, 1, 1, 256), (1024, 4, 4, 256), (7, 3, 1, 1), (1536, 2, 2, 384)],
)
def test_the_number_of_remaining_ranks_divides_the_batch(batch_size: int, left: int, ranks: int, micro: int) -> None:
    """The batch could not be divided among the ranks, or a rank would need more memory than before."""
    assert divisors(batch_size, left)[-1] == ranks
    assert divisors(batch_size // ranks, max(1, batch_size // 4))[-1] == micro


class Starts:
    """A mock of the launches: the status of each one, whether it saves a checkpoint, and its number of ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: Path, outcomes: list[tuple[str, bool]]):
        self.out, self.outcomes, self.ranks, self.messages = out, outcomes, list[int](), list[str]()
        (out / "checkpoints").mkdir(parents=True)
        monkeypatch.setattr(elastic, "run_once", self.start)

    def start(self, job: elastic.Job, ranks: int, micro: int, signals: list[int]) -> tuple[str, bool]:
        status, saves = self.outcomes[len(self.ranks)]
        self.ranks.append(ranks)
        if saves:
            (self.out / "checkpoints" / f"step-{len(self.ranks):08d}").mkdir()
        status, _, is_signalled = status.partition(" after ")
        if is_signalled:
            signal.raise_signal(signal.SIGTERM)
        return status, False

    def supervise(self, capacity: Path | None = None, batch_size: int = 1024) -> int:
        job = elastic.Job(
            command=[], settings=TrainConfig(out=str(self.out), batch_size=batch_size), yaml=Path("unused"), num_ranks=4,
            capacity=capacity, max_losses=2,
        )  # fmt: skip
        return elastic.supervise(job, self.messages.append)


@pytest.mark.parametrize(
    ("outcomes", "code", "ranks"),
    [
        (["lost", "lost", "done"], 0, [4, 2, 1]),
        (["failed"], errors.FAILED, [4]),
        ([""], errors.FAILED, [4]),
        (["lost", "", "done"], 0, [4, 2, 1]),
        (["preempted"], errors.PREEMPTED, [4]),
        (["preempted after a signal"], errors.PREEMPTED, [4]),
        (["lost after a signal"], errors.FAILED, [4]),
        (["running", "lost", "lost"], errors.FAILED, [4, 2, 1]),
    ],
)
def test_when_a_job_is_started_again(
    outcomes: list[str], code: int, ranks: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job with a permanent error would be restarted for ever, or a job stopped by a signal would be started again."""
    starts = Starts(monkeypatch, tmp_path, [(status, False) for status in outcomes])
    assert starts.supervise() == code
    assert starts.ranks == ranks


def test_a_restarted_training_that_fails_by_an_error_of_the_user_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A loss that is not finite would be computed again after each restart, as if a rank had been lost each time."""
    starts = Starts(monkeypatch, tmp_path, [("lost", False), ("mistake", False)])
    start = starts.start

    def start_and_fail(*arguments: Any) -> tuple[str, bool]:
        result = start(*arguments)
        (tmp_path / "status").write_text("failed\nthe loss is nan\n" if result[0] == "mistake" else "lost\n")
        return result

    monkeypatch.setattr(elastic, "run_once", start_and_fail)
    assert starts.supervise() == errors.USER_ERROR
    assert starts.ranks == [4, 2]


def test_the_reason_of_a_loss_is_not_printed_for_a_later_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A restart that ends before it writes a status would be reported with the reason of the loss before it."""
    starts = Starts(monkeypatch, tmp_path, [("lost", False), ("", False), ("done", False)])
    (tmp_path / "status").write_text("lost\nrank 1 did not answer\n")
    assert starts.supervise() == 0
    assert [message for message in starts.messages if "starts again" in message] == [
        "rank 1 did not answer: starts again",
        "a process ended and left no reason in the file status: starts again",
    ]


def test_losses_with_checkpoints_between_them_do_not_end_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A long job that loses one rank each day would end after some days."""
    starts = Starts(monkeypatch, tmp_path, [("lost", True)] * 5 + [("done", False)])
    capacity = tmp_path / "capacity"
    capacity.write_text("3")
    assert starts.supervise(capacity=capacity, batch_size=1536) == 0
    assert starts.ranks == [3] * 6


def test_a_capacity_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The job would end in a traceback, or run on no rank at all."""
    starts = Starts(monkeypatch, tmp_path, [("done", False)])
    capacity = tmp_path / "capacity"
    capacity.write_text("three")
    with pytest.raises(UserError, match="capacity holds no number of ranks: write one whole number"):
        starts.supervise(capacity=capacity)


@pytest.mark.parametrize("content", ["", "Failed to initialize NVML"])
def test_a_capacity_without_a_number_does_not_change_the_ranks(
    content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`nvidia-smi … > FILE` empties the file before it writes, and may fail: a restart at this time would end the job."""
    starts = Starts(monkeypatch, tmp_path, [("lost", True), ("done", False)])
    capacity = tmp_path / "capacity"
    capacity.write_text("2\n")
    start = starts.start

    def start_and_empty(*arguments: Any) -> tuple[str, bool]:
        capacity.write_text(content)
        return start(*arguments)

    monkeypatch.setattr(elastic, "run_once", start_and_empty)
    assert starts.supervise(capacity=capacity) == 0
    assert starts.ranks == [2, 2]


def test_a_capacity_without_a_number_does_not_end_the_supervision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error would wait for the end of the training, without passing on signals, and then end the job."""
    capacity, terminated, polls = tmp_path / "capacity", list[int](), enumerate(["Failed to initialize NVML", "4"])
    (tmp_path / "checkpoints").mkdir()

    class Launched:
        """A launcher that runs until SIGTERM. A monitor writes to the file after each of its checkpoints."""

        returncode = errors.PREEMPTED

        def __init__(self, *arguments: Any, **options: Any): ...

        def __enter__(self) -> "Launched":
            return self

        def __exit__(self, *_: object) -> None: ...

        def poll(self) -> int | None:
            if terminated:
                return self.returncode
            step, content = next(polls)
            capacity.write_text(content)
            (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir()
            return None

        def terminate(self) -> None:
            terminated.append(1)

        def wait(self, timeout_s: float) -> None: ...

    monkeypatch.setattr(elastic.subprocess, "Popen", Launched)
    monkeypatch.setattr("psutil.Process.children", lambda *_, **__: [])
    job = elastic.Job(
        command=[], settings=TrainConfig(out=str(tmp_path), batch_size=4), yaml=Path("unused"), num_ranks=4,
        capacity=capacity, max_losses=2,
    )  # fmt: skip
    assert elastic.run_once(job, 2, 2, []) == ("", True)


@pytest.mark.parametrize(("number", "ranks"), [(0, 1), (3, 2), (64, 4)])
def test_the_capacity_bounds_the_ranks(number: int, ranks: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job would start no rank, or more than are available or requested."""
    starts = Starts(monkeypatch, tmp_path, [("done", False)])
    capacity = tmp_path / "capacity"
    capacity.write_text(str(number))
    assert starts.supervise(capacity=capacity) == 0
    assert starts.ranks == [ranks]


def test_the_newest_checkpoint_is_that_of_the_last_part(tmp_path: Path) -> None:
    """A refit whose ranks are lost twice would count as without progress, since each part counts its steps anew."""
    seen = [elastic.newest_checkpoint(tmp_path)]
    for folder in ("checkpoints/step-00000009", "trial/checkpoints/step-00000002", "trial/checkpoints/step-00000004",
                   "newest/checkpoints/step-99999999", "newest/checkpoints/step-100000000"):  # fmt: skip
        (tmp_path / folder).mkdir(parents=True)
        seen.append(elastic.newest_checkpoint(tmp_path))
    assert seen == sorted(set(seen))
    assert seen[0] == ""
