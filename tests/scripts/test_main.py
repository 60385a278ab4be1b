"""The console command `accelerate-ensemble`."""

import subprocess
import sys

import pytest

PROGRAM = "import sys; sys.argv[0] = '/usr/bin/accelerate-ensemble'; from ensemble.commands.main import main; main()"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("command", ["fit", "predict", "serve"])
def test_the_help_names_the_command_as_it_is_written(command: str) -> None:
    """The usage would be that of a command which does not exist, such as `accelerate-ensemble predict predict`."""
    done = run(command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: accelerate-ensemble {command} [-h]")


def test_a_command_that_does_not_exist_is_refused() -> None:
    """A misspelt command would end in a traceback."""
    done = run("fitt")
    message = "error: there is no command 'fitt': write fit, predict, serve or --help\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("command", ["fit", "ensemble_predictor", "serve"])
def test_the_module_of_a_command_runs_it(command: str) -> None:
    """Where the command is not installed, `python -m ensemble.commands.serve …` would end at once, as if all were well."""
    words = [sys.executable, "-m", f"ensemble.commands.{command}", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout[:6]) == (0, "usage:"), done.stderr
