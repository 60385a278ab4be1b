"""Predict splits with a member.

python scripts/predict.py --help     # prints the docstring of ensemble/commands/predict.py
"""

from ensemble import errors
from ensemble.commands.predict import main

if __name__ == "__main__":
    errors.run(main)
