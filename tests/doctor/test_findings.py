"""The page of findings, and the time limit of checks."""

import time
from collections.abc import Iterator

from launcher import TIMEOUT_S

from ensemble.doctor import findings
from ensemble.doctor.findings import Finding, ok, problem


def test_equal_findings_come_once_and_different_versions_are_a_problem() -> None:
    """A page of 64 nodes would have 64 × 20 lines; nodes that run different code would pass."""
    same, one = ok("cores", "2"), problem("disk", "full", "make room")
    reported = {f"n{i}": [ok("torch", "2.13" if i else "2.9", same_everywhere=True), same] for i in range(6)}
    reported["n3"].append(one)
    merged = findings.merge(reported)
    assert merged[1:] == [(same, list(reported)), (one, ["n3"])]
    assert merged[0][0].level == "problem"
    assert merged[0][0].value == "differs: 2.9 on n0; 2.13 on n1, n2, n3, n4 and 1 more"
    text, num_problems = findings.page(reported)
    assert num_problems == 2
    assert [line.split()[:3] for line in text.splitlines()[:1]] == [["problem", "torch", "all"]]
    assert "all 6 nodes  2\n" in text
    assert "n3           full\n" in text
    assert text.endswith("\n\n2 problems, no notes")
    assert findings.page({"n": [same]}) == (f"ok       {'cores':<14} 2\n\nno problems, no notes", 0)


def test_no_word_is_cut_after_long_names_of_nodes() -> None:
    """In a job on Amazon's machines, whose names are long, only the first letter of a value would be on its first line."""
    names = [f"ip-10-0-12-{number}.eu-central-1.compute.internal" for number in range(6)]
    full, local = problem("scratch", "/tmp cannot be written", "make room"), ok("scratch", "/tmp, 9 GB free")
    lines = findings.page({name: [full] if name in names[:5] else [local] for name in names})[0].splitlines()
    assert [line.split()[-1] for line in lines[:5]] == ["more", "written", "room", names[5], "free"]
    assert [line.strip() for line in lines[1:3]] == ["/tmp cannot be written", "→ make room"]


def test_a_check_that_hangs_or_fails_does_not_stop_the_others() -> None:
    """A single network folder that hangs would prevent all findings."""

    def fails() -> Iterator[Finding]:
        raise RuntimeError("why")
        yield

    reported = findings.run_checks(
        {"hangs": lambda: time.sleep(TIMEOUT_S) or [], "fails": fails, "works": lambda: [ok("works", "1")]}, limit_s=0.2
    )
    assert [(finding.check, finding.level) for finding in reported] == [
        ("hangs", "problem"),
        ("fails", "note"),
        ("works", "ok"),
    ]
    assert reported[1].value == "could not be checked: RuntimeError: why"
