"""The steps of scripts/fit.py, from raw data to an ensemble and its report: prepare, train, predict, combine, report."""
