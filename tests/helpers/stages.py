"""The stages of `make test`, which run one after the other. Each test has the mark of one of them, by the path of its file.

parallel: in two worker processes of pytest-xdist; the tests of a file run in one of them.
serial: alone on the machine. These examine the machine, use a GPU, bind fixed ports, or measure time or memory.
slurm: jobs on a local Slurm cluster.
"""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
STAGES = ("parallel", "serial", "slurm")
SERIAL = (
    "doctor",
    "launch/test_nccl.py",
    "scripts/benchmarks/test_autogluon.py",
    "scripts/benchmarks/test_overhead.py",
    "scripts/benchmarks/test_process_tree.py",
    "scripts/benchmarks/test_scaling.py",
)
"""Files and folders under tests/ of the serial stage. All other files outside tests/slurm are in the parallel stage."""


def of(path: Path) -> str:
    """The stage of a file under tests/."""
    inside = path.relative_to(TESTS)
    if inside.parts[:1] == ("slurm",):
        return "slurm"
    return "serial" if any(inside.is_relative_to(entry) for entry in SERIAL) else "parallel"


def leaves_out(marks: str, path: Path) -> bool:
    """Whether `pytest -m MARKS` need not import a file, as MARKS is one stage, and the file is of another."""
    return marks in STAGES and path.suffix == ".py" and path.is_relative_to(TESTS) and of(path) != marks
