"""The heartbeat of one rank with simulated other ranks in the store; tests/launch/test_failures.py has real ranks."""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import DistStoreError, HashStore, TCPStore

from ensemble.neural import heartbeat, launch
from ensemble.neural.heartbeat import Heartbeat, RankLost

LOST = RuntimeError("[/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Intervals of 0.05 s; this process is not ended, and the handler of SIGTERM, which the heartbeat sets, is restored."""
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.05)
    monkeypatch.setattr(heartbeat, "OBSERVATION_S", 0.5)
    monkeypatch.setattr(os, "_exit", list[int]().append)  # else it would end pytest
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Peer:
    """Another rank, which publishes a record once, or regularly inside its context."""

    def __init__(self, store: Any, rank: int, **values: Any):
        self.store, self.stop = store, threading.Event()
        self.record = {
            "rank": rank, "host": "elsewhere", "pid": 1, "count": 0, "step": 8, "step_time": time.time() - 60,
            "where": "", "state": "running", **values,
        }  # fmt: skip
        self.publish()

    def publish(self, **values: Any) -> None:
        self.record |= {"count": self.record["count"] + 1, **values}
        self.store.set(str(self.record["rank"]), json.dumps(self.record))

    def __enter__(self) -> "Peer":
        threading.Thread(target=self._publish_regularly).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()

    def _publish_regularly(self) -> None:
        while not self.stop.wait(0.05):
            self.publish()


def sentence(store: Any, folder: Path, num_ranks: int = 2, then: Callable[[Heartbeat], object] = id) -> str:
    """The message of rank 0 after a collective failed at step 8."""
    try:
        with Heartbeat(store, 0, num_ranks, 30, folder) as heartbeat_of_0:
            heartbeat_of_0.beat(8)
            then(heartbeat_of_0)
            raise LOST
    except RankLost as lost:
        return str(lost)


def test_a_rank_that_failed_is_named_with_its_reason(tmp_path: Path) -> None:
    """The messages of the other ranks would hide which rank raised which exception."""
    store = HashStore()
    Peer(store, 1, state="ValueError: a row is damaged")
    assert sentence(store, tmp_path) == "rank 1 of 2 (host elsewhere, pid 1) failed at step 8: ValueError: a row is damaged"


def test_a_rank_that_finished_is_named(tmp_path: Path) -> None:
    """Ranks that disagree on the last step would look like a broken network."""
    store = HashStore()
    Peer(store, 1, state="finished")
    assert sentence(store, tmp_path).endswith("finished at step 8, before this rank")


def test_a_process_that_died_is_named(tmp_path: Path) -> None:
    """A rank that the kernel killed publishes nothing: it would be called silent, seconds later, or would not be named."""
    store = HashStore()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with Peer(store, 1, host=socket.gethostname(), pid=process.pid):
        # Nothing waits for its end, so it becomes a zombie, as under the launcher
        message = sentence(store, tmp_path, then=lambda heart: process.kill())
    process.communicate()
    assert f"rank 1 of 2 (host {socket.gethostname()}, pid {process.pid}) died, last seen at step 8" in message


def test_a_silent_rank_is_named(tmp_path: Path) -> None:
    """A rank whose machine is gone could not be distinguished from one that waits too."""
    store = HashStore()
    Peer(store, 1, step_time=time.time() - 61)
    message = sentence(store, tmp_path)
    assert "rank 1 of 2 (host elsewhere, pid 1) has not responded since step 8, 6" in message
    assert "(timeout_s=30): check whether its machine can be reached" in message


@pytest.mark.parametrize("step", [7, 8])
def test_a_rank_that_does_not_reach_the_collective_is_named(step: int, tmp_path: Path) -> None:
    """If all ranks are alive, the one for which the others wait would not be found, or one that waits too would be named."""
    store = HashStore()
    with (
        Peer(store, 1, state="searching"),
        Peer(store, 2, step=step, where="gather (rows.py, line 88)"),
        Peer(store, 3, step=9),
    ):
        message = sentence(store, tmp_path, num_ranks=4)
    assert f"rank 2 of 4 (host elsewhere, pid 1) has made no progress since step {step}, 6" in message
    assert message.endswith("it is in gather (rows.py, line 88)")


def test_no_rank_is_named_when_all_wait(tmp_path: Path) -> None:
    """A failure of the network would be attributed to a rank."""
    store = HashStore()
    with Peer(store, 1, state="searching"):
        message = sentence(store, tmp_path)
    assert message.startswith("the connection between the ranks was lost at step 8, but all of them are alive: the network")
    assert "Connection closed by peer" in message


def store_of_a_process() -> tuple[subprocess.Popen[str], TCPStore]:
    """A process that holds a store, and this process's connection to it."""
    host = (
        "from torch.distributed import TCPStore as T; t = T('127.0.0.1', 0, None, True); print(t.port, flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, TCPStore("127.0.0.1", int(process.stdout.readline()))


def test_a_store_that_is_gone_is_reported(tmp_path: Path) -> None:
    """Without a launcher rank 0 holds the store: its death would end in the store's own traceback."""
    process, store = store_of_a_process()
    Peer(store, 1)

    def end_it(heart: Heartbeat) -> None:
        process.kill()
        process.communicate()

    assert "is gone: its owner, the launcher or rank 0, died" in sentence(store, tmp_path, then=end_it)


def test_the_published_record(tmp_path: Path) -> None:
    """The other ranks would see an old step, or not where this rank hangs, or how it ended."""

    def record() -> dict[str, Any]:
        return json.loads(store.get("0"))

    def hang() -> None:
        deadline = time.monotonic() + 30
        while not record()["where"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    store = HashStore()
    Peer(store, 1)
    with Heartbeat(store, 0, 2, 30, tmp_path) as heartbeat_of_0:
        heartbeat_of_0.beat(5)
        hang()
        assert record()["where"].startswith(("hang (test_heartbeat.py, line ", "record (test_heartbeat.py, line "))
        assert (record()["step"], record()["pid"], record()["state"]) == (5, os.getpid(), "running")
    assert record()["state"] == "finished"
    with (
        pytest.raises(ZeroDivisionError),
        Heartbeat(store, 0, 2, 30, tmp_path),
    ):  # only communication errors are replaced
        _ = 1 / 0
    assert record()["state"] == "ZeroDivisionError: division by zero"


def test_with_nccl_the_message_is_printed_before_the_abort(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """NCCL's watchdog would abort the process before the late rank is named, or a rank at the same step would be named."""
    store = HashStore()
    Peer(store, 1)  # until the real one is there
    announced: list[str] = []
    with (
        Heartbeat(store, 0, 2, 1.2, tmp_path, announced.append) as heartbeat_of_0,
        Heartbeat(store, 1, 2, 1.2, tmp_path, announced.append) as heartbeat_of_1,
    ):
        heartbeat_of_0.beat(8)
        heartbeat_of_1.beat(8)
        time.sleep(2)
        assert capfd.readouterr().err == ""
        heartbeat_of_0.beat(9)
        deadline, printed = time.monotonic() + 30, ""
        while "failed: " not in printed:
            assert time.monotonic() < deadline
            printed += capfd.readouterr().err
            time.sleep(0.01)
        time.sleep(1)
    printed += capfd.readouterr().err
    assert printed.count("failed: ") == 1
    assert printed.startswith(
        f"\nfailed: rank 1 of 2 (host {socket.gethostname()}, pid {os.getpid()}) has made no progress since step 8, "
    )
    assert announced == [printed.removeprefix("\nfailed: ").removesuffix("\n")]


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes with which the heartbeat would have ended this process, 0.2 s after it named a rank."""
    codes: list[int] = []
    monkeypatch.setattr(heartbeat, "ABORT_S", 0.2)
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_with_nccl_a_process_that_waits_for_a_lost_rank_ends(
    exit_codes: list[int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The main thread would wait for its GPU for ever, since NCCL's watchdog does not always end the process."""
    store, announced = HashStore(), list[str]()
    with Peer(store, 1) as peer, Heartbeat(store, 0, 2, 600, tmp_path, announced.append):
        time.sleep(1.5)
        assert (announced, exit_codes) == ([], [])
        peer.publish(state="ValueError: a row is damaged")
        wait_for(lambda: exit_codes)
    assert announced[0] == "rank 1 of 2 (host elsewhere, pid 1) failed at step 8: ValueError: a row is damaged"
    assert exit_codes[0] == 1
    assert capfd.readouterr().err.startswith(f"\nfailed: {announced[0]}\n")


def test_with_nccl_a_process_whose_wait_ends_does_not_end(
    exit_codes: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rank that was late would end the training, also if a long evaluation follows, in which no step is published."""
    monkeypatch.setattr(heartbeat, "ABORT_S", 3.0)
    store, announced = HashStore(), list[str]()
    with Peer(store, 1) as peer, Heartbeat(store, 0, 2, 1.2, tmp_path, announced.append) as heartbeat_of_0:
        heartbeat_of_0.beat(9)
        wait_for(lambda: announced)
        peer.publish(step=9)
        time.sleep(5)
    assert len(announced) == 1
    assert exit_codes == []


@pytest.mark.parametrize("finished", ["this rank", "the other rank"])
def test_with_nccl_no_rank_is_named_after_the_end(finished: str, exit_codes: list[int], tmp_path: Path) -> None:
    """A training would fail at its end, while one rank is still uploading metrics."""
    store, announced = HashStore(), list[str]()
    timeout_s = 1.2 if finished == "this rank" else 600
    with Peer(store, 1, state="finished"), Heartbeat(store, 0, 2, timeout_s, tmp_path, announced.append) as heartbeat_of_0:
        if finished == "this rank":
            heartbeat_of_0.finish()
        time.sleep(2)
    assert (announced, exit_codes) == ([], [])


def test_with_nccl_a_process_without_a_store_ends(exit_codes: list[int], tmp_path: Path) -> None:
    """A rank would wait in NCCL for ranks of a machine that is gone, or be ended while it saves after its launcher died."""
    announced: list[str] = []
    process, store = store_of_a_process()
    Peer(store, 1)
    with Heartbeat(store, 0, 2, 8, tmp_path, announced.append) as heartbeat_of_0:
        process.kill()
        process.communicate()
        heartbeat_of_0.beat(9)
        time.sleep(1.5)
        assert (announced, exit_codes) == ([], [])
        wait_for(lambda: exit_codes)
    assert "is gone: its owner, the launcher or rank 0, died" in announced[0]


def test_with_nccl_a_store_that_answers_late_is_asked_again(exit_codes: list[int], tmp_path: Path) -> None:
    """A pause of the launcher would count as its death, or this rank would publish no more and count as silent."""

    class Late(HashStore):  # type: ignore[misc]
        num_writes = 0

        def clone(self) -> "Late":
            return self

        def set(self, key: str, value: str) -> None:
            Late.num_writes += 1
            if 3 < Late.num_writes < 8:
                raise DistStoreError("wait timeout after 3000ms")
            super().set(key, value)

    store, announced = Late(), list[str]()
    Peer(store, 1)
    with Heartbeat(store, 0, 2, 600, tmp_path, announced.append):
        wait_for(lambda: Late.num_writes > 20)
    assert (announced, exit_codes) == ([], [])


def test_with_nccl_no_rank_is_named_while_the_training_advances(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With a short timeout_s, or after a wait that has ended, a running training would be marked as lost."""

    class Advancing(HashStore):  # type: ignore[misc]
        """This rank is a step ahead of what the other one has published, whenever the records are read."""

        num_reads = 0

        def clone(self) -> "Advancing":
            return self

        def multi_get(self, keys: list[str]) -> list[bytes]:
            Advancing.num_reads += 1
            heartbeat_of_0.beat(8 + Advancing.num_reads)
            peer.publish(step=7 + Advancing.num_reads)
            return super().multi_get(keys)  # type: ignore[no-any-return]

    store, announced = Advancing(), []
    peer = Peer(store, 1)
    heartbeat_of_0 = Heartbeat(store, 0, 2, 0.5, tmp_path, announced.append)
    with heartbeat_of_0:
        deadline = time.monotonic() + 60
        while Advancing.num_reads < 40:  # in the time of three searches
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert (announced, capfd.readouterr().err) == ([], "")


def test_a_rank_that_does_not_start_is_named(tmp_path: Path) -> None:
    """The other ranks would wait, and end with a traceback of the store."""
    store = HashStore()
    Peer(store, 1)
    heart = Heartbeat(store, 0, 3, 0.5, tmp_path)
    with pytest.raises(RankLost, match=r"^rank 2 of 3 did not start within timeout_s=0.5: .* raise timeout_s$"), heart:
        pass


def test_one_rank_has_no_heartbeat(tmp_path: Path) -> None:
    """A run on one rank would need a store."""
    threads = threading.active_count()
    with Heartbeat(None, 0, 1, 30, tmp_path) as heartbeat_of_0:
        heartbeat_of_0.beat(3)
        assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LOST, True),
        (DistStoreError("a key"), True),
        (torch.distributed.DistBackendError("NCCL error"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo/"), False),
        (RuntimeError("Application timeout caused pair closure"), True),  # from a backward pass
    ],
    ids=repr,
)
def test_communication_errors_are_recognised(error: BaseException, expected: bool) -> None:
    """An error of this rank would be attributed to another, or a lost rank would end in Gloo's traceback."""
    assert heartbeat.is_communication_error(error) == expected


def test_torch_knows_the_flight_recorders_names(tmp_path: Path) -> None:
    """A version of torch with other names would silently write no dump."""
    names = launch.flight_recorder_environment(tmp_path)
    folder = Path(torch.__file__).parent
    header = (folder / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp").read_bytes()
    with open(folder / "lib/libtorch_cpu.so", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        for name in names:
            assert name.encode() in header or library.find(name.encode()) >= 0, name
    assert names["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/flight_recorder.rank"
