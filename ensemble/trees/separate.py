"""Copies of libraries that cannot add one tree at a time: each is trained by itself (cat.py, linear.py)."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.trees.boosting import Stopped, Training


def train_separately(
    num_copies: int,
    seconds: float,
    training: Training,
    load: Callable[[bytes], Any],
    train: Callable[[int, Callable[[], bool]], tuple[Any, np.ndarray]],
    run: Callable[..., Any],
) -> list[tuple[Any, np.ndarray]]:
    """Train each copy by itself; returns models and losses, (T,).

    seconds : for each copy. load : makes a model of a stored copy. train : trains the copy with this number, until the
    function returns true. run : maps a function over numbers, several at once. Raises `Stopped`.
    """

    def train_in_time(number: int) -> tuple[Any, np.ndarray]:
        if number in training.stored_copies:
            copy = training.stored_copies[number]
            return load(copy.model), copy.predictions
        began = time.monotonic()
        return train(number, lambda: bool(training.stop_requested()) or time.monotonic() - began > seconds)

    results = list(run(train_in_time, range(num_copies)))
    if training.stop_requested():
        raise Stopped
    return results
