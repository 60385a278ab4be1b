"""The settings of a script with subcommands."""

import dataclasses
import sys
from pathlib import Path

import pytest

from ensemble import configuration
from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True)
class Cake:
    """Bake a cake."""

    num_eggs: int = 3
    """Fresh ones."""


@dataclasses.dataclass(frozen=True)
class Oven:
    """Heat the oven."""

    temperature_c: float = 180.0
    """Of the air, in degrees Celsius."""
    mode: str = "air"
    """How the heat is moved."""


def test_subcommands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A script of two commands would read one with the other's settings, or refuse settings after an option."""
    commands = {"bake": Cake, "heat": Oven}
    monkeypatch.setattr(sys, "argv", ["kitchen.py", "heat", "mode=grill"])
    assert configuration.from_subcommands(commands, "Cook.") == ("heat", Oven(mode="grill"))
    monkeypatch.setattr(sys, "argv", ["kitchen.py", "heat", "--config", str(tmp_path / "oven.yaml"), "temperature_c=90"])
    (tmp_path / "oven.yaml").write_text("mode: grill")
    assert configuration.from_subcommands(commands, "Cook.") == ("heat", Oven(mode="grill", temperature_c=90))
    monkeypatch.setattr(sys, "argv", ["kitchen.py", "heat", "num_eggs=2"])
    with pytest.raises(UserError, match="there is no setting 'num_eggs'; known are: temperature_c"):
        configuration.from_subcommands(commands, "Cook.")
    for words, shown in (
        ([], "arguments are required: command"),
        (["boil"], "invalid choice: 'boil'"),
        (["heat", "--hot"], "--hot"),
    ):
        monkeypatch.setattr(sys, "argv", ["kitchen.py", *words])
        with pytest.raises(SystemExit) as error:
            configuration.from_subcommands(commands, "Cook.")
        assert error.value.code == 2
        assert shown in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["kitchen.py", "heat", "--help"])
    with pytest.raises(SystemExit) as error:
        configuration.from_subcommands(commands, "Cook.")
    assert error.value.code == 0
    assert "temperature_c=180.0\n      Of the air, in degrees Celsius." in capsys.readouterr().out
