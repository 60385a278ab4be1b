"""A trained member to one file for other programs, compared with it first.

python scripts/export_model.py member=runs/demo/members/xgboost out=runs/demo/xgboost.onnx data=runs/demo/prepared
python scripts/export_model.py member=runs/emulator/members/mlp out=runs/emulator/mlp.pt2 data=runs/emulator/prepared

Tree members become ONNX; neural members what their recipe offers. ONNX needs pip install 'accelerate-ensemble[export]'.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from ensemble import errors, recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What to export, and where to."""

    member: str = "???"
    """The folder of a trained member."""
    out: str = "???"
    """The file to write; an older exported model is replaced, no other file is."""
    data: str = ""
    """The prepared data that it learned from: trees are compared on their rows too, and their categories get names; a
    neural member needs it."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of the inputs and outputs of a neural member's file."""


def main() -> None:
    settings, named = recipe.from_command_line(ExportConfig, __doc__)

    from ensemble.predictor import members

    kind = members.kind_in_summary(Path(settings.member))
    if kind == "neural":
        return export_neural(settings, named)
    if kind not in members.TREES:
        raise errors.UserError(f"{settings.member} is of kind '{kind}', which cannot be exported: name another member")
    if settings.dtype != "float32":
        raise errors.UserError(
            f"dtype={settings.dtype} is for neural members, and {settings.member} holds trees: leave it out"
        )

    from ensemble.trees import threads

    threads.settle(1)

    from ensemble.trees import export

    found = export.export(settings.member, settings.out, settings.data)
    print(f"{settings.out}: differs by {found['difference']:.1e} at most on {found['rows']:,} rows")
    if found["neutral"]:
        names = ", ".join(found["neutral"][:5]) + (", …" if len(found["neutral"]) > 5 else "")
        print(
            f"values that training never had in {len(found['neutral'])} features ({names}), such as missing ones, get a "
            "neutral prediction, as from predict.py; such rows take longer"
        )
    for name in ("onnx", "native"):
        print(f"one row by {name}: {found[f'{name}_us']['p50']} µs, one of a hundred over {found[f'{name}_us']['p99']} µs")


def export_neural(settings: ExportConfig, named: str) -> None:
    from ensemble import folders

    if not settings.data:
        raise errors.UserError(f"{settings.member} is a neural member: give data=…, the prepared data that it learned from")
    about = folders.read_manifest(settings.data)
    recipe.check_named(named, about, settings.data)
    export = recipe.of(about).require("export", "export", "cannot export its networks")
    folders.refuse_inside(Path(settings.out))
    folders.refuse_foreign_file(Path(settings.out), "exported model")
    for line in export(settings.member, settings.data, settings.out, settings.dtype):
        print(line)


if __name__ == "__main__":
    errors.run(main)
