"""Started by test_sudoku.py.

sudoku_worker.py DATA OUT begin    two ranks train each of RUNS, then one more run in which rank 1 is killed
sudoku_worker.py DATA OUT resume   resume that run
sudoku_worker.py DATA OUT signs    one step of SparseSignSGD on any number of ranks

For each of RUNS, rank r writes OUT/NAME/RANK.safetensors: before each step the `gradients` of the body, the `weights` at
which they were computed, and the puzzle embedding's `table`, each with the step as first dimension. `signs` writes
OUT/signs.RANKS.RANK.safetensors.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import small_sudokus
from recorded_ranks import kill_at

from ensemble import errors
from ensemble.neural import launch
from ensemble.neural.settings import TrainConfig

if TYPE_CHECKING:
    import torch

BATCH_SIZE, NUM_EPOCHS = 16, 2  # 35 rows: steps of 16, 16 and 3; of the last one, rank 1 of 2 has no row
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "carried": ({"variant": "hrm", "puzzle_embedding": True, "high_cycles": 2, "low_cycles": 2}, 1),
    "one segment": ({"variant": "trm", "mixing": "attention", "low_cycles": 2, "segments": 1}, 2),
    "starts": ({"variant": "trm", "starts": 3, "puzzle_embedding": True}, 4),
}
"""Settings of the recipe, and the number of accumulated micro-batches."""
KILLED_AT = 5
NUM_ROWS, COLUMNS = 100_000, 4


def settings(out: Path, num_ranks: int, accumulation: int = 1) -> TrainConfig:
    return TrainConfig(
        data="puzzles",
        out=str(out),
        batch_size=BATCH_SIZE,
        micro_batch_size=BATCH_SIZE // (num_ranks * accumulation),
        max_epochs=NUM_EPOCHS,
        learning_rate=3e-3,
        weight_decay=0.1,
        warmup_steps=2,
        clip_norm=0,
        ema_decay=0.9,
        patience=100,
        checkpoint_steps=2,
        keep_last=100,
        trackers=(),
        evaluations_per_epoch=1,
    )


def make(data: Path, **changed: Any) -> Any:
    """The recipe with weights in float64, so that rounding does not matter, and heads that halt some positions early."""
    import torch

    from ensemble.recipes.sudoku import training

    recipe = training.make(small_sudokus.config(**changed), str(data))
    build = recipe.model

    def model() -> Any:
        network = build().double()
        torch.nn.init.normal_(network.to_halting.weight, std=0.3)
        torch.nn.init.zeros_(network.to_halting.bias)
        return network

    recipe.model = model  # type: ignore[method-assign]
    return recipe


def train(recipe: Any, config: TrainConfig, accelerator: Any, resume: str = "") -> dict[str, "torch.Tensor"]:
    """Train, and return gradients, weights and table before each step of the first optimizer."""
    import torch

    from ensemble.neural import loop

    make_optimizers = recipe.optimizers
    seen: dict[str, list[torch.Tensor]] = {"gradients": [], "weights": [], "table": []}

    def optimizers(model: Any, learning_rate: float, weight_decay: float) -> list[Any]:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def record(*_: Any) -> None:
            seen["gradients"].append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
            seen["weights"].append(torch.nn.utils.parameters_to_vector(parameters).detach())
            if model.puzzles is not None:
                seen["table"].append(model.puzzles.table.clone())

        result = make_optimizers(model, learning_rate, weight_decay)
        result[0].register_step_pre_hook(record)
        return result

    recipe.optimizers = optimizers
    loop.train(recipe, config, accelerator, resume)
    return {name: torch.stack(tensors) for name, tensors in seen.items() if tensors}


def uses() -> tuple["torch.Tensor", "torch.Tensor"]:
    """Ids and gradients of a global batch of 13 uses, of which ranks have unequal numbers.

    Some rows are used by several ranks, some by one of them, and row 8 by none: its gradient is 0, as on an idle rank.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([0, 99_999, 7, 7, 0, 3, 99_999, 0, 5, 7, 11, 0, 8])
    gradients = torch.randn(len(ids), COLUMNS, generator=generator)
    gradients[-1] = 0.0
    # In float32, the order of this sum decides its sign
    gradients[ids == 0] = torch.tensor([1e8, 1.0, -1e8, -0.5])[:, None].expand(-1, COLUMNS)
    return ids, gradients


def signs(rank: int, num_ranks: int) -> dict[str, "torch.Tensor"]:
    """The table after two steps with this rank's part of the global batch, and the bytes that the rank sent."""
    import torch

    from ensemble.neural.optimizers import SparseSignSGD

    sent, all_gather = torch.zeros(1, dtype=torch.int64), torch.distributed.all_gather

    def counted(pieces: list[torch.Tensor], own: torch.Tensor) -> None:
        sent.add_(own.nbytes)
        all_gather(pieces, own)

    ids, gradients = uses()
    own = slice(rank * len(ids) // num_ranks, (rank + 1) * len(ids) // num_ranks)
    table = torch.nn.Parameter(torch.ones(NUM_ROWS, COLUMNS), requires_grad=False)
    optimizer = SparseSignSGD([table], lr=0.01, weight_decay=0.1)
    for _ in range(2):
        table.grad = torch.sparse_coo_tensor(ids[None, own], gradients[own], table.shape, check_invariants=False)
        with mock.patch.object(torch.distributed, "all_gather", counted):
            optimizer.step()
    return {"table": table.detach(), "sent": sent}


def main() -> None:
    data, out, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    accelerator = launch.start(settings(out, 1))

    from safetensors.torch import save_file

    rank, num_ranks = accelerator.process_index, accelerator.num_processes
    if what == "signs" or what == "begin":
        save_file(signs(rank, num_ranks), out / f"signs.{num_ranks}.{rank}.safetensors")
    if what == "begin":
        for name, (changed, accumulation) in RUNS.items():
            recorded = train(make(data, **changed), settings(out / name, num_ranks, accumulation), accelerator)
            save_file(recorded, out / name / f"{rank}.safetensors")
            accelerator.free_memory()
    if what != "signs":
        recipe = make(data, **RUNS["carried"][0])
        if rank == 1 and what == "begin":
            kill_at(KILLED_AT, recipe)
        train(recipe, settings(out / "killed", num_ranks), accelerator, "last" if what == "resume" else "")
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
