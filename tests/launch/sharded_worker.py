"""What tests/launch/test_sharded.py launches: train a small model or read checkpoints, and leave all tensors whole.

sharded_worker.py train OUT [CHECKPOINT]    six steps, a checkpoint after the third, or the three after a checkpoint
sharded_worker.py read OUT CHECKPOINT…
"""

import json
import resource
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import errors
from ensemble.neural import launch

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

NUM_STEPS, SAVED_STEP, BATCH_SIZE, ACCUMULATION, CLIP_NORM = 6, 3, 12, 2, 0.5


class Learner:
    """Model, AdamW and moving average, in the order in which the loop prepares them."""

    def __init__(self, accelerator: "Accelerator", seed: int):
        import torch
        from torch.distributed.fsdp import FSDPModule

        from ensemble.neural.optim import MovingAverage, adamw

        torch.manual_seed(seed)
        # Rows that do not divide by two or three ranks, one row alone, bfloat16 and a whole number that nobody trains
        layers: Any = torch.nn.Sequential(
            torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.GELU(), torch.nn.Linear(5, 1)
        )
        layers = layers.double()
        layers.register_buffer("codes", torch.randn(3, 2).bfloat16())
        layers.register_buffer("seen", torch.tensor(seed))
        optimizer = adamw(layers, 0.01, 0.1)
        self.accelerator = accelerator
        self.model, prepared = accelerator.prepare(layers, optimizer)
        self.optimizer: torch.optim.Optimizer = prepared.optimizer
        self.average = MovingAverage(self.model, 0.9)
        # Accelerate must know of it after prepare too: no_sync and clipping ask there
        cut = any(isinstance(module, FSDPModule) for module in self.model.modules())
        assert cut == launch.is_sharded(accelerator) == accelerator.is_fsdp2 == (accelerator.num_processes > 1)

    def step(self, step: int) -> None:
        """A global batch, whose sum of losses is divided by its count; every rank sees its micro-batches."""
        import torch

        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        generator = torch.Generator().manual_seed(step)
        x, y = (torch.randn(BATCH_SIZE, width, dtype=torch.float64, generator=generator) for width in (7, 1))
        for number in range(ACCUMULATION):
            rows = slice(number * ranks + rank, None, ACCUMULATION * ranks)
            with nullcontext() if number == ACCUMULATION - 1 else self.accelerator.no_sync(self.model):
                loss = (self.model(x[rows]) - y[rows]).square().sum()
                self.accelerator.backward(loss * (ranks / BATCH_SIZE))
        self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * step / NUM_STEPS
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(step)

    def evaluate(self) -> None:
        """With the weights multiplied, and put back afterwards, as it is done with a moving average."""
        import torch

        from ensemble.neural import sharded

        weights = [parameter.detach() for group in self.optimizer.param_groups for parameter in group["params"]]
        for factor in (2.0, 0.5):  # exact
            for weight in weights:
                weight.mul_(factor)
            if factor > 1:
                with torch.no_grad():
                    self.model(torch.ones(3, 7, dtype=torch.float64))
                sharded.reshard(self.model)

    def averages(self) -> dict[str, "torch.Tensor"]:
        return {f"average.{number}": tensor for number, tensor in enumerate(self.average.average)}

    def whole(self) -> dict[str, "torch.Tensor"]:
        from ensemble.neural import checkpoint, sharded

        moments, _ = checkpoint.flatten_optimizer(self.optimizer, "optimizer0")
        return sharded.gather({**self.model.state_dict(), **self.averages(), **moments})

    def save(self, folder: Path) -> None:
        """As the loop does it: the main process makes the folder and, when all have written, closes it."""
        from ensemble import folders
        from ensemble.neural import checkpoint, sharded

        if not launch.is_sharded(self.accelerator):
            moments, about = checkpoint.flatten_optimizer(self.optimizer, "optimizer0")
            checkpoint.write(folder, self.model.state_dict(), {"optimizers": [about]}, {**moments, **self.averages()})
            return
        if self.accelerator.is_main_process:
            folder.mkdir()
        self.accelerator.wait_for_everyone()
        rest = sharded.save(folder, self.model, [self.optimizer], self.averages())
        if self.accelerator.is_main_process:
            (folder / "state.json").write_text(json.dumps({"optimizers": rest}))
            folders.write_manifest(folder, {"kind": "checkpoint"})

    def load(self, folder: Path) -> None:
        from ensemble.neural import sharded

        rest = json.loads((folder / "state.json").read_text())["optimizers"]
        sharded.load(folder, self.model, [self.optimizer], self.averages(), rest)

    def leave(self, file: Path) -> None:
        """All tensors whole, in one file."""
        from safetensors.torch import save_file

        whole = self.whole()
        if self.accelerator.is_main_process:
            save_file(whole, file)


def main() -> None:
    accelerator = launch.start()
    command, out, *checkpoints = sys.argv[1], *(Path(word) for word in sys.argv[2:])
    # A fresh process begins with other weights: nothing but the checkpoint can bring back those of the one before
    learner = Learner(accelerator, seed=len(checkpoints))
    for number, folder in enumerate(checkpoints):
        learner.load(folder)
        learner.leave(out / f"read{number}.safetensors")
    if command == "fail":
        learner.step(1)
        if accelerator.process_index == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            learner.save(out / "checkpoint")
        except OSError as error:
            print(f"rank {accelerator.process_index}: {error.strerror}", file=sys.stderr)
    if command == "train":
        for step in range(SAVED_STEP + 1 if checkpoints else 1, NUM_STEPS + 1):
            learner.step(step)
            learner.evaluate()
            if step == SAVED_STEP:
                learner.save(out / "checkpoint")
                learner.leave(out / "saved.safetensors")
        learner.leave(out / "final.safetensors")
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
