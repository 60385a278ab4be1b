"""An XGBoost and a LightGBM member from one command: one after the other on all cores, or side by side on half of them each.

Each library trains in a process of its own, by the same script. The members are written to OUT/xgboost and OUT/lightgbm.
OpenMP is configured once per process, and two libraries would share its threads. Side by side is faster where one library
gains little from more threads, as with few rows. together=auto tries both ways for some seconds.
"""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from ensemble import configuration
from ensemble.errors import (
    PREEMPTED,
    USER_ERROR,
    Failure,
    UserError,
    discard_output_to_closed_terminal,
    how_ended,
    in_a_line,
)
from ensemble.signals import STOP, end_with_parent
from ensemble.trees import memory, rows, threads
from ensemble.trees import train as member
from ensemble.trees.boosting import Training
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.distributed import LIBRARIES, RankInfo
from ensemble.trees.objective import objective_of
from ensemble.trees.predict import library_module
from ensemble.trees.settings import TreesConfig

SLOWER = "xgboost"
"""The slower library on the demo's rows. Without a trial, it gets one core more if the number of cores is odd."""
TRIAL_ROWS, TRIAL_ROUNDS, NUM_TRIALS = 100_000, 20, 2
POLL_S = 0.1


def train(config: TreesConfig, command: list[str], rank_info: RankInfo) -> dict[str, Any]:
    """Train both members by running `command`, the script and its arguments, for each library; return `status` and `out`.

    The status is done, or preempted after a signal of `signals.STOP`, which is passed on to the running processes, so that
    these save. If one process fails, the other gets SIGTERM, so that it saves and stops; a `Failure` names the failed one.
    Raises `UserError` for settings with which neither can train, before a process starts, and if a process ends with one.
    """
    if rank_info.num_ranks > 1:
        raise UserError(
            f"library=both trains on one node, not on {rank_info.num_ranks} ranks: train each library separately"
        )
    if config.search.trials or config.search.seconds:
        raise UserError("library=both does not search settings: search each library separately")
    member.check(config)
    objective_of(config, rows.TreeData(config.data, "train", rows.tree_manifest(config.data)))
    num_cores, _, _ = threads.choose(config.threads, os.environ)
    checkpoints = Checkpoints(config.out, "")
    try:  # before the trial, after which the error would be late
        checkpoints.set_status("running")
    except OSError as error:
        raise UserError(f"{config.out} cannot be written ({error}): name another out=") from None
    with checkpoints.failure_marked():
        together, slower = choose_together(config, num_cores)
    cores_of = halves(num_cores, slower) if together == "side_by_side" else dict.fromkeys(LIBRARIES, num_cores)
    commands = {}
    for library, number in cores_of.items():
        words = [f"library={library}", f"out={Path(config.out, library)}", f"threads={number}"]
        commands[library] = [sys.executable, *command, *configuration.literal(words)]
    with Children() as children:
        for libraries in [LIBRARIES] if together == "side_by_side" else [(library,) for library in LIBRARIES]:
            children.start({library: commands[library] for library in libraries}, prefixed=len(libraries) > 1)
            failed, sentence = children.wait()
            if failed == USER_ERROR:
                checkpoints.clear()
                raise UserError(sentence)
            if failed:
                checkpoints.set_status("lost" if failed < 0 else "failed", sentence)
                raise Failure(sentence)
            if children.preempted():
                checkpoints.set_status("preempted")
                return {"status": "preempted", "out": config.out}
    checkpoints.clear()
    return {"status": "done", "out": config.out}


def halves(num_cores: int, slower: str) -> dict[str, int]:
    """The number of cores of each library, at least one; if `num_cores` is odd, the slower library gets one more."""
    return {library: max(1, (num_cores + (library == slower)) // 2) for library in LIBRARIES}


class Children:
    """The processes that train, as a context manager; it passes signals on to them, and kills those left at its end."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._signal_received, self._pumps = 0, list[threading.Thread]()

    def __enter__(self) -> "Children":
        self._handlers = {number: signal.signal(number, self._pass_on) for number in STOP}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def start(self, commands: dict[str, list[str]], prefixed: bool) -> None:
        """Start a process for each library; with `prefixed`, the library's name is put before each line of output."""
        if self._signal_received:
            return
        pipe = subprocess.PIPE if prefixed else None
        for library, command in commands.items():
            self.processes[library] = subprocess.Popen(
                command,
                stdout=pipe,
                stderr=pipe,
                encoding=sys.stdout.encoding,  # that of PYTHONIOENCODING, as in the process
                errors="replace",
                start_new_session=True,
                preexec_fn=end_with_parent,  # so that none outlives this process
            )
        if self._signal_received:  # the signal may have arrived before these processes were in `self.processes`
            self._signal(self._signal_received)
        for library in commands if prefixed else ():
            process = self.processes[library]
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source
                self._pumps.append(threading.Thread(target=_pump, args=(library, source, target)))
                self._pumps[-1].start()

    def wait(self) -> tuple[int, str]:
        """Wait for all processes; return 0, or the exit code of the first that failed (< 0 for a signal), and a sentence."""
        failed = ""
        while not failed and any(process.poll() is None for process in self.processes.values()):
            time.sleep(POLL_S)
            failed = self._failed()
        if failed:
            self._signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait()
        for pump in self._pumps:
            pump.join()
        failed = failed or self._failed()
        if not failed:
            return 0, ""
        code = self.processes[failed].returncode
        end = how_ended(code) + (", see its lines above" if code > 0 else "")
        saved = [name for name, process in self.processes.items() if process.returncode == PREEMPTED]
        other = f", and {saved[0]} was stopped and has saved its trees" if saved else ""
        advice = "continue with --resume auto"
        if code == USER_ERROR:
            advice = "correct what its error names, and start again, with --resume auto if the data stay the same"
        return code, f"{failed} {end}{other}: {advice}"

    def preempted(self) -> bool:
        """Whether a signal was received, or a process was stopped before the end of its training."""
        return bool(self._signal_received) or any(process.returncode for process in self.processes.values())

    def _failed(self) -> str:
        """The library of the first process that is neither running nor finished nor stopped; '' if there is none."""
        stopped = {-self._signal_received, 128 + self._signal_received} if self._signal_received else ()
        expected = {None, 0, PREEMPTED, *stopped}
        return next((name for name, process in self.processes.items() if process.poll() not in expected), "")

    def _pass_on(self, number: int, frame: object) -> None:
        self._signal_received = number
        discard_output_to_closed_terminal()
        self._signal(number)

    def _signal(self, number: int) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


def _pump(library: str, source: IO[str], target: IO[str]) -> None:
    """Copy lines from a pipe to a stream of this process."""
    with source:
        for line in source:
            print(f"{library:8} | {line}", end="", file=target, flush=True)


def choose_together(config: TreesConfig, num_cores: int) -> tuple[str, str]:
    """`one_after_other` or `side_by_side`, and the slower library."""
    if config.together != "auto":
        return config.together, SLOWER
    if reason := _reason_for_no_trial(config, num_cores):
        print(f"together=one_after_other: {reason}", file=sys.stderr)
        return "one_after_other", SLOWER
    seconds_on_all = _trial(config, num_cores, at_once=False)
    seconds_on_half = _trial(config, num_cores // 2, at_once=True)
    in_turn_s, at_once_s = sum(seconds_on_all.values()), max(seconds_on_half.values())
    chosen = "side_by_side" if at_once_s < in_turn_s else "one_after_other"
    print(
        f"together={chosen}: {TRIAL_ROUNDS} rounds of each library took {in_turn_s:.2f} s one after the other on "
        f"{num_cores} cores, {at_once_s:.2f} s side by side on half of them each",
        file=sys.stderr,
    )
    return chosen, max(seconds_on_half, key=lambda library: seconds_on_half[library])


def _reason_for_no_trial(config: TreesConfig, num_cores: int) -> str:
    """Why the ways to train are not tried, for a message; '' if they are."""
    if num_cores == 1:
        return "there is one core"
    manifest = rows.tree_manifest(config.data)
    if "validation" not in manifest["splits"]:
        return "without a validation split there is no trial"
    needed = sum(member.bytes_needed(library, config, manifest) for library in LIBRARIES)
    is_short = memory.mode_for(needed, memory.available()) == "low"
    return "not enough memory for both at once" if is_short else ""


def _trial(config: TreesConfig, num_cores: int, at_once: bool) -> dict[str, float]:
    """The shortest time of `NUM_TRIALS` short trainings of each library, in seconds, without the start of its process."""
    seconds: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        try:  # a pool needs shared memory
            pools = {library: stack.enter_context(ProcessPoolExecutor(1, spawn)) for library in LIBRARIES}
            for load in [pool.submit(_load_trial, config, library, num_cores) for library, pool in pools.items()]:
                load.result()
            for _ in range(NUM_TRIALS):
                for libraries in [LIBRARIES] if at_once else [(library,) for library in LIBRARIES]:
                    for library, trial in {library: pools[library].submit(_run_trial) for library in libraries}.items():
                        seconds[library].append(trial.result())
        except UserError:
            raise
        except Exception as error:
            raise Failure(f"a trial of together=auto failed ({in_a_line(error)}): write together=one_after_other") from None
    return {library: min(trials) for library, trials in seconds.items()}


_loaded: list[tuple[ModuleType, TreesConfig, list[rows.TreeData]]] = []
"""In the process of a trial: its library, settings, and training and validation rows."""


def _load_trial(config: TreesConfig, library: Any, num_cores: int) -> None:
    """Prepare the process of a trial, whose Python messages on standard error are discarded."""
    end_with_parent()
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    threads.configure(num_cores)
    manifest = rows.tree_manifest(config.data)
    parts = {name: max(1, manifest["splits"][name]["rows"] // TRIAL_ROWS) for name in ("train", "validation")}
    splits = [rows.TreeData(config.data, name, manifest, 0, number) for name, number in parts.items()]
    config = dataclasses.replace(
        member.resolve(config, splits[0])[0], library=library, threads=num_cores, memory="in_core", num_rounds=TRIAL_ROUNDS,
        early_stopping_rounds=TRIAL_ROUNDS,
    )  # fmt: skip
    _loaded.append((library_module(library), config, splits))


def _run_trial() -> float:
    """The seconds of a training, in the process of a trial."""
    module, config, splits = _loaded[0]
    began = time.monotonic()
    module.train(config, *splits, Training())
    return time.monotonic() - began
