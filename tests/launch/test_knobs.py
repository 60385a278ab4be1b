"""Precision, compilation and options of DDP, with the real launcher on two Gloo ranks."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import launcher
import pytest
import scripts_run
from safetensors.torch import load_file

WORKER = Path(__file__).with_name("knobs_train_worker.py")


@dataclasses.dataclass(frozen=True)
class Run:
    """A short training on two ranks."""

    out: Path
    options: list[dict[str, Any]]
    """For each rank: options of DDP and of the process group."""
    ranks: list[dict[str, Any]]
    """For each rank: names of compiled modules, number of compiled graphs, dtypes of the model's output."""

    @property
    def losses(self) -> list[float]:
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "train"]

    @property
    def precision(self) -> str:
        return json.loads((self.out / "summary.json").read_text())["precision"]

    @property
    def scaler(self) -> dict[str, Any]:
        """The state of the loss scaler in the last checkpoint."""
        return json.loads((max((self.out / "checkpoints").glob("step-*")) / "state.json").read_text())["scaler"]


def train(data: Path, folder: Path, *words: str) -> Run:
    out = folder / "run"
    tiny = ["recipe.width=8", "recipe.num_layers=2", "recipe.num_reviews=1", "recipe.dropout=0", "log_every=1"]
    settings = [f"data={data}", f"out={out}", *tiny, "batch_size=1024", "max_epochs=1", "timeout_s=600", *words]
    command = [*launcher.MULTI_CPU, WORKER, folder, *settings]
    one_thread = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # worker processes of the compiler would import torch
    code, errors = scripts_run.launched(*command, folder=launcher.ROOT, **one_thread)
    assert code == 0, errors
    assert [line for line in errors.splitlines() if "Warning" in line and "on Python 3.13.0" not in line] == []
    options, ranks = (
        [json.loads((folder / f"{name}{rank}.json").read_text()) for rank in range(2)] for name in ("options.", "")
    )
    return Run(out, options, ranks)


@pytest.fixture(scope="module")
def plain(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with default settings."""
    return train(prepared, tmp_path_factory.mktemp("plain"))


def assert_learned_the_same(run: Run, plain: Run, error: float) -> None:
    """The same losses within a relative error, and weights of the same names and types."""
    assert len(run.losses) > 1
    assert run.losses == pytest.approx(plain.losses, rel=error)
    actual, expected = (load_file(each.out / "final/model.safetensors") for each in (run, plain))
    assert {name: tensor.dtype for name, tensor in actual.items()} == {
        name: tensor.dtype for name, tensor in expected.items()
    }


def test_options_of_ddp_and_the_process_group(plain: Run) -> None:
    """The time-out would be dropped by Accelerate because it equals the default, or buffers would be sent at every step."""
    assert plain.options == [{"sends_buffers": False, "gradient_as_bucket_view": True, "timeout_s": 600}] * 2


def test_by_default_the_model_is_not_changed(plain: Run) -> None:
    """The two tests below could not fail."""
    assert plain.ranks == [{"compiled": [], "graphs": 0, "dtypes": ["torch.float32"]}] * 2
    assert (plain.precision, plain.scaler) == ("no", {})


def test_two_ranks_train_compiled_blocks(plain: Run, prepared: Path, tmp_path: Path) -> None:
    """compile=true would have no effect, or the weights would load with compile=true only."""
    run = train(prepared, tmp_path, "compile=true")
    for rank in run.ranks:
        assert rank["compiled"] == ["blocks.0", "blocks.1", "text_encoder.blocks.0"]
        assert rank["graphs"] > 0, "no compiled block has run"
        assert rank["dtypes"] == ["torch.float32"]
    assert_learned_the_same(run, plain, 1e-5)


def test_two_ranks_train_in_fp16(plain: Run, prepared: Path, tmp_path: Path) -> None:
    """precision=fp16 would have no effect, or gradients would not be scaled."""
    run = train(prepared, tmp_path, "precision=fp16")
    assert run.ranks == [{"compiled": [], "graphs": 0, "dtypes": ["torch.float16"]}] * 2
    assert run.precision == "fp16"
    assert run.scaler["scale"] >= 1
    assert_learned_the_same(run, plain, 1e-2)
