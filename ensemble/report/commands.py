"""The report's last lines: the commands that make it again."""

import json
import shlex
from pathlib import Path
from typing import Any

from ensemble import folders, recipe
from ensemble.pipeline.settings import FILE
from ensemble.predictor import members
from ensemble.report.run import Run


def commands(run: Run) -> list[str]:
    """The command lines that make this page again, run where the raw files lie: the manifest has their names, no folders.

    The settings of panel and members are written out, since defaults may change.
    """
    about, data, predicted = run.about, run.folder_of["data"], run.folder_of["predictions"]
    if fit := _one_command(run):
        return [shlex.join(fit)]
    lines = [[*_prepare(run), f"out={data}"]]
    for member in run.members:
        if member.folder is None:
            continue
        script = ["python", "scripts/train_trees.py"]
        if member.summary["kind"] not in members.TREES:
            hardware = "gpu" if "cuda" in str(member.summary.get("device")) else "cpu"
            number_of = "multi" if member.summary.get("ranks", 1) > 1 else "single"
            launch = ["accelerate", "launch", "--config_file", f"accelerate_configs/{number_of}_{hardware}.yaml"]
            script = [*launch, "scripts/train.py", "--recipe", about["recipe"]]
        settings = {key: value for key, value in member.settings.items() if key not in ("data", "out", "overwrite")}
        lines.append([*script, f"data={data}", f"out={member.folder}", *settings_words(settings)])
    for member in run.members:
        if member.folder:
            words = [f"member={member.folder}", f"data={data}", f"out={predicted}", f"name={member.name}"]
            lines.append(["python", "scripts/predict.py", *words])
    for name in run.scores["scores"]:
        if name in members.baselines(about):
            lines.append(["python", "scripts/predict.py", f"member={name}", f"data={data}", f"out={predicted}"])
    fit = [f"predictions={predicted}", f"data={data}", f"out={run.folder_of['ensemble']}"]
    lines.append(["python", "scripts/ensemble_predictor.py", "fit", *fit])
    scaling = [f"scaling=[{','.join(of['file'] for of in run.scaling)}]"] if run.scaling else []
    where = [f"{name}={folder}" for name, folder in run.folder_of.items()]
    lines.append(["python", "scripts/report.py", *where, *scaling, "out=report.html"])
    named = [] if run.recipe.name in recipe.BUILT_IN else ["--recipe", run.recipe.name]
    return [shlex.join(line if "--recipe" in line else [*line, *named]) for line in lines]


def _one_command(run: Run) -> list[str]:
    """scripts/fit.py with its settings, if it wrote the ensemble, the data and the predictions; else []."""
    out = run.folder_of["ensemble"].parent
    if not (out / FILE).is_file() or any(folder.parent != out for folder in run.folder_of.values()):
        return []
    found = folders.read_json(out / FILE)
    if not isinstance(found, dict) or found.get("written_by") != folders.MARK:
        return []
    named = ["--recipe", found["recipe"]]
    settings = {name: value for name, value in found["settings"].items() if value not in ("", [])}
    raw = {name: settings.pop(name) for name in ("source", "metadata") if name in settings}
    files = [f"{name}=[{','.join(_file_name(file) for file in of)}]" for name, of in raw.items()]
    limits = settings_words(found.get("limits", {}))
    return ["python", "scripts/fit.py", *named, *files, *settings_words(settings), *limits, f"out={out}"]


def _file_name(source: str) -> str:
    """A file is named without its folder, a dataset of the Hub in full."""
    return source if source.startswith("hub:") else Path(source).name


def _prepare(run: Run) -> list[str]:
    """What prepared the data, from raw files beside which it is run; by the recipe, or by what the manifest lists."""
    script = ["python", "scripts/prepare_data.py"]
    if run.recipe.name != recipe.DEFAULT:
        script += ["--recipe", run.recipe.name]
    words = run.recipe.get("page", "prepare_words") or _prepare_words
    return [*script, *words(run.about)]


def _prepare_words(about: dict[str, Any]) -> list[str]:
    settings = {name: value for name, value in about["config"].items() if value not in ("", [])}
    source = [f"source=[{','.join(file['name'] for file in about['sources'])}]"] if about.get("sources") else []
    return [*source, *settings_words(settings)]


def settings_words(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """The `key=value` words of nested settings."""
    words = []
    for key, value in settings.items():
        if isinstance(value, dict):
            words += settings_words(value, f"{prefix}{key}.")
        else:
            words.append(f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value)}")
    return words
