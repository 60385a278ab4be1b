"""`Predictor`: a fitted ensemble with its members in memory, which predicts new rows.

    from ensemble import Predictor

    predictor = Predictor.fit("people.csv", target="income", out="runs/people")
    forecast = predictor.predict("new.csv")

    with Predictor.load("runs/demo/ensemble") as predictor:
        forecast = predictor.predict(reviews, products)

Rows have the columns of raw files, in any format that scripts/prepare_data.py reads, not columns of features. They are
prepared here by the code that prepared the training data. If they are reviews, give all reviews of all products of the
categories, old and new: the features of a week depend on earlier reviews, and on those of other products.

Each member, and the preparation, is loaded once in a process of its own (worker.py). This process loads none of their
libraries.
"""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ensemble import combine, folders, predictions, recipe
from ensemble.data import census, drift
from ensemble.errors import Failure, UserError, current_folder
from ensemble.predictor import fitting, forecast, frames, members, new_data
from ensemble.predictor.intervals import Intervals

PREPARATION = "preparation"
"""Name of the worker that prepares data; the others have the names of their members."""
END_TIMEOUT_S = 10


@dataclasses.dataclass(eq=False, repr=False)
class Predictor(AbstractContextManager["Predictor"]):
    """A fitted ensemble with its members in memory, from `fit` or `load`, which predicts new rows.

    It may be called from several threads; each worker runs one task at a time. A copy or a pickle of it, as for a pool of
    processes, is loaded from the same folder again. Start such a pool with the method `spawn`: the forecasts of files and of
    polars frames are polars frames, and polars stands still in a process that was forked from one that had used it.
    """

    ensemble: combine.Ensemble
    manifest: dict[str, Any]
    """The manifest of the data that the ensemble was fitted on."""
    workers: "dict[str, Worker]"
    """The processes of the members, by their names, and of the preparation."""
    intervals: Intervals | None
    """The prediction intervals of a regression; None for other tasks."""
    folder: Path
    """The absolute path of the ensemble."""
    threads: int = 0
    """OpenMP threads of each member; 0 for as many as there are granted cores, or outside of Slurm OMP_NUM_THREADS if that
    is less."""
    bins_of_train: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """The bins of the features in train (data/drift.py); empty for recipes without cross-validation."""

    @classmethod
    def fit(
        cls, source: Any, *, out: str | Path, recipe: str = "table", resume: bool = False, threads: int = 0, **settings: Any
    ) -> "Predictor":
        """Fit an ensemble in the folder `out`, as scripts/fit.py does, and load it.

        source : a path, a list of paths, a pandas or polars DataFrame, or an Arrow table. settings : those of
        scripts/fit.py, such as `target`, `time_limit` in seconds, `metric`, `time`, `group`, `drop` and `test`. resume :
        continue the fit in `out`. threads : as for `load`, also for the training. Training runs in processes of its own.
        Raises `UserError` for mistakes, `Failure` for a failed or stopped training.
        """
        _check_threads(threads)
        fitting.fit(source, out, recipe, resume, {**settings, "threads": threads})
        return cls.load(Path(out) / "ensemble", threads)

    @classmethod
    def load(cls, folder: str | Path, threads: int = 0) -> "Predictor":
        """Load an ensemble and the members that a forecast needs.

        threads : as the field of this name. Raises `UserError` for a folder that is no complete ensemble, and for a member
        that is missing, damaged, of an unknown kind, or trained again since the ensemble was fitted; `Failure` if a worker
        process fails or ends.
        """
        _check_threads(threads)
        if not isinstance(folder, (str, Path)):
            raise UserError(f"{folder!r} is not a path: give the folder of an ensemble, as in 'runs/people/ensemble'")
        folder = Path(folder)
        description, manifest = new_data.read_fitted(folder)
        ensemble = new_data.needed_members(description, manifest)
        common = {"trusted": recipe.words_of_command_line()[1::2], "manifest": manifest}
        configs: dict[str, dict[str, Any]] = {PREPARATION: common}
        has_trees = False
        for name, member in new_data.member_folders(folder, description, ensemble.member_names).items():
            new_data.check_member(name, folder, description["members"][name])
            configs[name] = {**common, "name": name, "folder": str(member), "threads": threads, "quiet": has_trees}
            has_trees |= members.kind_of(member) in members.TREES
        workers = {name: Worker(name, config) for name, config in configs.items()}
        intervals, bins = new_data.intervals_of(description), description.get("bins_of_train", {})
        loaded = cls(ensemble, manifest, workers, intervals, folder.absolute(), threads, bins)
        try:
            for worker in workers.values():
                worker.wait()
        except BaseException:
            loaded.close()
            raise
        return loaded

    def predict(self, rows: Any, products: Any = None) -> Any:
        """The predictions of new rows.

        rows : a path or a list of paths, a pandas or polars DataFrame, or an Arrow table, with the columns of the training
        table; the target is not needed. Reviews have the columns of Amazon Reviews 2023 or of another known format.
        products : the metadata of the products in one of these forms, needed if the members were trained with metadata.

        Returns a frame of the same kind, polars for paths. For a table its columns are `row_id`, which counts the rows from
        0; the id column, if there is one; `group` in a ranking; `prediction`, which is the probability of the second of two
        classes, or one column for each of several classes; `lower_90` and `upper_90`, the ends of the prediction interval of
        a regression; and `why`, the reasons as text. It is in the order of the rows, and a pandas frame has their index. For
        reviews it has the columns and the order of `forecast.csv`. An Arrow table is always returned with the columns and
        the order of `forecast.parquet`. A message about unusual rows, such as cells that count as empty, is a `UserWarning`.
        Raises `UserError` for rows that cannot be prepared and after `close`, and `Failure` if a worker process fails or has
        ended, or if the folder for temporary files was deleted.
        """
        frame, notes = self.predict_with_notes(rows, products)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return frame

    def predict_with_notes(self, rows: Any, products: Any = None) -> tuple[Any, list[str]]:
        """The result of `predict`, and the messages of which it makes warnings."""
        fitted_recipe = recipe.of(self.manifest)
        fitted_recipe.require("new_data", "check", "cannot check new raw data")(self.manifest, True, products is not None)
        given = {"source": (rows, fitted_recipe.get("new_data", "ROWS") or "reviews")}
        given |= {} if products is None else {"metadata": (products, "products")}
        with frames.scratch_folder() as name:
            scratch = Path(name)
            data = str(scratch / "prepared")
            files_of = {key: frames.as_files(table, scratch / f"{kind}.parquet") for key, (table, kind) in given.items()}
            task: dict[str, Any] = {"out": data, **{key: files for key, (files, _) in files_of.items()}}
            raw_files = [file for files, _ in files_of.values() for file in files]
            if not all(map(os.path.isabs, raw_files)):
                task["directory"] = current_folder()  # it may differ from that of the workers
            tables = [Path(file).stem for file in raw_files if file.startswith(name)]
            names = self.ensemble.member_names
            files = [scratch / f"{member}.parquet" for member in names]
            with ThreadPoolExecutor(len(names)) as pool:  # Ctrl-C interrupts no other thread, so each answer is read
                try:
                    read = pool.submit(self.workers[PREPARATION].run, task).result()
                except UserError as error:
                    raise UserError(_without_files(str(error), name, tables)) from None
                tasks = [{"data": data, "out": str(file)} for file in files]
                warned = list(pool.map(lambda member, task: self.workers[member].run(task), names, tasks))
            member_files = [predictions.read(file) for file in files]
            why = forecast.write_forecast(scratch, data, member_files, self.ensemble, self.intervals)
            manifest = folders.read_json(Path(data) / "manifest.json")
            counts = [manifest[kind] for kind in ("census", "product_census") if kind in manifest]
            noted = [*manifest.get("notes", []), *(note for each in counts for note in census.notes(each))]
            notes = list(dict.fromkeys([*read, *noted]))  # some are printed and recorded too
            notes += [drifted] if (drifted := drift.warning(self.bins_of_train, data, manifest)) else []
            notes += dict.fromkeys(note for each in warned for note in each)  # members warn of the same values
            notes = [_without_files(note, name, tables) for note in notes]
            table = pq.read_table(scratch / "forecast.parquet")  # equal to the file, also in the types of nested columns
            table = table if isinstance(rows, pa.Table) else in_order_of_rows(table, why)
            return files_of["source"][1](table), notes

    def lost(self) -> list[str]:
        """Names of the workers whose process has ended. With one or more of them nothing can be predicted."""
        return [name for name, worker in self.workers.items() if worker.process.poll() is not None]

    def close(self) -> None:
        """End the worker processes after the tasks under way."""
        for worker in self.workers.values():
            worker.end()

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, (self.folder, self.threads, self.manifest["recipe"])

    def __repr__(self) -> str:
        return f"Predictor.load({str(self.folder)!r}, threads={self.threads})"

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


def _load_again(folder: Path, threads: int, name: str) -> Predictor:
    """Load an ensemble in a process that may not have named its recipe; a pickle can run any code, so it is trusted."""
    recipe.named(name)
    return Predictor.load(folder, threads)


def _end_unused(process: subprocess.Popen[str], loaded_by: int) -> None:
    """End the process of a worker that was deleted; `subprocess` itself would keep it until this process ends."""
    if os.getpid() == loaded_by:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            with suppress(OSError):  # if a task could not be sent
                pipe.close()


def _check_threads(threads: int) -> None:
    if not isinstance(threads, int) or threads < 0:
        raise UserError(f"threads={threads!r} is impossible: give a number of cores, or 0 for as many as are granted")


def _without_files(message: str, scratch: str, names: Iterable[str]) -> str:
    """The message with NAME instead of the path of the file NAME.parquet in the folder `scratch`, for all `names`."""
    message = message.replace(f"{scratch}{os.sep}", "")
    for name in names:
        message = message.replace(f"{name}.parquet", name)
    return message


def in_order_of_rows(table: pa.Table, why: pa.Array) -> pa.Table:
    """A forecast with `why` in place of `reasons`; if it has row ids, in their order and without the column `rank`."""
    table = table.drop_columns(["reasons"]).append_column("why", why)
    if "row_id" not in table.column_names:
        return table
    table = table.sort_by("row_id")
    return table.drop_columns(["rank"]) if "rank" in table.column_names else table


class Worker:
    """A worker process (worker.py). It ends with this object or process at the latest, since its input ends then."""

    def __init__(self, name: str, config: dict[str, Any]):
        self.name = name
        self._loaded_by = os.getpid()
        self._lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ensemble.predictor.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**new_data.environment(), "TQDM_DISABLE": "1", "PYTHONOPTIMIZE": ""},  # LightGBM needs docstrings
        )
        weakref.finalize(self, _end_unused, self.process, self._loaded_by)
        self._send(config)

    def run(self, task: dict[str, Any]) -> list[str]:
        """Run a task, wait for its end, and return the sentences of which the worker warns; one task at a time.

        It is called in another thread than the main one: after Ctrl-C in `readline`, an answer would be lost or left unread.
        """
        if os.getpid() != self._loaded_by:  # both processes would read the answers
            raise UserError("this Predictor was loaded in another process: load it in each process, after the fork")
        with self._lock:
            if self.process.stdout and self.process.stdout.closed:
                raise UserError("this Predictor was closed: load the ensemble again")
            self._send(task)
            return self.wait()

    def _send(self, content: dict[str, Any]) -> None:
        assert self.process.stdin
        try:
            print(json.dumps(content), file=self.process.stdin, flush=True)
        except OSError:
            raise self._lost() from None

    def wait(self) -> list[str]:
        """Wait until the worker has loaded, or has run its task; return its warnings, or raise the error that it reports."""
        assert self.process.stdout
        if not (line := self.process.stdout.readline()):
            raise self._lost()
        answer = json.loads(line)
        if "mistake" in answer:
            raise UserError(answer["mistake"])
        if "failure" in answer:
            raise Failure(f"{self.name}: {answer['failure']}")
        return list(answer["notes"])

    def end(self) -> None:
        """End the process after its task, or kill it if it does not end within `END_TIMEOUT_S`."""
        with self._lock:
            assert self.process.stdin
            assert self.process.stdout
            try:
                if not self.process.stdin.closed:  # a process that was forked from this one may keep the pipe open
                    print(file=self.process.stdin, flush=True)
                self.process.stdin.close()
                self.process.wait(END_TIMEOUT_S)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()

    def _lost(self) -> Failure:
        """The exception for a process that has ended."""
        return Failure(
            f"the process of {self.name} has ended; its last output is on standard error: load the ensemble again"
        )
