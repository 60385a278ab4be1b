"""The benchmarks of the training loop: both loops do the same work, and a drift of the machine's speed cancels."""

import pytest
import torch
from accelerate import Accelerator
from benchmarks import knobs, overhead

from ensemble.errors import UserError


def test_a_drift_of_the_machine_cancels() -> None:
    """A machine that slows down while it is measured would make the loop that runs second look slow."""
    speeds = [10.0 + 0.5 * number for number in range(9)]
    figures = overhead.compared(speeds[0::2], [1.25 * value for value in speeds[1::2]])
    assert figures["ratio"] == {"median": 1.25, "quartile_1": 1.25, "quartile_3": 1.25}
    assert figures["plain_by_plain"] == {"median": 1.0, "quartile_1": 1.0, "quartile_3": 1.0}


@pytest.mark.parametrize(("model", "bound"), [("mlp", 1e-3), ("transformer", 0.05)])
def test_both_loops_do_the_same_work(model: str, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loop would be faster because it does less: fewer steps, other batches, no clipping, no schedule.

    The gradient of attention's key biases is only rounding error, which AdamW turns into steps: up to 2 % of the distance.
    """
    torch.set_num_threads(1)
    monkeypatch.setattr(overhead.MODELS[model], "num_steps", 70)  # warm-up, then cosine
    accelerator, recipe = Accelerator(cpu=True), overhead.Regression(model)
    models: list[torch.nn.Module] = []
    monkeypatch.setattr(recipe, "model", lambda: models.append(recipe.kind()) or models[-1])
    for run in (overhead.plain, overhead.ours):
        assert 0 < overhead.block(run, recipe, accelerator) < 1e4
        assert len(recipe.times) == 70
    torch.manual_seed(0)
    plain_weights, our_weights, begin = (
        torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in (*models, recipe.kind())
    )
    assert (plain_weights - begin).norm() > 0.01 * begin.norm()
    assert (our_weights - plain_weights).norm() < bound * (plain_weights - begin).norm()


def test_too_few_rounds_are_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of measuring would end in a traceback."""
    for module, name, starts, rounds in ((overhead, "overhead", "called", 2), (knobs, "knobs", "prepared_market", 1)):
        monkeypatch.setattr(module, starts, lambda *_: pytest.fail("something was started"))
        with pytest.raises(UserError, match=f"rounds={rounds} is impossible: for quartiles it must be {rounds + 1} or more"):
            getattr(module, name)(rounds)


def test_a_knob_is_compared_with_its_neighbours() -> None:
    """A machine that slows down while it is measured would make every knob look slow."""
    speeds = [10.0, 21.0, 11.0, 23.0, 12.0]  # without, with, without, …
    figures = knobs.compared(speeds[::2], speeds[1::2])
    assert (figures["without"], figures["with"], figures["ratio"], figures["noise"]) == (11.0, 22.0, 2.0, 0.0)
