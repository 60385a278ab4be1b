"""Two ranks that train a tiny model; rank 1 fails at a given step: failing_ranks.py FOLDER kill|stop|raise STEP.

test_failures.py starts it with the launcher.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from ensemble import errors
from ensemble.neural import heartbeat
from ensemble.signals import StopSignals

TIMEOUT_S = 10


def main() -> None:
    folder, failure, failing_step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    import torch
    from accelerate import Accelerator, InitProcessGroupKwargs

    from ensemble.neural import runs

    on_cpu = os.environ.get("ACCELERATE_USE_CPU") == "true"
    accelerator = Accelerator(cpu=on_cpu, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=TIMEOUT_S))])
    model = accelerator.prepare(torch.nn.Linear(4, 1))
    if accelerator.is_main_process:
        runs.set_status(folder, "running")
    accelerator.wait_for_everyone()
    with (
        StopSignals(),
        runs.status_on_error(folder, accelerator),
        heartbeat.Heartbeat.from_accelerator(
            accelerator, TIMEOUT_S, folder, partial(runs.mark_lost, folder)
        ) as rank_heartbeat,
    ):
        for step in range(failing_step + 100):
            rank_heartbeat.beat(step)
            if accelerator.process_index == 1 and step == failing_step:
                time.sleep(2 * heartbeat.INTERVAL_S)  # so that the others have the record of this step
                (folder / "pid").write_text(str(os.getpid()))
                fail(failure)
            accelerator.backward(model(torch.ones(2, 4, device=accelerator.device)).sum())


def fail(failure: str) -> None:
    if failure == "raise":
        raise ValueError("a row\nis damaged")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[failure])


if __name__ == "__main__":
    errors.run(main)
