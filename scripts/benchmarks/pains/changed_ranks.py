"""The FSDP2 weights of a run on 4, then on 2, then on 4 ranks: VeOmni#172.

A run of 12 steps changes its number of ranks after steps 4 and 8. Its weights and rows are compared with those of a run on
four ranks, with the same global batch. On CPUs Accelerate 1.15 replicates the weights even with FSDP. Therefore the
processes of plain Accelerate call `sharded.use` of this project, with which it shards them as on GPUs.
"""

from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides

ISSUES = ("ByteDance-Seed/VeOmni#172",)
RANKS = (4, 2, 4)
CHANGES = (0, 4, 8, 12)
"""The step after which each part of the run begins, and the last step of the run."""
TOLERANCE = 1e-5
"""The largest difference of a tensor relative to its norm, in float32. Sums over 2 and over 4 ranks differ by rounding."""


def rank(settings: Any) -> None:
    from benchmarks.pains import plain
    from ensemble.neural.sharded import use

    plain.train(settings, set_up=use)


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    return {"plain": plain(folder)}, here(folder)


def plain(folder: Path) -> sides.Side:
    batch = sides.BATCH_SIZE * sides.RANKS

    def train(out: Path, ranks: int, **settings: Any) -> Path:
        settings |= {"sampler": "seedable", "epochs": 1, "keep_weights": True, "batch_size": batch // ranks}
        return sides.plain("changed_ranks", out, ranks, sides.SHARDED, **settings)

    whole = train(folder / "plain-whole", 4)
    resume, records = "", []
    for part, (ranks, last) in enumerate(zip(RANKS, CHANGES[1:], strict=True)):
        out = folder / f"plain-{part}"
        records.append(train(out, ranks, last_step=last, save_at=[last], resume=resume))
        resume = str(out / f"step_{last}")
    return compared(records, whole, records[-1] / "final.safetensors", whole / "final.safetensors")


def here(folder: Path) -> sides.Side:
    data = sides.prepared(folder.parent)
    settings: dict[str, Any] = {"max_epochs": 1, "checkpoint_steps": 4}
    whole = folder / "here-whole"
    sides.here(data, whole, ranks=4, start=sides.SHARDED, **settings)
    resume, records = "", []
    for part, ranks in enumerate(RANKS):
        out = folder / f"here-{part}"
        options = ("--resume", resume) if resume else ()
        records.append(sides.here(data, out, *options, ranks=ranks, start=sides.SHARDED, **settings))
        resume = str(out / "checkpoints" / f"step-{CHANGES[part + 1]:08d}")
    for record, last, first in zip(records, CHANGES[1:], CHANGES, strict=False):
        keep_first(record, last - first)  # every part was trained to the end of the epoch
    return compared(
        records, sides.record_of(whole), out / "final" / "model.safetensors", whole / "final" / "model.safetensors"
    )


def keep_first(record: Path, num_steps: int) -> None:
    """Delete all but the first steps of a record."""
    (file,) = record.glob("steps-*.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:num_steps]), encoding="utf-8")


def compared(records: list[Path], whole: Path, weights: Path, expected_weights: Path) -> sides.Side:
    """Compare a run in several parts with the run on four ranks: the rows in their records, and the final weights."""
    from safetensors.torch import load_file

    final, expected = load_file(weights), load_file(expected_weights)
    assert final.keys() == expected.keys()
    errors = [float((final[name] - tensor).norm() / tensor.norm()) for name, tensor in expected.items() if tensor.norm()]
    steps = [step for record in records for step in rows.steps(record)]
    num_wrong = sum(error > TOLERANCE for error in errors)
    expected_steps = rows.steps(whole)
    return sides.Side(
        wrong_rows=rows.misplaced(steps, expected_steps),
        rows=sum(len(step) for step in expected_steps),
        wrong_weights=num_wrong,
        seconds=rows.first_step_s(records[-1]),
        note=f"{num_wrong} of {len(errors)} tensors of weights wrong, by up to {max(errors):.1e}",
    )
