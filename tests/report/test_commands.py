"""The commands at the end of the report."""

import dataclasses
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ensemble import configuration, folders, predictions, recipe
from ensemble.commands.ensemble_predictor import PredictConfig
from ensemble.pipeline.settings import config_class
from ensemble.recipes.emulator.settings import NamesConfig, PrepareConfig
from ensemble.report import commands
from ensemble.report.run import Member, read
from ensemble.trees.settings import TreesConfig


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({}, "accelerate launch --config_file accelerate_configs/single_cpu.yaml"),
        ({"ranks": 1, "device": "cuda:0"}, "accelerate launch --config_file accelerate_configs/single_gpu.yaml"),
        ({"ranks": 4, "device": "cpu"},
         "accelerate launch --config_file accelerate_configs/multi_cpu.yaml --num_processes 4"),
        ({"ranks": 8, "device": "cuda:0"},
         "accelerate launch --config_file accelerate_configs/multi_gpu.yaml --num_processes 8"),
        ({"ranks": 8, "device": "cuda:0", "sharded": True},
         "accelerate launch --config_file accelerate_configs/multi_gpu_sharded.yaml --num_processes 8"),
    ],
)  # fmt: skip
def test_the_launcher_starts_the_ranks_of_the_training(summary: dict[str, Any], words: str) -> None:
    """Two ranks would be started, the number in the file, or each rank would hold all of the weights, which may not fit."""
    assert commands.launcher(summary) == words.split()


def test_the_command_of_a_fit_names_the_same_files(tmp_path: Path) -> None:
    """A file `a, b.csv` would become two files, and the column `price ${` or the folder `a${b}` would be refused."""
    settings, out = {"source": ["raw/a, b.csv", "größe ${x}.csv"], "target": r"\${ price ${"}, tmp_path / "a${b}"
    out.mkdir()
    folders.write_json(out / "fit.json", {"written_by": folders.MARK, "recipe": "table", "settings": settings})
    run: Any = SimpleNamespace(manifest={}, folder_of={name: out / name for name in ("data", "ensemble", "predictions")})
    (line,) = commands.commands(run)
    words = shlex.split(line)
    assert words[:4] == ["python", "scripts/fit.py", "--recipe", "table"]
    config = configuration.load(config_class("table"), None, words[4:])
    assert (config.source, config.target) == (("a, b.csv", "größe ${x}.csv"), settings["target"])
    assert config.out == str(out)


def run_of(folder: Path, **summaries: dict[str, Any]) -> Any:
    """A run in a folder, whose members have these entries in summary.json."""
    return SimpleNamespace(
        manifest={"recipe": "hot_sellers", "config": {}},
        recipe=recipe.named("hot_sellers"),
        folder_of={name: folder / name for name in ("data", "ensemble", "predictions")},
        members=[
            Member(name=name, weight=1.0, folder=folder / name, copies=(folder / name,), summary=summary)
            for name, summary in summaries.items()
        ],
        scores={"scores": {"momentum": {}}, "fitted_on": "blend"},
        scaling=[],
    )


def test_the_commands_of_the_steps_name_the_same_folders(tmp_path: Path) -> None:
    """In a folder `a${b}` the commands of a report would end with an error about a setting b."""
    run = run_of(tmp_path / "a${b}", mine={"kind": "xgboost"})
    run.scaling.append({"file": str(tmp_path / "a${b}/scaling.json")})
    folders_of_lines = [
        {word.partition("=")[2].strip("[]") for word in shlex.split(line) if "${" in word} for line in commands.commands(run)
    ]
    data, ensemble, predictions, mine, scaling = (
        configuration.literal(str(path))
        for path in (*run.folder_of.values(), run.members[0].folder, tmp_path / "a${b}/scaling.json")
    )
    assert folders_of_lines == [
        {data}, {data, mine}, {mine, data, predictions}, {data, predictions}, {predictions, data, ensemble},
        {ensemble, data, predictions, scaling},
    ]  # fmt: skip


def test_a_network_of_another_recipe_is_trained_with_that_recipe(tmp_path: Path) -> None:
    """The settings of TabM, which learns from data of any recipe, would be refused by the network of hot_sellers."""
    _, train, *_ = commands.commands(run_of(tmp_path, tabm={"kind": "neural", "recipe": "table"}))
    assert "scripts/train.py --recipe table " in train


def test_the_settings_of_a_prediction_are_kept(copy: Path) -> None:
    """The boards of one symmetric image would be predicted instead of those with the most votes of four."""
    for file in (copy / "predictions").glob("net.*.parquet"):
        stored = predictions.read(file)
        stored.config.update({"starts": 0, "votes": 4, "select": "vote"})
        predictions.write(file, stored)
    run = read(copy / "ensemble", copy / "prepared", copy / "predictions")
    assert [member.options for member in run.members if member.name != "net"] == [{}]
    lines = {word: line for line in map(shlex.split, commands.commands(run)) for word in line}
    assert {"votes=4", "select=vote"} < set(lines["name=net"])
    assert "votes=4" not in lines["name=trees"]


def test_a_network_that_is_predicted_in_two_ways_is_trained_once(tmp_path: Path) -> None:
    """The second command would be refused, since the folder holds a training."""
    run = run_of(tmp_path, once={"kind": "neural", "recipe": "table"})
    run.members.append(dataclasses.replace(run.members[0], name="voted", options={"votes": 4}))
    lines = commands.commands(run)
    assert sum("scripts/train.py" in line for line in lines) == 1
    assert sum("scripts/predict.py" in line for line in lines) == 3


@pytest.mark.parametrize("text", ["@timestamp", "rating #1", "yes", "1.10", "a: b", "[x]", r"\${x}"])
def test_texts_of_a_mapping_are_kept(text: str) -> None:
    """Commands with such names of columns would be refused, or name the column `rating` instead of `rating #1`."""
    words = commands.settings_words({"source": ["a.csv"], "columns": {"time": text, "rating": "stars"}, "until": ""})
    given = configuration.load(PredictConfig, None, [*words, "ensemble=runs/ensemble", "out=out"])
    assert given.columns == {"time": text, "rating": "stars"}
    words = commands.settings_words({"names": {"sst": text, "mask": ""}})
    assert configuration.load(PrepareConfig, None, [*words, "out=out"]).names == NamesConfig(sst=text, mask="")


def test_keys_with_a_dot_are_kept() -> None:
    """The feature sepal.length would become a mapping of sepal, which the command refuses."""
    words = commands.settings_words({"monotone": {"sepal.length": 1, "x": -1}, "search": {"trials": 0, "task": ""}})
    given = configuration.load(TreesConfig, None, [*words, "data=data", "out=out"])
    assert given.monotone == {"sepal.length": 1, "x": -1}
    assert words[1:] == ["search.trials=0", "search.task="]
