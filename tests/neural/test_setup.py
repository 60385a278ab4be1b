"""Checks before the first step."""

import dataclasses
import json
import sys

import launcher
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from toy import WIDTH, Toy

from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.loader import BatchPlan
from ensemble.neural.settings import TrainConfig
from ensemble.neural.setup import refuse_batch_norm


def test_batch_normalisation_needs_one_rank() -> None:
    """Each rank would be scored with its own running statistics, and a resumed run would have those of rank 0 everywhere."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with pytest.raises(UserError, match=r"the statistics of '1' \(BatchNorm1d\) would differ between the 2 processes"):
        refuse_batch_norm(model, 2, "cuda")
    refuse_batch_norm(model, 1, "cpu")
    refuse_batch_norm(nn.SyncBatchNorm.convert_sync_batchnorm(model), 2, "cuda")
    refuse_batch_norm(nn.GroupNorm(1, 3), 2, "cpu")
    with pytest.raises(UserError, match=r"'1' \(SyncBatchNorm\) works on GPUs only: use LayerNorm or GroupNorm"):
        refuse_batch_norm(nn.SyncBatchNorm.convert_sync_batchnorm(model), 2, "cpu")


def test_the_largest_number_of_epochs_is_a_number_of_steps() -> None:
    """A training that only max_seconds or patience should end would end in a traceback before its first step."""
    assert BatchPlan(10, 2, 0, 1, 0, 0).num_steps(sys.float_info.max) >= 10**300


@pytest.mark.parametrize("micro_batch_size", [0, 5])
def test_batch_normalisation_of_micro_batches_is_named(
    micro_batch_size: int, config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gradient would depend on how the batch is cut, without a message."""

    class Normalised(Toy):
        def model(self) -> nn.Module:
            return super().model().append(nn.BatchNorm1d(3))

    config = dataclasses.replace(config, max_epochs=1, batch_size=10, micro_batch_size=micro_batch_size)
    loop.train(Normalised(), config, accelerator)
    printed = capsys.readouterr()
    sentence = "' normalises with the rows of a micro-batch, so the gradient depends on micro_batch_size=5: use LayerNorm"
    assert (sentence in printed.out + printed.err) == bool(micro_batch_size)


class Target(nn.Module):
    """A moving average of a layer, which each forward pass in training updates."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.average = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.average.weight.lerp_(self.layer.weight.detach(), 0.1)
        return self.layer(x) + self.average(x)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(9, 3, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.vectors(x[:, 0].int().abs())


class Counting(nn.Linear):
    def get_extra_state(self) -> int:
        return 5

    def set_extra_state(self, state: int) -> None:
        pass


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Target(), "the forward pass changes the parameter average.weight, so the weights would depend on the number of"),
        (
            Words(),
            "the gradient of the parameter vectors.weight is sparse, which clipping does not support: set sparse=False",
        ),
        (Counting(WIDTH, 3), "the state of the model contains _extra_state as int: checkpoints have tensors only"),
        (nn.LazyLinear(3), "the parameter weight of the model has no shape yet: give the sizes of lazy modules"),
    ],
    ids=["changed in forward", "sparse", "extra state", "lazy"],
)
def test_a_model_that_cannot_be_trained_gets_one_sentence(
    model: nn.Module, sentence: str, config: TrainConfig, accelerator: Accelerator
) -> None:
    """A resumed run would differ, or PyTorch's traceback would not tell what to change."""

    class Given(Toy):
        def model(self) -> nn.Module:
            return model

    with pytest.raises(UserError, match=sentence):
        loop.train(Given(), config, accelerator)


def test_an_optimizer_that_needs_a_closure_is_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """The first step would end in a TypeError."""

    class Newton(Toy):
        def optimizers(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
            return [torch.optim.LBFGS(model.parameters())]

    with pytest.raises(UserError, match="returns LBFGS, whose `step` needs a closure: choose another one"):
        loop.train(Newton(), config, accelerator)


SLIPS = """
import json
import sys
import torch
from pathlib import Path
from toy import Toy, settings
from ensemble import errors
from ensemble.neural import launch
class Bypass(Toy):
    def model(self):
        self.mine = super().model()
        return self.mine
    def step(self, model, batch, state):
        loss, count, state = super().step(self.mine, batch, state)
        return loss / len(batch["row"]), count, state
class Seen(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("mask", torch.full((2,), -torch.inf))
        self.register_buffer("cache", torch.zeros(()), persistent=False)
    def forward(self, x):
        if self.training:
            self.total += x.detach().sum()
            self.cache = x.detach().sum()
        return x
class Buffer(Toy):
    def model(self):
        return super().model().append(Seen())
class Angles(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.zeros(1, dtype=torch.complex64))
    def forward(self, x):
        if self.training:
            self.angles += 1j * x.detach().sum()
        return x
class ComplexBuffer(Toy):
    def model(self):
        return super().model().append(Angles())
class Unused(Toy):
    def model(self):
        model = super().model()
        model[0].spare = torch.nn.Parameter(torch.zeros(1))
        return model
class Sometimes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        return x * self.scale if len(x) > 5 else x
class UnusedLater(Toy):
    def model(self):
        return super().model().append(Sometimes())
def main():
    folder = Path(sys.argv[1])
    accelerator = launch.start(settings(folder))
    from accelerate.utils import gather_object
    from ensemble.neural import loop
    for recipe in (Bypass, Buffer, ComplexBuffer, Unused, UnusedLater):
        try:
            loop.train(recipe(), settings(folder / recipe.__name__), accelerator)
        except errors.UserError as error:
            lines[recipe.__name__] = str(error)
    drawn = Toy(scores=lambda number: number * (-1) ** accelerator.process_index)
    [best] = gather_object([loop.train(drawn, settings(folder / "drawn"), accelerator)["best_step"]])[1:]
    if accelerator.is_main_process:
        Path("trained.json").write_text(json.dumps({"refused": lines, "best_step_of_rank_1": best}))
lines = {}
errors.run(main)
"""


@dataclasses.dataclass(frozen=True)
class Trainings:
    """The recipes of `SLIPS`, trained one after the other on two ranks."""

    refused: dict[str, str]
    """The sentence of the error of each recipe."""
    best_step_of_rank_1: int
    """In a training of 12 steps whose scores rise on rank 0 and fall on rank 1."""
    printed: str = ""


@pytest.fixture(scope="module")
def slips(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    folder = tmp_path_factory.mktemp("slips")
    (folder / "slips.py").write_text(SLIPS)
    command = [*launcher.ACCELERATE, *launcher.MULTI_CPU, "slips.py", "run"]
    with launcher.started(command, folder, PYTHONPATH=launcher.WITH_HELPERS) as process:
        output, errors = process.communicate(timeout=launcher.TIMEOUT_S)
    assert process.returncode == 0, errors
    return Trainings(**json.loads((folder / "trained.json").read_text()), printed=output + errors)


def test_a_step_that_bypasses_the_given_model_is_refused(slips: Trainings) -> None:
    """DDP would not sum the gradients, and each process would train a model of its own, without a message."""
    assert slips.printed.count("warning: `step` of the recipe returns the loss") == 1, (
        "a mean is noticed by the main process"
    )
    sentence = "the gradients differ between the processes after they were summed: `step` of the recipe must call"
    assert sentence in slips.refused["Bypass"]


@pytest.mark.parametrize(("recipe", "buffer"), [("Buffer", "4.total"), ("ComplexBuffer", "4.angles")])
def test_a_buffer_that_depends_on_the_rows_of_a_rank_is_refused(recipe: str, buffer: str, slips: Trainings) -> None:
    """A checkpoint has that of rank 0 only: a resumed run would differ, and each rank would validate with its own."""
    assert slips.refused[recipe].startswith(f"the buffer '{buffer}' of the model differs between the processes")
    assert "UserWarning: Casting complex" not in slips.printed


def test_a_parameter_without_a_gradient_is_named(slips: Trainings) -> None:
    """DDP's error has several lines, numbers instead of names, and an argument that a recipe cannot give."""
    sentence = "the loss that `step` of the recipe returns does not depend on 0.spare: with several"
    assert slips.refused["Unused"].startswith(sentence)


def test_a_parameter_without_a_gradient_for_some_rows_is_named(slips: Trainings) -> None:
    """The first micro-batch has a gradient of each parameter, so DDP's error would follow a step of wrong gradients."""
    sentence = "the loss that `step` of the recipe returns for some rows does not depend on 4.scale: with several"
    assert slips.refused["UnusedLater"].startswith(sentence)
    assert "Traceback" not in slips.printed


def test_the_scores_of_the_main_process_count(slips: Trainings) -> None:
    """If a metric draws random numbers, or processors round differently, a rank would stop early, and the others wait."""
    assert slips.best_step_of_rank_1 == 12


def test_the_number_of_steps_is_that_of_the_epochs() -> None:
    """Floating point would add a step: 1.1 × 100 is above 110."""
    plan = BatchPlan(1600, 16, 16, 1, 0, 0)
    assert [plan.num_steps(epochs) for epochs in (1, 1.1, 1.101, 0.1, 1e-9)] == [100, 110, 111, 10, 1]
