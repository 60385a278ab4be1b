"""The findings of checks. They are merged over the nodes of a job and formatted as a page of text."""

import dataclasses
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ensemble.errors import listed

WIDTH = 125
CHECK_WIDTH = 14
MAX_PLACE_WIDTH = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One entry of the page: the result of a check, and the fix in lines of its own."""

    level: Literal["ok", "note", "problem"]
    """A problem makes a run fail, hang or slow down. A note is not a problem, but may explain one."""
    check: str
    """Name of the check, in a word or two."""
    value: str
    """The result of the check, such as a version, a size or an error."""
    fix: str = ""
    """What to do, in one sentence."""
    same_everywhere: bool = False
    """Whether different values on different nodes are a problem."""


def ok(check: str, value: str, same_everywhere: bool = False) -> Finding:
    return Finding(level="ok", check=check, value=value, same_everywhere=same_everywhere)


def note(check: str, value: str, fix: str = "") -> Finding:
    return Finding(level="note", check=check, value=value, fix=fix)


def problem(check: str, value: str, fix: str) -> Finding:
    return Finding(level="problem", check=check, value=value, fix=fix)


def run_checks(checks: Mapping[str, Callable[[], Iterable[Finding]]], limit_s: float) -> list[Finding]:
    """The findings of all checks, in their order. If a check fails or takes longer than `limit_s`, this is a finding too."""
    findings_of: dict[str, list[Finding]] = {}

    def work(name: str) -> None:
        try:
            findings_of[name] = list(checks[name]())
        except Exception as error:
            findings_of[name] = [note(name, f"could not be checked: {type(error).__name__}: {error}")]

    # A thread that accesses a hanging file system cannot be interrupted, so each check has a thread of its own
    threads = {name: threading.Thread(target=work, args=(name,), daemon=True) for name in checks}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + limit_s
    findings = []
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        fix = "a file system or the name service may hang: try df, and getent hosts"
        findings += findings_of.get(name, [problem(name, f"no answer within {limit_s:g} s", fix)])
    return findings


def merge(findings: Mapping[str, Sequence[Finding]]) -> list[tuple[Finding, list[str]]]:
    """The findings of all nodes as one list: equal findings once, with the names of their nodes.

    findings : by name of the node. Different values of a check with `same_everywhere` become one problem.
    """
    nodes_of: dict[Finding, list[str]] = {}
    for node, findings_of_node in findings.items():
        for finding in findings_of_node:
            nodes_of.setdefault(finding, []).append(node)
    merged: list[tuple[Finding, list[str]]] = []
    # In the order in which the checks appear first
    for check in dict.fromkeys(finding.check for finding in nodes_of):
        group = {finding: nodes for finding, nodes in nodes_of.items() if finding.check == check}
        compared = {finding: nodes for finding, nodes in group.items() if finding.same_everywhere}
        if len(compared) > 1:
            values = "; ".join(f"{finding.value} on {listed(nodes, 4)}" for finding, nodes in compared.items())
            fix = "start every node from the same folder and the same virtual environment, on a file system that they share"
            merged.append((problem(check, f"differs: {values}", fix), list(findings)))
            group = {finding: nodes for finding, nodes in group.items() if finding not in compared}
        merged += group.items()
    return merged


def page(findings: Mapping[str, Sequence[Finding]]) -> tuple[str, int]:
    """The findings as text, and the number of problems. findings : by name of the node."""
    merged = merge(findings)
    places = [f"all {len(findings)} nodes" if len(nodes) == len(findings) else listed(nodes, 4) for _, nodes in merged]
    width = min(MAX_PLACE_WIDTH, max(map(len, places), default=0)) + 2 if len(findings) > 1 else 0
    lines = []
    for (finding, _), place in zip(merged, places, strict=True):
        start = f"{finding.level:<8} {finding.check:<{CHECK_WIDTH}} "
        indent = " " * (len(start) + width)
        if width:
            start += f"{place:<{width - 1}} "
        if len(start) > len(indent):  # the place is wider than its column: the value begins on the next line
            lines.append(start.rstrip())
            start = indent
        lines += textwrap.wrap(finding.value, WIDTH, initial_indent=start, subsequent_indent=indent)
        if finding.fix:
            lines += textwrap.wrap(finding.fix, WIDTH, initial_indent=f"{indent}→ ", subsequent_indent=f"{indent}  ")
    count = {level: sum(finding.level == level for finding, _ in merged) for level in ("problem", "note")}
    counts = [f"{number or 'no'} {level}{'' if number == 1 else 's'}" for level, number in count.items()]
    return "\n".join([*lines, "", ", ".join(counts)]), count["problem"]
