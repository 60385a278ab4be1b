"""What a training shows and leaves behind: a progress bar, train.log, val.log, metrics.jsonl, and curves.

Only the main process writes. Files are opened to append, so a resumed run goes on in the same ones; what came after the
checkpoint that it goes on from is forgotten, since those steps come again. Curves are drawn by Accelerate's own trackers.
TensorBoard forgets too. Weights & Biases and trackio cannot: they go on in the same run (its name is in curves.txt), where
the former keeps the first value of a step that comes again and the latter both, which are the same.
"""

import importlib.util
import json
import math
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ensemble import folders
from ensemble.errors import UserError

PROJECT = "accelerate-ensemble"
"""The project that runs are under in Weights & Biases and in trackio."""

BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}<{remaining}{postfix}]"
SHOWN = {
    "loss": "loss {:.4g}",
    "samples_per_s": "{:,.0f} samples/s",
    "data_wait": "waits {:.1%}",
    "mfu": "MFU {:.1%}",
}
"""What of a training step's values the bar shows, and how."""


def require_installed(trackers: Sequence[str]) -> None:
    """Raise `UserError` for a tracker whose package is not there."""
    for name in trackers:
        if importlib.util.find_spec(name) is None:
            mend = "pip install 'accelerate-ensemble[tracking]', or leave it out"
            raise UserError(f"trackers={name} is impossible: the package {name} is not installed: {mend}")


class Tracker:
    """Writes one run's logs into its folder; does nothing on other ranks.

    `trackers` draw the curves: tensorboard, wandb, trackio; the latter two keep `settings` with the run.
    Raises `UserError` for a tracker that cannot start.
    """

    def __init__(
        self,
        folder: Path,
        enabled: bool,
        num_steps: int,
        first_step: int,
        trackers: Sequence[str] = ("tensorboard",),
        settings: dict[str, Any] | None = None,
        evaluated_step: int | None = None,
    ):
        self.enabled = enabled
        if not enabled:
            return
        self._curves = [_start(name, folder, first_step, settings) for name in trackers]
        _forget_after(first_step, first_step if evaluated_step is None else evaluated_step, folder / "metrics.jsonl")
        names = ("train.log", "val.log", "metrics.jsonl")
        self._files = {name: (folder / name).open("a", encoding="utf-8") for name in names}
        # The mean speed since the start foretells the end best: evaluations come in between. In a log file, no bar
        self._bar = tqdm(
            desc="train", total=num_steps, initial=first_step,
            bar_format=BAR, smoothing=0, dynamic_ncols=True, disable=None,
        )  # fmt: skip

    def train(self, step: int, values: dict[str, float]) -> None:
        """A training step's loss, learning rate, gradient norm, and what `Meter.read` found."""
        self._write("train", step, values)

    def validation(self, step: int, values: dict[str, float]) -> None:
        self._write("val", step, values)

    def event(self, step: int, sentence: str, **values: Any) -> None:
        """Something to remember: a skipped step, a rollback. `values` go to metrics.jsonl beside the sentence."""
        if self.enabled:
            self._log("train.log", step, sentence)
            self._entry("event", step, {"event": sentence, **values})
            self.say(f"step {step}  {sentence}")

    def advance(self) -> None:
        if self.enabled:
            self._bar.update()

    def say(self, sentence: str) -> None:
        """A line for the person who watches, above the progress bar."""
        if self.enabled:
            self._bar.write(sentence)

    def close(self) -> None:
        if self.enabled:
            self._bar.close()
            for file in self._files.values():
                file.close()
            for curve in self._curves:
                curve.finish()

    def _write(self, kind: str, step: int, values: dict[str, float]) -> None:
        if not self.enabled:
            return
        words = "  ".join(f"{name} {value:.5g}" for name, value in values.items())
        self._log(f"{kind}.log", step, words)
        self._entry(kind, step, values)
        for curve in self._curves:
            if curve.name == "tensorboard":  # whose own `log` waits for the disk, each time
                for name, value in values.items():
                    curve.tracker.add_scalar(f"{kind}/{name}", value, step)
            else:
                curve.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)
        if kind == "val":
            self.say(f"step {step}  validation  {words}")
        else:
            shown = (form.format(values[name]) for name, form in SHOWN.items() if name in values)
            self._bar.set_postfix_str(", ".join(shown), refresh=False)

    def _log(self, name: str, step: int, words: str) -> None:
        self._line(name, f"{time.strftime('%Y-%m-%d %H:%M:%S')}  step {step}  {words}")

    def _entry(self, kind: str, step: int, values: dict[str, Any]) -> None:
        # JSON knows no NaN: a strict reader would refuse the whole file
        sound = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
        }
        entry = {"kind": kind, "step": step, "time_s": round(time.time(), 3), **sound}
        self._line("metrics.jsonl", json.dumps(entry, ensure_ascii=False))

    def _line(self, name: str, text: str) -> None:
        self._files[name].write(text + "\n")
        self._files[name].flush()


def _start(name: str, folder: Path, first_step: int, settings: dict[str, Any] | None) -> Any:
    """One of Accelerate's trackers, started, or going on in the run that it had in this folder."""
    from accelerate import tracking

    label, run = folder.resolve().name, _run_name(folder)
    again: dict[str, Any] = {"resume": "allow", "config": settings or {}}
    wandb = {"id": run, "name": label, "dir": str(folder), "settings": {"console": "off"}}  # the bar is not to be recorded
    make: dict[str, Callable[[], Any]] = {
        "tensorboard": lambda: tracking.TensorBoardTracker("tensorboard", folder, purge_step=first_step + 1, flush_secs=10),
        "wandb": lambda: tracking.WandBTracker(PROJECT, **wandb, **again),
        "trackio": lambda: tracking.TrackioTracker(PROJECT, name=f"{label}-{run}", **again),
    }
    curve = make[name]()
    try:
        curve.start()
    except Exception as error:  # each library has its own classes: no account, no network, no server
        reason = " ".join(str(error).split())
        raise UserError(f"trackers={name} cannot start ({reason}): mend that, or leave {name} out of trackers") from None
    return curve


def _run_name(folder: Path) -> str:
    """The name of this run for trackers: made once, and kept in its folder."""
    file = folder / "curves.txt"
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:12] + "\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()


def _entries(file: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without one that was torn by a kill."""
    entries = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


def _forget_after(step: int, evaluated_step: int, file: Path) -> None:
    """Drop the lines of later steps, and later evaluations; a kill in between leaves the file as it was."""
    last = {"val": evaluated_step}
    kept = [
        json.dumps(entry, ensure_ascii=False) + "\n"
        for entry in _entries(file)
        if entry["step"] <= last.get(entry["kind"], step)
    ]
    folders.write_text(file, "".join(kept))
