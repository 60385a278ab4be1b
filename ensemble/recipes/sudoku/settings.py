"""Settings of the recipe sudoku. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything that scripts/prepare_data.py takes for sudoku."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files or globs of puzzles to read; empty to generate puzzles. ensemble/recipes/sudoku/readers.py lists the formats."""
    test_source: tuple[str, ...] = ()
    """Files of the test split, if it is published as a file of its own. Puzzles of `source` that are equivalent to one of
    these are left out."""
    side: int = 9
    """Cells of a row: 4, 6, 9 or 16. Boxes are 2 × 2, 2 × 3, 3 × 3 or 4 × 4."""
    clues: int = 0
    """Given digits of a generated puzzle; 0 removes digits until no other can be removed (minimal puzzles)."""
    num_train: int = 1000
    """Puzzles of the train split; -1 for all puzzles of `source` that the other splits leave."""
    num_validation: int = 100
    """Puzzles of the validation split, by which networks stop early."""
    num_blend: int = 100
    """Puzzles of the blend split, on which the ensemble is fitted."""
    num_test: int = 300
    """Puzzles of the test split; with `test_source`, -1 for all of that."""
    seed: int = 0
    """Of the generator, and of the order in which puzzles of `source` are drawn."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the puzzles is malformed, has no solution or has several."""
    threads: int = 0
    """Threads that generate and solve; 0 for the cores that this process was granted. The result does not depend on it."""
    overwrite: bool = False
    """Replace `out` if it exists."""
