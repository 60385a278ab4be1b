"""A launcher starts one process instead of two, or two that do not communicate: accelerate#2741, #2818.

The training then uses other global batches than requested, without a warning. Plain Accelerate reads the rows in order, so
that the rows of each requested step are known.
"""

from pathlib import Path

from benchmarks.pains import rows, sides
from benchmarks.runs import launcher
from benchmarks.timing import timed

ISSUES = ("accelerate#2741", "accelerate#2818")
OPTIONS = ("--cpu", "--num_processes", "2")


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    words = [*launcher(2)[:4], *OPTIONS]  # the launcher with its option --quiet only
    expected = [{row: 1 / 16 for row in range(begin, begin + 16)} for begin in range(0, sides.NUM_ROWS, 16)]
    record = folder / "plain"
    timed(sides.plain_command("missing_processes", record, words, epochs=1, shuffle=False))
    num_runs = len(list(record.glob("steps-*")))
    note = f"{num_runs} run{'s' * (num_runs > 1)} of 1 process with steps of {len(rows.steps(record)[0])} rows, not 16"
    plain = sides.compared(record, expected, note)
    out = folder / "here"
    code, errors = sides.attempt(sides.train_command(sides.prepared(folder.parent), out, words, max_epochs=1))
    num_wrong = rows.misplaced(rows.steps(sides.record_of(out)), expected) if code == 0 else 0
    is_refused = code != 0 and "asks for 2 processes" in errors and not sides.record_of(out).exists()
    here = sides.Side(wrong_rows=num_wrong, note="refused" if is_refused else f"exit code {code}")
    return {" ".join(OPTIONS): plain}, here
