"""A member by each library from one command: one after the other on all cores, or side by side on half of them each.

    python scripts/train_trees.py library=both data=runs/demo/prepared out=runs/demo/members

Each library trains in a process of its own, by the same script, and writes its whole member to OUT/xgboost and OUT/lightgbm:
OpenMP is set up once in a process, and two libraries would share its threads. Side by side wins where more threads do not
help one of them, as on few rows; one after the other, where all cores do. together=auto tries both ways for some seconds.
"""

import ctypes
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from ensemble.errors import PREEMPTED, USER_ERROR, Failure, UserError
from ensemble.signals import STOP
from ensemble.task import task_of
from ensemble.trees import memory, rows, threads
from ensemble.trees import train as member
from ensemble.trees.boosting import Training
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.distributed import LIBRARIES, Place
from ensemble.trees.objective import goal_of
from ensemble.trees.predict import module_of
from ensemble.trees.settings import TreesConfig

SLOWER = "xgboost"
"""On the demo's rows; it gets the odd core where no trial says which is slower."""
TRIAL_ROWS, TRIAL_ROUNDS, NUM_TRIALS = 100_000, 20, 2
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""
POLL_S = 0.1


def train(config: TreesConfig, line: list[str], where: Place) -> dict[str, Any]:
    """Train both members by starting `line`, the words of the script, for each library; returns the `status`.

    It is done, or preempted when SIGTERM, SIGINT or SIGUSR1 came, which both get and save on. If one fails, the other is
    asked to save and stop: `Failure` names the one that failed. Raises `UserError` for settings that neither can train with,
    before any process starts, and for what a process refuses later.
    """
    if where.num_ranks > 1:
        raise UserError(f"library=both trains on one node, not on {where.num_ranks} ranks: start each library by itself")
    if config.search.trials or config.search.seconds:
        raise UserError("library=both searches no settings: search those of each library by itself")
    _check(config)
    num_cores, _, _ = threads.choose(config.threads, os.environ)
    together, slower = _way(config, num_cores)
    cores_of = halves(num_cores, slower) if together == "side_by_side" else dict.fromkeys(LIBRARIES, num_cores)
    lines = {
        library: [sys.executable, *line, f"library={library}", f"out={Path(config.out, library)}", f"threads={number}"]
        for library, number in cores_of.items()
    }
    checkpoints = Checkpoints(config.out, "")
    with _Children() as children:
        checkpoints.set_status("running")
        for names in [LIBRARIES] if together == "side_by_side" else [(library,) for library in LIBRARIES]:
            children.start({library: lines[library] for library in names}, prefixed=len(names) > 1)
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


def _check(config: TreesConfig) -> None:
    """`UserError` for settings that do not exist or do not fit the data, in the words that one library would be given."""
    member.check(config)
    goal_of(config, rows.TreeData(config.data, "train", rows.description(config.data)))


def halves(num_cores: int, slower: str) -> dict[str, int]:
    """The cores of each library, at least one; an odd one is the slower's."""
    return {library: max(1, (num_cores + (library == slower)) // 2) for library in LIBRARIES}


class _Children:
    """The processes that train, while it is entered: it passes signals on to them, and none outlives it."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._asked, self._pumps = 0, list[threading.Thread]()

    def __enter__(self) -> "_Children":
        self._before = {number: signal.signal(number, self._pass_on) for number in STOP}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def start(self, lines: dict[str, list[str]], prefixed: bool) -> None:
        """With `prefixed`, each line that they print is printed with the library's name before it."""
        if self._asked:
            return
        pipe = subprocess.PIPE if prefixed else None
        prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
        for library, line in lines.items():
            self.processes[library] = subprocess.Popen(
                line,
                stdout=pipe,
                stderr=pipe,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # so that none is left behind
            )
        for library in lines if prefixed else ():
            process = self.processes[library]
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source
                self._pumps.append(threading.Thread(target=_pump, args=(library, source, target)))
                self._pumps[-1].start()

    def wait(self) -> tuple[int, str]:
        """Until all have ended: 0, or the code of the first that failed with a sentence about it, negative for a signal."""
        first = ""
        while any(process.poll() is None for process in self.processes.values()):
            time.sleep(POLL_S)
            first = first or self._failed()
            if first:
                self._signal(signal.SIGTERM)
                break
        for process in self.processes.values():
            process.wait()
        for pump in self._pumps:
            pump.join()
        first = first or self._failed()
        if not first:
            return 0, ""
        code = self.processes[first].returncode
        how = (
            f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}, see its lines above"
        )
        saved = [other for other, process in self.processes.items() if process.returncode == PREEMPTED]
        also = f", and {saved[0]} was stopped and has saved its trees" if saved else ""
        advice = "go on with --resume auto"
        if code == USER_ERROR:
            has_other = any(process.returncode in (0, PREEMPTED) for process in self.processes.values())
            again = ", with --resume auto if the data stay the same" if has_other else ""
            advice = f"correct what its error names, and start again{again}"
        return code, f"{first} {how}{also}: {advice}"

    def preempted(self) -> bool:
        """Whether one saved and left before its end, or was never begun."""
        return bool(self._asked) or any(process.returncode for process in self.processes.values())

    def _failed(self) -> str:
        """The first that has left by no code of a training that ends or was stopped."""
        expected = {None, 0, PREEMPTED, *({-self._asked, 128 + self._asked} if self._asked else ())}
        return next((name for name, process in self.processes.items() if process.poll() not in expected), "")

    def _pass_on(self, number: int, frame: object) -> None:
        self._asked = number
        self._signal(number)

    def _signal(self, number: int) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


def _pump(library: str, source: IO[str], target: IO[str]) -> None:
    with source:
        for line in source:
            print(f"{library:8} | {line}", end="", file=target, flush=True)


def _way(config: TreesConfig, num_cores: int) -> tuple[str, str]:
    """How to train, and which library is the slower."""
    if config.together != "auto":
        return config.together, SLOWER
    if num_cores == 1:
        print("together=one_after_other: there is one core", file=sys.stderr)
        return "one_after_other", SLOWER
    about = rows.description(config.data)
    num_rows, num_features = sum(about["splits"][name]["rows"] for name in ("train", "validation")), len(about["features"])
    num_classes, left = max(1, len(task_of(about).classes)), memory.left()
    needed = sum(memory.needed(library, num_rows, num_features, num_classes) for library in LIBRARIES)
    if memory.mode_for(needed, left) == "low":
        print("together=one_after_other: memory does not suffice for both at once", file=sys.stderr)
        return "one_after_other", SLOWER
    whole = _trial(config, dict.fromkeys(LIBRARIES, num_cores), at_once=False)
    half = _trial(config, dict.fromkeys(LIBRARIES, num_cores // 2), at_once=True)
    in_turn, at_once = sum(whole.values()), max(half.values())
    chosen = "side_by_side" if at_once < in_turn else "one_after_other"
    print(
        f"together={chosen}: {TRIAL_ROUNDS} trees of each took {in_turn:.2f} s one after the other on {num_cores} cores, "
        f"{at_once:.2f} s side by side on half of them",
        file=sys.stderr,
    )
    return chosen, max(half, key=lambda library: half[library])


def _trial(config: TreesConfig, cores_of: dict[str, int], at_once: bool) -> dict[str, float]:
    """Seconds in which each library trains a little, the least of some goes; in processes that are set up before."""
    spawn = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    for library, number in cores_of.items():
        connections[library], other = spawn.Pipe()
        process = spawn.Process(target=_train_a_little, args=(other, config, library, number), daemon=True)
        process.start()
        other.close()
    seconds: dict[str, list[float]] = {library: [] for library in cores_of}
    try:
        for connection in connections.values():
            _received(connection)
        for _ in range(NUM_TRIALS):
            for group in [list(connections)] if at_once else [[library] for library in connections]:
                for library in group:
                    connections[library].send("begin")
                for library in group:
                    seconds[library].append(_received(connections[library]))
    except EOFError:
        raise Failure(
            "a trial of together=auto ended without a message, as after a kill: see the lines above, or write "
            "together=one_after_other"
        ) from None
    finally:
        for connection in connections.values():
            connection.close()
    return {library: min(its) for library, its in seconds.items()}


def _received(connection: Connection) -> Any:
    """What a process of the trial sends; raises the error that ended it."""
    answer = connection.recv()
    if isinstance(answer, UserError):
        raise answer
    if isinstance(answer, Failure):
        raise Failure(f"a trial of together=auto failed: {answer}")
    return answer


def _train_a_little(connection: Connection, config: TreesConfig, library: Any, num_cores: int) -> None:
    """In a process of the trial: sends when it is ready, for each word that comes, how long it trained, or its error."""
    with suppress(EOFError, BrokenPipeError):
        try:
            _answer(connection, config, library, num_cores)
        except UserError as error:
            connection.send(error)
        except Exception as error:
            connection.send(Failure(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))


def _answer(connection: Connection, config: TreesConfig, library: Any, num_cores: int) -> None:
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        threads.settle(num_cores)
        about = rows.description(config.data)
        splits = []
        for name in ("train", "validation"):
            parts = max(1, about["splits"][name]["rows"] // TRIAL_ROWS)
            splits.append(rows.TreeData(config.data, name, about, 0, parts))
        module = module_of(library)
        its = dataclasses.replace(
            config, library=library, threads=num_cores, memory="in_core", num_rounds=TRIAL_ROUNDS,
            early_stopping_rounds=TRIAL_ROUNDS,
        )  # fmt: skip
        connection.send("ready")
        while connection.recv():
            began = time.monotonic()
            module.train(its, splits[0], splits[1], Training())
            connection.send(time.monotonic() - began)
