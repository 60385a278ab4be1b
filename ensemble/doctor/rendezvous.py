"""Connections between the nodes of a job, by sockets and lines of JSON, since PyTorch's own rendezvous may not work."""

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
"""Seconds that the other nodes wait longer than the head node for the messages that it sends to all."""


@dataclass(frozen=True, kw_only=True)
class JobPosition:
    """The rank of this process among the processes of the job, one on each node, and the address of the head node."""

    rank: int = 0
    num_nodes: int = 1
    name: str
    """The name of this node."""
    head: str = ""
    """Name or address of the head node."""
    port: int = 0
    """The port at which the head node listens."""
    names: tuple[str, ...] = ()
    """The names of all nodes by rank, if Slurm provides them."""

    def name_of(self, rank: int) -> str:
        return self.names[rank] if rank < len(self.names) else f"rank {rank}"


def job_position(environment: Mapping[str, str] = os.environ) -> JobPosition:
    """The position from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or from Slurm's variables if they are not set.

    Raises `UserError` for values that are not numbers or are too large, if the head node is unknown, and under
    `accelerate launch` or torchrun.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        raise UserError(
            "the launcher uses the port of the rendezvous: run python scripts/doctor.py without a launcher, and on several "
            "nodes by srun --ntasks-per-node=1"
        )
    name = environment.get("SLURMD_NODENAME") or socket.gethostname()
    sources = ("RANK", "WORLD_SIZE") if environment.get("RANK") else ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    rank, num_nodes = (_number(environment, source) for source in sources)
    if num_nodes < 2:
        return JobPosition(name=name)
    if rank >= num_nodes:
        raise UserError(f"{sources[0]}={rank} is impossible: it must be less than {sources[1]}={num_nodes}")
    names = _slurm_names(environment) if environment.get("SLURM_PROCID") == str(rank) else ()
    head = environment.get("MASTER_ADDR") or "".join(names[:1])
    if not head:
        raise UserError(f"{sources[1]}={num_nodes}, but the head node is unknown: export MASTER_ADDR with its address")
    # The same port on all nodes of a job step, and usually another one in other steps; below the ports that systems assign
    step = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
    port = _number(environment, "MASTER_PORT") or 20000 + zlib.crc32(step.encode()) % 10000
    if port > 65535:
        raise UserError(f"MASTER_PORT={port} is impossible: it must be less than 65536")
    if len(names) != num_nodes:  # a node has several tasks, so the node of a rank is unknown
        names = ()
    return JobPosition(rank=rank, num_nodes=num_nodes, name=name, head=head, port=port, names=names)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or "0"
    if not text.isdecimal():
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
class Connections:
    """The connections of this node: to all other nodes if it is the head node, else to the head node."""

    position: JobPosition
    findings: list[Finding] = field(default_factory=list)
    """Nodes that did not connect, or whose connection was lost."""
    streams: "dict[int, Stream]" = field(default_factory=dict)
    """The connection to each node, by the rank of that node."""
    head_address: str = "127.0.0.1"
    """The address of the head node as seen from this one."""
    own_address: str = "127.0.0.1"
    """The address of this node as seen from the others."""

    def close(self) -> None:
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()

    def exchange(self, message: Any, limit_s: float) -> dict[int, Any]:
        """Send a message to all nodes and return the messages of all by rank.

        A node without a message within `limit_s` is left out and becomes a finding. If the head node is lost, the others get
        only their own message.
        """
        if self.position.rank == 0:
            return self._collect(message, limit_s)
        if 0 in self.streams:
            try:
                self.streams[0].send(message, limit_s)
                return {int(rank): answer for rank, answer in self.streams[0].receive(limit_s + MARGIN_S).items()}
            except (OSError, ValueError) as error:
                fix = "read its log: it may have ended, or the network may have failed"
                self._lose(0, f"the head node, {self.position.head}, was lost ({error})", fix)
        return {self.position.rank: message}

    def _lose(self, rank: int, value: str, fix: str) -> None:
        self.streams.pop(rank).close()
        self.findings.append(problem("nodes", value, fix))

    def _collect(self, message: Any, limit_s: float) -> dict[int, Any]:
        messages = {0: message}
        deadline = time.monotonic() + limit_s
        for rank in sorted(self.streams):
            try:
                messages[rank] = self.streams[rank].receive(deadline - time.monotonic())
            except (OSError, ValueError):
                fix = "read its log: it may have ended, or one of its checks hangs"
                self._lose(rank, f"{self.position.name_of(rank)} was lost during the checks", fix)
        for stream in self.streams.values():
            with contextlib.suppress(OSError):  # the next exchange reports the lost node
                stream.send(messages, HANDSHAKE_S)
        return messages


def meet(position: JobPosition, wait_s: float) -> Connections:
    """Connect all nodes. Those that do not connect within `wait_s` become findings, and the others continue without them."""
    if position.num_nodes == 1:
        return Connections(position)
    # The head node may be the last to start
    return _accept_nodes(position, wait_s) if position.rank == 0 else _connect_to_head(position, wait_s + HANDSHAKE_S)


def _accept_nodes(position: JobPosition, wait_s: float) -> Connections:
    connections = Connections(position)
    deadline = time.monotonic() + wait_s
    try:
        server = listen(position.port)
    except OSError as error:
        value = f"{position.port}, for the rendezvous, cannot be used: {error.strerror}"
        connections.findings.append(problem("port", value, "export another MASTER_PORT on all nodes"))
        return connections
    with server:
        while len(connections.streams) < position.num_nodes - 1 and (remaining_s := deadline - time.monotonic()) > 0:
            server.settimeout(remaining_s)
            try:
                stream = Stream(server.accept()[0])
            except OSError:
                continue
            try:
                rank = int(stream.receive(HANDSHAKE_S)["doctor"])
                if not 0 < rank < position.num_nodes:
                    raise ValueError(rank)
                stream.send({"accepted": rank}, HANDSHAKE_S)
            except (OSError, ValueError, TypeError, KeyError):  # another program, such as a port scanner
                stream.close()
                continue
            connections.streams[rank] = stream
            if is_loopback(connections.own_address):  # a second task on this machine connects by the loopback
                connections.own_address = stream.connection.getsockname()[0].removeprefix("::ffff:")
    missing = [rank for rank in range(1, position.num_nodes) if rank not in connections.streams]
    if missing:
        value = f"did not connect within {wait_s:g} s: {', '.join(position.name_of(rank) for rank in missing)}"
        fix = f"read their logs, and check that they reach {position.head} on port {position.port}"
        connections.findings.append(problem("nodes", value, fix))
    return connections


def _connect_to_head(position: JobPosition, wait_s: float) -> Connections:
    connections = Connections(position)
    deadline = time.monotonic() + wait_s
    reason = ""
    while (remaining_s := deadline - time.monotonic()) > 0:
        time.sleep(RETRY_S)
        try:
            stream = Stream(socket.create_connection((position.head, position.port), timeout=min(remaining_s, HANDSHAKE_S)))
        except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name has more than 63 characters
            reason = getattr(error, "strerror", None) or str(error)
            continue
        try:
            stream.send({"doctor": position.rank}, HANDSHAKE_S)
            # The head node may first be waiting for the message of another node
            if stream.receive(max(HANDSHAKE_S, remaining_s)) != {"accepted": position.rank}:
                raise ValueError("another program listens there")
        except (OSError, ValueError) as error:
            reason = str(error)
            stream.close()
            continue
        connections.streams[0] = stream
        connections.head_address = stream.connection.getpeername()[0]
        connections.own_address = stream.connection.getsockname()[0]
        return connections
    addresses = addresses_of(position.head)
    head = f"{position.head} ({' '.join(addresses) or 'an unknown name'})"
    fix = "check that the head node runs, and that ports between nodes are open"
    if all(is_loopback(address) for address in addresses):
        fix = f"have {position.head} resolve to the head node (DNS, /etc/hosts), or export MASTER_ADDR as its address"
    value = f"the head node, {head}, port {position.port}, does not answer: {reason}"
    connections.findings.append(problem("nodes", value, fix))
    return connections


class Stream:
    """A connection that sends and receives lines of JSON."""

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
