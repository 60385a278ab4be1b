"""FSDP2 on two Gloo ranks with the real launcher: same result, exact resuming, any number of ranks, no pickle."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import launcher
import pytest
import scripts_run
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural import checkpoint, sharded
from ensemble.neural.optim import adamw

WORKER = str(Path(__file__).with_name("sharded_worker.py"))
SHARDED = [*launcher.MULTI_CPU_SHARDED, "--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "--fsdp_min_num_params", "20"]


def launch(options: list[str] | None, words: list[str | Path]) -> str:
    """Standard error of the worker, which must succeed; without options it runs on one rank."""
    yaml = launcher.SINGLE_CPU if options is None else [*SHARDED, *options]
    code, errors = scripts_run.launched(*yaml, WORKER, *words, folder=launcher.ROOT)
    assert code == 0, errors
    return errors


def differences(one: Path, other: Path) -> list[str]:
    """The names of tensors that are not bitwise equal; fails unless all tensors of a run are there."""
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    assert len([name for name in first if name.startswith("optimizer0.")]) == 3 * 6
    assert {"3.bias", "codes", "number", "average.0"} <= first.keys()
    return [name for name in first if first[name].dtype != second[name].dtype or not torch.equal(first[name], second[name])]


BRANCHES = """
import sys
import torch
from pathlib import Path
from toy import Toy, settings
from ensemble import errors
from ensemble.neural import launch
class Branch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    def forward(self, x):
        return x * (self.second if torch.distributed.get_rank() else self.first)
class Plain(Toy):
    def optimizers(self, model, learning_rate, weight_decay):
        return [torch.optim.SGD(model.parameters(), lr=learning_rate)]
class Branches(Toy):
    def model(self):
        return super().model().append(Branch())
class Seen(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
    def forward(self, x):
        if self.training:
            self.total += x.detach().sum()
        return x
class Buffer(Plain):
    def model(self):
        return super().model().append(Seen())
def main():
    accelerator = launch.start(settings(Path(sys.argv[1])))
    from ensemble.neural import loop
    loop.train(globals()[sys.argv[2]](), settings(Path(sys.argv[1])), accelerator)
errors.run(main)
"""


def test_a_parameter_that_a_rank_does_not_use_is_refused(tmp_path: Path) -> None:
    """FSDP would add the gradient of one parameter to that of another of the same size, without a message."""
    code, errors = train_toy("Branches", tmp_path)
    assert code != 0
    assert "the loss that `step` of the recipe returns for some rows does not depend on 4." in errors


def test_a_buffer_that_depends_on_the_rows_of_a_rank_is_refused(tmp_path: Path) -> None:
    """A checkpoint has that of one rank only: a resumed run would differ, and each rank would validate with its own."""
    code, errors = train_toy("Buffer", tmp_path)
    assert code != 0
    assert "error: the buffer '4.total' of the model differs between the processes" in errors


def test_a_class_of_layers_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    """Accelerate would raise a ValueError, which is shown with a traceback."""
    code, errors = train_toy("Branches", tmp_path, "--fsdp_transformer_layer_cls_to_wrap", "Decoder")
    assert code != 0
    assert (
        "error: fsdp_transformer_layer_cls_to_wrap: Decoder in the accelerate YAML: the model has no layer of this class; "
        "its classes are Branch, Dropout, Linear, Sequential, Tanh" in errors
    )


def test_the_summary_records_that_the_weights_were_sharded(tmp_path: Path) -> None:
    """The command in the report would train again with all of the weights on each rank, where they may not fit."""
    code, errors = train_toy("Plain", tmp_path)
    assert code == 0, errors
    assert folders.read_json(tmp_path / "run" / "summary.json")["sharded"]


def train_toy(recipe: str, folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and standard error of a training of `recipe`, a class in `BRANCHES`, on two ranks."""
    (folder / "branches.py").write_text(BRANCHES)
    command = [*launcher.ACCELERATE, *launcher.MULTI_CPU_SHARDED, *options, "branches.py", "run", recipe]
    with launcher.started(command, folder, PYTHONPATH=launcher.WITH_HELPERS) as process:
        _, errors = process.communicate(timeout=launcher.TIMEOUT_S)
    return process.returncode, errors


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Six steps on one rank, and sharded over two, each with a checkpoint after the third."""
    folder = tmp_path_factory.mktemp("sharded")
    folders_by_ranks = {1: folder / "one", 2: folder / "two"}
    for ranks, out in folders_by_ranks.items():
        out.mkdir()
        launch(None if ranks == 1 else [], ["train", out])
    return folders_by_ranks


def test_the_result_of_sharded_ranks_is_that_of_one(runs: dict[int, Path]) -> None:
    """Gradients, their norm or the moving average would be those of a shard, or be summed over ranks."""
    one, two = (load_file(out / "final.safetensors") for out in runs.values())
    assert one.keys() == two.keys()
    for name in one:
        error = torch.linalg.vector_norm(one[name].double() - two[name].double())
        assert error <= 1e-12 * torch.linalg.vector_norm(one[name].double()), name
    assert differences(runs[2] / "saved.safetensors", runs[2] / "final.safetensors"), "nothing was learned"


def test_a_sharded_run_resumes_exactly(runs: dict[int, Path], tmp_path: Path) -> None:
    """A moment, a step count, a learning rate or the moving average would be reset on resuming."""
    launch([], ["train", tmp_path, runs[2] / "checkpoint"])
    assert differences(tmp_path / "read0.safetensors", runs[2] / "saved.safetensors") == []
    assert differences(tmp_path / "final.safetensors", runs[2] / "final.safetensors") == []


def test_any_number_of_ranks_reads_either_kind_of_checkpoint(runs: dict[int, Path], tmp_path: Path) -> None:
    """A run could not continue on another machine, or rows of a tensor would be duplicated, missing or in another place."""
    three, one = tmp_path / "three", tmp_path / "one"
    for out, options in ((three, ["--num_processes", "3"]), (one, None)):
        out.mkdir()
        launch(options, ["read", out, runs[2] / "checkpoint", runs[1] / "checkpoint"])
        assert differences(out / "read0.safetensors", runs[2] / "saved.safetensors") == []
        assert differences(out / "read1.safetensors", runs[1] / "saved.safetensors") == []


def test_each_rank_writes_its_own_part_and_no_pickle(runs: dict[int, Path]) -> None:
    """One rank would write everything, or a file could run code when it is loaded."""
    folder = runs[2] / "checkpoint"
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    shards = [file for file in files if file.name.startswith("shard-")]
    others = [file for file in files if file not in shards]
    assert [file.name for file in others] == ["manifest.json", "state.json", "state.safetensors"]
    for file in others[:2]:
        assert json.loads(file.read_text(encoding="utf-8"))
    rows = []
    for file in shards:
        with safe_open(file, "pt") as content:
            rows.append(content.get_slice("0.weight").get_shape())
            assert content.get_slice("optimizer0.0.exp_avg").get_shape() == rows[-1]
    assert rows == [[3, 7], [2, 7]]


def test_a_damaged_shard_is_detected(runs: dict[int, Path], tmp_path: Path) -> None:
    """Training would continue with a part of the model."""
    folder = Path(shutil.copytree(runs[2] / "checkpoint", tmp_path / "checkpoint"))
    folders.verify(folder)
    shards = sorted(folder.glob("shard-*.safetensors"))
    content = shards[0].read_bytes()
    shards[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=f"{shards[0].name} was changed"):
        folders.verify(folder)
    shards[0].write_bytes(content)
    shards[1].write_bytes(shards[1].read_bytes()[:-8])
    with pytest.raises(UserError, match=f"{shards[1].name} has .* bytes, not"):
        folders.verify(folder)


def test_the_shards_of_another_model_are_refused(runs: dict[int, Path]) -> None:
    """A part of the model would keep its initial weights, or the reader would raise a traceback."""
    for layers, fault in (
        ([torch.nn.Linear(6, 5)], r"0.weight has shape \(5, 7\) there and \(5, 6\) in this model"),
        (
            [torch.nn.Linear(7, 5), torch.nn.GELU(), torch.nn.LayerNorm(5)],
            r"2.weight has shape none there and \(5,\) in this model",
        ),
    ):
        model = torch.nn.Sequential(*layers)
        with pytest.raises(UserError, match=f"holds the weights of another model: {fault}"):
            sharded.load(runs[2] / "checkpoint", model, [adamw(model, 0.1, 0.1)], {}, [], [0])


def test_an_error_of_one_rank_is_raised_on_all_ranks(tmp_path: Path) -> None:
    """The other ranks would consider the checkpoint complete, or a part of it would get the name of a whole one."""
    errors = launch([], ["fail", tmp_path])
    # The order of line ends is random: both ranks write to the same pipe
    assert all(f"rank {rank}: {tmp_path}/checkpoints/step-00000002 cannot be written" in errors for rank in range(2)), errors
    assert os.strerror(errno.EFBIG) in errors
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]


def test_a_rank_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """The run would be resumed from the shards of the other ranks."""
    code, errors = scripts_run.launched(*SHARDED, WORKER, "die", tmp_path, folder=launcher.ROOT)
    assert code != 0
    assert f"exitcode  : {-signal.SIGXFSZ}" in errors, errors
    checkpoint.clean_up(tmp_path)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]
    assert checkpoint.newest_intact(tmp_path, pytest.fail) == checkpoint.step_folder(tmp_path, 1)


def test_fsdp1_is_refused(tmp_path: Path) -> None:
    """Flat parameters of FSDP1 would be treated as complete, and every rank would save its own as the model."""
    with pytest.raises(AssertionError, match="error: fsdp_version: 1, the default in the accelerate YAML, is not supported"):
        launch(["--fsdp_version", "1", "--fsdp_sync_module_states", "false"], ["train", tmp_path])
    assert not list(tmp_path.iterdir())


def test_inputs_and_gradients_keep_their_precision_in_bf16(tmp_path: Path) -> None:
    """Years, weeks and categories would be rounded to bf16 before the model sees them, and gradients while they are added.

    With `fsdp_cpu_ram_efficient_loading`, the default of `accelerate config`, a model with buffers would end in a traceback.
    """
    launch(["--mixed_precision", "bf16", "--fsdp_cpu_ram_efficient_loading", "true"], ["precision", tmp_path])
    result = json.loads((tmp_path / "precision.json").read_text())
    assert result == {"inputs": [1, 2**-10], "gradient": 1 + 2**-10, "dtypes": ["torch.bfloat16"]}


def test_activation_checkpointing_of_fsdp_is_refused(tmp_path: Path) -> None:
    """The backward pass would have other dropout masks than the forward pass, and so a wrong gradient."""
    with pytest.raises(
        AssertionError, match="error: fsdp_activation_checkpointing: true in the accelerate YAML is not supp"
    ):
        launch(["--fsdp_activation_checkpointing", "true"], ["train", tmp_path])
    assert not list(tmp_path.iterdir())
