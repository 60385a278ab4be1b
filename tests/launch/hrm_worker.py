"""What test_hrm_sketch.py launches: hrm_worker.py OUT begin trains, and kills rank 1; hrm_worker.py OUT resume goes on.

For each of RUNS, rank r leaves OUT/NAME/RANK.safetensors: before each step the `gradients` of the body, the `weights` they
are given at, and the puzzles' `table`, each with the step as first dimension. OUT/summed.RANK.safetensors has one step of
the sparse optimizer by itself.
"""

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recorded_ranks import kill_at

from ensemble import errors
from ensemble.neural import launch
from ensemble.neural.settings import TrainConfig

if TYPE_CHECKING:
    import torch

SKETCH = Path(__file__).parents[1] / "neural" / "hrm_sketch.py"
NUM_ROWS, BATCH_SIZE, NUM_EPOCHS = 35, 16, 2  # steps of 16, 16 and 3 rows: in the last, rank 1 of 2 has none or one
RUNS = {"uncut": (4, 1), "accumulated": (4, 4), "one segment": (1, 2)}
"""The most segments, and the accumulated micro-batches."""
KILLED_AT = 6
LENGTHS = (5, 3)
"""How many rows each rank gives to the sparse optimizer alone."""


def settings(out: Path, num_ranks: int, accumulation: int) -> TrainConfig:
    return TrainConfig(
        data="sudokus",
        out=str(out),
        batch_size=BATCH_SIZE,
        micro_batch_size=BATCH_SIZE // (num_ranks * accumulation),
        max_epochs=NUM_EPOCHS,
        learning_rate=3e-3,
        weight_decay=0.1,
        warmup_steps=2,
        clip_norm=0,
        patience=100,
        checkpoint_steps=2,
        keep_last=100,
        trackers=(),
        evaluations_per_epoch=1,
    )


def train(recipe: Any, config: TrainConfig, accelerator: Any, resume: str = "") -> dict[str, "torch.Tensor"]:
    """Train, and return what was seen before each step of the body's optimizer."""
    import torch

    from ensemble.neural import loop

    build, make = recipe.model, recipe.optimizers
    seen: dict[str, list[torch.Tensor]] = {"gradients": [], "weights": [], "table": []}

    def model() -> Any:
        built = build()
        built.halting.reset_parameters()  # as the paper begins, all places would halt together
        return built

    def optimizers(model: Any, learning_rate: float, weight_decay: float) -> list[Any]:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def record(*_: Any) -> None:
            seen["gradients"].append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
            seen["weights"].append(torch.nn.utils.parameters_to_vector(parameters).detach())
            seen["table"].append(model.puzzle_embedding.table.clone())

        body, table = make(model, learning_rate, weight_decay)
        body.register_step_pre_hook(record)
        return [body, table]

    recipe.model, recipe.optimizers = model, optimizers
    loop.train(recipe, config, accelerator, resume)
    return {name: torch.stack(tensors) for name, tensors in seen.items()}


def sparse_gradient() -> tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]:
    """A table (6, 4), and ids and gradients of all ranks' rows: some are used by both ranks, some by none."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([0, 3, 3, 4, 0, 3, 0, 1])
    table, gradients = (torch.randn(size, 4, generator=generator) for size in (6, len(ids)))
    gradients[-1] = 0.0  # as that of a rank that stands idle
    return table, ids, gradients


def step_alone(optimizer_class: Any, part: slice) -> "torch.Tensor":
    """The table after one step with the gradients of a part of the rows."""
    import torch

    table, ids, gradients = sparse_gradient()
    table = torch.nn.Parameter(table, requires_grad=False)
    table.grad = torch.sparse_coo_tensor(ids[None, part], gradients[part], table.shape, check_invariants=False)
    optimizer_class([table], lr=0.01, weight_decay=0.1).step()
    return table.detach()


def main() -> None:
    out, is_resumed = Path(sys.argv[1]), sys.argv[2] == "resume"
    accelerator = launch.start(settings(out, 1, 1))

    import torch
    from safetensors.torch import save_file

    rank, num_ranks = accelerator.process_index, accelerator.num_processes
    sketch: Any = runpy.run_path(str(SKETCH))
    if not is_resumed:
        parts = (slice(LENGTHS[0]), slice(LENGTHS[0], None))
        save_file({"table": step_alone(sketch["SparseSignSGD"], parts[rank])}, out / f"summed.{rank}.safetensors")
        for name, (max_segments, accumulation) in RUNS.items():
            recipe = sketch["Recipe"](NUM_ROWS, max_segments, torch.float64)
            found = train(recipe, settings(out / name, num_ranks, accumulation), accelerator)
            save_file(found, out / name / f"{rank}.safetensors")
            accelerator.free_memory()
    recipe = sketch["Recipe"](NUM_ROWS, 4, torch.float64)
    if rank == 1 and not is_resumed:
        kill_at(KILLED_AT, recipe)
    train(recipe, settings(out / "killed", num_ranks, 1), accelerator, "last" if is_resumed else "")
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
