"""The end of a resumed run: best/, the summary, `patience` with repeated evaluations, and the limit of time."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from toy import Toy

from ensemble import folders
from ensemble.neural import loop, setup
from ensemble.neural.settings import TrainConfig

torch.set_num_threads(1)


def crash(toy: Toy, at_micro_batch: int, *arguments: Any) -> None:
    """Train until a crash in a micro-batch; `loop.train` gets the other arguments."""
    toy.crash_at = at_micro_batch
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, *arguments)


@pytest.mark.parametrize("later", [0.4, 0.6])
def test_the_best_weights_after_a_checkpoint_count_with_other_settings(
    later: float, config: TrainConfig, accelerator: Accelerator
) -> None:
    """Better weights would be overwritten by worse ones, or the summary would name another step and score than best/."""
    seldom = dataclasses.replace(config, checkpoint_steps=6)
    crash(Toy(scores=lambda number: [0.1, 0.5, 0.9][number - 1]), 11, seldom, accelerator)
    changed = dataclasses.replace(seldom, learning_rate=0.01)
    summary = loop.train(Toy(scores=lambda number: later), changed, accelerator, "last", override=True)
    best = json.loads(Path(config.out, "best/state.json").read_text())
    assert (summary["best_step"], summary["validation_score"]) == (best["step"], best["scores"]["score"]) == (9, 0.9)


def test_patience_does_not_count_repeated_evaluations(config: TrainConfig, accelerator: Accelerator) -> None:
    """On other ranks scores differ in the last bits: the run would stop before the uninterrupted one."""
    patient = dataclasses.replace(config, max_epochs=6, patience=2, checkpoint_steps=3, keep_last=9)
    scores = [0.1, 0.2, 0.9, 0.3, 0.95, 0.5]
    crash(Toy(scores=lambda number: scores[number - 1]), 12, patient, accelerator)
    first, *others = folders.checkpoints(Path(config.out))
    for newer in others:
        shutil.rmtree(newer)
    state = json.loads((first / "state.json").read_text())
    state["progress"]["ranks"] = 2
    (first / "state.json").write_text(json.dumps(state))
    (first / folders.NAME).unlink()
    folders.write_manifest(first, {"kind": "checkpoint"})
    resumed = Toy(scores=lambda number: scores[number] - 1e-6)
    summary = loop.train(resumed, patient, accelerator, "last")
    assert (summary["best_step"], summary["steps"]) == (15, 18)


def test_more_time_for_a_run_that_ended_by_its_limit_is_answered(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command would end at once without a reason."""
    toy = Toy()
    monkeypatch.setattr(setup, "time", SimpleNamespace(monotonic=lambda: 30.0 * toy.num_micro_batches))
    limited = dataclasses.replace(config, max_seconds=130.0)
    steps = loop.train(toy, limited, accelerator)["steps"]
    sentence = f"the run ended at step {steps} by its earlier max_seconds=130: max_seconds=0 continues it to step 12"
    for max_seconds, num_steps, is_answered in ((130.0, steps, False), (1e6, steps, True), (0.0, 12, False)):
        again = dataclasses.replace(config, max_seconds=max_seconds)
        assert loop.train(Toy(), again, accelerator, "last")["steps"] == num_steps
        assert (sentence in capsys.readouterr().out) == is_answered
    assert steps < 12
