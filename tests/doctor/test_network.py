"""Interfaces, the names of other nodes and their ports."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ensemble.doctor import network
from ensemble.doctor.network import Interface, Node

MOST_WAITING = Path("/proc/sys/net/core/somaxconn")
"""The kernel's limit of connections that wait to be accepted; 128 before Linux 5.4."""
KNOWN = [
    Interface(name="lo", addresses=("127.0.0.1",), up=True),
    Interface(name="eth0", addresses=("10.0.0.1",), up=True),
    Interface(name="eth1", addresses=("10.0.0.2",), up=False),
    Interface(name="ib0", addresses=(), up=True),
]


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("eth", "eth1", True), ("eth", "ib0", False), ("eth,ib", "ib0", True), ("=eth0", "eth0", True),
        ("=eth", "eth0", False), ("=eth0,ib0", "ib0", True), ("^docker,lo", "docker0", False), ("^docker,lo", "lo", False),
        ("^docker", "eth0", True), ("^=docker0", "docker01", True), ("^=docker0", "docker0", False),
    ],
)  # fmt: skip
def test_nccl_patterns(pattern: str, name: str, matches: bool) -> None:
    """A correct setting would be reported as wrong, or a wrong one as correct."""
    assert network.matches_nccl(pattern, name) is matches


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", ""),
        ("GLOO_SOCKET_IFNAME", "eth", "eth does not exist here"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", "eth1 is down or has no address"),
        ("GLOO_SOCKET_IFNAME", "ib0", "ib0 is down or has no address"),
        ("GLOO_SOCKET_IFNAME", "", ""),
        ("NCCL_SOCKET_IFNAME", "eth", ""),
        ("NCCL_SOCKET_IFNAME", "^eth0,lo", "eth1, ib0 is down or has no address"),
        ("NCCL_SOCKET_IFNAME", "=ib0", "ib0 is down or has no address"),
        ("NCCL_SOCKET_IFNAME", "enp", "no interface here matches it"),
    ],
)
def test_variables_that_name_interfaces(variable: str, value: str, fault: str) -> None:
    """A run would hang, or stop with an error message of a C++ library."""
    assert [what for _, what in network.wrong_variables(KNOWN, {variable: value})] == ([fault] if fault else [])
    reported = list(network.check_interfaces(KNOWN, {variable: value}, "eth0"))
    assert [finding.fix for finding in reported[1:]] == ([f"write {variable}=eth0 into slurm/site.sh"] if fault else [])
    assert reported[0].value == "eth0 10.0.0.1"


def test_without_psutil_no_variable_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The all-reduce would be measured without a valid variable, and the report would refer to a fix that it lacks."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert network.ranks_environment([], "", False)["GLOO_SOCKET_IFNAME"] == os.environ["GLOO_SOCKET_IFNAME"]


def test_names_and_ports_of_peers() -> None:
    """A run would fail at a name that does not resolve, or hang at a closed port."""
    own = Node(name="own", machine="a", address="127.0.0.1", port=1)
    peer = Node(name="nowhere.invalid", machine="b", address="127.0.0.1", port=network.free_port())
    reported = list(network.check_peers(own, [own, peer]))
    assert [(finding.level, finding.check) for finding in reported] == [("problem", "names"), ("problem", "ports")]
    with network.listen(0) as stream:
        peer = Node(name="localhost", machine="b", address="127.0.0.1", port=stream.getsockname()[1])
        reported = list(network.check_peers(own, [own, peer]))
    assert [(finding.level, finding.check) for finding in reported] == [("problem", "names"), ("ok", "ports")]
    assert "resolves to" in reported[0].value
    assert list(network.check_peers(own, [own, dataclasses.replace(own, name="second task")])) == []


def test_a_second_task_on_the_head_node_is_not_looked_for() -> None:
    """A problem would be reported, since other nodes find a closed port at the address 127.0.0.1 of this task."""
    own = Node(name="own", machine="a", address="127.0.0.1", port=1)
    with network.listen(0) as stream:
        head = Node(name="localhost", machine="b", address="127.0.0.1", port=stream.getsockname()[1])
        second = dataclasses.replace(head, port=network.free_port())
        reported = list(network.check_peers(own, [head, second, own]))
    assert [(finding.level, finding.check) for finding in reported] == [("problem", "names"), ("ok", "ports")]


NO_ANSWER = """
import threading
from ensemble.doctor import network
from ensemble.doctor.findings import run_checks
network.addresses_of = lambda name: threading.Event().wait()
own, peer = (network.Node(name=name, machine=name, address="127.0.0.1", port=1) for name in ("own", "peer"))
print(run_checks({"peers": lambda: network.check_peers(own, [own, peer])}, 0.2)[0].value)
"""


def test_a_name_service_that_never_answers_does_not_keep_the_doctor_from_ending() -> None:
    """The doctor would print its page, and then wait for the name service until the job's time limit."""
    done = subprocess.run([sys.executable, "-c", NO_ANSWER], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "no answer within 0.2 s\n"), done.stderr


@pytest.mark.skipif(
    not MOST_WAITING.is_file() or int(MOST_WAITING.read_text()) < 200, reason=f"{MOST_WAITING} is missing or below 200"
)
def test_each_node_of_a_large_job_reaches_the_test_port() -> None:
    """With 130 nodes or more, some would report a closed port, since no one accepts the connections that wait there."""
    with network.listen(0) as stream:
        port = stream.getsockname()[1]
        assert all(network.connects("127.0.0.1", port) for _ in range(200))
