"""The benchmarks of sudoku: failures of selection, the import of the references, learning curves and the prototype."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.sudoku import measure, plain, prototype, selection, throughput, training
from benchmarks.timing import timed

from ensemble import folders
from ensemble.errors import UserError
from ensemble.recipes.sudoku import prepare
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.settings import PrepareConfig


def test_failures_of_selection_are_those_that_another_candidate_solves() -> None:
    """A puzzle that no candidate solves, or that the first one solves, would count as a failure of selection."""
    solution = torch.tensor([[1, 2]] * 4)
    right, wrong = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[0.4, 0.6], [0.2, 0.8]])
    each = torch.stack([
        torch.stack([right, wrong, wrong]), torch.stack([wrong, right, right]),
        torch.stack([wrong, wrong, wrong]), torch.stack([wrong, right, wrong]),
    ])  # fmt: skip
    halting = torch.tensor([[0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
    scores = selection.scores_of(each, halting, solution)
    assert scores["failures"] == 3
    assert scores["failures_of_selection"] == pytest.approx(2 / 3)
    assert (scores["first candidate"], scores["any"]) == (0.25, 0.75)
    assert (scores["vote"], scores["surest"]) == (0.25, 0.25)
    assert scores["mean"] == 0.75, "the right candidates are surer than the wrong ones"
    assert selection.scores_of(each[:1], halting[:1], solution[:1])["failures_of_selection"] is None


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


def test_plain_python_solves_puzzles_in_every_round_of_a_small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of plain Python would be that of solving nothing in the rounds after the last puzzle."""
    solved: list[list[int]] = []

    def one_solution(_: plain.Solver, puzzle: list[int], limit: int) -> int:
        solved.append(puzzle)
        return 1

    monkeypatch.setattr(plain.Solver, "num_solutions", one_solution)
    board = board_of(4)
    given, _ = measure.generate(board, clues=0, count=3)
    measure.solving(rounds=2, board=board, given=given, num_plain=2)
    assert len(solved) == 4
    assert solved[3] == solved[0]


def test_the_memory_of_the_benchmark_is_not_that_of_the_first_puzzles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would give the peak memory of the benchmark, which has imported PyTorch, as that of generating puzzles."""
    generate = measure.generate
    small: dict[str, Any] = {"GENERATED": {}, "GENERATED_ONCE": {}, "BATCH": 2, "BATCHES": 1}
    for name, value in small.items():
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(measure, "generate", lambda board, clues, count: generate(board, clues, 2))
    monkeypatch.setattr(measure, "timed", lambda words: {"wall_s": 3.0, "cpu_s": 2.0, "peak_mb": 1.0})
    seconds = {"wall_s": 3.0, "cpu_s": 2.0}
    assert measure.sudoku_data(rounds=1)["first_puzzles"] == {"compiled": seconds, "from_the_cache": seconds}


def test_a_file_of_puzzles_is_checked_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two minutes a misspelt name would be noticed, or that the puzzles have other numbers of clues."""
    monkeypatch.setattr(measure, "generate", lambda *_: pytest.fail("puzzles were generated"))
    (tmp_path / "18.txt").write_text("1" + "0" * 80 + "\n")
    for name, sentence in (("absent.txt", "absent.txt does not exist"), ("18.txt", "another number of clues")):
        with pytest.raises(UserError, match=sentence):
            measure.sudoku_data(clues_17=str(tmp_path / name))


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 × 6 boards, as the prototype needs them."""
    folder = tmp_path_factory.mktemp("six") / "prepared"
    counts = {"num_train": 20, "num_validation": 10, "num_blend": 10, "num_test": 10}
    prepare.prepare(PrepareConfig(out=str(folder), side=6, clues=18, threads=1, **counts))
    return folder


def test_the_prototype_replaces_halted_puzzles_only(six: Path) -> None:
    """Puzzles would be exchanged while they are being solved, or the gradient would reach earlier segments."""
    torch.manual_seed(0)
    model, data = prototype.Prototype(), prototype.Data(six, seed=0)
    puzzle, solution = data.draw(0)
    halted = torch.arange(prototype.BATCH) < 5
    latent = torch.randn(2, prototype.BATCH, prototype.CELLS, prototype.WIDTH)
    carry = prototype.Carry(puzzle, solution, *latent, torch.full((prototype.BATCH,), 3), halted)
    loss, after = prototype.advance(model, carry, data, step=1)
    assert torch.equal((after.puzzle != puzzle).any(dim=1), halted)
    assert torch.equal(after.steps, torch.where(halted, 1, 4))
    assert not after.high.requires_grad
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    restarted = prototype.Carry(puzzle, solution, *torch.zeros_like(latent), carry.steps, halted)
    data = prototype.Data(six, seed=0)
    data.draw(0)
    _, other = prototype.advance(model, restarted, data, step=1)
    same = (other.high == after.high).flatten(1).all(dim=1)
    assert torch.equal(same, halted), "new puzzles begin with the initial states, the others with their own"


def test_the_prototype_has_a_curve(six: Path) -> None:
    """The picture would have no line, or the share of solved test puzzles would be that of another split."""
    used = prototype.time.process_time()
    result = prototype.train(six, 0, used, used / 2)
    assert len(result["curve"]) == 2
    assert 0 <= result["exact"] <= 1
    assert result["cpu_s"] == result["curve"][-1][0] >= result["curve"][0][0]


def test_a_curve_has_cpu_seconds_and_validation_scores(six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points of a curve would be missing, or be at the wall-clock seconds of a machine with other load."""
    monkeypatch.setattr(training.time, "time", lambda: 1000.0)
    lines: list[dict[str, Any]] = [
        {"kind": "train", "step": 1, "time_s": 1001.0},
        {"kind": "val", "exact": 0.5, "time_s": 1008.0},
        {"kind": "val", "exact": 0.75, "time_s": 1014.0},
    ]

    class Commands:
        def train(self, preset: str, data: Path, member: Path, *words: str) -> dict[str, float]:
            member.mkdir()
            (member / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
            return {"cpu_s": 7.0, "wall_s": 14.0}

        def examine(self, member: Path, data: Path) -> dict[str, Any]:
            return {"exact": 0.7, "exact_interval": [0.6, 0.8], "calls": 8.0}

    monkeypatch.setattr(training, "SUDOKU", Commands())
    result = training.train_one(tmp_path / "trm", six, 0, "trm")
    assert result["curve"] == [[4.0, 0.5], [7.0, 0.75]]
    curves = training.curves_9x9({"26": {"curve": {"5": [0.25, 0.5], "10": [0.5, 0.75]}, "steps": 10, "cpu_s": 120.0}})
    assert [values for _, _, values in curves] == [[[1.0, 2.0], [0.25, 0.5]]]
    assert len(training.curves_9x9({str(number): {"curve": {}} for number in range(17, 30)})) == 13  # more than colours
    training.draw(curves, "CPU minutes", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_cpu_seconds_of_an_interrupted_training_count(six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that continued would seem to need the CPU seconds of its last part only."""

    class Commands:
        def prepare(self, data: Path, *words: str) -> None:
            shutil.copytree(six, data)

        def train(self, preset: str, data: Path, member: Path, *words: str) -> dict[str, float]:
            code = 0 if member.exists() else 75
            member.mkdir(exist_ok=True)
            costs = timed([sys.executable, "-c", f"sum(range(10**6)); raise SystemExit({code})"])
            (member / "final").mkdir()
            (member / "metrics.jsonl").touch()
            folders.write_json(member / "config.json", {"max_epochs": 1, "recipe": {}})
            folders.write_json(member / "summary.json", {"status": "done", "steps": 1, "best_step": 1})
            return costs

        def examine(self, member: Path, data: Path) -> dict[str, Any]:
            return dict.fromkeys(("puzzles", "exact", "exact_interval", "blanks", "by_backtracks"))

    monkeypatch.setattr(training, "SUDOKU", Commands())
    with pytest.raises(UserError, match="ended with 75"):
        training.sudoku_9x9(str(tmp_path), (30,), picture="")
    first = folders.read_json(tmp_path / "cpu_s_30.json")["cpu_s"]
    assert training.sudoku_9x9(str(tmp_path), (30,), picture="")["clues"]["30"]["cpu_s"] > first > 0
    with pytest.raises(UserError, match=r"was trained with training=\[\]: give it again"):  # otherwise the old figures
        training.sudoku_9x9(str(tmp_path), (30,), ("max_epochs=4",), picture="")
