"""The commands for your own reviews in the recipe's README."""

import re
import shlex
from pathlib import Path

import pytest
import scripts_run

README = Path(__file__).resolve().parents[3] / "ensemble/recipes/hot_sellers/README.md"


def commands() -> list[list[str]]:
    """The words of each Python command of the section, without the interpreter; a launch begins with `accelerate`."""
    section = README.read_text(encoding="utf-8").split("\n## Your own reviews\n")[1].split("\n## ")[0]
    block = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("python ", "accelerate "))]


def script_of(words: list[str]) -> int:
    return next(place for place, word in enumerate(words) if word.startswith("scripts/"))


def test_the_commands_lead_from_reviews_to_the_report() -> None:
    """A reader who copies the block would miss a stage, or would not get the report."""
    names = [Path(words[script_of(words)]).stem for words in commands()]
    stages = ["train", "train_trees", "predict", "ensemble_predictor", "report", "ensemble_predictor"]
    assert names == ["prepare_data", "prepare_data", *stages]


@pytest.mark.parametrize("words", commands(), ids=lambda words: Path(words[script_of(words)]).stem)
def test_a_command_is_accepted(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who copies a command would get an error about a setting."""
    monkeypatch.chdir(tmp_path)
    script, *settings = words[script_of(words) :]
    if "hub:All_Beauty" in " ".join(settings):
        settings = [setting.replace("All_Beauty", "None_Such") for setting in settings]  # without the network
    libraries = scripts_run.NETWORKS if Path(script).stem == "train" else scripts_run.TREES
    done = scripts_run.forked(Path(script).stem, *settings, libraries=libraries)
    assert done.returncode == 2
    assert re.search(r"does not exist|no file|there is no prepared data|None_Such", done.stderr), done.stderr
