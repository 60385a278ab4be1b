"""scripts/doctor.py as a process of a test, and its output."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher import ROOT, TIMEOUT_S, started

from ensemble.doctor.findings import Finding

DOCTOR = [sys.executable, str(ROOT / "scripts/doctor.py")]


def run(command: Sequence[str], folder: Path, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with started(command, folder, **environment) as process:
        page, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, page, errors


def line_of(page: str, level: str, check: str) -> str:
    """A line of the page with its continuation lines."""
    lines = page.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(f"{level:<8} {check:<14} ")), None)
    assert start is not None, f"no {level} on {check}:\n{page}"
    end = next(number for number in range(start + 1, len(lines)) if not lines[number].startswith(" " * 20))
    return " ".join(" ".join(lines[start:end]).split())


def only_finding(findings: Iterator[Finding], level: str) -> Finding:
    """The only finding of that level."""
    (finding,) = [finding for finding in findings if finding.level == level]
    return finding
