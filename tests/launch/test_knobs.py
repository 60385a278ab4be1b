"""The settings of the channel between ranks, through the real launcher on two Gloo ranks: each is what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("knobs_worker.py")
TRAIN = ROOT / "scripts/train.py"
LAUNCH = [str(Path(sys.executable).with_name("accelerate")), "launch", "--config_file"]
MULTI_CPU = str(ROOT / "accelerate_configs/multi_cpu.yaml")
TIMEOUT_S = 240


def launch(*words: Any) -> tuple[int, str]:
    """Exit code and standard error of two ranks."""
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        [*LAUNCH, MULTI_CPU, *map(str, words)],
        env={**environment, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the worker leaves with gradients sent in float32, and in fp16 in small buckets."""
    settings = {"none": ["ddp_bucket_mb=25"], "fp16": ["ddp_hook=fp16", "ddp_bucket_mb=1", "timeout_s=77"]}
    found = {}
    for hook, words in settings.items():
        found[hook] = tmp_path_factory.mktemp(hook)
        code, errors = launch(WORKER, found[hook], *words)
        assert code == 0, errors
        assert "Warning" not in errors
    return found


def test_bucket_size_and_timeout_arrive(runs: dict[str, Path]) -> None:
    """A field would stop at Accelerate, which drops what equals its own default; or buffers be sent at every step."""
    shared = {"sends_buffers": False, "gradient_as_bucket_view": True}
    expected = {"none": {"bucket_bytes": 25 << 20, "timeout_s": 600}, "fp16": {"bucket_bytes": 1 << 20, "timeout_s": 77}}
    for hook, out in runs.items():
        found = json.loads((out / "about.json").read_text())
        assert found == pytest.approx({**shared, **expected[hook]}, rel=1e-6)


def test_gradients_sent_in_fp16_are_those_of_float32_rounded(runs: dict[str, Path]) -> None:
    """The hook would not be registered, or add up instead of averaging."""
    plain, rounded = (
        torch.cat([tensor.flatten() for _, tensor in sorted(load_file(out / "gradient.safetensors").items())])
        for out in runs.values()
    )
    error = torch.linalg.norm(plain - rounded) / torch.linalg.norm(plain)
    assert 1e-6 < error < 2**-10
    assert torch.equal(rounded, rounded.half().float())


def test_what_gloo_cannot_send_is_refused_before_anything_is_written(prepared: Path, tmp_path: Path) -> None:
    """The ranks would start, and end in a traceback about CUDA."""
    code, errors = launch(TRAIN, f"data={prepared}", f"out={tmp_path / 'run'}", "ddp_hook=bf16")
    assert code != 0
    assert "error: ddp_hook=bf16 needs GPUs" in errors
    assert not (tmp_path / "run").exists()


def train(data: Path, out: Path, *words: str) -> list[float]:
    """The losses of a short training."""
    tiny = ["recipe.width=8", "recipe.num_layers=2", "recipe.num_reviews=1", "recipe.dropout=0", "log_every=1"]
    code, errors = launch(TRAIN, f"data={data}", f"out={out}", *tiny, "batch_size=1024", "max_epochs=1", *words)
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
