"""Ends each rank of train.py after its first optimizer step, for `benchmark.py startup`, which measures the time until then.

Python imports a module of this name at the start of every process. The benchmark adds its folder to PYTHONPATH.
"""

import os
from typing import Any

from benchmarks.watching import watch


def end_after_step(module: Any) -> None:
    """Replace the function `update` of the training loop, which updates the weights, by one that then ends the process."""
    update = module.update

    def update_and_end(*arguments: Any) -> None:
        import torch.distributed

        update(*arguments)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()  # wait until all ranks have finished the step
        os._exit(0)

    module.update = update_and_end


watch({"ensemble.neural.loop": end_after_step})
