"""Drawing of the report's pictures: matplotlib's SVG with the page's colours, for its light and its dark scheme."""

import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from markupsafe import Markup, escape

from ensemble.commands import imports
from ensemble.report.words import THIN

Paint = Callable[[Any], None]
Picture = tuple[str, str, str, Paint]
"""Title, caption, text for screen readers, and a function that draws into matplotlib's axes."""
NUM_MEMBER_COLOURS = 10
PALETTE = ("ink", "muted", "line", *(f"series-{number}" for number in range(1 + NUM_MEMBER_COLOURS)))
PLANNED_DASHES = (2, 3)
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.5), (7, 1.5, 1.5, 1.5), (3, 3), (9, 3), (1, 3))


def colour(name: str) -> str:
    """A placeholder that `draw` replaces by the page's colour of this name; black, matplotlib's default, becomes its ink."""
    return f"#0000{PALETTE.index(name):02x}"


def series_number(position: int) -> int:
    """The number of a candidate's colour, by its position. The ensemble, at 0, has its own; members share the others."""
    return 1 + (position - 1) % NUM_MEMBER_COLOURS if position else 0


def dashes_of(position: int) -> tuple[float, ...]:
    """The dashes of the line of the candidate at a position. Members with the same colour have different dashes."""
    return DASHES[1 + (position - 1) % (len(DASHES) - 1)] if position else ()


def series_style(position: int) -> dict[str, Any]:
    """matplotlib's arguments for the line of the candidate at a position; the ensemble, at 0, has the thickest line."""
    dashes, width, order = dashes_of(position) or (None, None), (1.5 if position else 2.4), (2.5 if position else 3)
    return {"color": colour(f"series-{series_number(position)}"), "dashes": dashes, "linewidth": width, "zorder": order}


def format_percent(*axes: Any) -> None:
    """Label the ticks of matplotlib's axes, such as `axes.xaxis`, with shares as percentages."""
    for axis in axes:
        axis.set_major_formatter(lambda value, position: f"{100 * value:.0f}{THIN}%")


def format_numbers(*axes: Any) -> None:
    """Numbers with thousands separators; on an axis that reaches 100,000, as 200 k or 1.2 M, and on one that does not reach
    0.0001, as 20 µ or 3 n, which need less room."""
    from matplotlib.ticker import EngFormatter

    short = EngFormatter(sep=THIN)

    def format_number(axis: Any, value: float, position: int | None) -> str:
        is_usual = 1e-4 <= max(map(abs, axis.get_view_interval())) < 1e5
        text = f"{value:,.6g}" if is_usual else short(value)
        return text.replace("-", "−")

    for axis in axes:
        axis.set_major_formatter(partial(format_number, axis))


def picture(title: str, caption: str, label: str, paint: Paint) -> dict[str, Any]:
    """A picture as a dict for the templates, whose `svg` is drawn; the arguments are those of a `Picture`."""
    return {"title": title, "caption": caption, "svg": draw(re.sub(r"\W", "-", title.lower()), paint, label)}


def draw(name: str, paint: Paint, label: str) -> Markup:
    """The axes that `paint` fills, as SVG with the page's colours and font, unique ids, and a text for screen readers."""
    import matplotlib

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 11.5,
        "axes.edgecolor": colour("line"),
        "axes.labelcolor": colour("muted"),
        "axes.grid": True,
        "xtick.major.pad": 7.5,  # otherwise the labels of both axes overlap at the origin
        "grid.color": colour("line"),
        "grid.linewidth": 0.7,
        **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
        **dict.fromkeys(("xtick.color", "ytick.color"), colour("line")),
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), colour("muted")),
        **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0),
    }
    stream, figure_class = io.StringIO(), imports.figure_class()
    with matplotlib.rc_context(style):
        figure = figure_class(figsize=(5, 3.6), layout="constrained")
        paint(figure.add_subplot())
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    svg = stream.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it would apply to the whole page
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r' id="', f' id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{name}-", body)
    body = re.sub(r"#0000([0-9a-f]{2})", lambda match: f"var(--{PALETTE[int(match[1], 16)]})", body)
    return Markup(f'<svg viewBox="0 0 360 259.2" role="img" aria-label="{escape(label)}">{body}')
