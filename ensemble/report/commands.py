"""The last lines of the report: the commands that reproduce it."""

import json
import shlex
from pathlib import Path
from typing import Any

from ensemble import configuration, folders, recipe
from ensemble.pipeline.settings import FILE
from ensemble.predictor import members
from ensemble.report.run import Run


def commands(run: Run) -> list[str]:
    """The commands that reproduce the report, to be run in the project's folder; raw files are named without their folders.

    If scripts/fit.py wrote all folders, this is its command. Otherwise there is a command for each step, with all settings
    of data (but empty ones) and of members, since defaults may change.
    """
    manifest, data, predictions = run.manifest, run.folder_of["data"], run.folder_of["predictions"]
    if fit := _one_command(run):
        return [shlex.join(fit)]
    lines = [[*_prepare(run), *settings_words({"out": data})]]
    trained = [member for member in run.members if member.folder]
    for member in {member.folder: member for member in trained}.values():  # one member may be predicted in several ways
        script = ["python", "scripts/train_trees.py"]
        if member.summary["kind"] not in members.TREES:
            script = [*launcher(member.summary), "scripts/train.py", "--recipe", member.summary["recipe"]]
        settings = {key: value for key, value in member.settings.items() if key not in ("data", "out", "overwrite")}
        if "max_seconds" in member.summary:  # of a network with a refit, whose settings have a share of it
            settings["max_seconds"] = member.summary["max_seconds"]
        for copy in member.copies:
            fold = data if copy == member.folder else data / "folds" / copy.name
            lines.append([*script, *settings_words({"data": fold, "out": copy, **settings})])
    predicted = [
        {"member": member.folder, "data": data, "out": predictions, "name": member.name, **member.options}
        for member in trained
    ]
    baselines = [name for name in run.scores["scores"] if name in members.baselines(manifest)]
    predicted += [{"member": name, "data": data, "out": predictions} for name in baselines]
    lines += [["python", "scripts/predict.py", *settings_words(settings)] for settings in predicted]
    fit_settings = {
        "predictions": predictions,
        "data": data,
        "out": run.folder_of["ensemble"],
        "on": run.scores["fitted_on"],
    }
    fit_words = settings_words({**fit_settings, **run.scores.get("settings", {})})
    lines.append(["python", "scripts/ensemble_predictor.py", "fit", *fit_words])
    scaling = {"scaling": f"[{','.join(benchmark['file'] for benchmark in run.scaling)}]"} if run.scaling else {}
    lines.append(["python", "scripts/report.py", *settings_words({**run.folder_of, **scaling, "out": "report.html"})])
    option = [] if run.recipe.name in recipe.BUILT_IN else ["--recipe", run.recipe.name]
    return [shlex.join(line if "--recipe" in line else [*line, *option]) for line in lines]


def launcher(summary: dict[str, Any]) -> list[str]:
    """The words of `accelerate launch` for the training of a network on one machine. summary : summary.json of the run."""
    hardware = "gpu" if "cuda" in str(summary.get("device")) else "cpu"
    ranks = summary.get("ranks", 1)
    words = ["accelerate", "launch", "--config_file"]
    if ranks == 1:
        return [*words, f"accelerate_configs/single_{hardware}.yaml"]
    sharded = "_sharded" if summary.get("sharded") else ""
    return [*words, f"accelerate_configs/multi_{hardware}{sharded}.yaml", "--num_processes", str(ranks)]


def _one_command(run: Run) -> list[str]:
    """The words of the scripts/fit.py command if it wrote the ensemble, the data and the predictions; else []."""
    out = run.folder_of["ensemble"].parent
    if not (out / FILE).is_file() or any(folder.parent != out for folder in run.folder_of.values()):
        return []
    content = folders.read_json(out / FILE)
    if not isinstance(content, dict) or content.get("written_by") != folders.MARK:
        return []
    settings = {name: value for name, value in content["settings"].items() if value not in ("", [])}
    raw = {name: settings.pop(name) for name in ("source", "metadata") if name in settings}
    for name, paths in raw.items():
        raw[name] = _without_folder(paths) if isinstance(paths, str) else [_without_folder(path) for path in paths]
    words = settings_words({**raw, **settings, **content.get("limits", {}), "out": out})
    return ["python", "scripts/fit.py", "--recipe", content["recipe"], *words]


def _without_folder(path: str) -> str:
    """The name of a file; hub:CATEGORY unchanged."""
    return path if path.startswith("hub:") else Path(path).name


def _prepare(run: Run) -> list[str]:
    """The words of the command that prepared the data, by the recipe's `page.prepare_words` if there is one."""
    script = ["python", "scripts/prepare_data.py"]
    if run.recipe.name != recipe.DEFAULT:
        script += ["--recipe", run.recipe.name]
    words = run.recipe.get("page", "prepare_words") or _prepare_words
    return [*script, *words(run.manifest)]


def _prepare_words(manifest: dict[str, Any]) -> list[str]:
    """The `key=value` words of the sources and of all settings in the manifest that are not empty."""
    settings = {name: value for name, value in manifest["config"].items() if value not in ("", [])}
    source = {"source": [file["name"] for file in manifest["sources"]]} if manifest.get("sources") else {}
    return settings_words({**source, **settings})


def settings_words(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """The `key=value` words of nested settings, with `${` escaped, which would begin the name of another setting.

    A dict of texts is one word of JSON, and so is a dict with a key that is no identifier. In words of their own such texts
    would be read as YAML, where # begins a comment, and a dot in a key would separate two keys.
    """
    words = []
    for key, value in settings.items():
        is_nested = isinstance(value, dict) and all(map(str.isidentifier, value))
        if is_nested and not (value and all(isinstance(inner, str) for inner in value.values())):
            words += settings_words(value, f"{prefix}{key}.")
        else:
            value = configuration.literal(str(value) if isinstance(value, Path) else value)
            words.append(f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return words
