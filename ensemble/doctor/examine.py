"""Run all checks on this machine or on all nodes of a job, and print the findings with a fix for each problem.

Every step has a time limit. Whatever may hang or crash (a driver, a file system, a collective operation) runs in another
thread or process.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble import cores
from ensemble.doctor import machine, network, ranks, rendezvous
from ensemble.doctor.findings import Finding, note, ok, page, problem, run_checks

CHECKS_LIMIT_S = 30
"""The time limit of the checks of a node, apart from those that run PyTorch (ranks.py)."""


def diagnose(wait_s: float) -> int:
    """Run the checks and return the number of problems.

    The head node prints the findings of all nodes. A node that cannot reach the head node prints the findings that it has.

    wait_s : the seconds in which every node of the job must connect
    """
    position = rendezvous.job_position()
    connections = rendezvous.meet(position, wait_s)
    for finding in connections.findings:  # at once, since the other checks take a minute
        print(f"{finding.level}: {finding.value}", file=sys.stderr, flush=True)
    torch_info = ranks.run_torch_info()
    interfaces = network.read_interfaces()
    # The interface towards the head node; on the head node, towards the others
    best = network.interface_towards(connections.head_address if position.rank else connections.own_address, interfaces)
    findings = run_checks(_checks(torch_info, interfaces, best, position.num_nodes == 1), CHECKS_LIMIT_S)

    with contextlib.closing(connections), network.listen(0) as test_port:
        port = test_port.getsockname()[1]
        own_node = network.Node(name=position.name, machine=network.machine(), address=connections.own_address, port=port)
        report = {
            "node": dataclasses.asdict(own_node),
            "num_gpus": None if "failed" in torch_info else len(torch_info["gpus"]),
            "store_port": network.free_port(),
        }
        # A node may have to wait for the head node, which waits for the last of the other nodes
        reports = connections.exchange(report, wait_s + ranks.TORCH_INFO_LIMIT_S + CHECKS_LIMIT_S)
        nodes = [network.Node(**node_report["node"]) for node_report in reports.values()]
        has_several_machines = len(nodes) < position.num_nodes or len({node.machine for node in nodes}) > 1
        checks = {
            "own name": lambda: network.check_own_name(interfaces, os.environ, best, has_several_machines),
            "peers": lambda: network.check_peers(own_node, nodes),
        }
        findings += run_checks(checks, CHECKS_LIMIT_S)
        # Not resolved again here: the name service may not answer, and then Gloo's ranks need a given interface too
        is_misled = any((finding.check, finding.level) == ("own name", "problem") for finding in findings)
        environment = network.ranks_environment(interfaces, best, is_misled)
        findings += _all_reduce(position.rank, reports, connections.head_address, environment)
        report = _report(position, [*connections.findings, *findings])
        final_reports = connections.exchange(report, ranks.ALL_REDUCE_LIMIT_S + 2 * CHECKS_LIMIT_S)

    # This node reports again, since the last exchange may have added findings about lost nodes
    final_reports[position.rank] = _report(position, [*connections.findings, *findings])
    by_name: dict[str, list[Finding]] = {}
    for rank, node_report in final_reports.items():
        name = node_report["name"] if node_report["name"] not in by_name else f"{node_report['name']} (rank {rank})"
        by_name[name] = [Finding(**finding) for finding in node_report["findings"]]
    text, num_problems = page(by_name)
    if position.rank == 0 or 0 not in final_reports:
        print(f"{', '.join(by_name)}, from {Path.cwd()}\n\n{text}", flush=True)
    return num_problems


def _checks(
    torch_info: Mapping[str, Any], interfaces: Sequence[network.Interface], best: str, is_single_node: bool
) -> dict[str, Any]:
    """The checks of a single node by name, in the order of the page."""
    environment = os.environ
    checks: dict[str, Any] = {
        "python": machine.python,
        "libraries": machine.libraries,
        "project": machine.code,
        "GPUs": lambda: machine.gpus(torch_info, environment, machine.nvidia_driver()),
        "cores": lambda: machine.check_cores(environment, cores.limits(environment), os.cpu_count() or 1),
        "open files": machine.open_files,
        "locked memory": machine.locked_memory,
        "shared memory": machine.shared_memory,
        "scratch": machine.scratch,
        "interfaces": lambda: network.check_interfaces(interfaces, environment, best),
    }
    if is_single_node:  # several nodes already use the port for the rendezvous
        checks["port"] = lambda: network.check_port(environment)
    return checks


def plan(reports: Mapping[int, Mapping[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
    """The backend of the all-reduce, and (number of the node, index of the GPU) of each of its ranks.

    The backend is NCCL, with one rank on each GPU, if there are several GPUs, and every node has one and is a machine of its
    own. Otherwise it is Gloo, with one rank on each node, or two ranks on a single node.
    """
    gpus = [(node, index) for node, report in reports.items() for index in range(report["num_gpus"])]
    machines = {report["node"]["machine"] for report in reports.values()}
    if len(gpus) > 1 and {node for node, _ in gpus} == set(reports) and len(machines) == len(reports):
        return "nccl", gpus
    return "gloo", [(node, 0) for node in reports] * (2 if len(reports) == 1 else 1)


def _all_reduce(
    node: int, reports: Mapping[int, Mapping[str, Any]], head_address: str, environment: Mapping[str, str]
) -> list[Finding]:
    """Run this node's ranks of the all-reduce, and return its findings."""
    if 0 not in reports:  # the connection to the head node was lost
        return []
    if any(report["num_gpus"] is None for report in reports.values()):
        return [note("all-reduce", "not tried, since PyTorch cannot be loaded on at least one node")] if node == 0 else []
    backend, places = plan(reports)
    own_ranks = [(rank, device) for rank, (other_node, device) in enumerate(places) if other_node == node]
    port = reports[0]["store_port"]
    result, failure = ranks.run_all_reduce(backend, own_ranks, len(places), head_address, port, environment)
    ranks_used = f"{len(places)} {'GPUs by NCCL' if backend == 'nccl' else 'CPU ranks by Gloo'}"
    if failure or result is None:
        fix = "fix the problems above first; NCCL_DEBUG=INFO or TORCH_CPP_LOG_LEVEL=INFO prints more"
        return [problem("all-reduce", f"{ranks_used}: {failure}", fix)]
    time = f"{ranks.MESSAGE_MIB} MiB in {1000 * result['each_s']:.3g} ms, {result['repeats']} times"
    findings = [ok("all-reduce", f"{result['bus_gb_s']:.3g} GB/s bus bandwidth: {ranks_used}, {time}")]
    interfaces = {name: environment.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    changed = {name: value for name, value in interfaces.items() if value != os.environ.get(name, "")}
    if changed:
        texts = [f"{name}={value}" if value else f"{name} unset" for name, value in changed.items()]
        findings.append(note("all-reduce", f"measured with {' and '.join(texts)}, the fix above"))
    return findings


def _report(position: rendezvous.JobPosition, findings: Sequence[Finding]) -> dict[str, Any]:
    return {"name": position.name, "findings": [dataclasses.asdict(finding) for finding in findings]}
