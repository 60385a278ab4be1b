"""What a check found, what the findings of several nodes have in common, and the page that a person reads."""

import dataclasses
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

WIDTH = 125
CHECK_WIDTH = 14
MAX_PLACE_WIDTH = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the page."""

    level: Literal["ok", "note", "problem"]
    """A problem makes a run fail, hang or crawl; a note is worth knowing."""
    check: str
    """What was looked at, in a word or two."""
    found: str
    """The value."""
    mend: str = ""
    """What to do, in one sentence."""
    same_everywhere: bool = False
    """Whether it is a problem in itself if the value is not the same on all nodes."""


def ok(check: str, found: str, same_everywhere: bool = False) -> Finding:
    return Finding(level="ok", check=check, found=found, same_everywhere=same_everywhere)


def note(check: str, found: str, mend: str = "") -> Finding:
    return Finding(level="note", check=check, found=found, mend=mend)


def problem(check: str, found: str, mend: str) -> Finding:
    return Finding(level="problem", check=check, found=found, mend=mend)


def run(checks: Mapping[str, Callable[[], Iterable[Finding]]], limit_s: float) -> list[Finding]:
    """What the checks find, in their order; one that fails or does not answer is named, and the others go on."""
    found: dict[str, list[Finding]] = {}

    def work(name: str) -> None:
        try:
            found[name] = list(checks[name]())
        except Exception as error:
            found[name] = [note(name, f"could not be checked: {type(error).__name__}: {error}")]

    # A file system that hangs holds whoever asks it, signals or not: only another thread can go on
    threads = {name: threading.Thread(target=work, args=(name,), daemon=True) for name in checks}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + limit_s
    findings = []
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        mend = "a file system or the name service may hang: try df, and getent hosts"
        findings += found.get(name, [problem(name, f"no answer within {limit_s:g} s", mend)])
    return findings


def merge(findings: Mapping[str, Sequence[Finding]]) -> list[tuple[Finding, list[str]]]:
    """The findings of each node, by its name, as one list: what is equal comes once, with the nodes where it was found.

    What must be the same everywhere and is not becomes a problem that says who has what.
    """
    nodes_of: dict[Finding, list[str]] = {}
    for node, its_findings in findings.items():
        for finding in its_findings:
            nodes_of.setdefault(finding, []).append(node)
    merged: list[tuple[Finding, list[str]]] = []
    # In the order of the checks, which is that of their first finding anywhere
    for check in dict.fromkeys(finding.check for finding in nodes_of):
        group = {finding: nodes for finding, nodes in nodes_of.items() if finding.check == check}
        compared = {finding: nodes for finding, nodes in group.items() if finding.same_everywhere}
        if len(compared) > 1:
            who = "; ".join(f"{finding.found} on {shorten(nodes)}" for finding, nodes in compared.items())
            mend = "start every node from the same folder and the same virtual environment, on a file system that they share"
            merged.append((problem(check, f"differs: {who}", mend), list(findings)))
            group = {finding: nodes for finding, nodes in group.items() if finding not in compared}
        merged += group.items()
    return merged


def shorten(nodes: Sequence[str]) -> str:
    """The first few names, and how many more."""
    return ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")


def page(findings: Mapping[str, Sequence[Finding]]) -> tuple[str, int]:
    """The whole page, and the number of problems."""
    merged = merge(findings)
    places = [f"all {len(findings)} nodes" if len(nodes) == len(findings) else shorten(nodes) for _, nodes in merged]
    width = min(MAX_PLACE_WIDTH, max(map(len, places), default=0)) + 2 if len(findings) > 1 else 0
    lines = []
    for (finding, _), place in zip(merged, places, strict=True):
        start = f"{finding.level:<8} {finding.check:<{CHECK_WIDTH}} "
        indent = " " * (len(start) + width)
        if width:
            start = f"{start}{place}{' ' * max(1, width - len(place))}"
        lines += textwrap.wrap(finding.found, WIDTH, initial_indent=start, subsequent_indent=indent)
        if finding.mend:
            lines += textwrap.wrap(finding.mend, WIDTH, initial_indent=f"{indent}→ ", subsequent_indent=f"{indent}  ")
    count = {level: sum(finding.level == level for finding, _ in merged) for level in ("problem", "note")}
    words = [f"{number or 'no'} {level}{'' if number == 1 else 's'}" for level, number in count.items()]
    return "\n".join([*lines, "", ", ".join(words)]), count["problem"]
