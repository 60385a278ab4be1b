"""The report's last lines: the commands that make it again."""

import json
import shlex
from typing import TYPE_CHECKING, Any

from ensemble.data import baseline, candidates
from ensemble.report_words import HOT_SELLERS

if TYPE_CHECKING:
    from ensemble.report import Run


def commands(run: "Run") -> list[str]:
    """The command lines that make this page again, run where the raw files lie: the manifest has their names, no folders.

    The settings of panel and members are written out, since defaults may change.
    """
    about, data, predicted = run.about, run.folders["data"], run.folders["predictions"]
    lines = [[*_prepare(about), f"out={data}"]]
    for member in run.members:
        if member.folder is None:
            continue
        script = ["python", "scripts/train_trees.py"]
        if member.summary["kind"] == "neural":
            hardware = "gpu" if "cuda" in str(member.summary.get("device")) else "cpu"
            number_of = "multi" if member.summary.get("ranks", 1) > 1 else "single"
            launch = ["accelerate", "launch", "--config_file", f"accelerate_configs/{number_of}_{hardware}.yaml"]
            script = [*launch, "scripts/train.py", "--recipe", about["recipe"]]
        settings = {key: value for key, value in member.settings.items() if key not in ("data", "out", "overwrite")}
        lines.append([*script, f"data={data}", f"out={member.folder}", *_settings(settings)])
    for member in run.members:
        if member.folder:
            words = [f"member={member.folder}", f"data={data}", f"out={predicted}", f"name={member.name}"]
            lines.append(["python", "scripts/predict.py", *words])
    for name in run.scores["scores"]:
        if baseline.kind_of(name, about):
            lines.append(["python", "scripts/predict.py", f"member={name}", f"data={data}", f"out={predicted}"])
    fit = [f"predictions={predicted}", f"data={data}", f"out={run.folders['ensemble']}"]
    lines.append(["python", "scripts/ensemble_predictor.py", "fit", *fit])
    scaling = [f"scaling=[{','.join(of['file'] for of in run.scaling)}]"] if run.scaling else []
    folders = [f"{name}={folder}" for name, folder in run.folders.items()]
    lines.append(["python", "scripts/report.py", *folders, *scaling, "out=report.html"])
    return [shlex.join(line) for line in lines]


def _prepare(about: dict[str, Any]) -> list[str]:
    """What prepared the data, from raw files beside which it is run; candidates from folders that no manifest names."""
    script = ["python", "scripts/prepare_data.py"]
    if about["recipe"] == candidates.RECIPE:
        said = {name: about["config"][name] for name in ("num_candidates", "num_learned", "shares", "seed")}
        return [*script, "--recipe", candidates.RECIPE, "data=DATA", "rankings=[RANKINGS]", *_settings(said)]
    if about["recipe"] != HOT_SELLERS:
        said = {name: value for name, value in about["config"].items() if value not in ("", [])}
        source = f"source=[{','.join(file['name'] for file in about['sources'])}]"
        return [*script, "--recipe", about["recipe"], source, *_settings(said)]
    raw = {
        key: [file["file"] for file in about.get(census, {}).get("files", ())]
        for key, census in (("source", "census"), ("metadata", "product_census"))
    }
    files = [f"{key}=[{','.join(names)}]" for key, names in raw.items() if names]
    return [*script, *files, *_settings(about["config"], "panel.")]


def _settings(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """The `key=value` words of nested settings."""
    words = []
    for key, value in settings.items():
        if isinstance(value, dict):
            words += _settings(value, f"{prefix}{key}.")
        else:
            words.append(f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value)}")
    return words
