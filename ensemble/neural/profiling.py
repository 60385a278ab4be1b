"""A trace of some training steps, for https://ui.perfetto.dev or chrome://tracing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Profiler(Protocol):
    def step(self) -> None:
        """An optimizer step is done."""


class _Nothing:
    def step(self) -> None:
        pass


@contextmanager
def profile(
    folder: Path,
    enabled: bool,
    rank: int = 0,
    say: Callable[[str], None] = print,
    steps: tuple[int, int, int] = (3, 2, 5),
) -> Iterator[Profiler]:
    """Trace the operations of some steps on CPU and GPU into `folder`/profile/rank{rank}.json.gz, and say so.

    `steps`: how many pass first, how many warm the profiler up, and how many are traced. Where training ends or fails
    within those traced, what there is of them is written.
    """
    if not enabled:
        yield _Nothing()
        return
    from torch import profiler

    file = folder / "profile" / f"rank{rank}.json.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)

    def write(profiled: profiler.profile) -> None:
        profiled.export_chrome_trace(str(file))
        say(f"the trace of steps is at {file}: open it in https://ui.perfetto.dev")

    wait, warmup, active = steps
    schedule = profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profiler.profile(schedule=schedule, on_trace_ready=write, record_shapes=True) as profiled:
        yield profiled
    if not file.exists():
        say(f"training ended before its step {wait + warmup + 1}, where the trace would have begun: there is none")
