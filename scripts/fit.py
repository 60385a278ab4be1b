"""Fit an ensemble to raw data and write its report.

python scripts/fit.py --help     # prints the docstring of ensemble/commands/fit.py
"""

from ensemble import errors
from ensemble.commands.fit import main

if __name__ == "__main__":
    errors.run(main)
