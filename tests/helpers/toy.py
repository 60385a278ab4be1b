"""A recipe that trains in less than a second, and functions that read the files of its runs."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file

from ensemble.neural.loader import Batch
from ensemble.neural.settings import TrainConfig

NUM_ROWS = 37  # not a multiple of any batch size in the tests
WIDTH = 6


class ToyRows:
    def __init__(self, num_rows: int):
        generator = np.random.default_rng(1)
        self.x = generator.normal(size=(num_rows, WIDTH)).astype(np.float32)
        self.y = generator.normal(size=(num_rows, 3)).astype(np.float32)
        self.known = generator.random((num_rows, 3)) < 0.6
        self.known[:, 0] = True

    def __len__(self) -> int:
        return len(self.x)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        arrays = {"x": self.x[rows], "y": self.y[rows], "known": self.known[rows], "row": rows}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Recorder(torch.optim.SGD):
    """Remembers the gradient of each step, and the weights at which it was taken."""

    def __init__(self, parameters: Any, **options: Any):
        super().__init__(parameters, **options)
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.rates: list[float] = []

    def step(self, closure: Any = None) -> Any:
        parameters = self.param_groups[0]["params"]
        gradient = torch.cat([parameter.grad.flatten() for parameter in parameters])
        self.rates.append(self.param_groups[0]["lr"])
        self.seen.append((torch.cat([parameter.detach().flatten() for parameter in parameters]), gradient.clone()))
        return super().step(closure)


class Toy:
    """A regression in which the number of targets differs from row to row, as tokens do; it may carry a state."""

    name, fingerprint, monitor = "toy", "f1", "score"
    higher_is_better, output = True, "value"
    inputs: ClassVar[dict[str, Any]] = {}

    def __init__(self, *, dropout: float = 0.0, carries_state: bool = False, scores: Callable[[int], float] | None = None):
        self.dropout, self.carries_state = dropout, carries_state
        self.scores = scores
        self.num_evaluations = 0
        self.times, self.broken_row = 1.0, -1
        self.crash_at = math.inf
        self.at_micro_batch: dict[int, Callable[[], Any]] = {}
        self.num_micro_batches = 0

    def rows(self, split: str) -> ToyRows:
        return ToyRows(NUM_ROWS if split == "train" else 11)

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 8), torch.nn.Tanh(), torch.nn.Dropout(self.dropout), torch.nn.Linear(8, 3)
        )

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        self.recorder = Recorder(model.parameters(), lr=learning_rate, momentum=0.9)
        return [self.recorder]

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        self.num_micro_batches += 1  # the first is the loop's trial of the memory
        if self.num_micro_batches == 1 + self.crash_at:
            raise KeyboardInterrupt
        self.at_micro_batch.get(self.num_micro_batches, lambda: None)()
        output = model(batch["x"])
        if self.carries_state:
            memory = torch.zeros_like(output) if state is None else state["memory"]
            output = output + memory
            state = {"memory": 0.5 * memory + 0.5 * output.detach()}
        error = torch.where(batch["known"], (output - batch["y"]) ** 2, 0.0) * self.times
        error = torch.where((batch["row"] == self.broken_row)[:, None], torch.nan, error)
        return error.sum(), batch["known"].sum().float(), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        assert not model.training
        return {"prediction": model(batch["x"]), "row": batch["row"]}

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        self.num_evaluations += 1
        if self.scores:
            return {"score": self.scores(self.num_evaluations)}
        return {"score": -float(np.abs(predictions["prediction"]).mean())}

    def describe(self, split: str) -> dict[str, np.ndarray]:
        return {"row_id": np.arange(len(self.rows(split)))}


def settings(out: Path) -> TrainConfig:
    """Four epochs of three steps."""
    return TrainConfig(
        data="toy",
        out=str(out),
        batch_size=16,
        max_epochs=4,
        learning_rate=0.05,
        warmup_steps=2,
        clip_norm=0,
        patience=100,
        evaluations_per_epoch=1,
        log_every=1,
    )


def lines(config: TrainConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(config.out, "metrics.jsonl").read_text().splitlines()]


def checkpoints(config: TrainConfig) -> list[str]:
    return sorted(path.name for path in Path(config.out, "checkpoints").iterdir())


def last(config: TrainConfig) -> Path:
    return Path(config.out, "checkpoints", checkpoints(config)[-1])


def same_checkpoints(first: TrainConfig, second: TrainConfig) -> bool:
    """Whether the tensors in the last checkpoints of two runs are bitwise equal."""
    expected, actual = tensors(last(first)), tensors(last(second))
    return expected.keys() == actual.keys() and all(torch.equal(expected[name], actual[name]) for name in expected)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The weights, the optimizer's moments, the random states and the recipe's state of a checkpoint."""
    mapped = {**load_file(folder / "model.safetensors"), **load_file(folder / "state.safetensors")}
    return {name: tensor.clone() for name, tensor in mapped.items()}  # the files may be damaged or deleted later
