"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuData(Results):
    """Puzzles generated, solved, compared and transformed per CPU second, on one thread; two minutes."""

    rounds: int = 5
    """Measurements of this project, each followed by one of plain Python."""
    clues_17: str = ""
    """A file of 9 × 9 puzzles with 17 clues, one on each line, such as G. Royle's list; empty to leave them out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuDemo(Results):
    """The preset sudoku_demo and the research prototype, trained in turn and tested; 18 CPU minutes."""

    seeds: int = 3
    """Trainings of TRM; the other variants have one each."""
    prototypes: int = 1
    """Trainings of the prototype, each before one of TRM."""
    picture: str = "slurm/results/sudoku_demo.png"
    """The file for a picture of the learning curves; empty for none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sudoku_9x9(Results):
    """The preset sudoku_9x9_cpu, trained and tested for several numbers of clues, on one thread."""

    folder: str = "runs/sudoku_9x9"
    """The folder of data and trainings; the command continues with those that it contains."""
    clues: tuple[int, ...] = (45, 36, 30)
    """Numbers of given digits of a puzzle, one training for each."""
    training: tuple[str, ...] = ()
    """Settings of scripts/train.py over the preset, such as [max_epochs=4]."""
    picture: str = "slurm/results/sudoku_9x9.png"
    """The file for a picture of the learning curves; empty for none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuSelection(Results):
    """Latent starts, symmetries and several networks, compared at equal cost; three CPU minutes."""

    epochs: int = 4
    """Epochs of the network that is trained alone; few, so that some puzzles are not solved."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuTable(Results):
    """Steps of SparseSignSGD on a large table: CPU time and memory; it takes 5 GB."""

    num_rows: int = 10_000_000
    """Rows of the table."""
    width: int = 128
    """Columns of the table."""
    batch_size: int = 768
    """Rows drawn at random in each step."""
    steps: int = 100
    """Steps to train."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuThroughput(Results):
    """Training steps, alternately with those of the reference models, on one thread; ten CPU minutes."""

    hrm: str = ""
    """A folder with the source of sapientinc/HRM; empty to leave it out."""
    trm: str = ""
    """A folder with the source of SamsungSAILMontreal/TinyRecursiveModels; empty to leave it out."""
    widths: tuple[int, ...] = (64, 128, 256)
    """Widths of the latent states; multiples of 32, the width of a head."""
    batch_size: int = 128
    """Puzzles in a step."""
    rounds: int = 3
    """Measured steps of this project; the reference has one more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuCompile:
    """The first puzzles of a process that `sudoku_data` starts; it writes no results of its own."""

    num_puzzles: int = 10
    """Puzzles of side 6 to generate, to solve and to compute the canonical form of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SudokuPrototype:
    """One training of the prototype that `sudoku_demo` starts; see prototype.py."""

    data: str = "???"
    """The folder of prepared 6 × 6 boards."""
    out: str = "???"
    """The JSON file for CPU seconds, the learning curve and the share of test puzzles solved."""
    seed: int = 0
    """The seed of weights, drawn puzzles, images and exploration."""
    cpu_s: float = 400.0
    """CPU seconds of the training, imports included, evaluations not."""
    every_cpu_s: float = 25.0
    """CPU seconds from one evaluation on the validation split to the next."""
