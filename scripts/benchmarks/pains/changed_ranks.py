"""FSDP2 weights after 4, 2 and 4 ranks: VeOmni#172.

A run of 12 steps changes its number of ranks after steps 4 and 8; its weights and rows are compared with those of a run on
four ranks. The global batch stays the same. On CPUs Accelerate 1.15 replicates where FSDP is asked for; so that it
shards as on GPUs, its process is set up for this in the same way as a process of this project.
"""

from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides

THREADS = ("ByteDance-Seed/VeOmni#172",)
RANKS = (4, 2, 4)
CHANGES = (0, 4, 8, 12)
"""The steps at which each part of the run begins, and the last one."""
TOLERANCE = 1e-5
"""Relative, norm-wise, float32; sums over 2 and over 4 ranks differ in their last bits."""


def rank(settings: Any) -> None:
    from benchmarks.pains import plain
    from ensemble.neural.sharded import use_on_cpu

    plain.train(settings, prepared=use_on_cpu)


def reproduce(folder: Path, short: bool) -> dict[str, Any]:
    return {"plain": plain(folder), "here": here(folder)}


def plain(folder: Path) -> sides.Side:
    words = ["sampler=seedable", "epochs=1", "keep_weights=true"]
    batch = sides.BATCH_SIZE * sides.RANKS
    whole = sides.plain(
        "changed_ranks", folder / "plain-whole", *words, f"batch_size={batch // 4}", ranks=4, options=sides.SHARDED
    )
    resume, records = "", []
    for part, ranks in enumerate(RANKS):
        last = CHANGES[part + 1]
        out = folder / f"plain-{part}"
        words_of = [*words, f"batch_size={batch // ranks}", f"last_step={last}", f"save_at=[{last}]"]
        records.append(sides.plain("changed_ranks", out, *words_of, f"resume={resume}", ranks=ranks, options=sides.SHARDED))
        resume = str(out / f"step_{last}")
    return compared(records, whole, records[-1] / "final.safetensors", whole / "final.safetensors")


def here(folder: Path) -> sides.Side:
    data = sides.prepared(folder.parent)
    words: dict[str, Any] = {"max_epochs": 1, "checkpoint_steps": 4}
    whole = folder / "here-whole"
    sides.here(data, whole, ranks=4, start=sides.SHARDED, **words)
    resume, records = "", []
    for part, ranks in enumerate(RANKS):
        out = folder / f"here-{part}"
        options = ("--resume", resume) if resume else ()
        records.append(sides.here(data, out, *options, ranks=ranks, start=sides.SHARDED, **words))
        resume = str(out / "checkpoints" / f"step-{CHANGES[part + 1]:08d}")
    for record, last, first in zip(records, CHANGES[1:], CHANGES, strict=False):
        keep(record, last - first)  # each part was trained to the end: the rest is another part's
    return compared(
        records, sides.record_of(whole), out / "final" / "model.safetensors", whole / "final" / "model.safetensors"
    )


def keep(record: Path, num_steps: int) -> None:
    """Leave the first steps of a record."""
    (file,) = record.glob("steps-*.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:num_steps]), encoding="utf-8")


def compared(records: list[Path], whole: Path, found: Path, expected: Path) -> sides.Side:
    from safetensors.torch import load_file

    ours, theirs = load_file(found), load_file(expected)
    assert ours.keys() == theirs.keys()
    errors = [float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in theirs if theirs[name].norm()]
    steps = [step for record in records for step in rows.steps(record)]
    num_wrong = sum(error > TOLERANCE for error in errors)
    to_take = rows.steps(whole)
    return sides.Side(
        wrong_rows=rows.misplaced(steps, to_take),
        rows=sum(len(step) for step in to_take),
        wrong_weights=num_wrong,
        seconds=round(rows.record(records[-1])[0]["cpu_s"], 2),
        note=f"{num_wrong} of {len(errors)} tensors of weights wrong, by up to {max(errors):.1e}",
    )
