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

MANY_FEATURES, BINS, BINS_OF_MANY_FEATURES = 200, 256, 64
"""The largest number of bins of a feature, and the lower one from `MANY_FEATURES` features on. With few rows, most of the
time of a tree is that of its histograms, of which 64 bins leave a third; see CONTRIBUTING.md."""
HISTOGRAM_BYTES, BYTES_OF_A_BIN = 128 << 20, 16
"""The histograms that a booster keeps have at most this number of bytes, or one for each of its values if these are more.
All others are computed again when they are needed. On 2,000 rows of 3,000 features 8 boosters of XGBoost used 6.3 GB."""


def num_bins(num_features: int) -> int:
    """The largest number of bins of a feature."""
    return BINS if num_features < MANY_FEATURES else BINS_OF_MANY_FEATURES


def histogram_bytes(num_rows: int, num_features: int) -> int:
    """The largest number of bytes of the histograms that a booster on these rows keeps."""
    return max(HISTOGRAM_BYTES, num_rows * num_features)


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
