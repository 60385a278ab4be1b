"""Started by test_next_item.py: next_item_worker.py DATA OUT VARIANT… trains small models by `loop.train`.

A variant is a number: 0 SASRec, 1 SASRec with mHC, 2 TiSASRec, 3 TiSASRec with mHC. OUT/VARIANT is the folder of its run,
and OUT/VARIANT.safetensors has the predictions of an untrained model on the test split.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import errors
from ensemble.neural import launch
from ensemble.neural.settings import config_class
from ensemble.recipes.next_item.settings import RecipeConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

BATCH_SIZE, WIDTH = 16, 8
MICRO_BATCH_SIZE = 4  # the last batch of an epoch leaves a second rank without rows


def settings(data: Path, out: Path, variant: int, micro_batch_size: int) -> Any:
    recipe = RecipeConfig(
        time_aware=variant > 1, num_streams=2 * (variant % 2), max_length=10, width=WIDTH, dropout=0.0, num_groups=2
    )
    return config_class("next_item")(
        data=str(data), out=str(out), batch_size=BATCH_SIZE, micro_batch_size=micro_batch_size, max_epochs=1,
        learning_rate=0.01, warmup_steps=2, clip_norm=0.4, evaluations_per_epoch=1, trackers=(), log_every=1, recipe=recipe,
    )  # fmt: skip


def train(data: Path, out: Path, variants: list[int], micro_batch_size: int, accelerator: "Accelerator") -> None:
    import torch
    from safetensors.torch import save_file

    from ensemble.neural import evaluation, loop
    from ensemble.recipes.next_item import training

    for variant in variants:
        config = settings(data, out / str(variant), variant, micro_batch_size)
        recipe = training.make(config.recipe, config.data)
        loop.train(recipe, config, accelerator)
        accelerator.free_memory()
        torch.manual_seed(0)
        predictions = evaluation.predict(recipe, recipe.model(), "test", 7, accelerator)
        if accelerator.is_main_process:
            save_file({name: torch.from_numpy(array) for name, array in predictions.items()}, out / f"{variant}.safetensors")


def main() -> None:
    data, out, *variants = sys.argv[1:]
    accelerator = launch.start(settings(Path(data), Path(out), 0, MICRO_BATCH_SIZE))
    train(Path(data), Path(out), [int(variant) for variant in variants], MICRO_BATCH_SIZE, accelerator)
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
