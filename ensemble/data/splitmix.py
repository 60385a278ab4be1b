"""SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): random bits as a function of integers, the same on every machine."""

from typing import Any

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of the generator's state."""


def finalised(bits: np.ndarray) -> np.ndarray:
    """The output of the generator for each state, uint64. The function is a permutation of the 64-bit integers; a change of
    one bit of the state changes half of the bits of the output on average."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def mixed(*keys: Any) -> np.ndarray:
    """64 random bits for each combination of integer keys, which are broadcast.

    The bits are a function of the keys: the finaliser of SplitMix64 is applied after each key is added.
    """
    bits: Any = np.zeros(np.broadcast_shapes(*(np.shape(key) for key in keys)), np.uint64)
    for key in keys:
        bits = finalised(bits + np.asarray(key).astype(np.uint64) + GOLDEN)  # arrays wrap around without a warning
    return bits


def uniform(*keys: Any) -> np.ndarray:
    """Random numbers from [0, 1), float64, from the bits of `mixed`."""
    return (mixed(*keys) >> np.uint64(11)) * 2.0**-53
