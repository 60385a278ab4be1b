"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuData(Results):
    """Puzzles generated, solved, compared and transformed a CPU second, on one thread; two minutes."""

    rounds: int = 5
    """Pieces of work of ours, each followed by one of plain Python."""
    clues_17: str = ""
    """A file of 9 × 9 puzzles with 17 clues, one on each line, such as G. Royle's list; empty to leave them out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuDemo(Results):
    """Networks of the preset sudoku_demo trained and tested, each two CPU minutes."""

    seeds: int = 3
    """Trainings of TRM; the network without recursion has one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuNine(Results):
    """The preset sudoku_9x9_cpu trained and tested by number of clues, on one thread."""

    folder: str = "runs/sudoku_9x9"
    """Where data and trainings are kept; the command goes on with what is there."""
    clues: tuple[int, ...] = (45, 36, 30)
    """Given digits of each puzzle."""
    epochs: int = 0
    """Of each training; 0 for the preset's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuSelection(Results):
    """Latent starts, symmetries and several networks side by side, at equal cost; three CPU minutes."""

    epochs: int = 4
    """Of the network that is trained alone; short, so that some puzzles fail."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuTable(Results):
    """Steps of SparseSignSGD on a large table: CPU time, and memory beside the table; it takes 5 GB."""

    num_rows: int = 10_000_000
    """Rows of the table."""
    width: int = 128
    """Columns of the table."""
    batch_size: int = 768
    """Uses in each step, of rows drawn at random."""
    steps: int = 100
    """Steps to train."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuThroughput(Results):
    """Training steps beside those of the reference models, in turn, on one thread; ten CPU minutes."""

    hrm: str = ""
    """A folder with the source of sapientinc/HRM; empty to leave it out."""
    trm: str = ""
    """A folder with the source of SamsungSAILMontreal/TinyRecursiveModels; empty to leave it out."""
    widths: tuple[int, ...] = (64, 128, 256)
    """Widths of the latent states; multiples of 32, the width of a head."""
    batch_size: int = 128
    """Puzzles of a step."""
    rounds: int = 3
    """Timed steps of ours; the reference has one more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuCompile:
    """The first puzzles of a process, which `sudoku_data` times; it writes no JSON."""

    num_puzzles: int = 10
    """Puzzles of side 6 to generate, solve and bring to their canonical form."""


SCHEMAS: dict[str, type] = {
    "sudoku_data": SudokuData,
    "sudoku_demo": SudokuDemo,
    "sudoku_9x9": SudokuNine,
    "sudoku_selection": SudokuSelection,
    "sudoku_table": SudokuTable,
    "sudoku_throughput": SudokuThroughput,
    "sudoku-compile": SudokuCompile,
}
