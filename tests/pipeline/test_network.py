"""The hardware that a fit trains its network on."""

import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest
from launcher import TIMEOUT_S

from ensemble.pipeline import network
from ensemble.pipeline.plan import PlannedMember


@pytest.mark.parametrize(
    ("num_threads", "num_rows", "settings", "num_ranks"),
    [
        (1, 100_000, {}, 1),
        (2, 100_000, {}, 2),
        (3, 100_000, {}, 2),
        (64, 100_000, {}, 4),
        (2, 1_999, {}, 1),
        (2, 2_000, {}, 2),
        (4, 100_000, {"batch_size": 66}, 2),
        (4, 100_000, {"batch_size": 33}, 1),
    ],
)
def test_the_number_of_ranks_on_a_cpu(num_threads: int, num_rows: int, settings: dict[str, Any], num_ranks: int) -> None:
    """Cores would be idle, a batch not be divisible, or a small table wait for the start of processes."""
    member = PlannedMember(name="tabm", kind="neural", settings=settings)
    manifest = {"recipe": "table", "splits": {"train": {"rows": num_rows}}}
    assert network.num_cpu_ranks(member, manifest, num_threads) == num_ranks


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_killed_fit_leaves_no_process() -> None:
    """The network would be trained by two processes at once when the fit is continued."""
    training = f"[{sys.executable!r}, '-c', 'import time; print(1, flush=True); time.sleep({TIMEOUT_S})']"
    statement = f"from ensemble.pipeline import network; network.run_command({training})"
    with subprocess.Popen([sys.executable, "-c", statement], stdout=subprocess.PIPE) as fit:
        assert fit.stdout is not None
        assert fit.stdout.readline() == b"1\n"
        (child,) = psutil.Process(fit.pid).children()
        fit.send_signal(signal.SIGKILL)
    assert psutil.wait_procs([child], TIMEOUT_S / 2)[1] == []
