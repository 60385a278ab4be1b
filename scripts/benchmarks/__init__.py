"""The measurements behind the figures of the READMEs; scripts/benchmark.py runs them."""
