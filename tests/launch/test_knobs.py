"""Precision, compilation and the channel between ranks, through the real launcher on two Gloo ranks."""

import json
from pathlib import Path
from typing import Any

import launcher
import pytest
from safetensors.torch import load_file

WORKER = Path(__file__).with_name("knobs_worker.py")


def launch(*words: Any) -> tuple[int, str]:
    """Exit code and standard error of two ranks."""
    return launcher.run([*launcher.ACCELERATE, *launcher.MULTI_CPU, *words], launcher.ROOT)


def test_the_channel_between_ranks_is_as_it_was_asked_for(tmp_path: Path) -> None:
    """The time-out would stop at Accelerate, which drops one that equals its default; or buffers be sent at every step."""
    code, errors = launch(WORKER, tmp_path, "timeout_s=600")
    assert code == 0, errors
    assert "Warning" not in errors
    found = json.loads((tmp_path / "about.json").read_text())
    expected = {"sends_buffers": False, "gradient_as_bucket_view": True, "timeout_s": 600}
    assert found == pytest.approx(expected, rel=1e-6)


def train(data: Path, out: Path, *words: str) -> list[float]:
    """The losses of a short training."""
    tiny = ["recipe.width=8", "recipe.num_layers=2", "recipe.num_reviews=1", "recipe.dropout=0", "log_every=1"]
    code, errors = launch(launcher.TRAIN, f"data={data}", f"out={out}", *tiny, "batch_size=1024", "max_epochs=1", *words)
    assert code == 0, errors
    assert "Warning" not in errors
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.fixture(scope="module")
def plain(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The folder and the losses of a run without a knob."""
    out = tmp_path_factory.mktemp("plain") / "run"
    return out, train(prepared, out)


@pytest.mark.parametrize(("knob", "error"), [("compile=true", 1e-5), ("precision=fp16", 1e-2)])
def test_two_ranks_train_with_a_knob(
    knob: str, error: float, plain: tuple[Path, list[float]], prepared: Path, tmp_path: Path
) -> None:
    """A knob would be lost on the way from the command line to the model; or its weights load with it only."""
    losses = train(prepared, tmp_path / "run", knob)
    assert len(losses) > 1
    assert losses == pytest.approx(plain[1], rel=error)
    assert losses != plain[1], "nothing was rounded differently: the knob did nothing"
    expected, found = (load_file(out / "final/model.safetensors") for out in (plain[0], tmp_path / "run"))
    assert {name: tensor.dtype for name, tensor in found.items()} == {name: of.dtype for name, of in expected.items()}
