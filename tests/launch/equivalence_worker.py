"""Started by test_equivalence.py. equivalence_worker.py OUT trains a toy by `loop.train` for each dtype and accumulation.

Rank r writes OUT/DTYPE-ACCUMULATION/RANK.safetensors: before each of the 20 steps the `gradients` passed to AdamW and
the `weights` at that step, both of shape (20, parameters), and the weights at the `end`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble import errors
from ensemble.neural import launch
from ensemble.neural.settings import TrainConfig

if TYPE_CHECKING:
    import torch

    from ensemble.neural.loader import Batch

NUM_ROWS, BATCH_SIZE, NUM_EPOCHS = 197, 64, 5  # steps of 64, 64, 64 and 5 rows: with 4 ranks, some have none
WIDTH, NUM_CLASSES, MAX_TOKENS = 6, 5, 9


class Sentences:
    """Rows of 1 to 9 tokens, each to be classified: a batch is as wide as its longest row, the rest is padding."""

    def __init__(self, num_rows: int, dtype: str):
        generator = np.random.default_rng(num_rows)
        self.tokens = generator.normal(size=(num_rows, MAX_TOKENS, WIDTH)).astype(dtype)
        self.classes = generator.integers(0, NUM_CLASSES, (num_rows, MAX_TOKENS))
        self.num_tokens = generator.integers(1, MAX_TOKENS + 1, num_rows)

    def __len__(self) -> int:
        return len(self.tokens)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> "Batch":
        import torch

        width = self.num_tokens[rows].max()
        arrays = {
            "tokens": self.tokens[rows, :width],
            "classes": self.classes[rows, :width],
            "known": np.arange(width) < self.num_tokens[rows, None],
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Toy:
    """A recipe whose loss is summed over tokens, and whose count is their number."""

    name, fingerprint, monitor = "toy", "f1", "score"
    higher_is_better, output = True, "value"

    def __init__(self, dtype: str):
        self.inputs: dict[str, Any] = {}
        self.dtype = dtype
        self.seen: dict[str, list[torch.Tensor]] = {"gradients": [], "weights": []}

    def rows(self, split: str) -> Sentences:
        return Sentences(NUM_ROWS if split == "train" else 11, self.dtype)

    def model(self) -> "torch.nn.Module":
        from torch import nn

        layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, NUM_CLASSES))
        return layers.double() if self.dtype == "float64" else layers

    def optimizers(self, model: "torch.nn.Module", learning_rate: float, weight_decay: float) -> list[Any]:
        import torch

        from ensemble.neural.optim import adamw

        parameters = list(model.parameters())

        def record(*_: Any) -> None:
            self.seen["gradients"].append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
            self.seen["weights"].append(torch.nn.utils.parameters_to_vector(parameters).detach())

        optimizer = adamw(model, learning_rate, weight_decay)
        optimizer.register_step_pre_hook(record)
        return [optimizer]

    def step(self, model: "torch.nn.Module", batch: "Batch", state: Any) -> tuple["torch.Tensor", "torch.Tensor", Any]:
        from torch.nn.functional import cross_entropy

        known = batch["known"]
        loss_sum = cross_entropy(model(batch["tokens"])[known], batch["classes"][known], reduction="sum")
        return loss_sum, known.sum(), state

    def predict(self, model: "torch.nn.Module", batch: "Batch") -> "Batch":
        return {"prediction": model(batch["tokens"][:, 0])[:, 0]}

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        return {"score": 0.0}

    def describe(self, split: str) -> dict[str, np.ndarray]:
        return {"row_id": np.arange(len(self.rows(split)))}


def settings(out: Path, num_ranks: int, accumulation: int) -> TrainConfig:
    """Gradients are clipped in some steps, and the learning rate rises and falls."""
    return TrainConfig(
        data="toy",
        out=str(out),
        batch_size=BATCH_SIZE,
        micro_batch_size=BATCH_SIZE // (num_ranks * accumulation),
        max_epochs=NUM_EPOCHS,
        learning_rate=0.01,
        warmup_steps=5,
        clip_norm=0.4,
        patience=100,
        evaluations_per_epoch=1,
    )


def main() -> None:
    out = Path(sys.argv[1])
    accelerator = launch.start(settings(out, 1, 1))

    import torch
    from safetensors.torch import save_file

    from ensemble.neural import loop

    for dtype in ("float32", "float64"):
        for accumulation in (1, 2, 8):
            folder = out / f"{dtype}-{accumulation}"
            toy = Toy(dtype)
            loop.train(toy, settings(folder, accelerator.num_processes, accumulation), accelerator)
            recorded = {name: torch.stack(tensors) for name, tensors in toy.seen.items()}
            (model,) = accelerator._models
            recorded["end"] = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            save_file(recorded, folder / f"{accelerator.process_index}.safetensors")
            accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
