"""Further training of a finished network on the rows of validation and blend, from which it did not learn.

    RUN/trial/     the best weights, trained further on train and validation
    RUN/newest/    the best weights, trained further on train, validation and blend: they predict the splits after blend

Splits follow each other in time, and the newest rows resemble those to predict the most. But validation selects the best
weights, and blend must be predicted by a network not trained on it, so that an ensemble can be fitted on it. Whether further
training helps differs between datasets. Therefore the last weights of the trial are scored on blend. Only if they beat the
best weights, `newest` is trained, for as many epochs as the trial. A stopped run continues in the part where it stopped.
"""

import dataclasses
import math
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ensemble import folders
from ensemble.data.inputs import BLEND, LEARNED
from ensemble.errors import UserError
from ensemble.folders import NEWEST, TRIAL
from ensemble.neural import checkpoint, evaluation, launch, loop, runs
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.loader import Batch, Rows
from ensemble.neural.settings import TrainConfig, fitting_batch_size, resolve
from ensemble.recipe import NeuralRecipe
from ensemble.signals import StopSignals

FIRST_SHARE = 0.6
"""The share of `max_seconds` for the training before the trial. The trial gets half of the rest, `newest` what remains."""


class JoinedRows:
    """The rows of several splits, one after the other, as `loader.Rows`; the examples of all must have equal shapes.

    A batch has the tensors that all of its parts have. first_epoch : added to the number of the epoch.
    """

    def __init__(self, parts: list[Rows], first_epoch: int = 0):
        self.parts, self.first_epoch = parts, first_epoch
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        part_of_row = np.searchsorted(self.ends, rows, side="right")
        order = np.argsort(part_of_row, kind="stable")
        begins = self.ends - [len(part) for part in self.parts]
        batches = [
            part.gather(rows[part_of_row == index] - begins[index], self.first_epoch + epoch)
            for index, part in enumerate(self.parts)
            if (part_of_row == index).any()
        ]
        position = torch.from_numpy(np.argsort(order))
        names = [name for name in batches[0] if all(name in batch for batch in batches)]
        return {name: torch.cat([batch[name] for batch in batches])[position] for name in names}


class Continued:
    """A `NeuralRecipe` that trains on all rows of `splits`, from the weights in the folder `start`, without evaluations.
    Everything else is as in the recipe `original`. The epochs of its rows are counted from `num_epochs`.
    """

    monitor = ""

    def __init__(self, original: NeuralRecipe, start: Path, splits: tuple[str, ...], num_epochs: int = 0):
        self._original, self._start, self._splits, self._num_epochs = original, start, splits, num_epochs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def rows(self, split: str) -> Rows:
        if split == "train":
            return JoinedRows([self._original.rows(name) for name in self._splits], self._num_epochs)
        return self._original.rows(split)

    def model(self) -> torch.nn.Module:
        model = self._original.model()
        checkpoint.load_weights(self._start, model)
        return model


def train(
    recipe: NeuralRecipe,
    config: TrainConfig,
    accelerator: Accelerator,
    resume: str = "",
    override: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """`loop.train`, followed by the trial and, if that is better, `newest`; returns the summary of the whole run.

    Its entry `refit` has the scores on blend of the best weights and of the trial's last weights. Raises `UserError` for
    data without the split train, validation or blend, and for examples of different length.
    """
    with launch.together(accelerator):
        _check(recipe, config)
    out, limit_s = Path(config.out), config.max_seconds
    first_limit_s = limit_s * FIRST_SHARE
    if (out / TRIAL / "config.json").exists():  # the first training has ended, and a higher limit would continue it
        first_limit_s = folders.read_json(out / "config.json")["max_seconds"]
    first = dataclasses.replace(config, max_seconds=first_limit_s)
    with StopSignals() as stop:
        summary = loop.train(recipe, first, accelerator, resume, override, profile)
        if summary["status"] == "preempted":
            return summary
        summaries = [summary]

        def continued(part: str, splits: tuple[str, ...], share: float, reserved_s: float = 0.0) -> dict[str, Any]:
            """Train further on `splits` in OUT/`part`, for at most `share` of the remaining time; returns the summary.

            reserved_s : the time that scoring takes afterwards.
            """
            if launch.from_main_process(stop.received):
                return {"status": "preempted", "seconds": 0.0}
            accelerator.free_memory()
            if accelerator.scaler:  # a process that resumes this part has a new one too
                accelerator.scaler = torch.amp.GradScaler(accelerator.device.type)
            remaining_s = limit_s - reserved_s - sum(earlier["seconds"] for earlier in summaries)
            settings = dataclasses.replace(
                config,
                out=str(out / part),
                refit_epochs=0.0,
                max_epochs=config.refit_epochs,
                max_seconds=limit_s and max(1.0, share * remaining_s),
                schedule="linear",
                warmup_steps=0,
                evaluations_per_epoch=1,
            )
            num_epochs = math.ceil(resolve(recipe, config).max_epochs)
            continued_recipe = Continued(recipe, out / "best", splits, num_epochs)
            return loop.train(continued_recipe, settings, accelerator, "auto")

        def score(folder: Path) -> float:
            """The score on blend of the weights in `folder`. The time it takes is added to that of the part trained last."""
            start = time.monotonic()
            value = score_of(folder, recipe, config, accelerator)
            summaries[-1]["seconds"] += time.monotonic() - start
            return value

        with ExitStack() as stack:
            with launch.together(accelerator):
                if accelerator.is_main_process:  # again: the training above has released its lock
                    stack.enter_context(folders.locked(out, "training in", folders.LOCK_WAIT_S))
            stack.enter_context(runs.status_on_error(out, accelerator))
            first_s = summary["seconds"]
            score_before = score(out / "best")
            summaries.append(continued(TRIAL, LEARNED[:-1], 0.5, reserved_s=summary["seconds"] - first_s))
            score_after = score(out / TRIAL / "final") if summaries[-1]["status"] == "done" else None
            is_better = score_after is not None and (
                score_after > score_before if recipe.higher_is_better else score_after < score_before
            )
            if is_better:
                summaries.append(continued(NEWEST, LEARNED, 1.0))
            summary |= {
                "status": summaries[-1]["status"],
                "seconds": round(sum(part["seconds"] for part in summaries), 1),
                "max_seconds": limit_s,  # config.json has that of the first training
                "refit": {"monitor": recipe.monitor, "before": score_before, "after": score_after, "is_better": is_better},
            }
            if accelerator.is_main_process:
                folders.write_json(out / "summary.json", summary)
                runs.end(out, summary["status"])
            accelerator.wait_for_everyone()
    return summary


def _check(recipe: NeuralRecipe, config: TrainConfig) -> None:
    if any(hasattr(recipe.rows(split), "lengths") for split in LEARNED):
        raise UserError(
            f"refit_epochs={config.refit_epochs:g} joins the rows of splits, and examples of the recipe {recipe.name} "
            "differ in length: set refit_epochs=0"
        )


def seconds_of_checkpoints(run: Path, resume: str = "auto") -> float:
    """The seconds of training until the newest checkpoints of a run and of the parts of its refit, added up. If `resume` is
    the folder of a checkpoint, from which a new run starts, the seconds until that checkpoint."""
    seconds, parts = 0.0, (run, run / TRIAL, run / NEWEST)
    newest = [folder for part in parts for folder in folders.checkpoints(part)[-1:]]
    for folder in newest if resume in ("auto", "last") else [Path(resume)]:
        with suppress(UserError, KeyError):  # a damaged one, which is not resumed
            seconds += folders.read_json(folder / "state.json")["progress"]["seconds"]
    return seconds


def with_deadline(config: TrainConfig, deadline_s: float, resume: str) -> TrainConfig:
    """The settings with a `max_seconds` that ends the training at `deadline_s`, in seconds since 1970, or before.

    Raises `UserError` for a deadline that is not finite.
    """
    if not math.isfinite(deadline_s):
        raise UserError(f"--deadline {deadline_s} is impossible: give seconds since 1970, as from `date +%s`")
    earlier_s = seconds_of_checkpoints(Path(config.out), resume) if resume else 0.0  # max_seconds counts them too
    limit_s = earlier_s + max(1.0, deadline_s - time.time())
    return dataclasses.replace(config, max_seconds=min(limit_s, config.max_seconds or limit_s))


def score_of(folder: Path, recipe: NeuralRecipe, config: TrainConfig, accelerator: Accelerator) -> float:
    """The score on blend of the weights in a folder; `UserError` unless it is finite."""
    model, config = Continued(recipe, folder, ()).model().to(accelerator.device), resolve(recipe, config)
    batch_size = fitting_batch_size(folders.read_json(folder / "state.json"), config)
    score = evaluation.score(recipe, model, BLEND, batch_size, accelerator)[recipe.monitor]
    if not math.isfinite(score):
        raise UserError(
            f"{recipe.monitor} of the weights {folder} on the split blend is {score}, but it must be finite to compare "
            "them: set refit_epochs=0"
        )
    return score
