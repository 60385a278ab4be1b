"""The scripts of slurm/ that need no cluster."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_job_on_one_node_needs_no_program_ip(tmp_path: Path) -> None:
    """A node without iproute2, as a container, could not train on one GPU."""
    for program in ("bash", "hostname", "sed", "grep"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"PATH": str(tmp_path), "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "10000"}
    words = ["bash", ROOT / "slurm/node.sh", "-c", "import os; print(os.environ['WORLD_SIZE'], os.environ['RANK'])"]
    done = subprocess.run(
        words, env=environment | rendezvous, capture_output=True, text=True, timeout=60, check=False, cwd=os.fspath(ROOT)
    )
    assert (done.stdout, done.stderr) == ("1 0\n", "")
