"""`skip_first_batches` is slow and forgets settings: accelerate#2606 (12 hours), #2859, #4295.

A run of rows in order resumes after one million batches of four rows: seconds are CPU seconds of the process to its first step.
Of an iterable dataset every batch is made and thrown away; of others the sampler alone runs. What is forgotten (`drop_last`,
among others) makes `gather_for_metrics` cut the last whole batch of a resumed epoch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides

THREADS = ("accelerate#2606", "accelerate#2859", "accelerate#4295")
BATCH_SIZE, NUM_STEPS = 4, 3


def rank(settings: Any) -> None:
    if settings.variant == "scores":
        scores(settings)
        return
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    from benchmarks.pains import plain
    from benchmarks.pains.recipe.model import Recorder, Rows, Shares

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(settings.num_rows))

    accelerator = Accelerator(cpu=True)
    set_seed(plain.SEED)
    source: Any = Rows(settings.num_rows)
    stream: Any = Stream() if settings.variant == "iterable" else source
    loader = torch.utils.data.DataLoader(stream, batch_size=BATCH_SIZE, collate_fn=source.collate)
    model: Any = Shares(settings.num_rows)
    optimizer = Recorder(model, plain.LEARNING_RATE, True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in accelerator.skip_first_batches(loader, settings.num_rows // BATCH_SIZE - NUM_STEPS):
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()


def scores(settings: Any) -> None:
    """Count the rows that `gather_for_metrics` returns of a loader with drop_last, without and with a first batch skipped."""
    import json

    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from benchmarks.pains.recipe.model import Rows

    accelerator = Accelerator(cpu=True)
    source: Any = Rows(22)
    loader = accelerator.prepare(DataLoader(source, batch_size=8, drop_last=True, collate_fn=source.collate))
    whole = sum((accelerator.gather_for_metrics(batch["row"]).tolist() for batch in loader), [])
    first = whole[:8]
    rest = accelerator.skip_first_batches(loader, 1)
    resumed = sum((accelerator.gather_for_metrics(batch["row"]).tolist() for batch in rest), [])
    counted = {"rows": len(whole), "missing": len(set(whole) - {*first, *resumed})}
    Path(settings.out, "counted.json").write_text(json.dumps(counted), encoding="utf-8")


def reproduce(folder: Path, short: bool) -> dict[str, Any]:
    from ensemble import folders

    num_skipped = 2_000 if short else 1_000_000
    num_rows = (num_skipped + NUM_STEPS) * BATCH_SIZE
    expected = [
        {row: 1 / BATCH_SIZE for row in range(begin, begin + BATCH_SIZE)} for begin in range(num_skipped * 4, num_rows, 4)
    ]
    variants = {}
    for variant in ("map_style",) if short else ("map_style", "iterable"):
        record = sides.plain("skipped_batches", folder / variant, f"variant={variant}", f"num_rows={num_rows}", ranks=1)
        variants[variant] = side(record, expected, f"{num_skipped:,} batches skipped")
    counted = folders.read_json(
        sides.plain("skipped_batches", folder / "scores", "variant=scores", ranks=1) / "counted.json"
    )
    variants["scores with drop_last"] = sides.Side(
        wrong_rows=counted["missing"], rows=counted["rows"], note="rows that gather_for_metrics loses after a skip"
    )
    return {"plain": variants.pop("map_style"), "here": here(folder, num_skipped, num_rows), "others": variants}


def here(folder: Path, num_skipped: int, num_rows: int) -> sides.Side:
    """A checkpoint of this project that is moved to that step by hand, for a million steps would take half an hour."""
    import json

    import numpy as np

    data = sides.prepared(folder, num_rows)
    options = {"batch_size": BATCH_SIZE, "checkpoint_steps": num_rows, "evaluations_per_epoch": 1}
    sides.here(data, folder / "first", ranks=1, max_epochs=1.5 * BATCH_SIZE / num_rows, **options)
    (checkpoint,) = (folder / "first" / "checkpoints").iterdir()
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    state["progress"]["step"] = num_skipped
    (checkpoint / "state.json").write_text(json.dumps(state), encoding="utf-8")
    sides.sign(checkpoint)
    resume = ("--resume", str(checkpoint), "--resume-override")
    record = sides.here(data, folder / "here", *resume, ranks=1, max_epochs=1, **options)
    # The order of rows is documented: a permutation by the seed and the epoch
    order = np.random.default_rng([0, 0]).permutation(num_rows)[num_skipped * BATCH_SIZE :].reshape(-1, BATCH_SIZE)
    expected = [dict.fromkeys(batch.tolist(), 1 / BATCH_SIZE) for batch in order]
    return side(record, expected, f"{num_skipped:,} batches skipped, rows in a random order")


def side(record: Path, expected: list[rows.Step], note: str) -> sides.Side:
    seconds = round(rows.record(record)[0]["cpu_s"], 2)
    return sides.Side(**rows.compared(rows.steps(record), expected), seconds=seconds, note=note)
