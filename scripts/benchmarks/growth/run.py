"""One rank of the benchmark of growth: steps of a network of four layers, with the training's own step and update."""

import resource
import time
from pathlib import Path

from benchmarks.growth.settings import GrowthRun

NUM_LAYERS = 4


def run(settings: GrowthRun) -> None:
    """Write the parameters, CPU seconds of a step on all ranks together, and the memory that a rank needed for them."""
    from ensemble.neural import launch

    accelerator = launch.start()
    import torch

    from ensemble import folders
    from ensemble.neural.training_state import TrainingState

    torch.manual_seed(0)
    before_mb = peak_mb()
    layers = [torch.nn.Linear(settings.width, settings.width, bias=False) for _ in range(NUM_LAYERS)]
    model = torch.nn.Sequential(*(module for layer in layers for module in (layer, torch.nn.GELU())))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    state = TrainingState(model, [optimizer.optimizer], 0.0, accelerator, 600)
    inputs = torch.randn(settings.batch_size // accelerator.num_processes, settings.width)

    def step() -> None:
        state.backward(state.model(inputs).square().mean())
        state.gradient_norm()
        state.update(1.0, 1.0)
        state.end_step()

    for _ in range(2):
        step()
    accelerator.wait_for_everyone()
    began = time.process_time()
    for _ in range(settings.num_steps):
        step()
    cpu_s = (time.process_time() - began) / settings.num_steps
    costs = accelerator.gather(torch.tensor([[cpu_s, peak_mb() - before_mb]], dtype=torch.float64))
    if accelerator.is_main_process:
        figures = {"cpu_s": round(float(costs[:, 0].sum()), 5), "peak_mb": round(float(costs[:, 1].max()), 1)}
        folders.write_json(Path(settings.out), {"parameters": num_parameters, **figures})
    accelerator.wait_for_everyone()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
