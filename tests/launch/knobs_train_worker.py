"""Started by test_knobs.py: scripts/train.py, with a report of the effect of the settings on the model.

knobs_train_worker.py FOLDER key=value…   rank r writes FOLDER/RANK.json, and its options of DDP to FOLDER/options.RANK.json
"""

import functools
import json
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import errors
from ensemble.neural import launch

if TYPE_CHECKING:
    import torch

TRAIN = Path(__file__).resolve().parents[2] / "scripts" / "train.py"


def main() -> None:
    folder = Path(sys.argv.pop(1))
    report: dict[str, Any] = {"compiled": [], "dtypes": []}

    def inspect(model: "torch.nn.Module") -> None:
        """Called after `disable_buffer_sync`, with the prepared model that the set-up of a training gives to it."""
        import torch
        from torch._dynamo.utils import counters
        from torch.distributed import distributed_c10d
        from torch.nn.parallel import DistributedDataParallel

        assert isinstance(model, DistributedDataParallel)
        gloo = distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        options = {
            "sends_buffers": model.will_sync_module_buffers(),
            "gradient_as_bucket_view": model.gradient_as_bucket_view,
            "timeout_s": gloo.options._timeout.total_seconds(),
        }
        (folder / f"options.{distributed_c10d.get_rank()}.json").write_text(json.dumps(options), encoding="utf-8")

        modules = {name.removeprefix("module."): module for name, module in model.named_modules()}
        report["compiled"] = [name for name, module in modules.items() if module._compiled_call_impl is not None]
        report["graphs_before"] = counters["stats"]["unique_graphs"]
        modules["heads"].register_forward_hook(lambda module, inputs, output: report["dtypes"].append(str(output.dtype)))

    start = launch.start

    def start_and_keep(*arguments: Any) -> Any:
        report["accelerator"] = start(*arguments)
        import torch  # which must come after `start`

        from ensemble.neural import speed

        # The kernels that Inductor compiles are tested on one rank, in tests/neural/test_speed.py
        torch.compile = functools.partial(torch.compile, backend="eager")
        disable_buffer_sync = speed.disable_buffer_sync
        speed.disable_buffer_sync = lambda model: (disable_buffer_sync(model), inspect(model))
        return report["accelerator"]

    launch.start = start_and_keep
    runpy.run_path(str(TRAIN))["main"]()

    from torch._dynamo.utils import counters

    accelerator = report.pop("accelerator")
    report["graphs"] = counters["stats"]["unique_graphs"] - report.pop("graphs_before")
    report["dtypes"] = sorted(set(report["dtypes"]))
    (folder / f"{accelerator.process_index}.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    errors.run(main)
