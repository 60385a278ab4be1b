"""Serve a fitted ensemble over HTTP.

python scripts/serve.py --help     # prints the docstring of ensemble/commands/serve.py
"""

from ensemble import errors
from ensemble.commands.serve import main

if __name__ == "__main__":
    errors.run(main)
