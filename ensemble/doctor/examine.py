"""Checks what usually breaks a run, on this machine or on all nodes of a job, and prints it with the mend of each problem.

Everything has a time limit, and nothing that may hang or crash (a driver, a file system, a collective) runs in this thread.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble import cores
from ensemble.doctor import machine, network, ranks
from ensemble.doctor import meeting as meetings
from ensemble.doctor.findings import Finding, note, ok, page, problem, run

CHECKS_LIMIT_S = 30
"""For a node's checks, but for what PyTorch is asked."""


def diagnose(wait_s: float) -> int:
    """Check, print the page on the head node (or on one that did not find it), and return the number of problems."""
    here = meetings.place()
    meeting = meetings.meet(here, wait_s)
    for finding in meeting.findings:  # at once: the rest takes its time
        print(f"{finding.level}: {finding.found}", file=sys.stderr, flush=True)
    about = ranks.ask_about()
    known = network.interfaces()
    # Towards the head node, or from there to the others
    best = network.interface_towards(meeting.head_address if here.rank else meeting.own_address, known)
    findings = run(_checks(about, known, best, here.num_nodes == 1), CHECKS_LIMIT_S)

    with contextlib.closing(meeting), network.listen(0) as test_port:
        own = network.Node(
            name=here.name, machine=network.machine(), address=meeting.own_address, port=network.port_of(test_port)
        )
        report = {
            "node": dataclasses.asdict(own),
            "num_gpus": None if "failed" in about else len(about["gpus"]),
            "store_port": network.free_port(),
        }
        # A node may have to wait for the head node, which waits for its last guest
        reports = meeting.exchange(report, wait_s + ranks.ABOUT_LIMIT_S + CHECKS_LIMIT_S)
        nodes = [network.Node(**found["node"]) for found in reports.values()]
        several = len(nodes) < here.num_nodes or len({node.machine for node in nodes}) > 1
        together = {
            "own name": lambda: network.check_own_name(known, os.environ, best, several),
            "peers": lambda: network.check_peers(own, nodes),
        }
        findings += run(together, CHECKS_LIMIT_S)
        environment = network.ranks_environment(known, best, several)
        findings += _all_reduce(here.rank, reports, meeting.head_address, environment)
        told = _told(here, [*meeting.findings, *findings])
        everything = meeting.exchange(told, ranks.ALL_REDUCE_LIMIT_S + 2 * CHECKS_LIMIT_S)

    # Who was lost in the last exchange is known now
    everything[here.rank] = _told(here, [*meeting.findings, *findings])
    by_name: dict[str, list[Finding]] = {}
    for rank, answer in everything.items():
        name = answer["name"] if answer["name"] not in by_name else f"{answer['name']} (rank {rank})"
        by_name[name] = [Finding(**finding) for finding in answer["findings"]]
    text, num_problems = page(by_name)
    if here.rank == 0 or 0 not in everything:
        print(f"{', '.join(by_name)}, from {Path.cwd()}\n\n{text}", flush=True)
    return num_problems


def _checks(about: Mapping[str, Any], known: Sequence[network.Interface], best: str, alone: bool) -> dict[str, Any]:
    """What a node checks of itself, in the order of the page."""
    environment = os.environ
    checks: dict[str, Any] = {
        "python": machine.python,
        "libraries": machine.libraries,
        "project": machine.code,
        "GPUs": lambda: machine.gpus(about, environment, machine.nvidia_driver()),
        "cores": lambda: machine.check_cores(environment, cores.limits(environment), os.cpu_count() or 1),
        "open files": machine.open_files,
        "locked memory": machine.locked_memory,
        "shared memory": machine.shared_memory,
        "scratch": machine.scratch,
        "interfaces": lambda: network.check_interfaces(known, environment, best),
    }
    if alone:  # else, the nodes have met on it
        checks["port"] = lambda: network.check_port(environment)
    return checks


def plan(reports: Mapping[int, Mapping[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
    """The backend of the all-reduce, and by rank (node, index of its GPU).

    NCCL where every node has GPUs and a machine of its own, one rank on each GPU; else Gloo, one rank a node, two where
    one is alone.
    """
    gpus = [(node, index) for node, report in reports.items() for index in range(report["num_gpus"])]
    machines = {report["node"]["machine"] for report in reports.values()}
    if len(gpus) > 1 and {node for node, _ in gpus} == set(reports) and len(machines) == len(reports):
        return "nccl", gpus
    return "gloo", [(node, 0) for node in reports] * (2 if len(reports) == 1 else 1)


def _all_reduce(
    node: int, reports: Mapping[int, Mapping[str, Any]], head_address: str, environment: Mapping[str, str]
) -> list[Finding]:
    if 0 not in reports:  # the head node was not found
        return []
    if any(report["num_gpus"] is None for report in reports.values()):
        return [note("all-reduce", "not tried, since PyTorch cannot be loaded everywhere")] if node == 0 else []
    backend, places = plan(reports)
    own = [(rank, device) for rank, (its_node, device) in enumerate(places) if its_node == node]
    port = reports[0]["store_port"]
    answer, failure = ranks.ask_all_reduce(backend, own, len(places), head_address, port, environment)
    what = f"{len(places)} {'GPUs by NCCL' if backend == 'nccl' else 'CPU ranks by Gloo'}"
    if failure or answer is None:
        mend = "mend the problems above first; NCCL_DEBUG=INFO or TORCH_CPP_LOG_LEVEL=INFO tells more"
        return [problem("all-reduce", f"{what}: {failure}", mend)]
    size, time_ms = f"{ranks.MESSAGE_MIB} MiB", 1000 * answer["each_s"]
    found = f"{answer['bus_gb_s']:.3g} GB/s by the bus: {what}, {size} in {time_ms:.3g} ms, {answer['repeats']} times"
    findings = [ok("all-reduce", found)]
    set_here = {name: environment.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    changed = [f"{name}={value or 'nothing'}" for name, value in set_here.items() if value != os.environ.get(name, "")]
    if changed:
        findings.append(note("all-reduce", f"measured with {' '.join(changed)}, as mended above"))
    return findings


def _told(here: meetings.Place, findings: Sequence[Finding]) -> dict[str, Any]:
    return {"name": here.name, "findings": [dataclasses.asdict(finding) for finding in findings]}
