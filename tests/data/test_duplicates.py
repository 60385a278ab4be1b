"""The precision of the times of files, at which duplicates are compared."""

from pathlib import Path

import numpy as np
import pytest

from ensemble.data import duplicates


def test_a_file_without_rows_has_no_precision(capsys: pytest.CaptureFixture[str]) -> None:
    """If `until` drops all rows of a file, the file would be reported as one whose times are days."""
    times = (np.array([1, 2000]), np.array([], int), np.array([0, 1000]))
    units = [duplicates.unit_of(time_ms) for time_ms in times]
    files = [Path("a.csv"), Path("b.csv"), Path("c.csv")]
    duplicates.print_precisions(files[:2], units[:2])
    assert capsys.readouterr().out == ""
    duplicates.print_precisions(files, units)
    assert "(a.csv in milliseconds, c.csv in seconds)" in capsys.readouterr().out
