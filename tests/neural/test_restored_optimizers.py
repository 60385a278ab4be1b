"""The optimizers of a resumed run: the types of their states, the order of their parameters, and their settings."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from toy import Toy, lines, same_checkpoints

from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.settings import TrainConfig

torch.set_num_threads(1)


class Exact(torch.optim.Optimizer):
    """SGD with a momentum in float64, and a count of steps."""

    def __init__(self, parameters: Any, lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state |= {
                    "sum": torch.zeros_like(parameter, dtype=torch.float64),
                    "count": torch.zeros((), dtype=torch.int64),
                }
            state["count"] += 1
            state["sum"].mul_(0.9).add_(parameter.grad)
            parameter.sub_(state["sum"].float(), alpha=self.param_groups[0]["lr"])


class Given(Toy):
    """A network with two layers of the same shape, in a run that crashes in the fifth step, or a resumed one."""

    is_resumed = False

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(super().model(), torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))


class InExact(Given):
    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        return [Exact(model.parameters(), learning_rate)]


class InAnyOrder(Given):
    """Its parameters are in another order in the resumed run, as those of a set may be."""

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(list(model.parameters())[:: -1 if self.is_resumed else 1], learning_rate)]


class Frozen(Given):
    """The last layer but one is trained at first, and the last one in the resumed run."""

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(model[3 if self.is_resumed else 1].parameters(), learning_rate)]


def resume(toy: Given, config: TrainConfig, accelerator: Accelerator) -> None:
    """Train with the recipe until a crash, and resume the run."""
    toy.crash_at = 5
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator)
    toy.is_resumed, toy.num_micro_batches, toy.crash_at = True, 0, 1000
    loop.train(toy, config, accelerator, "last")


class Named(Given):
    """A group of named parameters in reversed order. Each name is that of its parameter in the model."""

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        self.optimizer = torch.optim.SGD(list(model.named_parameters())[::-1], learning_rate)
        return [self.optimizer]


def test_names_of_parameters_stay_with_them(config: TrainConfig, accelerator: Accelerator) -> None:
    """An optimizer with rules by name would apply them to other parameters, since groups are sorted."""
    named = Named()
    loop.train(named, config, accelerator)
    group = named.optimizer.param_groups[0]
    names = [name for name, _ in named.model().named_parameters()]
    assert group["param_names"] == names
    shapes = [parameter.shape for parameter in named.model().parameters()]
    assert [parameter.shape for parameter in group["params"]] == shapes


@pytest.mark.parametrize("recipe", [InExact, InAnyOrder])
def test_the_state_of_each_parameter_is_restored(
    recipe: type[Given], config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """PyTorch would round the state to float32, or parameters of equal shape would get the moments of each other."""
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    loop.train(recipe(), whole, accelerator)
    resume(recipe(), config, accelerator)
    assert same_checkpoints(whole, config)


class Spiking(Given):
    """The loss of one step is a thousand times that of the others."""

    trained = 0

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        self.optimizer = torch.optim.AdamW(model[self.trained].parameters(), learning_rate, weight_decay=weight_decay)
        return [self.optimizer]

    def spike_at(self, step: int) -> None:
        """The steps are counted from the start of the process."""
        self.at_micro_batch = {1 + step: lambda: setattr(self, "times", 1e3), 2 + step: lambda: setattr(self, "times", 1.0)}


@pytest.mark.parametrize("trained", [0, 1])
def test_a_spike_does_not_restore_the_settings_before_an_override(
    trained: int, config: TrainConfig, accelerator: Accelerator
) -> None:
    """Weight decay would silently return to its earlier value, or the run would end with the advice to override."""
    config = dataclasses.replace(config, spike_factor=20.0, max_epochs=9, checkpoint_steps=24, learning_rate=0.01)
    first, second = Spiking(), Spiking()
    first.crash_at = 25
    with pytest.raises(KeyboardInterrupt):
        loop.train(first, config, accelerator)
    second.trained = trained
    second.spike_at(2)
    changed = dataclasses.replace(config, weight_decay=0.5)
    loop.train(second, changed, accelerator, "last", override=True)
    (event,) = [line["event"] for line in lines(config) if line["kind"] == "event"]
    assert event.endswith("back to the weights of step 24")
    assert second.optimizer.param_groups[0]["weight_decay"] == 0.5
    num_steps = 1 if trained else 25  # step 27 alone, or after the 24 of the checkpoint
    assert {int(state["step"]) for state in second.optimizer.state.values()} == {num_steps}


def test_other_parameters_are_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """After a change of the recipe's code a layer would get the moments of another one of the same shape."""
    with pytest.raises(UserError, match="was written while other parameters were trained: train the same ones, or add"):
        resume(Frozen(), config, accelerator)
