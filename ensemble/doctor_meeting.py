"""Where the nodes of a job meet: by plain sockets and lines of JSON, since PyTorch's own meeting may be what fails."""

import json
import os
import socket
import subprocess
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ensemble.doctor_findings import Finding, note, problem
from ensemble.doctor_network import addresses_of, is_loopback, listen
from ensemble.errors import UserError

HANDSHAKE_S = 5
RETRY_S = 0.2
MARGIN_S = 10
"""How much longer than the head node the others wait for what it tells all."""
MAX_SKEW_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which process of how many this is, one a node, and where they meet."""

    rank: int = 0
    num_nodes: int = 1
    name: str
    head: str = ""
    port: int = 0
    names: tuple[str, ...] = ()
    """Those of all nodes by rank, where Slurm tells them."""

    def name_of(self, rank: int) -> str:
        return self.names[rank] if rank < len(self.names) else f"rank {rank}"


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, each of them from Slurm's variables where it is not set.

    `UserError` if they are no numbers, if nothing says where the head node is, and under accelerate launch or torchrun.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        raise UserError(
            "the launcher holds the port where the nodes would meet: run python scripts/doctor.py without one, and on "
            "several nodes by srun --ntasks-per-node=1"
        )
    name = environment.get("SLURMD_NODENAME") or socket.gethostname()
    sources = ("RANK", "WORLD_SIZE") if environment.get("RANK") else ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    rank, num_nodes = (_number(environment, source) for source in sources)
    if num_nodes < 2:
        return Place(name=name)
    if rank >= num_nodes:
        raise UserError(f"{sources[0]}={rank} is impossible: it must be less than {sources[1]}={num_nodes}")
    names = _slurm_names(environment) if environment.get("SLURM_PROCID") == str(rank) else ()
    if len(names) != num_nodes:  # several tasks a node: which is where is not told
        names = names[:1]
    head = environment.get("MASTER_ADDR") or "".join(names[:1])
    if not head:
        raise UserError(f"{sources[1]}={num_nodes}, but nothing says where to meet: export MASTER_ADDR, the head node")
    # Equal on all nodes of a job step, different in others; below the ports that the system gives away by itself
    step = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
    port = _number(environment, "MASTER_PORT") or 20000 + zlib.crc32(step.encode()) % 10000
    if port > 65535:
        raise UserError(f"MASTER_PORT={port} is impossible: it must be less than 65536")
    return Place(rank=rank, num_nodes=num_nodes, name=name, head=head, port=port, names=names if len(names) > 1 else ())


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or "0"
    if not text.isdigit():
        raise UserError(f"{name}={text} is impossible: it must be a whole number")
    return int(text)


def _slurm_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    try:
        command = ["scontrol", "show", "hostnames", nodes]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):  # in a container without Slurm's commands
        return () if set(nodes) & set("[,") else (nodes,)
    return tuple(done.stdout.split())


@dataclass
class Meeting:
    """The nodes that came, each with a connection to the head node."""

    place: Place
    findings: list[Finding] = field(default_factory=list)
    """Who did not come, and clocks that differ."""
    streams: dict[int, Any] = field(default_factory=dict)
    """On the head node, those of the others by rank; elsewhere, that of the head node."""
    head_address: str = "127.0.0.1"
    """By which this node reaches the head node."""
    own_address: str = "127.0.0.1"
    """By which the others reach this one."""

    def close(self) -> None:
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()

    def exchange(self, message: Any, limit_s: float) -> dict[int, Any]:
        """Everybody's messages by rank, to everybody. A node that is not heard of within `limit_s` is named and left out.

        The head node's silence ends the meeting for the others: they get their own message back.
        """
        if self.place.rank == 0:
            return self._collect(message, limit_s)
        if 0 in self.streams:
            try:
                _send(self.streams[0], message, limit_s)
                return {int(rank): answer for rank, answer in _receive(self.streams[0], limit_s + MARGIN_S).items()}
            except (OSError, ValueError) as error:
                self.streams.pop(0).close()
                mend = "look into its log: it may have ended, or the network between"
                self.findings.append(problem("nodes", f"the head node, {self.place.head}, was lost ({error})", mend))
        return {self.place.rank: message}

    def _collect(self, message: Any, limit_s: float) -> dict[int, Any]:
        messages = {0: message}
        deadline = time.monotonic() + limit_s
        for rank in sorted(self.streams):
            try:
                messages[rank] = _receive(self.streams[rank], deadline - time.monotonic())
            except (OSError, ValueError):
                self.streams.pop(rank).close()
                found = f"{self.place.name_of(rank)} was lost on the way"
                self.findings.append(
                    problem("nodes", found, "look into its log: it may have ended, or one of its checks hangs")
                )
        for stream in self.streams.values():
            try:
                _send(stream, messages, HANDSHAKE_S)
            except OSError:
                continue  # the next exchange names it
        return messages


def meet(here: Place, wait_s: float) -> Meeting:
    """Wait for all nodes; those that do not come within `wait_s` are named, and the others go on without them."""
    if here.num_nodes == 1:
        return Meeting(here)
    # The head node may be the last to start
    return _open(here, wait_s) if here.rank == 0 else _join(here, wait_s + HANDSHAKE_S)


def _open(here: Place, wait_s: float) -> Meeting:
    meeting = Meeting(here)
    deadline = time.monotonic() + wait_s
    try:
        server = listen(here.port)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        mend = "export another MASTER_PORT on all nodes"
        meeting.findings.append(problem("port", f"{here.port}, where the nodes meet, cannot be used: {reason}", mend))
        return meeting
    with server:
        while len(meeting.streams) < here.num_nodes - 1 and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                stream = _Stream(server.accept()[0])
            except OSError:
                continue
            try:
                rank = int(_receive(stream, HANDSHAKE_S)["doctor"])
                if not 0 < rank < here.num_nodes:
                    raise ValueError(rank)
                _send(stream, {"clock": time.time()}, HANDSHAKE_S)
            except (OSError, ValueError, TypeError, KeyError):  # somebody who knocks at every port
                stream.close()
                continue
            meeting.streams[rank] = stream
            if is_loopback(meeting.own_address):  # and not that of a second task on this machine, if there is another
                meeting.own_address = stream.connection.getsockname()[0].removeprefix("::ffff:")
    missing = [rank for rank in range(1, here.num_nodes) if rank not in meeting.streams]
    if missing:
        names = ", ".join(here.name_of(rank) for rank in missing)
        found = f"did not come within {wait_s:g} s: {names}"
        mend = f"look into their logs, and whether they reach {here.head} on port {here.port}"
        meeting.findings.append(problem("nodes", found, mend))
    return meeting


def _join(here: Place, wait_s: float) -> Meeting:
    meeting = Meeting(here)
    deadline = time.monotonic() + wait_s
    reason = ""
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(RETRY_S)
        try:
            stream = _Stream(socket.create_connection((here.head, here.port), timeout=min(left, HANDSHAKE_S)))
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        try:
            sent = time.time()
            _send(stream, {"doctor": here.rank}, HANDSHAKE_S)
            # The head node may wait for somebody else's word before it looks at ours
            head_clock = float(_receive(stream, max(HANDSHAKE_S, left))["clock"])
            meeting.findings += clock_findings(head_clock, sent, time.time())
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = str(error)
            stream.close()
            continue
        meeting.streams[0] = stream
        meeting.head_address, meeting.own_address = (
            stream.connection.getpeername()[0], stream.connection.getsockname()[0],
        )  # fmt: skip
        return meeting
    found = addresses_of(here.head)
    where = f"{here.head} ({found[0]})" if found and found[0] != here.head else here.head
    mend = "see that the head node runs, and that ports between nodes are open"
    if not found:
        mend = "have the name put into DNS or /etc/hosts of every node, or export MASTER_ADDR as an address"
    elif is_loopback(found[0]):
        mend = f"{here.head} leads this node to itself: export MASTER_ADDR as the head node's address, or mend /etc/hosts"
    meeting.findings.append(problem("nodes", f"the head node, {where}, port {here.port}, does not answer: {reason}", mend))
    return meeting


def clock_findings(head_clock: float, sent: float, received: float) -> list[Finding]:
    """Whether this node's clock is surely off the head node's, which was read between `sent` and `received`."""
    off = (sent + received) / 2 - head_clock
    if abs(off) - (received - sent) / 2 <= MAX_SKEW_S:
        return []
    mend = "have its clock set by NTP (chrony): dates of files and lines of logs are in the wrong order"
    return [note("clock", f"{abs(off):.0f} s {'before' if off > 0 else 'behind'} the head node's", mend)]


class _Stream:
    """A connection, line by line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = connection.makefile("rb")

    def close(self) -> None:
        self.reader.close()
        self.connection.close()


def _send(stream: _Stream, message: Any, limit_s: float) -> None:
    stream.connection.settimeout(max(0.1, limit_s))
    stream.connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(stream: _Stream, limit_s: float) -> Any:
    stream.connection.settimeout(max(0.1, limit_s))
    line = stream.reader.readline()
    if not line:
        raise ConnectionResetError("the connection was closed")
    return json.loads(line)
