"""Two ranks that train a tiny model; rank 1 fails at a step as it is told: failing_ranks.py FOLDER kill|stop|raise STEP.

test_failures.py runs it through the launcher.
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
    folder, failure, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    import torch
    from accelerate import Accelerator, InitProcessGroupKwargs

    from ensemble.neural import runs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=TIMEOUT_S))])
    model = accelerator.prepare(torch.nn.Linear(4, 1))
    if accelerator.is_main_process:
        runs.set_status(folder, "running")
    accelerator.wait_for_everyone()
    with (
        StopSignals(),
        runs.failure_marked(folder, accelerator),
        heartbeat.Heartbeat.of(accelerator, TIMEOUT_S, folder, partial(runs.mark_lost, folder)) as heart,
    ):
        for step in range(at + 100):
            heart.beat(step)
            if accelerator.process_index == 1 and step == at:
                time.sleep(2 * heartbeat.PULSE_S)  # so that the others know this step
                (folder / "pid").write_text(str(os.getpid()))
                fail(failure)
            accelerator.backward(model(torch.ones(2, 4)).sum())


def fail(failure: str) -> None:
    if failure == "raise":
        raise ValueError("a row\nis damaged")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[failure])


if __name__ == "__main__":
    errors.run(main)
