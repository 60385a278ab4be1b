"""The cells that count as empty, and the messages about them."""

from pathlib import Path

import polars as pl
from small_tables import prepare


def test_two_texts_of_one_number_count_its_cells_once(tmp_path: Path) -> None:
    """The message would state twice as many empty cells as there are, or that no cell has one of the texts."""
    columns = {"x": [row if row % 4 else -999 for row in range(120)], "y": [0, 1] * 60}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    for missing in (("-999", "-999.0"), ("-999.0", "-999")):
        manifest = prepare(tmp_path, tmp_path / "a.parquet", missing=missing, overwrite=True)
        notes = [note for note in manifest["notes"] if "-999" in note]
        assert notes == [f"the column 'x' has 30 cells that count as empty: '{missing[0]}' (30)"]
