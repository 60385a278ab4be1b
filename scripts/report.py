"""Write a finished run as one HTML page: the forecast, its scores, the members, and the data.

python scripts/report.py ensemble=runs/demo/ensemble data=runs/demo/prepared predictions=runs/demo/predictions \\
    out=runs/demo/report.html
"""

import dataclasses
from typing import Literal

from ensemble import errors, recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The folders of a run, and the page to write."""

    ensemble: str = "???"
    """The folder of a fitted ensemble, which contains the paths of its members' folders."""
    data: str = "???"
    """The prepared data on which it was fitted."""
    verify: Literal["changed", "full"] = "changed"
    """Files of the data whose checksums are verified: those changed since they were last read, or all (full)."""
    predictions: str = "???"
    """The folder of the members' prediction files."""
    out: str = "???"
    """The HTML file to write. An existing file is replaced only if it is empty or this project wrote it."""
    scaling: tuple[str, ...] = ()
    """JSON files of `benchmark.py scaling`, one for each kind of hardware, for a section on training with more ranks."""


def main() -> None:
    settings, recipe_name = recipe.from_command_line(ReportConfig, __doc__)

    from ensemble import folders
    from ensemble.report import page

    if recipe_name or settings.verify == "full":
        recipe.check_named(recipe_name, folders.read_manifest(settings.data, settings.verify == "full"), settings.data)
    path = page.write(settings.ensemble, settings.data, settings.predictions, settings.out, settings.scaling)
    print(f"the report is in {path}")


if __name__ == "__main__":
    errors.run(main)
