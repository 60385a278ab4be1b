"""Export a trained tree member to one ONNX file, after comparing both: pip install 'accelerate-ensemble[export]'.

python scripts/export_model.py member=runs/demo/members/xgboost out=runs/demo/xgboost.onnx data=runs/demo/prepared
"""

import dataclasses
from pathlib import Path

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The member to export, and the file to write."""

    member: str = "???"
    """The folder of a trained member."""
    out: str = "???"
    """The file to write; only an older exported model is replaced."""
    data: str = ""
    """The prepared data of the training, to compare on their rows too, and to name the categories in the file."""


def main() -> None:
    settings = configuration.from_command_line(ExportConfig, __doc__)

    from ensemble.predictor import members

    kind = members.kind_in_summary(Path(settings.member))
    if kind not in members.TREES:
        raise errors.UserError(f"{settings.member} is of kind '{kind}', and only tree members can be exported yet: name one")

    from ensemble.trees import threads

    threads.configure(1)

    from ensemble.trees import export

    result = export.export(settings.member, settings.out, settings.data)
    print(f"{settings.out}: differs by {result['difference']:.1e} at most on {result['rows']:,} rows")
    if result["neutral"]:
        names = ", ".join(result["neutral"][:5]) + (", …" if len(result["neutral"]) > 5 else "")
        print(
            f"values that training never had in {len(result['neutral'])} features ({names}), such as missing ones, get a "
            "neutral prediction, as from predict.py; such rows take longer"
        )
    for name in ("onnx", "native"):
        print(f"one row by {name}: {result[f'{name}_us']['p50']} µs, one of a hundred over {result[f'{name}_us']['p99']} µs")


if __name__ == "__main__":
    errors.run(main)
