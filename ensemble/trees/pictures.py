"""Bars for features, whatever these are called."""

from collections.abc import Sequence
from typing import Any

LONGEST = 40


def bars(axes: Any, names: Sequence[str], sizes: Any, title: str, **style: Any) -> None:
    """A horizontal bar for each name, the first at the bottom; long names are shortened, and `$` begins no formula."""
    axes.barh(range(len(names)), sizes, **style)
    axes.set_yticks(range(len(names)), [shortened(name) for name in names], parse_math=False)
    axes.set_title(shortened(title, 2 * LONGEST), parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name without its middle, of at most so many characters."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[: longest - half - 1]}…{name[-half:]}"
