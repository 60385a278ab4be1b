"""Accumulation over micro-batches of different sizes gives a wrong gradient: transformers#34191, accelerate#3193.

Rows have 1 to 9 tokens. The 50 rows are not a multiple of the 24 rows of a step: two ranks with three micro-batches of four
rows each. The correct loss is the mean over the tokens of the global batch: the weight of a row is the number of its tokens
divided by the number of tokens of the step. Accelerate's `even_batches` repeats rows to fill the last batches; the weight of
these rows is wrong too.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pains import rows, sides

ISSUES = ("transformers#34191", "transformers#34242", "accelerate#3193")
NUM_ROWS, MAX_TOKENS, BATCH_SIZE, ACCUMULATION = 50, 9, 4, 3


def rank(settings: Any) -> None:
    """Train; the variant `summed` follows the guide "Gradient accumulation on training samples of variable size"."""
    import math
    from contextlib import nullcontext

    import torch

    from benchmarks.pains import plain

    if settings.variant != "summed":
        plain.train(settings)
        return
    accelerator, model, optimizer, loader = plain.start(settings)
    batches, accumulation = iter(loader), settings.accumulation
    remainder = len(loader) % accumulation or accumulation
    num_updates = math.ceil(len(loader) / accumulation)
    for update in range(num_updates):
        micro_batches = [next(batches) for _ in range(accumulation if update < num_updates - 1 else remainder)]
        local_num_tokens = torch.stack([batch["tokens"].sum() for batch in micro_batches]).sum()
        num_tokens = accelerator.gather(local_num_tokens).sum().item()
        for number, batch in enumerate(micro_batches):
            with nullcontext() if number == len(micro_batches) - 1 else model.no_sync():
                accelerator.backward(model(batch).sum() * accumulation * accelerator.num_processes / num_tokens)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    sizes: dict[str, Any] = {"num_rows": NUM_ROWS, "max_tokens": MAX_TOKENS, "batch_size": BATCH_SIZE}
    variants = {}
    for variant in ("accumulate",) if short else ("accumulate", "summed"):
        record = sides.plain(
            "uneven_accumulation", folder / variant, variant=variant, epochs=1, accumulation=ACCUMULATION, **sizes
        )
        variants[variant] = weight_errors(record)
    data = sides.prepared(folder.parent, NUM_ROWS, MAX_TOKENS)
    size = BATCH_SIZE * ACCUMULATION * sides.RANKS
    record = sides.here(data, folder / "here", batch_size=size, micro_batch_size=BATCH_SIZE, max_epochs=1)
    return variants, weight_errors(record)


def weight_errors(record: Path) -> sides.Side:
    """The number of rows with a wrong weight, in several steps or in none; the note has the largest relative error."""
    from benchmarks.pains.recipe.model import Rows

    steps = rows.steps(record)
    tokens = Rows(NUM_ROWS, MAX_TOKENS).gather(np.arange(NUM_ROWS))["tokens"].tolist()
    row_errors = [
        (row, abs(weight / tokens[row] * sum(tokens[other] for other in step) - 1))
        for step in steps
        for row, weight in step.items()
    ]
    largest_error = max(error for _, error in row_errors)
    wrong = rows.repeated_and_missing(steps, NUM_ROWS)
    wrong_rows = {row for row, error in row_errors if error > rows.TOLERANCE} | {*wrong["repeated"], *wrong["missing"]}
    return sides.Side(
        wrong_rows=len(wrong_rows), rows=NUM_ROWS, seconds=rows.first_step_s(record),
        note=f"weights wrong by up to {largest_error:.1%}, {len(wrong['repeated'])} rows in two steps",
    )  # fmt: skip
