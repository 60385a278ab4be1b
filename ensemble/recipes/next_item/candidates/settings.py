"""Settings of the recipe candidates. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Items that next_item members rank highest, as a table for trees and an ensemble to rank again."""

    out: str = "???"
    """The folder of prepared data to write."""
    data: str = "???"
    """The prepared data of next_item that the ranking files are of."""
    rankings: tuple[str, ...] = ()
    """Folders of ranking files, of validation and test, that scripts/predict.py wrote."""
    num_candidates: int = 200
    """The best items of each ranking file that are candidates of a sequence."""
    num_learned: int = 50
    """Candidates of a sequence that are kept in train and validation: the one that was taken, and others drawn at random."""
    shares: tuple[float, float, float] = (0.6, 0.15, 0.25)
    """The parts of the validation sequences that go to train, validation and blend."""
    seed: int = 0
    """Of these draws; with split=leave_one_out also of which user goes where."""
    overwrite: bool = False
    """Replace `out` if it exists."""
