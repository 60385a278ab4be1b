"""One command from raw data to a fitted ensemble and its report: prepare, train all members, predict, combine, report."""
