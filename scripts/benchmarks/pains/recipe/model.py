"""Rows, model and optimizer of the benchmark `pains`, which both plain Accelerate and this project train.

The model has one parameter `share` for each training row, which is a linear term in the loss of the row. Its gradient at an
optimizer step is therefore the weight of the row in the mean loss of the step, after all averages over micro-batches and
ranks: 0 for a row that the step did not use, and twice the weight for a row that was used twice. `Recorder` writes the
gradients to a file. So the benchmark measures which rows were trained on, not which rows a loader returned.

    N  training rows   B  batch   F  features
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

NUM_FEATURES = 8
RECORD = "PAINS_RECORD"
"""The environment variable with the folder for the record of the main process."""


class Rows:
    """Rows that are computed from their number: features (B, F), target (B,), number of tokens (B,)."""

    def __init__(self, num_rows: int, max_tokens: int = 1):
        self.num_rows, self.max_tokens = num_rows, max_tokens

    def __len__(self) -> int:
        return self.num_rows

    def gather(self, rows: np.ndarray, epoch: int = 0) -> dict[str, torch.Tensor]:
        phases = np.outer(rows, np.arange(1, NUM_FEATURES + 1)) * 0.61803398875
        x = np.sin(2 * np.pi * (phases % 1.0)).astype(np.float32)
        tokens = (rows * 7919 % self.max_tokens + 1).astype(np.float32)
        y = x.sum(axis=1) * 0.25
        return {name: torch.from_numpy(array) for name, array in {"row": rows, "x": x, "y": y, "tokens": tokens}.items()}

    def __getitem__(self, row: int) -> int:
        """The number of the row: `collate` computes the values of a batch from its row numbers."""
        return row

    def collate(self, rows: list[int]) -> dict[str, torch.Tensor]:
        return self.gather(np.array(rows))


class Shares(torch.nn.Module):
    """A regression with one more parameter for each row, whose gradient is the weight of the row in the step.

    extra_width : width of an additional square matrix, which makes checkpoints large; 0 for no matrix
    """

    def __init__(self, num_rows: int, extra_width: int = 0):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.share = torch.nn.Parameter(torch.zeros(num_rows))
        self.extra = torch.nn.Linear(extra_width, extra_width, bias=False) if extra_width else None

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of each row, summed over its tokens, (B,)."""
        prediction = self.layers(batch["x"])[:, 0]
        if self.extra is not None:
            prediction = prediction + self.extra(prediction[:1].expand(1, self.extra.in_features)).mean()
        return batch["tokens"] * ((prediction - batch["y"]) ** 2 + self.share[batch["row"]])


class Recorder(torch.optim.AdamW):
    """AdamW that appends a line of JSON for each step to a file in the folder that `RECORD` names; only in the main process.

    A line has the `rows` with a gradient and their weights in the loss, `shares`. It also has two times at the end of the
    step: the CPU time of the process, `cpu_s`, and the CPU time of its main thread, `thread_s`.
    """

    def __init__(self, model: Shares, learning_rate: float, is_main: bool):
        super().__init__(model.parameters(), lr=learning_rate)
        folder = os.environ.get(RECORD)
        self.share = model.share
        self.file = Path(folder) / f"steps-{os.getpid()}.jsonl" if folder and is_main else None

    def step(self, closure: Any = None) -> Any:
        # FSDP2 replaces the parameters by sharded ones, among which `share` is recognised by its shape
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        self.share = next(parameter for parameter in parameters if parameter.shape == self.share.shape)
        gradient = self.share.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()  # collective
        assert gradient is not None
        rows = torch.nonzero(gradient)[:, 0]
        line = {"rows": rows.tolist(), "shares": gradient[rows].tolist()}
        result = super().step(closure)
        if self.file and len(rows):  # loading the state of an optimizer makes a step with gradients of zero
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as stream:
                clocks = {"cpu_s": time.process_time(), "thread_s": time.thread_time()}
                stream.write(json.dumps({**line, **clocks}) + "\n")
        return result
