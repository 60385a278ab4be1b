"""Settings of the recipe candidates. No large library is imported here, so that `--help` is fast."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe candidates."""

    out: str = "???"
    """The folder of prepared data to write."""
    data: str = "???"
    """The prepared data of next_item from which the ranking files were predicted."""
    rankings: tuple[str, ...] = ()
    """Folders with the ranking files of validation and test, and where there are any of forecast, that scripts/predict.py
    wrote."""
    num_candidates: int = 200
    """Number of best items of each ranking file that become candidates of a sequence."""
    num_learned: int = 50
    """Largest number of candidates of a sequence in train and validation: the target, and a random sample of the others."""
    shares: tuple[float, float, float] = (0.6, 0.15, 0.25)
    """Relative numbers of validation sequences for train, validation and blend, divided by their sum."""
    seed: int = 0
    """Random seed of the sample of num_learned; with split=leave_one_out also of the assignment of users to splits."""
    overwrite: bool = False
    """Replace `out` if it exists."""
