"""How much memory a training of trees needs in addition to the mapped data, and the peak memory of this process.

Measured with XGBoost 3.2 and LightGBM 4.7 on 1 and 2 million rows of 50 features with missing values.
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ensemble.memory import available as available
from ensemble.memory import read_numbers

Mode = Literal["in_core", "low"]
STATUS = Path("/proc/self/status")
SAMPLED_ROWS = {"in_core": 200_000, "low": 50_000}
"""Rows, as float64, from which LightGBM computes its bins. LightGBM's own default is 200,000."""


def needed(library: str, num_rows: int, num_features: int, num_classes: int = 1) -> int:
    """An upper bound in bytes for a training in core. num_rows : of training and validation together."""
    if library == "xgboost":
        # Bins of 4 bytes where values are missing, a copy of 1 byte by columns, gradients, scores and their copies
        return int(num_rows * (5.2 * num_features + 55 * num_classes)) + 90_000_000
    # Bins of 1 byte, gradients, scores and row indices, then the sample
    return int(num_rows * (1.1 * num_features + 55 * num_classes)) + 8 * SAMPLED_ROWS["in_core"] * num_features + 20_000_000


def mode_for(needed_bytes: int, left_bytes: int | None) -> Mode:
    return "low" if left_bytes is not None and needed_bytes > left_bytes else "in_core"


def reset_peak() -> None:
    """Let `peak` begin at the present memory, where Linux allows it: a process may train several members."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """The peak memory of this process in MB, mapped files included."""
    with suppress(OSError, KeyError):  # ru_maxrss may be inherited from the process that started this one
        return read_numbers(STATUS)["VmHWM"] / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
