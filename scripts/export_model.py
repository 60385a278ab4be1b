"""A trained tree member to one ONNX file, compared with it first. It needs pip install 'accelerate-ensemble[export]'.

python scripts/export_model.py member=runs/demo/members/xgboost out=runs/demo/xgboost.onnx data=runs/demo/prepared
"""

import dataclasses
from pathlib import Path

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What to export, and where to."""

    member: str = "???"
    """The folder of a trained member."""
    out: str = "???"
    """The file to write; an older exported model is replaced, no other file is."""
    data: str = ""
    """The prepared data that it learned from, to compare on their rows too, and to name the categories in the file."""


def main() -> None:
    settings = configuration.from_command_line(ExportConfig, __doc__)

    from ensemble.predictor import members

    kind = members.kind_in_summary(Path(settings.member))
    if kind not in members.TREES:
        raise errors.UserError(f"{settings.member} is of kind '{kind}', and only tree members can be exported yet: name one")

    from ensemble.trees import threads

    threads.configure(1)

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


if __name__ == "__main__":
    errors.run(main)
