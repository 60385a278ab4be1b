"""The console command `accelerate-ensemble`: its first word names what is done."""

import importlib
import sys

from ensemble import errors

COMMANDS = {
    "fit": ("ensemble.commands.fit", "raw data to a fitted ensemble with its report"),
    "predict": ("ensemble.commands.ensemble_predictor", "forecast new rows with a fitted ensemble"),
}
"""Of each word the module, and what it does."""


def main() -> None:
    """Run the command that the command line names; `--help` after its name describes its settings."""
    errors.run(_main)


def _main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if word in ("-h", "--help"):
        print("usage: accelerate-ensemble COMMAND [settings]\n")
        print("\n".join(f"  {name:<9} {what}" for name, (_, what) in COMMANDS.items()))
        return
    if word not in COMMANDS:
        raise errors.UserError(f"there is no command '{word}': write {' or '.join(COMMANDS)}, or --help")
    # `predict` is one of two words that scripts/ensemble_predictor.py takes
    sys.argv = [f"{sys.argv[0]} {word}", *(["predict"] if word == "predict" else []), *sys.argv[2:]]
    importlib.import_module(COMMANDS[word][0]).main()
