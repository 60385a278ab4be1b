"""The trials of a search for settings, which any number of tasks on any nodes do together; kept in Optuna's journal.

    OUT/trials.journal       all that the tasks did, one line each; they append to it under a lock (SQLite breaks on NFS)
    OUT/tasks/NAME/status    running | preempted | failed, then the reason; touched by a task as long as it lives

The budget is a row of places, each for one trial. A task takes the first free one under a second lock; that of a trial whose
task died or was asked to stop is free again. What is tried at a place is drawn from the search's seed, the place and the
trials that ended before: so a search by one task, killed anywhere and begun again, tries the same as one that never was.
"""

import contextlib
import itertools
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ensemble import folders
from ensemble.errors import UserError
from ensemble.trees.settings import SearchConfig

try:
    import optuna
except ModuleNotFoundError:
    raise UserError("a search needs Optuna: pip install -e '.[search]'") from None
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

JOURNAL = "trials.journal"
NUM_RANDOM = 10
"""Trials at random before the sampler learns from them, and before any is pruned."""
WAIT_S = 0.5


class Range(NamedTuple):
    """What a setting is tried between, both ends included; `log`: evenly in its logarithm; whole numbers if the ends are."""

    low: float
    high: float
    log: bool


class Pruned(Exception):
    """A trial is behind the others, and not worth its time."""


class Trial:
    """One that this task does: its place, and the settings to try there."""

    def __init__(self, trial: optuna.Trial, place: int, settings: dict[str, Any]):
        self.place, self.settings = place, settings
        self.record = trial

    def report(self, score: float, rung: int) -> None:
        """Its best score when it passes a rung, where trials are compared; `Pruned` if half of them were better there."""
        self.record.report(score, rung)
        if self.record.should_prune():
            raise Pruned


class Ended(NamedTuple):
    """A trial that came to its end, or was pruned before; `facts` are those noted."""

    place: int
    pruned: bool
    score: float
    settings: dict[str, Any]
    facts: dict[str, Any]


class Trials:
    """Those of the search in `folder`, as the task that enters it sees them.

    `about` is what all tasks must agree on, `given` the settings to try first, brought into their `ranges`.
    """

    def __init__(
        self,
        folder: Path,
        config: SearchConfig,
        ranges: Mapping[str, Range],
        given: Mapping[str, Any],
        about: dict[str, Any],
        higher_is_better: bool,
    ):
        self.folder, self._config, self._ranges, self._given = folder, config, ranges, given
        self._about, self._higher_is_better = about, higher_is_better
        self._token = uuid.uuid4().hex[:8]
        self._name = config.task or self._token
        self._own = folder / "tasks" / self._name
        # Of a process that was killed; Optuna takes no less than 3
        self._lock_seconds = max(3, int(config.lost_after_s / 4))
        self._claim = JournalFileOpenLock(str(folder / "claim"), self._lock_seconds)
        self._ended = threading.Event()
        self.preempted = False
        """Set by a task that leaves before the end, to go on later: its status then stays."""

    def __enter__(self) -> "Trials":
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._own.mkdir(parents=True, exist_ok=True)
        self._set_status("running")
        try:
            self._study = self._opened()
        except UserError:
            self._go()
            raise
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):  # a full disk must not hide the error
            if self.preempted and error is None:
                self._set_status("preempted")
            elif error is None or isinstance(error, UserError):
                self._go()
            else:
                self._set_status("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def _opened(self) -> optuna.Study:
        file = (self.folder / JOURNAL).resolve()
        lock = JournalFileOpenLock(str(file), self._lock_seconds)
        try:
            with _held(self._claim):
                _mend(file, lock)
                study = optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(str(file), lock)),
                    study_name="search",
                    direction="maximize" if self._higher_is_better else "minimize",
                    pruner=optuna.pruners.MedianPruner(n_startup_trials=NUM_RANDOM, n_min_trials=NUM_RANDOM // 2),
                    load_if_exists=True,
                )
                if "about" not in study.user_attrs:
                    study.set_user_attr("about", self._about)
        except ValueError as error:
            raise UserError(f"{file} is damaged ({error}): begin anew with overwrite=true and without --resume") from None
        for name, its in study.user_attrs["about"].items():
            if its != self._about.get(name):
                raise UserError(
                    f"{self.folder} holds a search with {name}={its} (now {self._about.get(name)}): give it that again, or "
                    "name another folder"
                )
        return study

    def take(self, asked: Callable[[], int]) -> Trial | None:
        """The next trial; None when the budget is spent, or `asked` to stop.

        While other tasks do the last trials, this one waits for them: should one of them die, there is work again.
        """
        waiting = False
        while not asked():
            if self._config.seconds and self._seconds() >= self._config.seconds:
                return None
            with _held(self._claim):
                self._free_lost()
                running, ended = (TrialState.RUNNING,), (TrialState.COMPLETE, TrialState.PRUNED)
                states = {trial.user_attrs["place"]: trial.state for trial in self._all(*running, *ended)}
                place = next(number for number in itertools.count() if number not in states)
                if not self._config.trials or place < self._config.trials:
                    return self._begin(place)
            if TrialState.RUNNING not in states.values():
                return None
            if not waiting:
                print("waiting for the last trials, which other tasks do", file=sys.stderr)
            waiting = True
            time.sleep(WAIT_S)
        return None

    def run(self, trial: Trial, work: Callable[[], tuple[float, dict[str, Any]]]) -> None:
        """Do the work of a trial, which returns its score and what else to note; whatever it raises frees the place."""
        began = time.monotonic()
        score, state = None, TrialState.PRUNED
        facts: dict[str, Any] = {}
        try:
            with contextlib.suppress(Pruned):
                score, facts = work()
                state = TrialState.COMPLETE
            for name, fact in {**facts, "seconds": round(time.monotonic() - began, 3)}.items():
                trial.record.set_user_attr(name, fact)
            self._study.tell(trial.record, score, state, skip_if_finished=True)
        except UpdateFinishedTrialError:
            print(f"trial {trial.place} was taken for lost, and is done by another task", file=sys.stderr)
        except BaseException:
            self._study.tell(trial.record, state=TrialState.FAIL, skip_if_finished=True)
            raise

    def ended(self) -> list[Ended]:
        """Those that came to an end, by place."""
        found = [
            Ended(
                trial.user_attrs["place"],
                trial.state == TrialState.PRUNED,
                trial.values[0],
                trial.user_attrs["settings"],
                {name: trial.user_attrs[name] for name in ("trees", "seconds") if name in trial.user_attrs},
            )
            for trial in self._all(TrialState.COMPLETE, TrialState.PRUNED)
        ]
        return sorted(found)

    def importance(self) -> dict[str, float]:
        """What part each setting has in what sets the best tenth of the trials apart (PED-ANOVA), largest first."""
        return optuna.importance.get_param_importances(self._study)

    @contextlib.contextmanager
    def pages(self) -> Iterator[Path]:
        """A folder for rows that this task keeps on disk; should it be killed, whoever frees its trial clears it away."""
        folder = self.folder / f".pages-{self._token}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, place: int) -> Trial:
        if place == 0 and not self._all(TrialState.WAITING):
            self._study.enqueue_trial(
                {name: min(max(self._given[name], its.low), its.high) for name, its in self._ranges.items()}
            )
        record = self._study.ask()
        record.set_user_attr("owner", {"name": self._name, "token": self._token})
        # Optuna 5 draws when it is first asked for a value
        seed = int(np.random.SeedSequence([self._config.seed, place]).generate_state(1)[0])
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_RANDOM)
        settings: dict[str, Any] = {}
        for name, its in self._ranges.items():
            if isinstance(its.low, int):
                settings[name] = record.suggest_int(name, its.low, int(its.high), log=its.log)
            else:
                # Digits that a person can read: they are what is tried, and what is written at the end
                settings[name] = float(f"{record.suggest_float(name, its.low, its.high, log=its.log):.4g}")
        if place == 0:
            settings = dict(self._given)
        record.set_user_attr("settings", settings)
        record.set_user_attr("place", place)
        return Trial(record, place, settings)

    def _all(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _seconds(self) -> float:
        """Of the trials that this task has ended, before it was begun again too."""
        ended = self._all(TrialState.COMPLETE, TrialState.PRUNED)
        return sum(trial.user_attrs["seconds"] for trial in ended if trial.user_attrs["owner"]["name"] == self._name)

    def _free_lost(self) -> None:
        """Give up the trials of tasks that died; the claim is held, so that who has none yet died before it had it whole."""
        for trial in self._all(TrialState.RUNNING):
            owner, place = trial.user_attrs.get("owner"), trial.user_attrs.get("place")
            if place is not None and owner and self._lives(**owner):
                continue
            with contextlib.suppress(UpdateFinishedTrialError):  # it ended just now
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            if owner:
                print(f"a task died ({owner['name']}): its trial is done again", file=sys.stderr)
                shutil.rmtree(self.folder / f".pages-{owner['token']}", ignore_errors=True)

    def _lives(self, name: str, token: str) -> bool:
        if name == self._name:
            return token == self._token  # another is of this task, before it was begun again
        try:
            with open(self.folder / "tasks" / name / "status", "rb") as status:  # on NFS, opening asks the server
                touched = os.fstat(status.fileno()).st_mtime
        except OSError:
            return False
        now = self._own.joinpath("status").stat().st_mtime  # by the disk's clock, as this task touched it a moment ago
        return now - touched < self._config.lost_after_s

    def _pulse(self) -> None:
        while not self._ended.wait(self._config.lost_after_s / 8):
            with contextlib.suppress(OSError):
                os.utime(self._own / "status")

    def _set_status(self, *lines: str) -> None:
        folders.write_text(self._own / "status", "".join(f"{line}\n" for line in lines if line))

    def _go(self) -> None:
        """Leave nothing of this task but its trials."""
        shutil.rmtree(self._own, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: others are at work
            self._own.parent.rmdir()


@contextlib.contextmanager
def _held(lock: JournalFileOpenLock) -> Iterator[None]:
    lock.acquire()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # it was taken over
            lock.release()


def _mend(file: Path, lock: JournalFileOpenLock) -> None:
    """Cut off a line that a full disk left half-written: the next would be joined to it, and none could be read again."""
    if not file.exists():
        return
    with _held(lock), open(file, "r+b") as journal:
        journal.truncate(journal.read().rfind(b"\n") + 1)
