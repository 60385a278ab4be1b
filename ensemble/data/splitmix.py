"""SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): random bits as a function of integers, the same on every machine."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of the generator's state."""


def finalised(bits: np.ndarray) -> np.ndarray:
    """The output of the generator for states, uint64: a permutation in which one changed bit alters half of the bits."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
