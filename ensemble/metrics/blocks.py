"""Blocks of rows with equal predictions, which are treated as one, so that no score depends on the order of the rows."""

import numpy as np


def starts_of(*sorted_columns: np.ndarray) -> np.ndarray:
    """The positions at which any of the sorted columns has a new value."""
    changes = np.any([column[1:] != column[:-1] for column in sorted_columns], axis=0)
    return np.flatnonzero(np.append(True, changes))
