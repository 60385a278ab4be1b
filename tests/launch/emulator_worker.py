"""The program that test_emulator.py launches.

emulator_worker.py OUT ICE RING    each rank trains all RUNS, and writes OUT/NAME/RANK.safetensors

The files have the buffers of the network (`input_mean`, …), the statistics of which they were made (`exact.mean`, …), and
for each step, as the first dimension, the `gradients` and the `weights` at which they were computed.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import errors
from ensemble.neural import launch
from ensemble.neural.settings import TrainConfig

if TYPE_CHECKING:
    import torch

BATCH_SIZE, BLOCK_ROWS = 120, 32
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sea_ice": ("ice", {"widths": (16, 16), "output": "sigmoid", "jacobian_weight": 0.1}),
    "lorenz96": ("ring", {"network": "bilinear", "widths": (4,), "jacobian_weight": 0.1}),
}
"""By name: the data (the argument ICE or RING), and settings of the recipe."""


def settings(out: Path, num_ranks: int) -> TrainConfig:
    return TrainConfig(
        data="emulator",
        out=str(out),
        batch_size=BATCH_SIZE,
        micro_batch_size=BATCH_SIZE // num_ranks // (2 if num_ranks < 4 else 1),
        max_epochs=3,
        learning_rate=1e-2,
        learning_rate_scaling="sqrt",
        base_batch_size=30,
        warmup_steps=2,
        clip_norm=0,
        patience=100,
        trackers=(),
        log_every=1,
        evaluations_per_epoch=1,
    )


def make(data: str, **changed: Any) -> Any:
    """The recipe with weights in float64, so that only errors make a difference, and with small blocks of statistics."""
    from ensemble.data import statistics
    from ensemble.recipes.emulator import training
    from ensemble.recipes.emulator.settings import RecipeConfig

    statistics.BLOCK_ROWS = BLOCK_ROWS
    recipe = training.make(RecipeConfig(**changed), data)
    build, gather = recipe.model, training.PairRows.gather
    recipe.model = lambda: build().double()  # type: ignore[method-assign]
    for split in ("train", "validation"):
        rows: Any = recipe.rows(split)
        rows.gather = lambda numbers, epoch=0, rows=rows: {
            name: tensor.double() for name, tensor in gather(rows, numbers, epoch).items()
        }
    return recipe


def train(recipe: Any, config: TrainConfig, accelerator: Any) -> dict[str, "torch.Tensor"]:
    """Train, and return what a file has."""
    import torch

    from ensemble.neural import loop

    make_optimizers = recipe.optimizers
    seen: dict[str, list[torch.Tensor]] = {"gradients": [], "weights": []}
    buffers: dict[str, torch.Tensor] = {}

    def recording_optimizers(model: Any, learning_rate: float, weight_decay: float) -> list[Any]:
        parameters = list(model.parameters())
        buffers.update({name: buffer.clone() for name, buffer in model.named_buffers()})

        def record(*_: Any) -> None:
            seen["gradients"].append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
            seen["weights"].append(torch.nn.utils.parameters_to_vector(parameters).detach().clone())

        optimizers = make_optimizers(model, learning_rate, weight_decay)
        optimizers[0].register_step_pre_hook(record)
        return optimizers

    recipe.optimizers = recording_optimizers
    loop.train(recipe, config, accelerator)
    of_inputs, of_outputs = recipe.statistics
    assert len(recipe.rows("train")) > 5 * BLOCK_ROWS  # at least one block for each rank
    exact = {"mean": of_inputs.mean, "variance": of_inputs.variance, "of_outputs": of_outputs.variance}
    exact |= {"least": of_inputs.least, "greatest": of_inputs.greatest}
    return {
        **{name: torch.stack(tensors) for name, tensors in seen.items()},
        **buffers,
        **{f"exact.{name}": torch.from_numpy(values.copy()) for name, values in exact.items()},
    }


def main() -> None:
    out, data = Path(sys.argv[1]), dict(zip(("ice", "ring"), sys.argv[2:], strict=True))
    accelerator = launch.start(settings(out, 1))

    from safetensors.torch import save_file

    for name, (which, changed) in RUNS.items():
        config = settings(out / name, accelerator.num_processes)
        result = train(make(data[which], **changed), config, accelerator)
        save_file(result, out / name / f"{accelerator.process_index}.safetensors")
        accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
