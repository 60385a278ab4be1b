"""Two ranks search for a micro-batch that fits; rank 1 has little memory: short_of_memory.py FOLDER.

Each writes the result to FOLDER, and whether the search changed its state, after two steps of that size.
test_failures.py starts it with the launcher.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from ensemble import errors

BATCH_SIZE = 32768
WIDTH = 512  # an activation of rank 1's half of the batch has 32 MB
NUM_WORDS = 2**19  # an embedding, its gradient and each of its two moments have 32 MB
FREE_MB = 160
"""Memory of rank 1: enough for the gradient, the moments, and a part of the activations."""


def main() -> None:
    import torch
    from accelerate import Accelerator

    from ensemble.neural import guards
    from ensemble.neural.loader import BatchPlan

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    model = torch.nn.Sequential(
        torch.nn.Embedding(NUM_WORDS, 16), torch.nn.Linear(16, WIDTH), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(WIDTH)
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def trial_pass(plan: BatchPlan) -> None:
        model(torch.arange(plan.micro_batch_size)).sum().backward()

    def state() -> list[Any]:
        buffers = [buffer.tolist() for buffer in model.buffers()]
        return [torch.get_rng_state().tolist(), buffers, [p.grad is None for p in model.parameters()]]

    plan = BatchPlan(2 * BATCH_SIZE, BATCH_SIZE, 0, 2, rank, 0)
    accelerator.reduce(torch.zeros(1))
    before = state()
    if rank == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + FREE_MB * 2**20,) * 2)
    messages: list[str] = []
    fitted = guards.fit_micro_batch(plan, trial_pass, model, [optimizer], accelerator, messages.append)
    result = {
        "micro_batch_size": fitted.micro_batch_size,
        "batch_size": fitted.micro_batch_size * fitted.num_ranks * fitted.accumulation,
        "messages": messages,
        "state_changed": state() != before,
    }
    for _ in range(2):
        trial_pass(fitted)
        optimizer.step()
        optimizer.zero_grad()
    Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(result))
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    errors.run(main)
