"""One rank's heartbeat beside others that are planted in the store; real ranks are lost in tests/launch/test_failures.py."""

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

from ensemble.neural import heartbeat
from ensemble.neural.heartbeat import Heartbeat, RankLost

LOST = RuntimeError("[/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pulses of 0.05 s; and SIGTERM as before, which a rank that was left ignores."""
    monkeypatch.setattr(heartbeat, "PULSE_S", 0.05)
    monkeypatch.setattr(heartbeat, "WATCH_S", 0.5)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Peer:
    """Another rank, which tells what it is given, once, or again and again while it is entered."""

    def __init__(self, store: Any, rank: int, **values: Any):
        self.store, self.stop = store, threading.Event()
        self.record = {
            "rank": rank, "host": "elsewhere", "pid": 1, "pulse": 0, "step": 8, "moved_at": time.time() - 60,
            "where": "", "state": "moving", **values,
        }  # fmt: skip
        self.tell()

    def tell(self, **values: Any) -> None:
        self.record |= {"pulse": self.record["pulse"] + 1, **values}
        self.store.set(str(self.record["rank"]), json.dumps(self.record))

    def __enter__(self) -> "Peer":
        threading.Thread(target=self._beat_on).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()

    def _beat_on(self) -> None:
        while not self.stop.wait(0.05):
            self.tell()


def sentence(store: Any, folder: Path, num_ranks: int = 2, then: Callable[[Heartbeat], object] = id) -> str:
    """What rank 0 says after its collective failed at step 8."""
    try:
        with Heartbeat(store, 0, num_ranks, 30, folder) as heart:
            heart.beat(8)
            then(heart)
            raise LOST
    except RankLost as lost:
        return str(lost)


def test_a_rank_that_failed_is_named_with_its_reason(tmp_path: Path) -> None:
    """The survivors' lines would hide whose exception it was, and which."""
    store = HashStore()
    Peer(store, 1, state="ValueError: a row is damaged")
    assert sentence(store, tmp_path) == "rank 1 of 2 (host elsewhere, pid 1) failed at step 8: ValueError: a row is damaged"


def test_a_rank_that_finished_is_named(tmp_path: Path) -> None:
    """Ranks that disagree on the last step would look like a broken network."""
    store = HashStore()
    Peer(store, 1, state="finished")
    assert sentence(store, tmp_path).endswith("finished at step 8, before this rank")


def test_a_process_that_died_is_named(tmp_path: Path) -> None:
    """A rank that the kernel killed tells nothing: it would be called silent, seconds later, or not be named."""
    store = HashStore()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with Peer(store, 1, host=socket.gethostname(), pid=process.pid):
        # It is not waited for: a zombie, as under the launcher
        found = sentence(store, tmp_path, then=lambda heart: process.kill())
    process.communicate()
    assert f"rank 1 of 2 (host {socket.gethostname()}, pid {process.pid}) died, last seen at step 8" in found


def test_a_silent_rank_is_named(tmp_path: Path) -> None:
    """A rank whose machine is gone would not be told from one that waits as we do."""
    store = HashStore()
    Peer(store, 1, moved_at=time.time() - 61)
    found = sentence(store, tmp_path)
    assert "rank 1 of 2 (host elsewhere, pid 1) has given no sign of life since step 8, 6" in found
    assert "(timeout_s=30): see whether its machine can be reached" in found


@pytest.mark.parametrize("step", [7, 8])
def test_a_rank_that_does_not_come_to_the_collective_is_named(step: int, tmp_path: Path) -> None:
    """Of ranks that all live, the one that the others wait for would not be found; or one that waits, too, be blamed."""
    store = HashStore()
    with (
        Peer(store, 1, state="waiting"),
        Peer(store, 2, step=step, where="gather (rows.py, line 88)"),
        Peer(store, 3, step=9),
    ):
        found = sentence(store, tmp_path, num_ranks=4)
    assert f"rank 2 of 4 (host elsewhere, pid 1) has not moved since step {step}, 6" in found
    assert found.endswith("it is in gather (rows.py, line 88)")


def test_nobody_is_blamed_when_all_wait(tmp_path: Path) -> None:
    """A network that broke would be laid on a rank that did nothing."""
    store = HashStore()
    with Peer(store, 1, state="waiting"):
        found = sentence(store, tmp_path)
    assert found.startswith("the ranks lost each other at step 8, though none of them died: the network")
    assert "Connection closed by peer" in found


def test_a_store_that_is_gone_is_named(tmp_path: Path) -> None:
    """Without a launcher rank 0 holds the store: its death would end in the store's own traceback."""
    host = (
        "from torch.distributed import TCPStore as T; t = T('127.0.0.1', 0, None, True); print(t.port, flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    store = TCPStore("127.0.0.1", int(process.stdout.readline()))
    Peer(store, 1)

    def end_it(heart: Heartbeat) -> None:
        process.kill()
        process.communicate()

    assert "is gone: the launcher or rank 0, which held it, died" in sentence(store, tmp_path, then=end_it)


def test_what_is_told_to_the_others(tmp_path: Path) -> None:
    """The others would look at an old step, or not learn where this rank stays, or how it ended."""

    def told() -> dict[str, Any]:
        return json.loads(store.get("0"))

    def stay_here() -> None:
        deadline = time.monotonic() + 30
        while not told()["where"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    store = HashStore()
    Peer(store, 1)
    with Heartbeat(store, 0, 2, 30, tmp_path) as heart:
        heart.beat(5)
        stay_here()
        assert told()["where"].startswith(("stay_here (test_heartbeat.py, line ", "told (test_heartbeat.py, line "))
        assert (told()["step"], told()["pid"], told()["state"]) == (5, os.getpid(), "moving")
    assert told()["state"] == "finished"
    with (
        pytest.raises(ZeroDivisionError),
        Heartbeat(store, 0, 2, 30, tmp_path),
    ):  # nothing but a lost peer is replaced
        _ = 1 / 0
    assert told()["state"] == "ZeroDivisionError: division by zero"


def test_nccl_is_told_before_it_aborts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """NCCL's watchdog aborts the process: nothing would ever say who was late; nor may ranks at the same step be blamed."""
    store = HashStore()
    Peer(store, 1)  # until the real one is there
    announced: list[str] = []
    with (
        Heartbeat(store, 0, 2, 1.2, tmp_path, announced.append) as heart,
        Heartbeat(store, 1, 2, 1.2, tmp_path, announced.append) as other,
    ):
        heart.beat(8)
        other.beat(8)
        time.sleep(2)
        assert capfd.readouterr().err == ""
        heart.beat(9)
        deadline, told = time.monotonic() + 30, ""
        while "failed: " not in told:
            assert time.monotonic() < deadline
            told += capfd.readouterr().err
            time.sleep(0.01)
        time.sleep(1)
    told += capfd.readouterr().err
    assert told.count("failed: ") == 1
    assert told.startswith(
        f"\nfailed: rank 1 of 2 (host {socket.gethostname()}, pid {os.getpid()}) has not moved since step 8, "
    )
    assert announced == [told.removeprefix("\nfailed: ").removesuffix("\n")]


def test_a_rank_that_does_not_begin_is_named(tmp_path: Path) -> None:
    """The others would wait for it in a store, and end with that store's traceback."""
    store = HashStore()
    Peer(store, 1)
    heart = Heartbeat(store, 0, 3, 0.5, tmp_path)
    with pytest.raises(RankLost, match=r"^rank 2 of 3 did not begin .* timeout_s=0.5"), heart:
        pass


def test_one_rank_has_no_heartbeat(tmp_path: Path) -> None:
    """A run on one rank would need a store."""
    threads = threading.active_count()
    with Heartbeat(None, 0, 1, 30, tmp_path) as heart:
        heart.beat(3)
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
def test_what_a_lost_peer_looks_like(error: BaseException, expected: bool) -> None:
    """A mistake of this rank would be laid on another, or a lost rank end in Gloo's traceback."""
    assert heartbeat.is_lost_peer(error) == expected


def test_torch_knows_the_flight_recorders_names(tmp_path: Path) -> None:
    """A torch that renames them would write no dump, without a word."""
    names = heartbeat.flight_recorder_environment(tmp_path)
    folder = Path(torch.__file__).parent
    header = (folder / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp").read_bytes()
    with open(folder / "lib/libtorch_cpu.so", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        for name in names:
            assert name.encode() in header or library.find(name.encode()) >= 0, name
    assert names["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/flight_recorder.rank"
