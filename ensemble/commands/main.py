"""The console command `accelerate-ensemble`, whose first argument is the name of a command."""

import importlib
import sys

from ensemble import errors

COMMANDS = {
    "fit": ("ensemble.commands.fit", "fit an ensemble to raw data and write its report"),
    "predict": ("ensemble.commands.ensemble_predictor", "forecast new rows with a fitted ensemble"),
    "serve": ("ensemble.commands.serve", "answer requests over HTTP with a fitted ensemble"),
}
"""Name of each command: its module and its description."""


def main() -> None:
    """Run the command named on the command line; `--help` after its name describes its settings."""
    errors.run(_main)


def _main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: accelerate-ensemble COMMAND [settings]\n")
        print("\n".join(f"  {command:<9} {description}" for command, (_, description) in COMMANDS.items()))
        return
    if name not in COMMANDS:
        raise errors.UserError(f"there is no command '{name}': write {', '.join(COMMANDS)} or --help")
    if name != "predict":  # `predict` is also the first argument of scripts/ensemble_predictor.py
        sys.argv[:2] = [f"{sys.argv[0]} {name}"]
    importlib.import_module(COMMANDS[name][0]).main()
