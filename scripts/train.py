"""Train a neural member with Accelerate.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --help

This prints the docstring of ensemble/commands/train.py.
"""

from ensemble import errors
from ensemble.commands.train import main

if __name__ == "__main__":
    errors.run(main)
