"""The trials of a search for settings, shared by any number of tasks on any nodes through Optuna's journal.

    OUT/trials.journal       the record of all trials; tasks append lines to it under a lock (SQLite breaks on NFS)
    OUT/tasks/NAME/status    running | preempted | failed and the reason; a running task updates its modification time

Here a task is a process that runs trials; under the same name it can be resumed. The trials are numbered from 0; `place` is
the number. To start a trial, a task takes the first free place while it holds a second lock. If a task dies or is stopped,
the place of its trial becomes free again. The settings at a place are determined by the search's seed, the place, and the
trials that ended before. So a search by one task that was killed and resumed tries the same settings as an uninterrupted
one.
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
from ensemble.errors import UserError, in_a_line
from ensemble.trees.settings import SearchConfig

try:
    import optuna
except ModuleNotFoundError:
    raise UserError("a search needs Optuna: pip install 'accelerate-ensemble[search]'") from None
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

JOURNAL = "trials.journal"
NUM_RANDOM = 10
"""Until this number of trials has ended, settings are random, except those of the first trial, and no trial is pruned."""
WAIT_S = 0.5
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


class Range(NamedTuple):
    """The range of a setting, both ends included. The values are integers if `low` is an integer.

    log : whether the logarithm of the values is sampled uniformly.
    """

    low: float
    high: float
    log: bool


class Trial(NamedTuple):
    """A trial that this task runs: its record in the journal, its place, and the settings to try."""

    record: optuna.Trial
    place: int
    settings: dict[str, Any]

    def report(self, score: float, rung: int) -> None:
        """Record the trial's best score so far at `rung`, the number of a stage of training at which trials are compared.

        Raises `TrialPruned` if enough trials are completed and the score is worse than their median at this rung.
        """
        self.record.report(score, rung)
        if self.record.should_prune():
            raise optuna.TrialPruned


class EndedTrial(NamedTuple):
    """A trial that was completed or pruned. facts : its number of trees (not if pruned) and its duration in seconds."""

    place: int
    pruned: bool
    score: float
    settings: dict[str, Any]
    facts: dict[str, Any]


class Trials:
    """The trials of the search in `folder`, as a context manager for one task.

    agreed : values that must be the same for all tasks of the search. first : the settings of the first trial; they are
    clipped to `ranges` where the sampler learns from them.
    """

    def __init__(
        self,
        folder: Path,
        config: SearchConfig,
        ranges: Mapping[str, Range],
        first: Mapping[str, Any],
        agreed: dict[str, Any],
        higher_is_better: bool,
    ):
        self.folder, self._config, self._ranges, self._first = folder, config, ranges, first
        self._agreed, self._higher_is_better = agreed, higher_is_better
        self._token = uuid.uuid4().hex[:8]
        self.name = config.task or self._token
        self._task_folder = folder / "tasks" / self.name
        # Optuna requires at least 3 seconds until the lock of a killed process expires
        self._lock_seconds = max(3, int(config.lost_after_s / 4))
        self._claim = JournalFileOpenLock(str(folder / "claim"), self._lock_seconds)
        self._ended = threading.Event()
        self.preempted = False
        """Whether this task was stopped by a signal and can be resumed; its file `status` is then kept."""

    def __enter__(self) -> "Trials":
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._task_folder.mkdir(parents=True, exist_ok=True)
        self._set_status("running")
        try:
            self._study = self._open_study()
        except UserError:
            self._remove_task()
            raise
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):  # a full disk must not hide the error
            if self.preempted and error is None:
                self._set_status("preempted")
            elif error is None or isinstance(error, UserError):
                self._remove_task()
            else:
                self._set_status("failed", in_a_line(error))

    def _open_study(self) -> optuna.Study:
        file = (self.folder / JOURNAL).resolve()
        lock = JournalFileOpenLock(str(file), self._lock_seconds)
        try:
            with _locked(self._claim):
                _remove_partial_line(file, lock)
                study = optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(str(file), lock)),
                    study_name="search",
                    direction="maximize" if self._higher_is_better else "minimize",
                    pruner=optuna.pruners.MedianPruner(n_startup_trials=NUM_RANDOM, n_min_trials=NUM_RANDOM // 2),
                    load_if_exists=True,
                )
                if "about" not in study.user_attrs:
                    study.set_user_attr("about", self._agreed)
        except ValueError as error:
            raise UserError(f"{file} is damaged ({error}): start again with overwrite=true and without --resume") from None
        for name, value in study.user_attrs["about"].items():
            if value != self._agreed.get(name):
                raise UserError(
                    f"{self.folder} holds a search with {name}={value} (now {self._agreed.get(name)}): use the previous "
                    "value, or name another folder"
                )
        return study

    def take(self, stop_requested: Callable[[], int]) -> Trial | None:
        """Begin the next trial. Returns None when the budget is spent, or if `stop_requested` returns a number other than 0.

        While other tasks run the last trials, this task waits, since it must repeat a trial whose task dies.
        """
        is_waiting = False
        while not stop_requested():
            if self._config.seconds:  # the limit for all ended trials of this task, including those before it was resumed
                own = [trial for trial in self._all(*ENDED) if trial.user_attrs["owner"]["name"] == self.name]
                if sum(trial.user_attrs["seconds"] for trial in own) >= self._config.seconds:
                    return None
            with _locked(self._claim):
                self._free_lost()
                state_at = {trial.user_attrs["place"]: trial.state for trial in self._all(TrialState.RUNNING, *ENDED)}
                place = next(number for number in itertools.count() if number not in state_at)
                if not self._config.trials or place < self._config.trials:
                    return self._begin(place)
            if TrialState.RUNNING not in state_at.values():
                return None
            if not is_waiting:
                print("waiting for the last trials, which other tasks run", file=sys.stderr)
            is_waiting = True
            time.sleep(WAIT_S)
        return None

    def run(self, trial: Trial, work: Callable[[Trial], tuple[float, dict[str, Any]]]) -> None:
        """Run `work`, which returns the trial's score and facts, and record both. If it raises an exception other than
        `TrialPruned`, the place becomes free again."""
        began = time.monotonic()
        score, state = None, TrialState.PRUNED
        facts: dict[str, Any] = {}
        try:
            with contextlib.suppress(optuna.TrialPruned):
                score, facts = work(trial)
                state = TrialState.COMPLETE
            for name, fact in {**facts, "seconds": round(time.monotonic() - began, 3)}.items():
                trial.record.set_user_attr(name, fact)
            self._study.tell(trial.record, score, state, skip_if_finished=True)
        except UpdateFinishedTrialError:
            print(f"trial {trial.place} was considered lost, and another task repeats it", file=sys.stderr)
        except BaseException:
            self._study.tell(trial.record, state=TrialState.FAIL, skip_if_finished=True)
            raise

    def ended(self) -> list[EndedTrial]:
        """The completed and pruned trials, sorted by place."""
        return sorted(
            EndedTrial(
                trial.user_attrs["place"],
                trial.state == TrialState.PRUNED,
                trial.values[0],
                trial.user_attrs["settings"],
                {name: trial.user_attrs[name] for name in ("trees", "seconds") if name in trial.user_attrs},
            )
            for trial in self._all(*ENDED)
        )

    def importance(self) -> dict[str, float]:
        """How much each setting decides whether a trial is among the best tenth (PED-ANOVA), most important first."""
        return optuna.importance.get_param_importances(self._study)

    @contextlib.contextmanager
    def page_folder(self) -> Iterator[Path]:
        """A folder for rows that this task keeps on disk. If the task is killed, another one deletes the folder."""
        folder = self.folder / f".pages-{self._token}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, place: int) -> Trial:
        if place == 0 and not self._all(TrialState.WAITING):
            self._study.enqueue_trial(
                {name: min(max(self._first[name], span.low), span.high) for name, span in self._ranges.items()}
            )
        record = self._study.ask()
        record.set_user_attr("owner", {"name": self.name, "token": self._token})
        # Optuna 5 draws a value in `suggest_…`, so the sampler can still be replaced after `ask`
        seed = int(np.random.SeedSequence([self._config.seed, place]).generate_state(1)[0])
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_RANDOM)
        settings: dict[str, Any] = {}
        for name, span in self._ranges.items():
            if isinstance(span.low, int):
                settings[name] = record.suggest_int(name, span.low, int(span.high), log=span.log)
            else:
                # Rounded to four digits, so that the files show exactly the value that was tried
                settings[name] = float(f"{record.suggest_float(name, span.low, span.high, log=span.log):.4g}")
        if place == 0:
            settings = dict(self._first)
        record.set_user_attr("settings", settings)
        record.set_user_attr("place", place)
        return Trial(record, place, settings)

    def _all(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _free_lost(self) -> None:
        """Free the places of dead tasks' trials.

        The caller holds `_claim`, so no other task is beginning a trial. So a trial without an owner or a place belongs to a
        task that died when it began the trial.
        """
        for trial in self._all(TrialState.RUNNING):
            owner, place = trial.user_attrs.get("owner"), trial.user_attrs.get("place")
            if place is not None and owner and self._is_alive(**owner):
                continue
            with contextlib.suppress(UpdateFinishedTrialError):  # the trial ended just now
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            if owner:
                print(f"a task died ({owner['name']}): its trial is repeated", file=sys.stderr)
                shutil.rmtree(self.folder / f".pages-{owner['token']}", ignore_errors=True)

    def _is_alive(self, name: str, token: str) -> bool:
        if name == self.name:
            return token == self._token  # a task that is resumed has a new token
        try:
            with open(self.folder / "tasks" / name / "status", "rb") as status:  # on NFS, opening refreshes the time
                touched = os.fstat(status.fileno()).st_mtime
        except OSError:
            return False
        now = self._task_folder.joinpath("status").stat().st_mtime  # on the same clock; this task updates it often
        return now - touched < self._config.lost_after_s

    def _pulse(self) -> None:
        while not self._ended.wait(self._config.lost_after_s / 8):
            with contextlib.suppress(OSError):
                os.utime(self._task_folder / "status")

    def _set_status(self, *lines: str) -> None:
        folders.write_text(self._task_folder / "status", "".join(f"{line}\n" for line in lines if line))

    def _remove_task(self) -> None:
        """Delete the folder of this task; its trials stay in the journal."""
        shutil.rmtree(self._task_folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: other tasks are running
            self._task_folder.parent.rmdir()


@contextlib.contextmanager
def _locked(lock: JournalFileOpenLock) -> Iterator[None]:
    lock.acquire()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # the lock expired, and another task holds it
            lock.release()


def _remove_partial_line(file: Path, lock: JournalFileOpenLock) -> None:
    """Remove an incomplete last line, which a full disk leaves: a line appended to it would be unreadable."""
    if not file.exists():
        return
    with _locked(lock), open(file, "r+b") as journal:
        journal.truncate(journal.read().rfind(b"\n") + 1)
