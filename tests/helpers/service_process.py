"""scripts/serve.py as a process of a test."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from scripts_run import ENVIRONMENT, ROOT

TIMEOUT_S = 120


class Service:
    """scripts/serve.py in a process of its own."""

    def __init__(self, ensemble: Path, *words: str):
        script = str(ROOT / "scripts/serve.py")
        self.process = subprocess.Popen(
            [sys.executable, script, f"ensemble={ensemble}", "port=0", "threads=1", *words],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("serving "), self.process.communicate(timeout=TIMEOUT_S)[1]
        self.port = int(line.rsplit(":", 1)[1])

    def stop(self) -> tuple[int, str]:
        """SIGTERM to the whole group, as schedulers send it; returns the exit code and the standard error."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        return self.process.wait(TIMEOUT_S), self.process.communicate(timeout=TIMEOUT_S)[1]
