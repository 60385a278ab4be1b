"""A finished run to one HTML page: the forecast, how good it is, what each member contributed, and the data.

python scripts/report.py ensemble=runs/demo/ensemble data=runs/demo/prepared predictions=runs/demo/predictions \\
    out=runs/demo/report.html
"""

import dataclasses
from typing import Literal

from ensemble import errors, recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What to report on, and where to."""

    ensemble: str = "???"
    """The folder of a fitted ensemble; it names the folders of its members."""
    data: str = "???"
    """The prepared data that it was fitted on."""
    verify: Literal["changed", "full"] = "changed"
    """Prepared data whose checksums are read: files that changed since they were last read, or all files."""
    predictions: str = "???"
    """The folder of the members' prediction files."""
    out: str = "???"
    """The HTML file to write; an older report is replaced, no other file is."""
    scaling: tuple[str, ...] = ()
    """JSON files of `benchmark.py scaling`, each of other hardware: how the training went on more ranks."""


def main() -> None:
    settings, named = recipe.from_command_line(ReportConfig, __doc__)

    from ensemble import folders
    from ensemble.report import page

    if named or settings.verify == "full":
        recipe.check_named(named, folders.read_manifest(settings.data, settings.verify == "full"), settings.data)
    words = (settings.ensemble, settings.data, settings.predictions, settings.out, settings.scaling)
    print(f"the report is in {page.write(*words)}")


if __name__ == "__main__":
    errors.run(main)
