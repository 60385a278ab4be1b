"""`skip_first_batches` is slow and loses settings: accelerate#2606 (12 hours), #2859, #4295.

A run with rows in order resumes after one million batches of four rows. With an iterable dataset every batch is computed and
discarded; otherwise only the sampler runs. The loader that skips also loses its batch size, so that `gather_for_metrics`
does not drop the rows that fill up the last batch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pains import sides
from ensemble import folders

ISSUES = ("accelerate#2606", "accelerate#2859", "accelerate#4295")
BATCH_SIZE, NUM_STEPS = 4, 3
NUM_SCORED = 22


def rank(settings: Any) -> None:
    if settings.variant == "scores":
        scores(settings)
        return
    import torch

    from benchmarks.pains import plain
    from benchmarks.pains.recipe.model import Rows

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(settings.num_rows))

    gather = Rows(settings.num_rows).collate
    stream = torch.utils.data.DataLoader(Stream(), BATCH_SIZE, collate_fn=gather) if settings.variant == "iterable" else None
    accelerator, model, optimizer, loader = plain.start(settings, make_loader=lambda: stream)
    for batch in accelerator.skip_first_batches(loader, settings.num_rows // BATCH_SIZE - NUM_STEPS):
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()


def scores(settings: Any) -> None:
    """Count rows that `gather_for_metrics` returns twice: in a whole epoch, and in one resumed after its first batch."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from benchmarks.pains.recipe.model import Rows

    accelerator = Accelerator(cpu=True)
    source: Any = Rows(NUM_SCORED)
    loader = accelerator.prepare(DataLoader(source, batch_size=BATCH_SIZE, collate_fn=source.collate))

    def scored(batches: Any) -> list[int]:
        return [row for batch in batches for row in accelerator.gather_for_metrics(batch["row"]).tolist()]

    whole, after_skip = scored(loader), scored(accelerator.skip_first_batches(loader, 1))
    resumed = [*whole[: BATCH_SIZE * accelerator.num_processes], *after_skip]
    if accelerator.is_main_process:
        counted = {"whole": len(whole) - len(set(whole)), "resumed": len(resumed) - len(set(resumed))}
        folders.write_json(Path(settings.out, "twice.json"), counted)
    accelerator.end_training()


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    num_skipped = 2_000 if short else 1_000_000
    num_rows = (num_skipped + NUM_STEPS) * BATCH_SIZE
    begins = range(num_skipped * BATCH_SIZE, num_rows, BATCH_SIZE)
    expected = [dict.fromkeys(range(begin, begin + BATCH_SIZE), 1 / BATCH_SIZE) for begin in begins]
    variants = {}
    for variant in ("map_style",) if short else ("map_style", "iterable"):
        settings: dict[str, Any] = {"num_rows": num_rows, "batch_size": BATCH_SIZE, "shuffle": False}
        record = sides.plain("skipped_batches", folder / variant, ranks=1, variant=variant, **settings)
        variants[variant] = sides.compared(record, expected, f"{num_skipped:,} batches skipped")
    if not short:
        scored = sides.plain("skipped_batches", folder / "scores", variant="scores")
        twice = folders.read_json(scored / "twice.json")
        note = f"rows that gather_for_metrics returns twice after a skip; without one {twice['whole']}"
        variants["scores"] = sides.Side(wrong_rows=twice["resumed"], rows=NUM_SCORED, note=note)
    return variants, here(folder, num_skipped, num_rows)


def here(folder: Path, num_skipped: int, num_rows: int) -> sides.Side:
    """Resume from an early checkpoint whose step is set to `num_skipped`, since a million steps would take half an hour."""
    data = sides.prepared(folder, num_rows)
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "checkpoint_steps": num_rows}
    sides.here(data, folder / "first", ranks=1, max_epochs=1.5 * BATCH_SIZE / num_rows, **options)
    (checkpoint,) = (folder / "first" / "checkpoints").iterdir()
    state = folders.read_json(checkpoint / "state.json")
    state["progress"]["step"] = num_skipped
    folders.write_json(checkpoint / "state.json", state)
    sides.sign(checkpoint)
    resume = ("--resume", str(checkpoint), "--resume-override")
    record = sides.here(data, folder / "here", *resume, ranks=1, max_epochs=1, **options)
    # The documented order of rows: a permutation that depends on the seed and the epoch
    order = np.random.default_rng([0, 0]).permutation(num_rows)[num_skipped * BATCH_SIZE :].reshape(-1, BATCH_SIZE)
    expected = [dict.fromkeys(batch.tolist(), 1 / BATCH_SIZE) for batch in order]
    return sides.compared(record, expected, f"{num_skipped:,} batches skipped, rows in a random order")
