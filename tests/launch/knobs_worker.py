"""What tests/launch/test_knobs.py launches: one gradient over the ranks' rows, and what DDP and the process group are.

knobs_worker.py OUT key=value…
"""

import json
import sys
from pathlib import Path

from ensemble import config, errors
from ensemble.neural import launch, speed
from ensemble.neural.config import TrainConfig


def main() -> None:
    out, *words = sys.argv[1:]
    settings = config.load(TrainConfig, overrides=["data=none", f"out={out}", *words])
    accelerator = launch.start(settings)

    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512)
    )
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
        Path(out, "about.json").write_text(json.dumps(about), encoding="utf-8")
        save_file({name: p.grad for name, p in model.module.named_parameters()}, Path(out, "gradient.safetensors"))
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
