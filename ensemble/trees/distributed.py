"""The ranks of one training, one process per node, connected by a socket from each to rank 0.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python scripts/train_trees.py …

XGBoost and LightGBM train through collectives of their own. These sockets add an exchange of addresses and of decisions
(`RankGroup.gather`), and fast detection of a lost rank. A rank is lost if its socket closes without a last message, if no
message of it arrives for `SILENCE_S` seconds, or if it finishes no round of training within `timeout_s`. Then every other
rank prints one sentence that names the lost rank, and exits, even if it waits inside a library.
"""

import json
import math
import os
import queue
import re
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ensemble.errors import FAILED, USER_ERROR, Failure, UserError, in_a_line

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PULSE_S = 1.0
SILENCE_S = 15.0
"""A rank is lost if no message of it arrives for this long. Every rank sends a pulse each PULSE_S seconds, so its machine
or the network may have failed."""
LIBRARIES = ("xgboost", "lightgbm")
LOST, FAILURE, USER = "lost", "failure", "mistake"
"""Why all ranks exit: a rank was lost, a rank raised an exception, or the user made a mistake."""


class RankLost(Failure):
    """Another rank died, hangs or did not start; the message is one sentence that names the other rank."""


class RankInfo(NamedTuple):
    """The rank of this process, the number of ranks, and the address and port at which rank 0 listens."""

    rank: int
    num_ranks: int
    address: str
    port: int


SINGLE_RANK = RankInfo(0, 1, "", 0)


def rank_info(environment: Mapping[str, str]) -> RankInfo:
    """The rank and the number of ranks from the environment variables `NAMES`, of which an empty one counts as missing.
    `SINGLE_RANK` if WORLD_SIZE is missing or 1, and RANK is missing or 0. Raises `UserError` if a variable is missing or
    impossible.
    """
    if (environment.get("WORLD_SIZE") or "1") == "1" and (environment.get("RANK") or "0") == "0":
        return SINGLE_RANK
    missing = [name for name in NAMES if not environment.get(name)]
    if missing:
        given = ", ".join(f"{name}={environment[name]}" for name in NAMES if environment.get(name))
        raise UserError(
            f"the environment has {given} but no {' and no '.join(missing)}: set all of {', '.join(NAMES)}, or none"
        )
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not re.fullmatch("[0-9]+", environment[name]):
            raise UserError(
                f"{name}={environment[name]} in the environment is not a whole number of 0 or more: "
                "a launcher such as srun sets it"
            )
    rank, num_ranks, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= num_ranks:
        raise UserError(f"RANK={rank} is impossible with WORLD_SIZE={num_ranks}: ranks count from 0 to {num_ranks - 1}")
    if not 0 < port < 1 << 16:
        raise UserError(f"MASTER_PORT={port} is impossible: it must be a free port of rank 0's machine, from 1 to 65535")
    return RankInfo(rank, num_ranks, environment["MASTER_ADDR"], port)


class _Peer:
    """Another rank, at the other end of a socket. Each message is a line of JSON, in both directions."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.lines = connection.makefile("rb")
        self.values: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.num_values = 0
        self.received_at = time.monotonic()
        self.name = ""
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._lock:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None at the end of the connection, or if none arrives within `timeout_s`."""
        try:
            self.connection.settimeout(timeout_s)
            line = self.lines.readline()
            return json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None


class RankGroup:
    """All ranks of a training, as a context manager; with one rank it does nothing.

    timeout_s : how long a rank waits until all ranks have started, and rank 0 until each has finished a round. on_lost : is
    called with the sentence about a lost rank before this process exits. Once all ranks have connected, a background thread
    calls it and ends the process, since the main thread may wait inside a library.
    """

    def __init__(
        self,
        rank_info: RankInfo = SINGLE_RANK,
        timeout_s: float = 600.0,
        on_lost: Callable[[str], None] = lambda sentence: None,
    ):
        self.rank, self.num_ranks = rank_info.rank, rank_info.num_ranks
        self.address = "127.0.0.1"
        self._rank_info, self._timeout_s, self._on_lost = rank_info, timeout_s, on_lost
        self._peers: dict[int, _Peer] = {}
        self._num_gathered = 0
        self._gathered_at = time.monotonic()
        self._ended = threading.Lock()
        self._closing = threading.Event()

    def __enter__(self) -> "RankGroup":
        """Wait for the other ranks; `RankLost` names those that do not connect within `timeout_s`."""
        if self.num_ranks == 1:
            return self
        hello = {"rank": self.rank, "num_ranks": self.num_ranks, "name": f"host {socket.gethostname()}, pid {os.getpid()}"}
        try:
            (self._accept_ranks if self.rank == 0 else self._connect)(hello)
        except RankLost as lost:
            self._on_lost(str(lost))
            raise
        for rank, peer in self._peers.items():
            peer.received_at = time.monotonic()  # rank 0 has waited for the other ranks since its last message
            threading.Thread(target=self._listen, args=(rank, peer), name=f"rank {rank}", daemon=True).start()
        threading.Thread(target=self._watch, name="pulse", daemon=True).start()
        self._gathered_at = time.monotonic()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._peers:
            # Exit at once: if the interpreter shuts down in the middle of a collective, the library crashes or hangs
            if isinstance(error, UserError):
                self._exit(str(error), USER)
            traceback.print_exception(error)
            self._exit(f"{self._name(self.rank)} failed: {in_a_line(error)}", FAILURE)
        self._closing.set()
        self._send_to_all(bye=True)
        for peer in self._peers.values():
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_WR)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of the ranks, on every rank. Each value must be serialisable as JSON.

        Every rank must call it, the same number of times and in the same order.
        """
        if self.num_ranks == 1:
            return [value]
        try:
            if self.rank == 0:
                values = [value, *(self._peers[rank].values.get() for rank in range(1, self.num_ranks))]
                self._send_to_all(value=values)
            else:
                self._peers[0].send(value=value)
                values = self._peers[0].values.get()
        except OSError:  # wait until the listening thread detects the cause and ends this process
            threading.Event().wait()
        self._num_gathered += 1
        self._gathered_at = time.monotonic()
        return values

    @contextmanager
    def wait_for_lost_rank(self) -> Iterator[None]:
        """Give a thread time to detect a lost rank and end this process, if a library raises an error in this block.

        If no rank is lost, the library's error is raised afterwards.
        """
        try:
            yield
        except Exception as error:
            if self._peers and type(error).__module__.split(".")[0] in LIBRARIES:
                self._closing.wait(SILENCE_S + 2 * PULSE_S)
            raise

    def _accept_ranks(self, hello: dict[str, Any]) -> None:
        """On rank 0: accept a connection from each other rank, and then send all of them the message to begin."""
        deadline = time.monotonic() + self._timeout_s
        address, port = self._rank_info.address, self._rank_info.port
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        except OSError as error:
            raise UserError(f"MASTER_ADDR={address} is not an address of rank 0's machine ({error.strerror})") from None
        try:
            server = socket.create_server(("", port), family=family, backlog=self.num_ranks)
        except OSError as error:
            raise UserError(
                f"rank 0 cannot listen on port {port} ({error.strerror}): set MASTER_PORT to a free port"
            ) from None
        with server:
            while len(self._peers) < self.num_ranks - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    missing = [str(rank) for rank in range(1, self.num_ranks) if rank not in self._peers]
                    raise RankLost(
                        f"rank {', '.join(missing)} of {self.num_ranks} did not connect to {address}:{port} within "
                        f"timeout_s={self._timeout_s:g}: see its output, or raise timeout_s"
                    ) from None
                self._welcome(connection)
        self.address = self._peers[1].connection.getsockname()[0]  # the address at which rank 1 reached this machine
        self._send_to_all(begin=hello)

    def _welcome(self, connection: socket.socket) -> None:
        """On rank 0: add the rank that has connected; `UserError` if it belongs to another training or exists already."""
        hello = (peer := _Peer(connection)).receive(SILENCE_S)  # another program that connects to the port may send nothing
        if not isinstance(hello, dict) or not {"rank", "num_ranks", "name"} <= hello.keys():
            connection.close()
            return
        rank, num_ranks = hello["rank"], hello["num_ranks"]
        problem = None
        if num_ranks != self.num_ranks:
            problem = (
                f"rank {rank} ({hello['name']}) was started with WORLD_SIZE={num_ranks}, and rank 0 with {self.num_ranks}"
            )
        elif rank == 0 or (rank in self._peers and not select.select([self._peers[rank].connection], [], [], 0)[0]):
            # The connection of a rank that waits has nothing to read; that of one that died, its end: it may start again
            problem = f"two processes were started with RANK={rank}: one is {hello['name']}"
        if problem:
            problem += f": start every rank with the same {', '.join(NAMES[1:])}, and with a RANK of its own"
            peer.send(end=problem, why=USER)
            self._send_to_all(end=problem, why=USER)
            raise UserError(problem)
        peer.name = hello["name"]
        self._peers[rank] = peer

    def _connect(self, hello: dict[str, Any]) -> None:
        """On other ranks: connect to rank 0, which may start later, and wait until all ranks have connected."""
        deadline = time.monotonic() + self._timeout_s
        host = f"{self._rank_info.address}:{self._rank_info.port}"
        while True:
            try:
                connection = socket.create_connection((self._rank_info.address, self._rank_info.port), timeout=PULSE_S)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RankLost(
                        f"rank 0 of {self.num_ranks} did not answer at {host} within timeout_s={self._timeout_s:g} "
                        f"({in_a_line(error)}): see its output, and whether MASTER_ADDR can be reached from here"
                    ) from None
                time.sleep(0.1)
        self.address = connection.getsockname()[0]
        peer = _Peer(connection)
        peer.send(**hello)
        self._peers[0] = peer
        message = peer.receive(self._timeout_s + SILENCE_S)
        if message is None:
            raise RankLost(f"rank 0 of {self.num_ranks} at {host} ended or hung before all had connected: see its output")
        if "end" in message:
            raise (UserError if message["why"] == USER else RankLost)(message["end"])
        peer.name = message["begin"]["name"]

    def _listen(self, rank: int, peer: _Peer) -> None:
        """Receive the messages of one rank, in a thread of its own, and detect that its connection ends unexpectedly."""
        while (message := peer.receive()) is not None:
            peer.received_at = time.monotonic()
            if "value" in message:
                peer.num_values += 1
                peer.values.put(message["value"])
            elif "end" in message:
                self._exit(message["end"], message["why"])
            elif "bye" in message:
                peer.received_at = math.inf
                return
        self._exit(f"{self._name(rank)} died: its connection was closed unexpectedly")

    def _watch(self) -> None:
        """Send a pulse to the other ranks regularly, in a thread of its own, and detect ranks that are silent or late."""
        looked_at = continued_at = time.monotonic()
        while not self._closing.wait(PULSE_S):
            self._send_to_all(pulse=True)
            now = time.monotonic()
            if now - looked_at > SILENCE_S / 2:  # this process was stopped, and perhaps all, as when Slurm suspends a job
                continued_at = now
            looked_at = now
            for rank, peer in self._peers.items():
                if now - max(peer.received_at, continued_at) > SILENCE_S:
                    self._exit(f"{self._name(rank)} has not responded for {SILENCE_S:g} s: check whether its machine is up")
            if self.rank == 0 and now - max(self._gathered_at, continued_at) > self._timeout_s:
                late_ranks = [rank for rank, peer in self._peers.items() if peer.num_values == self._num_gathered]
                names = ", ".join(map(self._name, late_ranks)) or self._name(0)
                self._exit(f"{names} finished no round within timeout_s={self._timeout_s:g}: check what it waits for")

    def _send_to_all(self, **message: Any) -> None:
        for peer in self._peers.values():
            with suppress(OSError):  # the listening thread detects a closed connection
                peer.send(**message)

    def _exit(self, sentence: str, why: str = LOST) -> None:
        """Print the reason and end this process, unless it is ending already. First send the reason to the connected ranks,
        except from a rank other than 0 that detected a lost rank."""
        if self._closing.is_set() or not self._ended.acquire(blocking=False):
            return
        if self.rank == 0 or why != LOST:
            self._send_to_all(end=sentence, why=why)
        if why == LOST:
            self._on_lost(sentence)
        print(f"\n{'error' if why == USER else 'failed'}: {sentence}", file=sys.stderr, flush=True)
        os._exit(USER_ERROR if why == USER else FAILED)

    def _name(self, rank: int) -> str:
        name = self._peers[rank].name if rank in self._peers else f"host {socket.gethostname()}, pid {os.getpid()}"
        return f"rank {rank} of {self.num_ranks} ({name})"


def free_port() -> int:
    """A port that is free now on all addresses of this machine."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]
