"""Started by test_sharded.py: trains a small model or reads checkpoints, and writes all tensors unsharded.

sharded_worker.py train OUT [CHECKPOINT]    six steps, a checkpoint after the third, or the three after a checkpoint
sharded_worker.py read OUT CHECKPOINT…
sharded_worker.py precision OUT             what the weights of a model see in bf16
sharded_worker.py fail|die OUT              a checkpoint, and two more: rank 1 fails to write them, or dies while it writes
"""

import json
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import errors
from ensemble.errors import UserError
from ensemble.neural import launch

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

NUM_STEPS, SAVED_STEP, BATCH_SIZE, ACCUMULATION, CLIP_NORM = 6, 3, 12, 2, 0.5


class Trainer:
    """Model, AdamW and moving average, in the order in which the loop prepares them."""

    def __init__(self, accelerator: "Accelerator", seed: int):
        import torch
        from torch.distributed.fsdp import FSDPModule

        from ensemble.neural import sharded
        from ensemble.neural.optim import MovingAverage, adamw

        torch.manual_seed(seed)
        # Rows that two or three ranks do not divide, a single row, and untrained bfloat16 and integer buffers
        layers: Any = torch.nn.Sequential(
            torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.GELU(), torch.nn.Linear(5, 1)
        )
        layers = layers.double()
        layers.register_buffer("codes", torch.randn(3, 2).bfloat16())
        layers.register_buffer("number", torch.tensor(seed))
        optimizer = adamw(layers, 0.01, 0.1)
        self.accelerator = accelerator
        self.model, prepared = accelerator.prepare(layers, optimizer)
        self.optimizer: torch.optim.Optimizer = prepared.optimizer
        self.average = MovingAverage(self.model, 0.9)
        self.writers = sharded.writer_group(timeout_s=60) if accelerator.num_processes > 1 else None
        # Accelerate's state must say FSDP after `prepare` too: no_sync and clipping depend on it
        is_sharded = any(isinstance(module, FSDPModule) for module in self.model.modules())
        assert is_sharded == launch.is_sharded(accelerator) == accelerator.is_fsdp2 == (accelerator.num_processes > 1)

    def step(self, step: int) -> None:
        """Train on a global batch, with the sum of losses divided by the number of rows."""
        import torch

        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        generator = torch.Generator().manual_seed(step)
        x, y = (
            torch.randn(BATCH_SIZE, width, dtype=torch.float64, generator=generator).to(self.accelerator.device)
            for width in (7, 1)
        )
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
        """Run a forward pass with multiplied weights, then restore them, as an evaluation with a moving average does."""
        import torch

        from ensemble.neural import sharded

        weights = [parameter.detach() for group in self.optimizer.param_groups for parameter in group["params"]]
        for factor in (2.0, 0.5):  # exact
            for weight in weights:
                weight.mul_(factor)
            if factor > 1:
                with torch.no_grad():
                    self.model(torch.ones(3, 7, dtype=torch.float64, device=self.accelerator.device))
                sharded.reshard(self.model)

    def averages(self) -> dict[str, "torch.Tensor"]:
        return {f"average.{number}": tensor for number, tensor in enumerate(self.average.average)}

    def unsharded(self) -> dict[str, "torch.Tensor"]:
        from ensemble.neural import checkpoint, sharded

        moments, _ = checkpoint.flatten_optimizer(self.optimizer, "optimizer0")
        return sharded.gather({**self.model.state_dict(), **self.averages(), **moments})

    def write(self, folder: Path) -> Callable[[], None]:
        """Copy the state; the result writes it."""
        from ensemble.neural import checkpoint, sharded

        moments, optimizer_description = checkpoint.flatten_optimizer(self.optimizer, "optimizer0")
        shards = checkpoint.CpuCopies().copy({**self.model.state_dict(), **self.averages(), **moments})
        description = {"optimizers": [optimizer_description]}
        if not launch.is_sharded(self.accelerator):
            return partial(checkpoint.write, folder, shards, description)
        return partial(sharded.write, folder, shards, description, {}, self.writers)

    def load(self, folder: Path) -> None:
        from ensemble.neural import sharded

        descriptions = json.loads((folder / "state.json").read_text())["optimizers"]
        sharded.load(folder, self.model, [self.optimizer], self.averages(), descriptions, [0])

    def write_tensors(self, file: Path) -> None:
        """Write all tensors, unsharded, to one file."""
        from safetensors.torch import save_file

        tensors = self.unsharded()
        if self.accelerator.is_main_process:
            save_file(tensors, file)


def precision(accelerator: "Accelerator", out: Path) -> None:
    """Two micro-batches in bf16 of the inputs 2014 and 2013 + 2^-10, which bf16 rounds to 2016, and their gradient.

    Writes the inputs that the model got, less 2013, the sum of both gradients, and whether they were computed in bf16.
    """
    import torch
    from torch.distributed.tensor import DTensor

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1, bias=False)
            self.register_buffer("year", torch.tensor(2013.0))
            self.inputs: list[float] = []
            self.dtypes: set[str] = set()

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            inputs = batch["x"] - self.year
            self.inputs.append(inputs.item())
            outputs = self.linear(inputs)
            self.dtypes.add(str(outputs.dtype))
            return outputs

    model = Model()
    prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    for last, x in enumerate((2014.0, 2013 + 2**-10)):
        with nullcontext() if last else accelerator.no_sync(prepared), accelerator.autocast():
            accelerator.backward(prepared({"x": torch.tensor([[x]])}).sum())
    gradient = prepared.linear.weight.grad
    assert isinstance(gradient, DTensor)
    total = gradient.full_tensor().item()
    if accelerator.is_main_process:
        content = {"inputs": prepared.inputs, "gradient": total, "dtypes": sorted(prepared.dtypes)}
        (out / "precision.json").write_text(json.dumps(content))


def wait_for(event: threading.Event) -> None:
    event.wait()


def main() -> None:
    accelerator = launch.start()
    from ensemble.neural.checkpoint import BackgroundWriter, step_folder

    command, out, *checkpoints = sys.argv[1], *(Path(word) for word in sys.argv[2:])
    if command == "precision":
        precision(accelerator, out)
        return
    # A new process has other initial weights, so that equal weights can only come from the checkpoint
    trainer = Trainer(accelerator, seed=len(checkpoints))
    for number, folder in enumerate(checkpoints):
        trainer.load(folder)
        trainer.write_tensors(out / f"read{number}.safetensors")
    with BackgroundWriter() as writer:
        if command in ("fail", "die"):
            trainer.step(1)
            writer.submit(trainer.write(step_folder(out, 1)))
            writer.wait()
            if accelerator.process_index == 1:
                if command == "die":
                    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # less than the shards
            writer.submit(trainer.write(step_folder(out, 2)))
            writer.submit(trainer.write(step_folder(out, 3)))
            for _ in range(2):
                try:
                    writer.wait()
                except UserError as error:
                    print(f"rank {accelerator.process_index}: {error}", file=sys.stderr)
        if command == "train":
            trained = threading.Event()
            writer.submit(partial(wait_for, trained))  # so that each tensor has changed before it is written
            for step in range(SAVED_STEP + 1 if checkpoints else 1, NUM_STEPS + 1):
                trainer.step(step)
                trainer.evaluate()
                if step == SAVED_STEP:
                    writer.submit(trainer.write(out / "checkpoint"))
                    trainer.write_tensors(out / "saved.safetensors")
            trained.set()
            trainer.write_tensors(out / "final.safetensors")
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
