"""Which networks are loaded: not those of a package that the user did not name, nor those of another recipe. And what a
recipe may predict."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from toy import Toy

from ensemble import folders
from ensemble.data import inputs
from ensemble.errors import UserError
from ensemble.neural import evaluation, loop, predict
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import TrainConfig


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from somebody else, beside a package whose import leaves a file."""
    (tmp_path / "planted").mkdir()
    touch = f"import pathlib\n\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    for name in ("__init__", "settings"):
        (tmp_path / "planted" / f"{name}.py").write_text(touch)
    (tmp_path / "member/best").mkdir(parents=True)
    (tmp_path / "member/best/state.json").write_text(json.dumps({"recipe": "planted", "config": {}}))
    folders.write_manifest(tmp_path / "member/best", {"kind": "weights"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "member"


def test_a_downloaded_network_imports_nothing(member: Path) -> None:
    """A folder from somebody else would run code on this machine by the name of its recipe."""
    with pytest.raises(UserError, match="if you trust that package, add --recipe planted"):
        NeuralMember(member, None, "data")
    assert not (member.parent / "imported").exists()
    assert "planted" not in sys.modules


def test_a_network_of_another_recipe_is_refused(member: Path) -> None:
    """The scores of a Sudoku network, or an export, would end in a traceback after the prediction of all rows."""
    with pytest.raises(
        UserError, match=f"^{member} is a network of the recipe planted, not of sudoku: name another member$"
    ):
        NeuralMember(member, None, "data", of_recipe="sudoku")
    assert not (member.parent / "imported").exists()


def test_a_network_returns_the_columns_of_a_prediction_file(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ensemble would refuse its predictions as those of other rows, and predicting again would not help."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, max_epochs=1), accelerator)
    monkeypatch.setattr(NeuralMember, "recipe_of", lambda *_: toy)
    with_recipe = dataclasses.make_dataclass("_", [("recipe", Any, None)], bases=(TrainConfig,), frozen=True, kw_only=True)
    monkeypatch.setattr(predict, "config_class", lambda _: with_recipe)
    monkeypatch.setattr(inputs, "refuse_foreign", lambda *_: None)
    monkeypatch.setattr(folders, "read_manifest", lambda _: {"recipe": "toy", "task": {"weight": "w"}})
    with pytest.raises(
        UserError, match=r"^predict\(…\) of the recipe toy returns no weight, but the task has weight=w: return"
    ):
        NeuralMember(config.out, accelerator, "data").predict("data", "test")
    monkeypatch.setattr(folders, "read_manifest", lambda _: {"recipe": "toy"})
    with pytest.raises(
        UserError, match="returns no target, but prediction files have targets: return this column as 'target'"
    ):
        NeuralMember(config.out, accelerator, "data").predict("data", "test")


def test_a_batch_that_does_not_fit_into_memory_is_halved(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network trained on a large GPU could not predict on a small one, and no setting would help."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, max_epochs=1), accelerator)
    with_recipe = dataclasses.make_dataclass("_", [("recipe", Any, None)], bases=(TrainConfig,), frozen=True, kw_only=True)
    monkeypatch.setattr(NeuralMember, "recipe_of", lambda *_: toy)
    monkeypatch.setattr(predict, "config_class", lambda _: with_recipe)
    monkeypatch.setattr(inputs, "refuse_foreign", lambda *_: None)
    monkeypatch.setattr(folders, "read_manifest", lambda _: {"recipe": "toy"})
    monkeypatch.setattr(toy, "columns", lambda split, arrays: arrays, raising=False)
    monkeypatch.setattr(toy, "output", "value", raising=False)
    whole = NeuralMember(config.out, accelerator, "data").predict("data", "validation")["prediction"]
    sizes, original = list[int](), toy.predict

    def small_memory(model: Any, batch: Any) -> Any:
        sizes.append(len(batch["row"]))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(model, batch)

    monkeypatch.setattr(toy, "predict", small_memory)
    halved = NeuralMember(config.out, accelerator, "data").predict("data", "validation")["prediction"]
    assert halved == pytest.approx(whole, abs=1e-5)
    assert sizes[0] > 3 >= sizes[-1]
    monkeypatch.setattr(toy, "predict", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        NeuralMember(config.out, accelerator, "data").predict("data", "validation")


@pytest.mark.parametrize(
    ("output", "prediction", "fix"),
    [
        ("probability", torch.full((11,), 1.5), r"return torch.sigmoid\(logits.float\(\)\) if these are logits"),
        ("probabilities", torch.full((11, 3), -0.5), r"return logits.float\(\).softmax\(dim=1\) if these are logits"),
        ("probabilities", torch.zeros(11), r"shape \(11,\), but output=probabilities needs \(B, number of classes\)"),
    ],
)
def test_logits_are_refused_at_the_first_evaluation(
    output: str, prediction: torch.Tensor, fix: str, config: TrainConfig, accelerator: Accelerator
) -> None:
    """The prediction file would refuse them, but only after the whole training."""
    toy = Toy()
    toy.output, toy.predict = output, lambda model, batch: {"prediction": prediction}  # type: ignore[method-assign]
    with pytest.raises(UserError, match=fix):
        loop.train(toy, config, accelerator)


def test_batches_of_other_shapes_are_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """The author of a recipe would see an error of torch.cat, for texts that were padded to the longest of a batch."""
    toy = Toy()
    toy.predict = lambda model, batch: {"prediction": torch.zeros(len(batch["row"]), 2 + int(batch["row"][0]))}  # type: ignore[method-assign]
    with pytest.raises(
        UserError, match=r"without the rows are {'prediction': \(2,\)} for one batch, but {'prediction': \(6,\)} for another"
    ):
        evaluation.predict(toy, toy.model(), "validation", 4, accelerator)
