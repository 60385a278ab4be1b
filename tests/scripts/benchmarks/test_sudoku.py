"""The benchmarks of sudoku: failures of selection, and the import of the references."""

import sys
from pathlib import Path

import pytest
import torch
from benchmarks.sudoku import selection, throughput

from ensemble.errors import UserError


def test_failures_of_selection_are_those_that_another_candidate_solves() -> None:
    """A puzzle that no candidate solves, or that the first one solves, would count as a failure of selection."""
    solution = torch.tensor([[1, 2]] * 4)
    right, wrong = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[0.4, 0.6], [0.2, 0.8]])
    each = torch.stack([
        torch.stack([right, wrong, wrong]), torch.stack([wrong, right, right]),
        torch.stack([wrong, wrong, wrong]), torch.stack([wrong, right, wrong]),
    ])  # fmt: skip
    halting = torch.tensor([[0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
    scores = selection._scores(each, halting, solution)
    assert scores["failures"] == 3
    assert scores["failures_of_selection"] == pytest.approx(2 / 3)
    assert (scores["first candidate"], scores["any"]) == (0.25, 0.75)
    assert (scores["vote"], scores["surest"]) == (0.25, 0.25)
    assert scores["mean"] == 0.75, "the right candidates are surer than the wrong ones"
    assert selection._scores(each[:1], halting[:1], solution[:1])["failures_of_selection"] is None


def test_a_reference_that_is_not_there_is_named(tmp_path: Path) -> None:
    """An ImportError would follow, or the package `models` would remain for the next reference."""
    with pytest.raises(UserError, match=r"trm=.* has no models/recursive_reasoning/trm.py"):
        throughput.sudoku_throughput("", str(tmp_path), (32,), 2, 2)
    with pytest.raises(UserError, match="give the folder of at least one reference"):
        throughput.sudoku_throughput("", "", (32,), 2, 2)
    source = tmp_path / "models" / "recursive_reasoning"
    source.mkdir(parents=True)
    (source / "trm.py").write_text("import einops\n\nclass TinyRecursiveReasoningModel_ACTV1:\n    pass\n")
    (tmp_path / "models" / "losses.py").write_text("class ACTLossHead:\n    pass\n")
    with throughput.imported(tmp_path, "trm") as (model, losses):
        assert (model.__name__, losses.__name__) == ("TinyRecursiveReasoningModel_ACTV1", "ACTLossHead")
        assert str(tmp_path) in sys.path
    assert str(tmp_path) not in sys.path
    assert not [name for name in sys.modules if name.split(".")[0] in ("models", "flash_attn", "einops")]
