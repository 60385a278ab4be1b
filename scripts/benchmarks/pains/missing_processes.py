"""A launcher starts one process instead of two, or two that do not communicate: accelerate#2741, #2818.

The training then uses other global batches than requested, without a warning. Plain Accelerate reads the rows in order, so
that the rows of each requested step are known.
"""

from pathlib import Path

from benchmarks.pains import rows, sides
from benchmarks.runs import launcher, num_gpus
from benchmarks.timing import ROOT, timed

THREADS = ("accelerate#2741", "accelerate#2818")
YAML = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
num_machines: 1
num_processes: 2
machine_rank: 0
mixed_precision: 'no'
use_cpu: true
"""


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    yaml = folder / "multi_cpu.yaml"
    yaml.write_text(YAML, encoding="utf-8")
    start = launcher(2)[:4]  # the launcher with its option --quiet only
    launches: dict[str, list[str | Path]] = {"--cpu --num_processes 2": [*start, "--cpu", "--num_processes", "2"]}
    if not short:
        launches["distributed_type: MULTI_CPU"] = [*start, "--config_file", yaml]
        if not num_gpus():
            gpu = ROOT / "accelerate_configs" / "multi_gpu.yaml"
            launches["MULTI_GPU without a GPU"] = [*start, "--config_file", gpu, "--mixed_precision", "no"]
    expected = [{row: 1 / 16 for row in range(begin, begin + 16)} for begin in range(0, sides.NUM_ROWS, 16)]
    data = sides.prepared(folder.parent)
    variants, refusals = {}, []
    for number, (name, words) in enumerate(launches.items()):
        record = folder / f"plain-{number}"
        timed(sides.plain_command("missing_processes", record, words, epochs=1, shuffle=False))
        files = list(record.glob("steps-*"))
        size = len(rows.steps(record)[0])
        note = f"{len(files)} run{'s' * (len(files) > 1)} of 1 process with steps of {size} rows, not 16"
        variants[name] = sides.compared(record, expected, note)
        out = folder / f"here-{number}"
        code, errors = sides.attempt(sides.train_command(data, out, words, max_epochs=1))
        num_wrong = rows.misplaced(rows.steps(sides.record_of(out)), expected) if code == 0 else 0
        is_refused = code != 0 and "asks for 2 processes" in errors and not sides.record_of(out).exists()
        refusals.append(sides.Side(wrong_rows=num_wrong, note="refused" if is_refused else f"exit code {code}"))
    return variants, max(refusals, key=lambda side: (side.is_wrong, side.note != "refused"))
