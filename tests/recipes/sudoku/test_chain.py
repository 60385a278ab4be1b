"""HRM through every command, from generated puzzles to the page."""

from pathlib import Path

import small_sudokus
from scripts_run import NETWORKS, fork

from ensemble import folders


def test_hrm_goes_through_the_whole_chain(tmp_path: Path) -> None:
    """A stage could not read the output of the previous one for this variant, which has a second module and loss."""
    data, member, predicted, joined, page = (
        tmp_path / name for name in ("prepared", "hrm", "predictions", "ensemble", "a.html")
    )
    counts = [f"num_{split}={number}" for split, number in (("train", 35), ("validation", 10), ("blend", 10), ("test", 10))]
    fork("prepare_data", "--recipe", "sudoku", "side=4", "clues=8", *counts, "threads=1", f"out={data}")
    network = vars(small_sudokus.config(variant="hrm", continue_loss=True, puzzle_embedding=True))
    words = [f"recipe.{name}={value}" for name, value in network.items()]
    settings = ("batch_size=16", "max_epochs=2", "trackers=[]", *words)
    fork("train", "--recipe", "sudoku", f"data={data}", f"out={member}", *settings, libraries=NETWORKS)
    fork("predict", f"member={member}", f"data={data}", f"out={predicted}", libraries=NETWORKS)
    fork("ensemble_predictor", "fit", f"predictions={predicted}", f"data={data}", f"out={joined}")
    fork("report", f"ensemble={joined}", f"data={data}", f"predictions={predicted}", f"out={page}")
    boards = folders.read_json(joined / "ensemble.json")["diversity"]["boards"]
    assert boards.keys() == {"ensemble", "hrm"}
    assert all(scores["puzzles"] == 10 for scores in boards.values())
    text = page.read_text(encoding="utf-8")
    assert "how many puzzles are solved" in text
    assert 'id="traces"' in text
