"""The end of a resumed run: best/, the summary, `patience` with repeated evaluations, and the limit of time."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from toy import Toy

from ensemble import folders
from ensemble.neural import loop
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
