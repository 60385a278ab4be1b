"""The ranks of one training, one process a node, tied together by a socket from each to rank 0.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python scripts/train_trees.py …

The libraries grow trees through collectives of their own. What they lack goes through these sockets: telling each other
addresses, agreeing on the next step (`RankGroup.gather`), and knowing at once which rank was lost. A rank that died closes
its socket, one that cannot be reached sends no pulse for `SILENCE_S`, one that hangs finishes no round within `timeout_s`:
then every other rank says so in one sentence and leaves, out of whatever call its library waits in.
"""

import json
import os
import queue
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple

from ensemble.errors import FAILED, USER_ERROR, Failure, UserError

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PULSE_S = 1.0
SILENCE_S = 15.0
"""A rank that sent nothing for so long is lost, with its machine or the network to it."""
LIBRARIES = ("xgboost", "lightgbm")
LOST, FAILURE, MISTAKE = "lost", "failure", "mistake"
"""Why all ranks leave: one was lost, one raised something, or the user can mend it."""


class RankLost(Failure):
    """Another rank died, hangs or did not come; the message is one sentence that names it."""


class Place(NamedTuple):
    """Which rank this process is, of how many, and where rank 0 listens."""

    rank: int
    num_ranks: int
    address: str
    port: int


ALONE = Place(0, 1, "", 0)


def place(environment: Mapping[str, str]) -> Place:
    """What the environment's names say; without WORLD_SIZE, or with 1, this process is alone."""
    if environment.get("WORLD_SIZE", "1") == "1" and environment.get("RANK", "0") == "0":
        return ALONE
    missing = [name for name in NAMES if not environment.get(name)]
    if missing:
        given = ", ".join(f"{name}={environment[name]}" for name in NAMES if environment.get(name))
        raise UserError(
            f"the environment has {given} but no {' and no '.join(missing)}: set all of {', '.join(NAMES)}, or none"
        )
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not re.fullmatch("[0-9]+", environment[name]):
            raise UserError(f"{name}={environment[name]} in the environment is no number: a launcher such as srun sets it")
    rank, num_ranks, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= num_ranks:
        raise UserError(f"RANK={rank} is impossible with WORLD_SIZE={num_ranks}: ranks count from 0 to {num_ranks - 1}")
    if not 0 < port < 1 << 16:
        raise UserError(f"MASTER_PORT={port} is impossible: it must be a free port of rank 0's machine, from 1 to 65535")
    return Place(rank, num_ranks, environment["MASTER_ADDR"], port)


class _Peer:
    """The other end of a socket: lines of JSON each way."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.lines = connection.makefile("rb")
        self.values: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.num_values = 0
        self.heard_at = time.monotonic()
        self.name = ""
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._lock:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message, None at the end of the connection."""
        try:
            line = self.lines.readline()
            return json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None


class RankGroup:
    """All ranks of a training, while it is entered; alone it does nothing.

    `timeout_s` is how long a rank waits for all to come, and for any to finish a round. `on_lost` is told the sentence
    before this process leaves, since a thread ends it: the main thread may be waiting in a library for a rank that is gone.
    """

    def __init__(
        self, where: Place = ALONE, timeout_s: float = 600.0, on_lost: Callable[[str], None] = lambda sentence: None
    ):
        self.rank, self.num_ranks = where.rank, where.num_ranks
        self.address = "127.0.0.1"
        self._where, self._timeout_s, self._on_lost = where, timeout_s, on_lost
        self._peers: dict[int, _Peer] = {}
        self._num_gathered = 0
        self._moved_at = time.monotonic()
        self._ended = threading.Lock()
        self._closing = threading.Event()

    def __enter__(self) -> "RankGroup":
        """Wait for the others; `RankLost` names those that do not come within `timeout_s`."""
        if self.num_ranks == 1:
            return self
        me = {"rank": self.rank, "num_ranks": self.num_ranks, "name": f"host {socket.gethostname()}, pid {os.getpid()}"}
        try:
            (self._let_in if self.rank == 0 else self._go_in)(me)
        except RankLost as lost:
            self._on_lost(str(lost))
            raise
        for rank, peer in self._peers.items():
            threading.Thread(target=self._listen, args=(rank, peer), name=f"rank {rank}", daemon=True).start()
        threading.Thread(target=self._watch, name="pulse", daemon=True).start()
        self._moved_at = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and self._peers:
            # At once: a library that is in the middle of a collective crashes or hangs when the interpreter ends
            if isinstance(error, UserError):
                self._leave(str(error), MISTAKE)
            traceback.print_exception(error)
            self._leave(f"{self._name(self.rank)} failed: {_in_a_line(error)}", FAILURE)
        self._closing.set()
        self._tell(bye=True)
        for peer in self._peers.values():
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_WR)

    def gather(self, value: Any) -> list[Any]:
        """Everyone's value (JSON) by rank, on every rank; all must call it in the same order."""
        if self.num_ranks == 1:
            return [value]
        try:
            if self.rank == 0:
                values = [value, *(self._peers[rank].values.get() for rank in range(1, self.num_ranks))]
                self._tell(value=values)
            else:
                self._peers[0].send(value=value)
                values = self._peers[0].values.get()
        except OSError:  # the thread that listens knows more, and ends this process
            threading.Event().wait()
        self._num_gathered += 1
        self._moved_at = time.monotonic()
        return values

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around a library's work: if its collective fails, this process leaves when a thread knows which rank was lost."""
        try:
            yield
        except Exception as error:
            if self._peers and type(error).__module__.split(".")[0] in LIBRARIES:
                self._closing.wait(SILENCE_S + 2 * PULSE_S)
            raise

    def _let_in(self, me: dict[str, Any]) -> None:
        """Rank 0: take a connection of each other rank, and then let all begin."""
        deadline = time.monotonic() + self._timeout_s
        family = _family(self._where)
        try:
            server = socket.create_server(("", self._where.port), family=family, backlog=self.num_ranks)
        except OSError as error:
            raise UserError(
                f"rank 0 cannot listen on port {self._where.port} ({error.strerror}): set MASTER_PORT to a free port"
            ) from None
        with server:
            while len(self._peers) < self.num_ranks - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    missing = [str(rank) for rank in range(1, self.num_ranks) if rank not in self._peers]
                    raise RankLost(
                        f"rank {', '.join(missing)} of {self.num_ranks} did not come to {self._where.address}:"
                        f"{self._where.port} within timeout_s={self._timeout_s:g}: see what it wrote, or give it more time"
                    ) from None
                self._welcome(connection)
        self.address = self._peers[1].connection.getsockname()[0]  # under which another machine has reached this one
        self._tell(begin=me)

    def _welcome(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE_S)  # whoever has found the port by chance says nothing
        hello = (peer := _Peer(connection)).receive()
        if not isinstance(hello, dict) or not {"rank", "num_ranks", "name"} <= hello.keys():
            connection.close()
            return
        rank, its = hello["rank"], hello["num_ranks"]
        problem = None
        if its != self.num_ranks:
            problem = f"rank {rank} ({hello['name']}) was started with WORLD_SIZE={its}, and rank 0 with {self.num_ranks}"
        elif rank in (0, *self._peers):
            problem = f"two processes were started with RANK={rank}: one is {hello['name']}"
        if problem:
            problem += ": start every rank with the same names, and a RANK of its own"
            peer.send(end=problem, why=MISTAKE)
            self._tell(end=problem, why=MISTAKE)
            raise UserError(problem)
        peer.name = hello["name"]
        self._peers[rank] = peer

    def _go_in(self, me: dict[str, Any]) -> None:
        """Any other rank: reach rank 0, which may start later, and wait until all are there."""
        deadline = time.monotonic() + self._timeout_s
        host = f"{self._where.address}:{self._where.port}"
        while True:
            try:
                connection = socket.create_connection((self._where.address, self._where.port), timeout=PULSE_S)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RankLost(
                        f"rank 0 of {self.num_ranks} did not answer at {host} within timeout_s={self._timeout_s:g} "
                        f"({_in_a_line(error)}): see what it wrote, or whether MASTER_ADDR can be reached from here"
                    ) from None
                time.sleep(0.1)
        self.address = connection.getsockname()[0]
        peer = _Peer(connection)
        peer.send(**me)
        self._peers[0] = peer
        message = peer.receive()
        if message is None:
            raise RankLost(f"rank 0 of {self.num_ranks} at {host} left before all ranks had come: see what it wrote")
        if "end" in message:
            raise (UserError if message["why"] == MISTAKE else RankLost)(message["end"])
        peer.name = message["begin"]["name"]
        peer.heard_at = time.monotonic()

    def _listen(self, rank: int, peer: _Peer) -> None:
        """A thread for each socket: sort what comes, and know when it ends."""
        while (message := peer.receive()) is not None:
            peer.heard_at = time.monotonic()
            if "value" in message:
                peer.num_values += 1
                peer.values.put(message["value"])
            elif "end" in message:
                self._leave(message["end"], message["why"])
            elif "bye" in message:
                return
        self._leave(f"{self._name(rank)} died: its connection was closed without a word")

    def _watch(self) -> None:
        """A thread: send the pulse, and look for ranks that are silent or late."""
        while not self._closing.wait(PULSE_S):
            with suppress(OSError):  # which the thread that listens hears of, too
                self._tell(pulse=True)
            now = time.monotonic()
            for rank, peer in self._peers.items():
                if now - peer.heard_at > SILENCE_S:
                    self._leave(
                        f"{self._name(rank)} has given no sign of life for {SILENCE_S:g} s: see whether its machine is up"
                    )
            if self.rank == 0 and now - self._moved_at > self._timeout_s:
                late = [rank for rank, peer in self._peers.items() if peer.num_values == self._num_gathered]
                names = ", ".join(map(self._name, late)) or self._name(0)
                self._leave(f"{names} finished no round within timeout_s={self._timeout_s:g}: see what it waits for")

    def _tell(self, **message: Any) -> None:
        for peer in self._peers.values():
            with suppress(OSError):
                peer.send(**message)

    def _leave(self, sentence: str, why: str = LOST) -> None:
        """End this process, and the others if they may not know why, unless it is ending anyway."""
        if self._closing.is_set() or not self._ended.acquire(blocking=False):
            return
        if self.rank == 0 or why != LOST:
            self._tell(end=sentence, why=why)
        if why == LOST:
            self._on_lost(sentence)
        print(f"\n{'error' if why == MISTAKE else 'failed'}: {sentence}", file=sys.stderr, flush=True)
        os._exit(USER_ERROR if why == MISTAKE else FAILED)

    def _name(self, rank: int) -> str:
        name = self._peers[rank].name if rank in self._peers else f"host {socket.gethostname()}, pid {os.getpid()}"
        return f"rank {rank} of {self.num_ranks} ({name})"


def free_port() -> int:
    """A port that nobody listens on now, on any of this machine's addresses."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def _family(where: Place) -> socket.AddressFamily:
    try:
        return socket.getaddrinfo(where.address, where.port, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise UserError(f"MASTER_ADDR={where.address} is no address of rank 0's machine ({error.strerror})") from None


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
