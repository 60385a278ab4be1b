"""Started by test_yamls.py: ranks_worker.py OUT, to which each rank writes a description of itself."""

import json
import sys
from pathlib import Path

from ensemble import errors
from ensemble.neural import launch


def main() -> None:
    accelerator = launch.start()

    import torch

    one = accelerator.reduce(torch.ones(1))
    description = {
        "ranks": accelerator.num_processes,
        "summed": int(one.item()),
        "device": accelerator.device.type,
        "precision": accelerator.mixed_precision,
    }
    Path(sys.argv[1], f"{accelerator.process_index}.json").write_text(json.dumps(description))


if __name__ == "__main__":
    errors.run(main)
