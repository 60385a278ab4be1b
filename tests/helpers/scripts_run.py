"""The scripts as a user starts them, one thread each."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240


def run(script: str, *words: str) -> str:
    """A script in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / f"scripts/{script}.py"), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
