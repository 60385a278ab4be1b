"""Insert figures from the JSON files of slurm/results/ into the READMEs.

    python scripts/benchmark.py figures                 # or: make figures
    python scripts/benchmark.py figures check=true      # writes nothing, and fails if a figure differs

In Markdown a figure is between two comments, as slurm/results/README.md describes:

    <!--f help_times train.py/median_s .0f*1000-->45<!--/f-->
"""

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.commands import command
from benchmarks.timing import ROOT
from ensemble import folders
from ensemble.errors import UserError

RESULTS = "slurm/results"
OPENING = "<!--f "
MARKER = re.compile(rf"({OPENING}(\S+) ([^>]+?) ([^\s>]+)-->)(.*?)(<!--/f-->)")
FORMAT = re.compile(r"([^*/]*)(?:([*/])([\d.]+))?")
SHAPES = {
    ("value", "low", "high"): "{} [{}, {}]",
    ("median", "quartile_1", "quartile_3"): "{} ({}, {})",
    ("mean", "deviation"): "{} ± {}",
    ("median", "least"): "{}, {}",
    ("min", "max"): "{} to {}",
}
"""How a dictionary with these keys is written: the format into which the values of the keys are inserted, in this order."""
AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "min": min,
    "max": max,
    "count": len,
    "level": lambda values: sum(value >= 0 for value in values),
    "range": lambda values: {"min": min(values), "max": max(values)},
}
"""By the word before the keys of a figure, the function that makes one value of all values at the keys."""

HOT_SELLERS, EMULATOR = "ensemble/recipes/hot_sellers", "ensemble/recipes/emulator"
NEURAL = ("ensemble/neural", "ensemble/arrow.py", f"{HOT_SELLERS}/model.py", f"{HOT_SELLERS}/training.py")
TREES = ("ensemble/trees", "ensemble/arrow.py", "ensemble/cores.py")
PREPARE = ("ensemble/data", "ensemble/arrow.py", HOT_SELLERS)
JOINING = ("ensemble/combine", "ensemble/metrics", "ensemble/predictor", "ensemble/predictions.py")
PIPELINE = (*PREPARE, *NEURAL, *TREES, *JOINING, "ensemble/pipeline")
NEXT_ITEM = ("ensemble/recipes/next_item", "ensemble/neural")
CODE = {
    "autogluon peers_job real seeds": PIPELINE,
    "checkpoints checkpoints_sharded pains peers_loader peers_loop peers_ranks": ("ensemble/neural", "ensemble/folders.py"),
    "counts": ("scripts/*.py", *PIPELINE, "ensemble/report"),
    "emulator_cpp emulator_dapper emulator_jacobian emulator_memory": (EMULATOR, "ensemble/data", "ensemble/arrow.py"),
    "emulator_lorenz96 emulator_throughput": (EMULATOR, "ensemble/neural"),
    "emulator_skill": (EMULATOR, "ensemble/neural", *TREES, *JOINING),
    "growth": (*PREPARE, *NEURAL, *TREES, "ensemble/recipes/table"),
    "help_times": ("scripts/*.py", "ensemble/configuration.py", "ensemble/recipe.py", "ensemble/errors.py"),
    "exchange knobs loader overhead overhead_gpu": NEURAL,
    "memory panel peers_panel": PREPARE,
    "next_item next_item_growth peers_next_item": NEXT_ITEM,
    "next_item_forecast": (*NEXT_ITEM, *PIPELINE),
    "next_item_beauty next_item_ml-100k": (*NEXT_ITEM, *TREES, *JOINING),
    "gpu roofline": ("ensemble/neural", "ensemble/recipes"),
    "scaling": (*NEURAL, "accelerate_configs"),
    "startup": ("scripts/*.py", "ensemble/commands", "ensemble/neural"),
    "sudoku_9x9 sudoku_data sudoku_demo sudoku_selection sudoku_table sudoku_throughput": (
        "ensemble/recipes/sudoku",
        "ensemble/neural",
    ),
    "fit_overhead tables tables_300s tables_best_quality tables_best_quality_300s tables_by_time tables_further "
    "tables_large": ("ensemble/recipes/table", *PIPELINE),
    "threads trees": TREES,
}
"""For the names of JSON files, the code that they measured. `ages` lists a file if this code has changed since then."""
BENCHMARK = {name: benchmark.module.replace(".", "/") for name, benchmark in commands.known().items()}
MEASURED = {
    name: (*code, *([f"scripts/{BENCHMARK[name]}.py"] if name in BENCHMARK else []))
    for names, code in CODE.items()
    for name in names.split()
}
"""For each name of a JSON file, the code of `CODE` and the file of the benchmark."""


def fill(root: Path = ROOT, check: bool = False) -> int:
    """Fill the figures of all Markdown files under `root`, and return their number.

    With `check` nothing is written: differences are printed, and raise `UserError`.
    """
    num_figures, differences = 0, []
    for path in markdown_files(root):
        old, new = path.read_text(encoding="utf-8"), ""
        for number, line in enumerate(old.splitlines(keepends=True), 1):
            where = f"{path.relative_to(root)}:{number}"
            markers = MARKER.findall(line)
            if line.count(OPENING) != len(markers):
                raise UserError(f"{where} has a marker that is not `{OPENING}FILE KEYS FORMAT-->TEXT<!--/f-->` on one line")
            for before, name, keys, form, text, after in markers:
                filled = figure(root, where, name, keys, form)
                if text != filled:
                    differences.append(f"{where}: {name} {keys}: '{text}' is now '{filled}'")
                    line = line.replace(before + text + after, before + filled + after)
            num_figures += len(markers)
            new += line
        if not check and new != old:
            path.write_text(new, encoding="utf-8")
    if check and differences:
        print("\n".join(differences))
        raise UserError(f"{len(differences)} of {num_figures} figures differ from {RESULTS}: run make figures")
    return num_figures


def figure(root: Path, where: str, name: str, keys: str, form: str) -> str:
    """The text of one figure; `where` is the position of the marker, for the `UserError`."""
    path = root / RESULTS / f"{name}.json"
    if not path.is_file():
        raise UserError(f"{where}: there is no {RESULTS}/{name}.json")
    aggregate, _, address = keys.rpartition(":")
    values = list(select(folders.read_json(path), address.split("/")))
    if not values:
        raise UserError(f"{where}: {RESULTS}/{name}.json has no {address}")
    if (aggregate and aggregate not in AGGREGATES) or bool(aggregate) != ("*" in address.split("/")):
        raise UserError(f"{where}: {keys} needs one of {', '.join(AGGREGATES)} with a key *, and none without")
    try:
        return written(AGGREGATES[aggregate](values) if aggregate else values[0], form)
    except (TypeError, ValueError):
        raise UserError(f"{where}: {keys} of {RESULTS}/{name}.json cannot be written as {form}") from None


def select(node: Any, keys: list[str]) -> Iterator[Any]:
    """The values at a path of `keys` in nested dictionaries and lists; the key * matches every key and index."""
    if not keys:
        yield node
        return
    entries = dict(enumerate(node)) if isinstance(node, list) else node if isinstance(node, dict) else {}
    for key, child in entries.items():
        if keys[0] in ("*", str(key)):
            yield from select(child, keys[1:])


def written(value: Any, form: str) -> str:
    """A value as text. `form` is a format specification, optionally with a factor or divisor, such as .0f*1000.

    The form applies to each value of a dictionary with the keys of one of `SHAPES`. Raises `ValueError` or `TypeError` for a
    form that is invalid or does not suit the value.
    """
    if isinstance(value, dict):
        for keys, shape in SHAPES.items():
            if value.keys() >= set(keys):
                return shape.format(*(written(value[key], form) for key in keys))
    match = FORMAT.fullmatch(form)
    if match is None:
        raise ValueError(form)
    spec, sign, number = match.groups()
    if sign:
        value = value * float(number) if sign == "*" else value / float(number)
    return format(value, spec)


# ------------------------------------------------------------------------------------------------ old figures


def ages(root: Path = ROOT) -> list[str]:
    """A line for each JSON file whose code has changed since it was measured, or whose commit is not in this clone."""
    lines = []
    for path in sorted((root / RESULTS).glob("*.json")):
        recorded = folders.read_json(path).get("environment", {}).get("commit")
        commit = recorded or git(root, "log", "-1", "--format=%H", "--", str(path)).strip()
        measured = MEASURED.get(path.stem)
        changed = changes(root, commit, measured) if commit and measured else None
        if changed is None:
            lines.append(f"{path.stem}.json: unknown: no commit {commit or ''} here, or no entry in MEASURED")
        elif changed:
            more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
            lines.append(f"{path.stem}.json: measured at {commit[:7]}; since then changed: {', '.join(changed[:2])}{more}")
    return lines


def changes(root: Path, commit: str, measured: Sequence[str]) -> list[str] | None:
    """The files of `measured` that changed since `commit`, without those that only moved; None if git has no such commit."""
    if not git(root, "cat-file", "-t", commit):
        return None
    entries = [line.split("\t") for line in git(root, "diff", "--find-renames", "-l0", "--name-status", commit).splitlines()]
    names = [names[-1] for status, *names in entries if status != "R100" and not names[-1].endswith(".md")]
    return [
        name for name in names if any(name.startswith(f"{path}/") or Path("/", name).match(f"/{path}") for path in measured)
    ]


def git(root: Path, *words: str) -> str:
    """The output of a git command; empty if it fails, as without git or outside a repository."""
    try:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def markdown_files(root: Path) -> list[Path]:
    """The Markdown files that git tracks or does not ignore; without git, all outside hidden folders."""
    names = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md").splitlines()
    paths = [root / name for name in names] or list(root.glob("*.md")) + list(root.glob("[!.]*/**/*.md"))
    return sorted(path for path in paths if path.is_file())


@command
def figures(check: bool = False) -> None:
    """Insert figures from slurm/results into the READMEs, and list the JSON files whose measured code has changed since.

    check : write nothing; fail if a figure differs
    """
    num_figures = fill(check=check)
    print(f"{num_figures} figures agree with {RESULTS}")
    for line in ages():
        print(line)
