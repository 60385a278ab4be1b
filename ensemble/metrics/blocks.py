"""Blocks: runs of rows with equal predictions, which are always treated as one, so that no score depends on their order."""

import numpy as np


def starts_of(*sorted_columns: np.ndarray) -> np.ndarray:
    """Positions at which any of the sorted columns takes a new value."""
    changes = np.any([column[1:] != column[:-1] for column in sorted_columns], axis=0)
    return np.flatnonzero(np.append(True, changes))
