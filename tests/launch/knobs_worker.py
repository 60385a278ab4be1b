"""What tests/launch/test_knobs.py launches: one gradient over the ranks' rows, and what DDP and the process group are.

knobs_worker.py OUT key=value…
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble import config, errors
from ensemble.neural import launch, speed
from ensemble.neural.config import TrainConfig

if TYPE_CHECKING:
    from accelerate import Accelerator


def main() -> None:
    out, *words = sys.argv[1:]
    accelerator = launch.start(config.load(TrainConfig, overrides=["data=none", f"out={out}", *words]))
    measure(accelerator, Path(out))
    # DDP goes before the group: as the last to hold it, it would wait for a thread that waits for Python (torch 2.13)
    accelerator.free_memory()
    accelerator.end_training()


def measure(accelerator: "Accelerator", out: Path) -> None:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 512))
    model.register_buffer("mean", torch.zeros(1))
    model = accelerator.prepare(model)
    speed.leave_buffers(model)
    rows = torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(1))[accelerator.process_index]
    accelerator.backward(model(rows).pow(3).mean())
    if accelerator.is_main_process:
        gloo = torch.distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        about = {
            "bucket_bytes": model.bucket_bytes_cap,
            "sends_buffers": model.will_sync_module_buffers(),
            "gradient_as_bucket_view": model.gradient_as_bucket_view,
            "timeout_s": gloo.options._timeout.total_seconds(),
        }
        (out / "about.json").write_text(json.dumps(about), encoding="utf-8")
        save_file({name: p.grad for name, p in model.module.named_parameters()}, out / "gradient.safetensors")


if __name__ == "__main__":
    errors.run(main)
