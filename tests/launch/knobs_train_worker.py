"""What tests/launch/test_knobs.py launches: scripts/train.py, with a report of what its settings did to the model.

knobs_train_worker.py FOLDER key=value…   rank r writes FOLDER/RANK.json
"""

import json
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import errors
from ensemble.neural import launch, speed

if TYPE_CHECKING:
    import torch

TRAIN = Path(__file__).resolve().parents[2] / "scripts" / "train.py"


def main() -> None:
    folder = Path(sys.argv.pop(1))
    found: dict[str, Any] = {"compiled": [], "dtypes": []}
    leave_buffers = speed.leave_buffers

    def look_at(model: "torch.nn.Module") -> None:
        """Called by the set-up of a training with the model that it will train."""
        from torch._dynamo.utils import counters

        leave_buffers(model)
        modules = {name.removeprefix("module."): module for name, module in model.named_modules()}
        found["compiled"] = [name for name, module in modules.items() if module._compiled_call_impl is not None]
        found["graphs_before"] = counters["stats"]["unique_graphs"]
        modules["heads"].register_forward_hook(lambda module, inputs, output: found["dtypes"].append(str(output.dtype)))

    speed.leave_buffers = look_at
    start = launch.start

    def start_and_keep(*arguments: Any) -> Any:
        found["accelerator"] = start(*arguments)
        return found["accelerator"]

    launch.start = start_and_keep
    runpy.run_path(str(TRAIN))["main"]()

    from torch._dynamo.utils import counters

    accelerator = found.pop("accelerator")
    found["graphs"] = counters["stats"]["unique_graphs"] - found.pop("graphs_before")
    found["dtypes"] = sorted(set(found["dtypes"]))
    (folder / f"{accelerator.process_index}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    errors.run(main)
