"""Where the nodes of a job meet: by plain sockets and lines of JSON, since PyTorch's own meeting may be what fails."""

import contextlib
import json
import os
import socket
import subprocess
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ensemble.doctor.findings import Finding, problem
from ensemble.doctor.network import addresses_of, is_loopback, listen
from ensemble.errors import UserError

HANDSHAKE_S = 5
RETRY_S = 0.2
MARGIN_S = 10
"""How much longer than the head node the others wait for what it tells all."""


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
    """Who did not come, or was lost."""
    streams: "dict[int, Stream]" = field(default_factory=dict)
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
                self.streams[0].send(message, limit_s)
                return {int(rank): answer for rank, answer in self.streams[0].receive(limit_s + MARGIN_S).items()}
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
                messages[rank] = self.streams[rank].receive(deadline - time.monotonic())
            except (OSError, ValueError):
                self.streams.pop(rank).close()
                mend = "look into its log: it may have ended, or one of its checks hangs"
                self.findings.append(problem("nodes", f"{self.place.name_of(rank)} was lost on the way", mend))
        for stream in self.streams.values():
            with contextlib.suppress(OSError):  # the next exchange names it
                stream.send(messages, HANDSHAKE_S)
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
    except OSError as error:
        found = f"{here.port}, where the nodes meet, cannot be used: {error.strerror}"
        meeting.findings.append(problem("port", found, "export another MASTER_PORT on all nodes"))
        return meeting
    with server:
        while len(meeting.streams) < here.num_nodes - 1 and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                stream = Stream(server.accept()[0])
            except OSError:
                continue
            try:
                rank = int(stream.receive(HANDSHAKE_S)["doctor"])
                if not 0 < rank < here.num_nodes:
                    raise ValueError(rank)
                stream.send({"come": rank}, HANDSHAKE_S)
            except (OSError, ValueError, TypeError, KeyError):  # somebody who knocks at every port
                stream.close()
                continue
            meeting.streams[rank] = stream
            if is_loopback(meeting.own_address):  # and not that of a second task on this machine, if there is another
                meeting.own_address = stream.connection.getsockname()[0].removeprefix("::ffff:")
    missing = [rank for rank in range(1, here.num_nodes) if rank not in meeting.streams]
    if missing:
        found = f"did not come within {wait_s:g} s: {', '.join(here.name_of(rank) for rank in missing)}"
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
            stream = Stream(socket.create_connection((here.head, here.port), timeout=min(left, HANDSHAKE_S)))
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        try:
            stream.send({"doctor": here.rank}, HANDSHAKE_S)
            # The head node may wait for somebody else's word before it looks at ours
            if stream.receive(max(HANDSHAKE_S, left)) != {"come": here.rank}:
                raise ValueError("it is no doctor")
        except (OSError, ValueError) as error:
            reason = str(error)
            stream.close()
            continue
        meeting.streams[0] = stream
        meeting.head_address = stream.connection.getpeername()[0]
        meeting.own_address = stream.connection.getsockname()[0]
        return meeting
    found = addresses_of(here.head)
    where = f"{here.head} ({' '.join(found) or 'an unknown name'})"
    mend = "see that the head node runs, and that ports between nodes are open"
    if all(is_loopback(address) for address in found):
        mend = f"have {here.head} lead to the head node (DNS, /etc/hosts), or export MASTER_ADDR as its address"
    meeting.findings.append(problem("nodes", f"the head node, {where}, port {here.port}, does not answer: {reason}", mend))
    return meeting


class Stream:
    """A connection, by lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = connection.makefile("rb")

    def close(self) -> None:
        self.reader.close()
        self.connection.close()

    def send(self, message: Any, limit_s: float) -> None:
        self.connection.settimeout(max(0.1, limit_s))
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, limit_s: float) -> Any:
        self.connection.settimeout(max(0.1, limit_s))
        line = self.reader.readline()
        if not line:
            raise ConnectionResetError("the connection was closed")
        return json.loads(line)
