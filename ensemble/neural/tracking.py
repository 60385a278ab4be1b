"""Progress bar, log files (train.log, val.log, metrics.jsonl) and experiment trackers of a training.

Only the main process writes. A resumed run appends to the same files. The steps after the checkpoint are repeated, so their
lines in metrics.jsonl are removed first. Metrics go to Accelerate's trackers as well. TensorBoard hides the earlier
values of repeated steps. Weights & Biases and trackio cannot delete values; they continue the same run (its name is in
curves.txt). For a repeated step, Weights & Biases keeps the first value, and trackio both values, which are equal.
"""

import importlib.util
import json
import math
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from ensemble import folders
from ensemble.errors import UserError

PROJECT = "accelerate-ensemble"
"""The name of the project in Weights & Biases and in trackio."""

BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}<{remaining}{postfix}]"
SHOWN = {
    "loss": "loss {:.4g}",
    "samples_per_s": "{:,.0f} samples/s",
    "data_wait": "waits {:.1%}",
    "mfu": "MFU {:.1%}",
}
"""Values in the progress bar, and their formats."""


def require_installed(trackers: Sequence[str]) -> None:
    """Raise `UserError` for a tracker whose package is not installed."""
    for name in trackers:
        if importlib.util.find_spec(name) is None:
            fix = "pip install 'accelerate-ensemble[tracking]', or leave it out"
            raise UserError(f"trackers={name} needs the package {name}, which is not installed: {fix}")


class Tracker:
    """Writes the logs of a run into its folder; does nothing if not `enabled`, as on all ranks but the main process.

    `trackers` may contain tensorboard, wandb and trackio; the latter two store `settings` with the run. Raises `UserError`
    for a tracker that cannot start.
    """

    def __init__(
        self,
        folder: Path,
        enabled: bool,
        num_steps: int,
        first_step: int,
        evaluated_step: int,
        trackers: Sequence[str],
        settings: dict[str, Any],
    ):
        self.enabled = enabled
        if not enabled:
            return
        self._trackers = [_start(name, folder, first_step, settings) for name in trackers]
        _remove_after(first_step, evaluated_step, folder / "metrics.jsonl")
        names = ("train.log", "val.log", "metrics.jsonl")
        self._files = {name: (folder / name).open("a", encoding="utf-8", buffering=1) for name in names}
        # smoothing=0: the mean speed since the start, which includes evaluations. disable=None: no bar in a log file
        self._bar = tqdm(
            desc="train", total=num_steps, initial=first_step,
            bar_format=BAR, smoothing=0, dynamic_ncols=True, disable=None,
        )  # fmt: skip

    def metrics(self, kind: Literal["train", "val"], step: int, values: dict[str, float]) -> None:
        """Log the values of a training step (loss, learning rate, …, and those of `Meter.read`) or the validation scores."""
        if not self.enabled:
            return
        text = "  ".join(f"{name} {value:.5g}" for name, value in values.items())
        self._record(kind, step, text, values)
        for tracker in self._trackers:
            if tracker.name == "tensorboard":  # whose `log` method flushes to the disk each time
                for name, value in values.items():
                    tracker.tracker.add_scalar(f"{kind}/{name}", value, step)
            else:
                tracker.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)
        if kind == "val":
            self.message(f"step {step}  validation  {text}")
        else:
            shown = (form.format(values[name]) for name, form in SHOWN.items() if name in values)
            self._bar.set_postfix_str(", ".join(shown), refresh=False)

    def event(self, step: int, sentence: str) -> None:
        """Log an event, such as a skipped step or a rollback."""
        if self.enabled:
            self._record("event", step, sentence, {"event": sentence})
            self.message(f"step {step}  {sentence}")

    def advance(self, num_steps: int) -> None:
        """Advance the progress bar by a step of the `num_steps` of the run, a number that can change with its speed."""
        if self.enabled:
            self._bar.total = num_steps
            self._bar.update()

    def message(self, sentence: str) -> None:
        """Print a line above the progress bar, if the output is still read: Ctrl-C ends the command of `| tee` first."""
        if self.enabled:
            with suppress(BrokenPipeError):
                self._bar.write(sentence)

    def close(self) -> None:
        if self.enabled:
            self._bar.close()
            for file in self._files.values():
                file.close()
            for tracker in self._trackers:
                tracker.finish()

    def _record(self, kind: str, step: int, text: str, values: dict[str, Any]) -> None:
        """Write a line of text to val.log or train.log, and an entry to metrics.jsonl."""
        log = self._files["val.log" if kind == "val" else "train.log"]
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  step {step}  {text}", file=log)
        # JSON has no NaN: a strict reader would reject the whole file
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
        }
        entry = {"kind": kind, "step": step, "time_s": round(time.time(), 3), **finite}
        print(json.dumps(entry, ensure_ascii=False), file=self._files["metrics.jsonl"])


def _start(name: str, folder: Path, first_step: int, settings: dict[str, Any]) -> Any:
    """Start one of Accelerate's trackers; for a resumed run it continues the curves of that run."""
    from accelerate import tracking

    label, run_name = folder.resolve().name, _run_name(folder)
    common: dict[str, Any] = {"resume": "allow", "config": settings}
    tracker: Any
    if name == "tensorboard":
        tracker = tracking.TensorBoardTracker("tensorboard", folder, purge_step=first_step + 1, flush_secs=10)
    elif name == "wandb":
        # console off: otherwise wandb records the progress bar
        options = {"id": run_name, "name": label, "dir": str(folder), "settings": {"console": "off"}}
        tracker = tracking.WandBTracker(PROJECT, **options, **common)
    else:
        tracker = tracking.TrackioTracker(PROJECT, name=f"{label}-{run_name}", **common)
    try:
        tracker.start()
    except Exception as error:  # each library has its own classes for a missing account, network or server
        reason = " ".join(str(error).split())
        raise UserError(f"trackers={name} cannot start ({reason}): fix that, or leave {name} out of trackers") from None
    return tracker


def _run_name(folder: Path) -> str:
    """The name of this run for trackers, created once and stored in its folder."""
    file = folder / "curves.txt"
    if not file.exists():
        folders.write_text(file, uuid.uuid4().hex[:12] + "\n")
    return file.read_text(encoding="utf-8").strip()


def _remove_after(step: int, evaluated_step: int, file: Path) -> None:
    """Remove the lines after `step`, and evaluations after `evaluated_step`, in one atomic replacement of the file."""
    lines = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        with suppress(ValueError):  # the process was killed while it wrote the line
            entry = json.loads(line)
            if entry["step"] <= (evaluated_step if entry["kind"] == "val" else step):
                lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    folders.write_text(file, "".join(lines))
