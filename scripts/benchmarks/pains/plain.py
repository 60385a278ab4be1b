"""The training with plain Accelerate 1.15, as in its documentation.

The loop is that of examples/by_feature/checkpointing.py in Accelerate's repository: `save_state` in the middle of an epoch,
and `load_state` with `skip_first_batches` to resume, or a stateful DataLoader, which needs no skipping. `accumulate` is used
as in docs/source/usage_guides/gradient_accumulation.md. `batch_size` is the number of rows of a batch of one process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from safetensors.torch import save_file
from torch.utils.data import DataLoader

from benchmarks.pains.recipe.model import Recorder, Rows, Shares
from benchmarks.pains.sides import Plain

SEED, LEARNING_RATE = 0, 1e-3


def start(
    settings: Plain,
    set_up: Callable[[Accelerator], None] = lambda accelerator: None,
    make_loader: Callable[[], Any] = lambda: None,
) -> tuple[Accelerator, Any, Any, Any]:
    """An `Accelerator`, with which `set_up` is called, and the model, optimizer and loader that it prepared.

    `make_loader` returns the loader, or None for a DataLoader of the map-style dataset `Rows`.
    """
    accelerator = Accelerator(
        cpu=None if settings.complaint == "missing_processes" else True,  # None: the launcher chooses
        gradient_accumulation_steps=settings.accumulation,
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=settings.sampler == "stateful", use_seedable_sampler=settings.sampler == "seedable"
        ),
    )
    set_up(accelerator)
    set_seed(SEED)
    rows: Any = Rows(settings.num_rows, settings.max_tokens)
    loader = make_loader()
    if loader is None:
        loader = DataLoader(rows, batch_size=settings.batch_size, shuffle=settings.shuffle, collate_fn=rows.collate)
    model: Any = Shares(settings.num_rows, settings.extra_width)
    optimizer: Any = Recorder(model, LEARNING_RATE, accelerator.is_main_process)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return accelerator, model, optimizer, loader


def train(settings: Plain, **options: Any) -> None:
    """Train with the `options` of `start`, and save at the steps `save_at`."""
    accelerator, model, optimizer, loader = start(settings, **options)
    model.train()
    step = first_epoch = skipped = 0
    if settings.resume:
        accelerator.load_state(settings.resume)
        step = int(Path(settings.resume).name.removeprefix("step_"))
        first_epoch, skipped = divmod(step, len(loader))
    for epoch in range(first_epoch, settings.epochs):
        active = loader
        if settings.sampler == "seedable":
            loader.set_epoch(epoch)
        if settings.resume and epoch == first_epoch and settings.sampler != "stateful":
            active = accelerator.skip_first_batches(loader, skipped)
        for batch in active:
            with accelerator.accumulate(model):
                loss = model(batch).sum() / batch["tokens"].sum()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step in settings.save_at:
                accelerator.save_state(str(Path(settings.out) / f"step_{step}"))
            if step == settings.last_step:
                break
        if step == settings.last_step:
            break
    if settings.keep_weights:
        weights = accelerator.get_state_dict(model)
        if accelerator.is_main_process:
            save_file(
                {name: tensor.contiguous() for name, tensor in weights.items()}, Path(settings.out) / "final.safetensors"
            )
    accelerator.end_training()
