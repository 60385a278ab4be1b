"""Precision, the options of DDP, TF32 and torch.compile: each has its effect, or raises a `UserError`."""

import copy
import datetime
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch._dynamo.utils import counters

from ensemble.errors import UserError
from ensemble.neural import launch, speed
from ensemble.neural.loader import Batch
from ensemble.neural.settings import TrainConfig
from ensemble.recipes.hot_sellers import training
from ensemble.recipes.hot_sellers.settings import RecipeConfig

torch.set_num_threads(1)
HEADER = Path(sysconfig.get_path("include"), "Python.h")


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that compiles; torch warns of its own code, in other words from Python 3.14 on."""
    ignored = "ignore:`torch.jit.script_method` is:DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not"
    needed = pytest.mark.skipif(not HEADER.is_file(), reason=f"there is no {HEADER}: apt-get install python3-dev")
    return needed(pytest.mark.filterwarnings(*ignored)(test))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of the launcher; Accelerate keeps its state in a class, which is reset for other tests."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def options(**values: Any) -> dict[str, Any]:
    return speed.accelerator_options(TrainConfig(**values))


# Options


def test_settings_reach_ddp_and_the_process_group() -> None:
    """A setting would have no effect: Accelerate drops a time-out of 600 s, and Gloo would wait 1,800."""
    ddp, group = options(timeout_s=600)["kwargs_handlers"]
    assert isinstance(ddp, DistributedDataParallelKwargs)
    assert ddp.to_kwargs() == {"gradient_as_bucket_view": True}
    assert isinstance(group, InitProcessGroupKwargs)
    assert group.to_kwargs()["timeout"] // datetime.timedelta(seconds=1) == 600


def test_an_unknown_precision_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate would end in a traceback."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp32")
    with pytest.raises(UserError, match="ACCELERATE_MIXED_PRECISION=fp32 is impossible: it must be no, fp16, bf16 or fp8"):
        options()


def test_the_first_version_of_fsdp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate would look for a GPU, and end in a traceback about devices."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    for version in ("1", None):
        monkeypatch.setenv("FSDP_VERSION", version) if version else monkeypatch.delenv("FSDP_VERSION")
        with pytest.raises(UserError, match="fsdp_version: 1, the default in the accelerate YAML, is not supported: set it"):
            launch.start()


def test_offloaded_weights_on_cpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training would end in a traceback of PyTorch about devices."""
    flags = ("ACCELERATE_USE_FSDP", "FSDP_OFFLOAD_PARAMS", "ACCELERATE_USE_CPU")
    for variable, value in {**dict.fromkeys(flags, "true"), "FSDP_VERSION": "2", "OMP_WAIT_POLICY": "PASSIVE"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")  # refused after the check
    with pytest.raises(UserError, match="fsdp_offload_params: true in the accelerate YAML needs GPUs, and use_cpu is true"):
        launch.start()


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "true", "ACCELERATE_USE_DEEPSPEED=true asks for DeepSpeed, which is not supported: "),
        ("ACCELERATE_USE_MEGATRON_LM", "1", "ACCELERATE_USE_MEGATRON_LM=1 asks for Megatron-LM, which is not supported: "),
        (
            "ACCELERATE_USE_PARALLELISM_CONFIG",
            "true",
            "asks for parallelism other than data parallelism, which is not supported: ",
        ),
        (
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            "4",
            "STEPS=4 has no effect: set micro_batch_size, from which the number of accumulation steps follows",
        ),
        (
            "ACCELERATE_DYNAMO_BACKEND",
            "INDUCTOR",
            "BACKEND=INDUCTOR, dynamo_config in the accelerate YAML, is not supported: leave it out, and set compile=true",
        ),
    ],
)
def test_what_the_loop_does_not_do_is_refused(
    variable: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of another project, or a line of the YAML, would end in a traceback or be ignored."""
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    with pytest.raises(UserError, match=sentence):
        launch.start()


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_processes_of_mpirun_do_not_train_alone(
    variable: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a launcher each of them would train the whole run, without a message."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    monkeypatch.setenv(variable, "1")
    assert launch.start().num_processes == 1
    monkeypatch.setenv(variable, "2")
    with pytest.raises(
        UserError, match=rf"mpirun \({variable}\) asks for 2 processes, but this run has 1: launch with a file"
    ):
        launch.start()
    if variable == "PMI_SIZE":  # a step of srun may consist of independent runs
        monkeypatch.setenv("SLURM_PROCID", "1")
        assert launch.start().num_processes == 1


def test_more_processes_of_torchrun_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error would be that no launcher asks for 2 processes, and would name an option that torchrun does not have."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    for variable, value in {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "OMP_WAIT_POLICY": "PASSIVE"}.items():
        monkeypatch.setenv(variable, value)
    sentence = "the variable LOCAL_WORLD_SIZE asks for 2 processes on this machine, each with a GPU of its own, but PyTorch "
    with pytest.raises(UserError, match=f"^{sentence}finds 1: launch with accelerate launch --num_processes 2$"):
        launch.start()


def test_a_mac_uses_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings and predictions without a launcher would end in a traceback: the GPU of a Mac has no float64."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    for name in ("is_available", "is_built"):
        monkeypatch.setattr(torch.backends.mps, name, lambda: True)
    for state in (AcceleratorState, PartialState):
        monkeypatch.setattr(state, "_shared_state", {})
    assert launch.start().device == torch.device("cpu")


def test_the_setting_overrides_the_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """precision=no would train in the bf16 of the YAML, or precision=auto in float32."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert options()["mixed_precision"] == "bf16"
    assert options(precision="no")["mixed_precision"] == "no"


@pytest.mark.parametrize(
    ("values", "environment", "sentence"),
    [
        ({"precision": "fp8"}, {}, "precision=fp8 needs a GPU .* has no GPU.*: use precision=bf16"),
        ({}, {"ACCELERATE_MIXED_PRECISION": "fp8"}, "precision=fp8 needs a GPU"),
        (
            {"precision": "fp16"},
            {"ACCELERATE_USE_FSDP": "true"},
            "precision=fp16 is not supported with FSDP on CPUs.*: use precision=bf16",
        ),
        ({"timeout_s": 0}, {}, "timeout_s=0 is impossible: it must be at least 1"),
        ({"timeout_s": 10**18}, {}, "timeout_s=1000000000000000000 is impossible: it must be at most 1000000000$"),
    ],
)
def test_unsupported_settings_are_refused(
    values: dict[str, Any], environment: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library would raise a traceback, or silently do something else."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=sentence):
        options(**values)


@pytest.mark.parametrize(("capability", "is_refused"), [((7, 0), True), ((7, 5), True), ((8, 0), False)])
def test_a_gpu_that_emulates_bf16_is_refused(
    capability: tuple[int, int], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate accepts bf16 on such a GPU, which then trains without tensor cores, without a message."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla")
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    message = r"8\.0 or more .*, and Tesla has 7\..: use precision=fp16"
    with pytest.raises(UserError, match=message) if is_refused else nullcontext():
        options(precision="bf16")


# Precision


@pytest.mark.parametrize(("precision", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_forward_pass_uses_the_precision(precision: str, dtype: torch.dtype) -> None:
    """fp16 on a CPU would be float32, as in Accelerate, or weights and gradients would not be float32."""
    accelerator = Accelerator(**options(precision=precision))
    speed.use_fp16_on_cpu(accelerator)
    assert (accelerator.scaler is not None) == (precision == "fp16")
    model = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 1)))
    seen = []
    model[0].register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    for context in (torch.enable_grad(), accelerator.autocast()):  # the wrapped model, and the loop's own context
        with context:
            loss = model(torch.ones(5, 3)).float().sum()
    accelerator.backward(loss)
    assert seen == [dtype, dtype]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


def test_an_overflow_lowers_the_loss_scale() -> None:
    """Gradients would reach the optimizer multiplied by the scale, or overflows would never end."""
    accelerator = Accelerator(**options(precision="fp16"))
    speed.use_fp16_on_cpu(accelerator)
    scaler = accelerator.scaler
    model = accelerator.prepare(torch.nn.Linear(3, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters())
    results = []
    for size in (2.0, 300.0):
        accelerator.backward(model(torch.full((1, 3), size)).sum() / 8)
        scaler.unscale_(optimizer)
        results.append((model.weight.grad.tolist(), scaler.get_scale()))
        optimizer.zero_grad()
        scaler.update()
    assert results[0] == ([[0.25, 0.25, 0.25]], 65536.0)
    assert not np.isfinite(results[1][0]).any()
    assert scaler.get_scale() == 32768.0


# Deterministic kernels


def test_an_operation_without_a_deterministic_kernel_is_named() -> None:
    """The user would get a traceback that asks for a call in the code of this project."""
    message = "put_ does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'."
    sentence = r"^put_ has no deterministic kernel on GPUs: .* deterministic=false"
    with pytest.raises(UserError, match=sentence), speed.explained_nondeterminism():
        raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="another"), speed.explained_nondeterminism():
        raise RuntimeError("another")


def test_only_gpus_need_deterministic_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on a GPU could not be repeated, or operations that are deterministic on a CPU would be refused there."""
    calls: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", calls.append)
    speed.use_deterministic_kernels(torch.device("cpu"))
    assert calls == []
    speed.use_deterministic_kernels(torch.device("cuda", 0))
    assert calls == [True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_refuses_an_operation_without_a_deterministic_kernel() -> None:
    """The operation would have other results in each run."""
    speed.use_deterministic_kernels(torch.device("cuda"))
    try:
        with pytest.raises(UserError, match="has no deterministic kernel"), speed.explained_nondeterminism():
            torch.bincount(torch.zeros(4, dtype=torch.long, device="cuda"), weights=torch.ones(4, device="cuda"))
    finally:
        torch.use_deterministic_algorithms(False)


# Compilation


def gradient(recipe: training.HotSellers, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    model.zero_grad()
    recipe.step(model.train(), batch, None)[0].backward()
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


@compiles
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_a_compiled_forecaster_has_the_same_gradients_and_names(recomputed: bool, prepared: Path) -> None:
    """compile=true would change the gradients or the names in checkpoints, or compile for each batch size."""
    config = RecipeConfig(width=16, num_layers=3, dropout=0, gradient_checkpointing=recomputed)
    recipe = training.make(config, str(prepared))
    rows = recipe.rows("train")
    eager = recipe.model()
    compiled = copy.deepcopy(eager)
    torch._dynamo.reset()
    counters.clear()
    speed.compile_model(compiled, torch.device("cpu"))
    graphs_of_trial = counters["stats"]["unique_graphs"]
    assert list(compiled.state_dict()) == list(eager.state_dict())
    compiled_names = [name for name, module in compiled.named_modules() if module._compiled_call_impl is not None]
    assert compiled_names == ["blocks.0", "blocks.1", "blocks.2", "text_encoder.blocks.0"]
    assert all(module._compiled_call_impl is None for module in copy.deepcopy(compiled).modules())
    graphs = []
    for size in (128, 100, 87):
        batch = rows.gather(np.arange(size))
        expected, actual = (gradient(recipe, model, batch) for model in (eager, compiled))
        assert torch.linalg.norm(actual - expected) <= 1e-5 * torch.linalg.norm(expected), size
        graphs.append(counters["stats"]["unique_graphs"] - graphs_of_trial)
    assert graphs == [1, 1, 1], "one graph serves four blocks, two lengths and three batch sizes"


@compiles
def test_a_model_without_repeated_blocks_is_compiled_whole() -> None:
    """compile=true would silently do nothing for a plain network."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU())
    torch._dynamo.reset()
    counters.clear()
    speed.compile_model(model, torch.device("cpu"))
    before = counters["stats"]["unique_graphs"]
    model(torch.ones(5, 3))
    assert counters["stats"]["unique_graphs"] == before + 1


def test_without_a_compiler_there_is_one_sentence(tmp_path: Path) -> None:
    """The first step would end in a traceback of a hundred lines from inside torch."""
    code = (
        "import torch\nfrom ensemble import errors\nfrom ensemble.neural import speed\n"
        "errors.run(lambda: speed.compile_model(torch.nn.Linear(1, 1), torch.device('cpu')))"
    )
    environment = {"PATH": "/nonexistent", "HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: compile=true does not work on this machine (")
    assert done.stderr.endswith("): install g++ and Python's headers, or set compile=false\n")
    assert len(done.stderr.splitlines()) == 1
