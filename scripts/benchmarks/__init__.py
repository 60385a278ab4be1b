"""The measurements behind the README's figures; scripts/benchmark.py."""
