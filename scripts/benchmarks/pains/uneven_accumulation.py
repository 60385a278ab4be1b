"""Accumulation over micro-batches of different sizes gives another gradient: transformers#34191, accelerate#3193.

Rows have 1 to 9 tokens, and 50 rows do not divide by two ranks, three batches of four and an epoch's last step. Right is the
mean over the tokens of the global batch: a row's weight is its tokens divided by all tokens of the step. A row that fills up
the last batches of an epoch (`even_batches`) has the wrong weight too.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pains import rows, sides

THREADS = ("transformers#34191", "transformers#34242", "accelerate#3193")
NUM_ROWS, MAX_TOKENS, BATCH_SIZE, ACCUMULATION = 50, 9, 4, 3


def rank(settings: Any) -> None:
    from benchmarks.pains import plain

    if settings.variant == "summed":
        summed(settings)
    else:
        plain.train(settings)


def summed(settings: Any) -> None:
    """As in "Gradient accumulation on training samples of variable size" of Accelerate's guide."""
    import math
    from contextlib import nullcontext

    import torch
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader

    from benchmarks.pains import plain
    from benchmarks.pains.recipe.model import Recorder, Rows, Shares

    accelerator = plain.accelerator_of(settings)
    set_seed(plain.SEED)
    source: Any = Rows(settings.num_rows, settings.max_tokens)
    model: Any = Shares(settings.num_rows)
    optimizer = Recorder(model, plain.LEARNING_RATE, accelerator.is_main_process)
    loader = DataLoader(source, batch_size=settings.batch_size, shuffle=True, collate_fn=source.collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches, accumulation = iter(loader), settings.accumulation
    remainder = len(loader) % accumulation or accumulation
    num_updates = math.ceil(len(loader) / accumulation)
    for update in range(num_updates):
        of_step = [next(batches) for _ in range(accumulation if update < num_updates - 1 else remainder)]
        local = torch.stack([batch["tokens"].sum() for batch in of_step]).sum()
        num_tokens = accelerator.gather(local).sum().item()
        for number, batch in enumerate(of_step):
            with nullcontext() if number == len(of_step) - 1 else model.no_sync():
                accelerator.backward(model(batch).sum() * accumulation * accelerator.num_processes / num_tokens)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()


def reproduce(folder: Path, short: bool) -> dict[str, Any]:
    words = (f"num_rows={NUM_ROWS}", f"max_tokens={MAX_TOKENS}", f"batch_size={BATCH_SIZE}", f"accumulation={ACCUMULATION}")
    variants = {}
    for variant in ("accumulate",) if short else ("accumulate", "summed"):
        record = sides.plain("uneven_accumulation", folder / variant, *words, f"variant={variant}", "epochs=1")
        variants[variant] = weighed(record)
    data = sides.prepared(folder.parent, NUM_ROWS, MAX_TOKENS)
    size = BATCH_SIZE * ACCUMULATION * sides.RANKS
    record = sides.here(data, folder / "here", batch_size=size, micro_batch_size=BATCH_SIZE, max_epochs=1)
    return {"plain": variants.pop("accumulate"), "here": weighed(record), "others": variants}


def weighed(record: Path) -> sides.Side:
    """Rows whose weight is not that of their tokens, and the largest error of a weight, relative to the right one."""
    from benchmarks.pains.recipe.model import Rows

    steps = rows.steps(record)
    tokens = Rows(NUM_ROWS, MAX_TOKENS).gather(np.arange(NUM_ROWS))["tokens"].tolist()
    expected = []
    for step in steps:
        total = sum(tokens[row] for row in step)
        expected.append({row: tokens[row] / total for row in step})
    errors = [(row, abs(step[row] / of[row] - 1)) for step, of in zip(steps, expected, strict=True) for row in of]
    times = rows.census(steps, NUM_ROWS)
    wrong = {row for row, error in errors if error > rows.TOLERANCE} | set(times["repeated"]) | set(times["missing"])
    largest = max(error for _, error in errors)
    return sides.Side(
        wrong_rows=len(wrong), rows=NUM_ROWS, seconds=round(rows.record(record)[0]["cpu_s"], 2),
        note=f"weights wrong by up to {largest:.1%}, {len(times['repeated'])} rows in two steps",
    )  # fmt: skip
