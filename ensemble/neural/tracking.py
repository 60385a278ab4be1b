"""What a training shows and leaves behind: a progress bar, train.log, val.log, metrics.jsonl, TensorBoard.

Only the main process writes. Files are opened to append, so a resumed run goes on in the same ones; the curves forget what
came after the checkpoint that it goes on from, since those steps come again.
"""

import json
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm


class Tracker:
    """Writes one run's logs into its folder; does nothing on other ranks."""

    def __init__(self, folder: Path, enabled: bool, num_steps: int, first_step: int):
        self.enabled = enabled
        if not enabled:
            return
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)
        _forget_after(first_step, folder / "metrics.jsonl")
        names = ("train.log", "val.log", "metrics.jsonl")
        self._files = {name: (folder / name).open("a", encoding="utf-8") for name in names}
        self._bar = tqdm(total=num_steps, initial=first_step, desc="train", unit=" steps", dynamic_ncols=True)

    def train(self, step: int, values: dict[str, float]) -> None:
        """A training step's loss, learning rate, gradient norm, samples/s."""
        self._write("train", step, values)

    def validation(self, step: int, values: dict[str, float]) -> None:
        self._write("val", step, values)

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
            self._board.close()
            for file in self._files.values():
                file.close()

    def _write(self, kind: str, step: int, values: dict[str, float]) -> None:
        if not self.enabled:
            return
        words = "  ".join(f"{name} {value:.5g}" for name, value in values.items())
        self._line(f"{kind}.log", f"{time.strftime('%Y-%m-%d %H:%M:%S')}  step {step}  {words}")
        entry: dict[str, Any] = {"kind": kind, "step": step, "time_s": round(time.time(), 3), **values}
        self._line("metrics.jsonl", json.dumps(entry))
        for name, value in values.items():
            self._board.add_scalar(f"{kind}/{name}", value, step)
        if kind == "val":
            self.say(f"step {step}  validation  {words}")
        else:
            self._bar.set_postfix({name: f"{values[name]:.4g}" for name in ("loss", "samples_per_s") if name in values})

    def _line(self, name: str, text: str) -> None:
        self._files[name].write(text + "\n")
        self._files[name].flush()


def _forget_after(step: int, file: Path) -> None:
    """Drop the lines of later steps, and a last line that was torn by a kill."""
    if file.exists():
        whole = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        file.write_text("".join(line for line in whole if json.loads(line)["step"] <= step), encoding="utf-8")
