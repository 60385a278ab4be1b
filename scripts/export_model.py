"""Export a trained tree member to one ONNX file. It needs pip install 'accelerate-ensemble[export]'.

The predictions of the file are compared with those of the member before it is written.

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
    """The file to write; an older exported model is replaced, no other file is."""
    data: str = ""
    """Its training data, to compare predictions on their rows too, and to store the names of categories; empty for none."""


def main() -> None:
    settings = configuration.from_command_line(ExportConfig, __doc__)

    from ensemble.predictor import members

    kind = members.kind_in_summary(Path(settings.member))
    if kind not in members.TREES:
        raise errors.UserError(f"{settings.member} is of kind '{kind}', and only tree members can be exported yet: name one")

    from ensemble.trees import threads

    threads.settle(1)

    from ensemble.trees import export

    result = export.export(settings.member, settings.out, settings.data)
    print(f"{settings.out}: differs by {result['difference']:.1e} at most on {result['rows']:,} rows")
    if result["neutral"]:
        names = ", ".join(result["neutral"][:5]) + (", …" if len(result["neutral"]) > 5 else "")
        print(
            f"values that were not in the training data in {len(result['neutral'])} features ({names}), such as missing "
            "ones, get a neutral prediction, as from predict.py; such rows take longer"
        )
    for name in ("onnx", "native"):
        times = result[f"{name}_us"]
        print(f"one row by {name}: median {times['p50']} µs, 99th percentile {times['p99']} µs")


if __name__ == "__main__":
    errors.run(main)
