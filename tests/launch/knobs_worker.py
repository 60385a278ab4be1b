"""Started by test_knobs.py: writes the options of DDP and the process group.

knobs_worker.py OUT key=value…
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble import configuration, errors
from ensemble.neural import launch
from ensemble.neural.settings import TrainConfig

if TYPE_CHECKING:
    from accelerate import Accelerator


def main() -> None:
    out, *words = sys.argv[1:]
    accelerator = launch.start(configuration.load(TrainConfig, overrides=["data=none", f"out={out}", *words]))
    measure(accelerator, Path(out))
    accelerator.wait_for_everyone()


def measure(accelerator: "Accelerator", out: Path) -> None:
    import torch

    from ensemble.neural import speed

    model = torch.nn.Linear(64, 512)
    model.register_buffer("mean", torch.zeros(1))
    model = accelerator.prepare(model)
    speed.disable_buffer_sync(model)
    if accelerator.is_main_process:
        gloo = torch.distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        options = {
            "sends_buffers": model.will_sync_module_buffers(),
            "gradient_as_bucket_view": model.gradient_as_bucket_view,
            "timeout_s": gloo.options._timeout.total_seconds(),
        }
        (out / "about.json").write_text(json.dumps(options), encoding="utf-8")


if __name__ == "__main__":
    errors.run(main)
