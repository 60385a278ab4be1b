"""Bar charts of features with names of any length and any characters."""

from collections.abc import Sequence
from typing import Any

MAX_LENGTH = 40


def bars(axes: Any, names: Sequence[str], sizes: Any, title: str, **style: Any) -> None:
    """Draw a horizontal bar for each name, from the bottom up. Long names are shortened, and `$` starts no formula."""
    axes.barh(range(len(names)), sizes, **style)
    axes.set_yticks(range(len(names)), [shortened(name) for name in names], parse_math=False)
    axes.set_title(shortened(title, 2 * MAX_LENGTH), parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)


def shortened(name: str, max_length: int = MAX_LENGTH) -> str:
    """A name of at most `max_length` characters, with the middle left out if it is longer."""
    half = (max_length - 1) // 2
    return name if len(name) <= max_length else f"{name[: max_length - half - 1]}…{name[-half:]}"
