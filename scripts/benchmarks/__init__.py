"""The measurements behind the figures of the READMEs. `python scripts/benchmark.py NAME` calls the function NAME."""
