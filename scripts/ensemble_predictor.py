"""Fit an ensemble on prediction files, or forecast new raw data with it.

python scripts/ensemble_predictor.py --help     # prints the docstring of ensemble/commands/ensemble_predictor.py
"""

from ensemble import errors
from ensemble.commands.ensemble_predictor import main

if __name__ == "__main__":
    errors.run(main)
