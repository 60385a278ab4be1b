"""Export a trained member to one file for other programs.

Before the file is written, its predictions are compared with those of the member.

python scripts/export_model.py member=runs/mine/members/xgboost out=runs/mine/xgboost.onnx data=runs/mine/prepared
python scripts/export_model.py member=runs/sea_ice/members/mlp out=runs/sea_ice/mlp.pt2 data=runs/sea_ice/prepared

XGBoost and LightGBM with one model (no folds, num_refits=1) are exported to ONNX, which needs
pip install 'accelerate-ensemble[export]'; neural members to formats of their recipe.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from ensemble import errors, folders, recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The member to export, and the file to write."""

    member: str = "???"
    """The folder of a trained member."""
    out: str = "???"
    """The file to write. An existing file is replaced only if it is empty or this project wrote it."""
    data: str = ""
    """The prepared data of the training, required for a neural member. For trees they are optional: with them, predictions
    are also compared on their test split, and the file contains the names of categories."""
    dtype: Literal["float32", "float64"] = "float32"
    """The dtype of inputs and outputs in the file of a neural member."""


def main() -> None:
    settings, recipe_name = recipe.from_command_line(ExportConfig, __doc__)

    from ensemble.predictor import bag, members

    member = Path(settings.member)
    if (copies := bag.copies(member)) != [member]:
        raise errors.UserError(
            f"{member} is a bag of {len(copies)} models, and an exported file holds one: name one of its folders, such as "
            f"member={copies[-1]}"
        )
    kind = bag.kind_of(member)
    if kind == "neural":
        return export_neural(settings, recipe_name)
    if kind not in members.TREES:
        raise errors.UserError(f"{settings.member} is of kind '{kind}', which cannot be exported: name another member")
    if settings.dtype != "float32":
        raise errors.UserError(
            f"dtype={settings.dtype} is for neural members, and {settings.member} holds trees: leave it out"
        )

    recipe.check_named(recipe_name, folders.read_json(member / "summary.json"), settings.member)

    from ensemble.trees import threads

    threads.configure(1)

    from ensemble.trees import export

    result = export.export(settings.member, settings.out, settings.data)
    print(f"{settings.out}: differs by {result['difference']:.1e} at most on {result['rows']:,} rows")
    if result["neutral"]:
        names = ", ".join(result["neutral"][:5]) + (", …" if len(result["neutral"]) > 5 else "")
        print(
            f"values of {len(result['neutral'])} features ({names}) that were not in the training data, such as missing "
            "ones, get a neutral prediction, as from predict.py; rows with such values take longer"
        )
    for name in ("onnx", "native"):
        times = result[f"{name}_us"]
        print(f"one row by {name}: median {times['p50']} µs, 99th percentile {times['p99']} µs")


def export_neural(settings: ExportConfig, recipe_name: str) -> None:
    """Export a neural member by the module `export` of its recipe. `recipe_name` is the option --recipe, or empty."""
    if not settings.data:
        raise errors.UserError(f"{settings.member} is a neural member: give data=…, the prepared data that it learned from")
    manifest = folders.read_manifest(settings.data)
    recipe.check_named(recipe_name, manifest, settings.data)
    export = recipe.of(manifest).require("export", "export", "cannot export its networks")
    folders.refuse_foreign_file(Path(settings.out), "exported model")
    for line in export(settings.member, settings.data, settings.out, settings.dtype):
        print(line)


if __name__ == "__main__":
    errors.run(main)
