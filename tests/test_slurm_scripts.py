"""The scripts of slurm/ that need no cluster."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def on_a_node(programs: Path, *words: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """slurm/node.sh on the only node of a job, which has few programs."""
    for program in ("bash", "hostname", "sed", "grep"):
        (programs / program).symlink_to(str(shutil.which(program)))
    (programs / "python").symlink_to(sys.executable)
    job = {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "10000"}
    environment = {"PATH": str(programs), **job, **variables}
    command = ["bash", ROOT / "slurm/node.sh", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


def test_a_job_on_one_node_needs_no_program_ip(tmp_path: Path) -> None:
    """A node without iproute2, as a container, could not train on one GPU."""
    done = on_a_node(tmp_path, "-c", "import os; print(os.environ['WORLD_SIZE'], os.environ['RANK'])")
    assert (done.stdout, done.stderr) == ("1 0\n", "")


@pytest.mark.parametrize(
    ("yaml", "ranks", "sentence"),
    [
        ("nothing.yaml", "", "the file nothing.yaml of Accelerate's settings does not exist: check ACCELERATE_CONFIG"),
        ("accelerate_configs/multi_cpu.yaml", "0", "there must be at least 1 rank on a node, not 0: correct RANKS_PER_NODE"),
    ],
)
def test_a_wrong_yaml_or_number_of_ranks_is_one_sentence(yaml: str, ranks: str, sentence: str, tmp_path: Path) -> None:
    """The log would end with syntax errors of bash."""
    done = on_a_node(tmp_path, yaml, "scripts/train.py", RANKS_PER_NODE=ranks)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
