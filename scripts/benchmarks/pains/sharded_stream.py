"""A stream that is sharded already is sharded again, and rows are lost: accelerate#3547, #4276, #3124.

Each of two ranks reads its own half of the shards, but `prepare` gives it only half of these rows. Every row should be used
once in an epoch. In the variant `not_split` each rank has all shards, and `prepare` alone divides the rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides

ISSUES = ("accelerate#3547", "accelerate#4276", "accelerate#3124")
NUM_ROWS, SHARDS = 192, list(range(8))


def rows_of(shards: list[int]) -> Iterator[dict[str, int]]:
    """The rows of some shards, in order; a row consists of its number."""
    size = NUM_ROWS // len(SHARDS)
    for shard in shards:
        yield from ({"row": row} for row in range(shard * size, (shard + 1) * size))


def rank(settings: Any) -> None:
    import torch
    from accelerate import PartialState
    from datasets import IterableDataset
    from datasets.distributed import split_dataset_by_node

    from benchmarks.pains import plain
    from benchmarks.pains.recipe.model import Rows

    class Stream(torch.utils.data.IterableDataset[dict[str, int]]):
        """An iterable dataset of PyTorch, of all shards."""

        def __iter__(self) -> Iterator[dict[str, int]]:
            yield from rows_of(SHARDS)

    def make_loader() -> Any:
        stream: Any = Stream()
        if settings.variant == "split_by_datasets":
            state, whole = PartialState(), IterableDataset.from_generator(rows_of, gen_kwargs={"shards": SHARDS})
            stream = split_dataset_by_node(whole, state.process_index, state.num_processes)
        gather = Rows(NUM_ROWS).collate
        return torch.utils.data.DataLoader(
            stream, batch_size=settings.batch_size, collate_fn=lambda batch: gather([row["row"] for row in batch])
        )

    plain.train(settings, make_loader=make_loader)


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    variants = {}
    for variant in ("split_by_datasets",) if short else ("split_by_datasets", "not_split"):
        record = sides.plain("sharded_stream", folder / variant, variant=variant, epochs=1, num_rows=NUM_ROWS)
        variants[variant] = counted(record)
    data = sides.prepared(folder.parent, NUM_ROWS)
    return variants, counted(sides.here(data, folder / "here", max_epochs=1))


def counted(record: Path) -> sides.Side:
    wrong = rows.repeated_and_missing(rows.steps(record), NUM_ROWS)
    return sides.Side(
        wrong_rows=len(wrong["missing"]) + len(wrong["repeated"]), rows=NUM_ROWS,
        seconds=rows.first_step_s(record),
        note=f"{len(wrong['missing'])} never learned from, {len(wrong['repeated'])} more than once",
    )  # fmt: skip
