"""Record a trace of some training steps, for https://ui.perfetto.dev or chrome://tracing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@contextmanager
def profile(
    folder: Path, enabled: bool, rank: int = 0, log: Callable[[str], None] = print, steps: tuple[int, int, int] = (3, 2, 5)
) -> Iterator[Any]:
    """Trace the CPU and GPU operations of some steps into `folder`/profile/rank{rank}.json.gz, and log the path.

    The context has a method `step`, to be called after each optimizer step. `steps`: the number of steps to wait, to warm up
    the profiler, and to trace. If training ends before the last traced step, the file contains the steps until then. If it
    ends before the first one, the file that an earlier command wrote is kept.
    """
    if not enabled:
        yield SimpleNamespace(step=lambda: None)
        return
    from torch import profiler

    file = folder / "profile" / f"rank{rank}.json.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def write(profiled: profiler.profile) -> None:
        profiled.export_chrome_trace(str(file))
        written.append(file)
        log(f"the trace is in {file}: open it in https://ui.perfetto.dev")

    wait, warmup, active = steps
    schedule = profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profiler.profile(schedule=schedule, on_trace_ready=write, record_shapes=True) as profiled:
        yield profiled
    if not written:
        log(f"no trace was written: this command made fewer than {wait + warmup} steps, after which the trace begins")
