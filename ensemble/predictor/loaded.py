"""A fitted ensemble with its members in memory: new rows in, their predictions out.

    from ensemble import Predictor

    predictor = Predictor.fit("people.csv", target="income", out="runs/people")
    forecast = predictor.predict("new.csv")

    with Predictor.load("runs/demo/ensemble") as predictor:
        forecast = predictor.predict(reviews, products)

Rows are those of the raw files, in any of the forms that scripts/prepare_data.py knows, and not of features: they are
prepared here, by the code that prepared them for training. Of reviews, give all of all products of the categories, old and
new, since a feature is only right as of its week and beside the whole market's reviews.

Each member, and the preparation, is loaded once, in a process of its own (worker.py); this one has none of their libraries.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ensemble import combine, predictions
from ensemble.errors import Failure, UserError
from ensemble.predictor import fitting, forecast, members, new_data
from ensemble.predictor.frames import to_arrow
from ensemble.predictor.intervals import Intervals

PREPARATION = "preparation"
WHY = pyarrow.csv.ConvertOptions(include_columns=["why"], column_types={"why": pa.string()}, strings_can_be_null=False)
END_TIMEOUT_S = 10


class Predictor:
    """See the module's docstring. Calls from several threads share the processes and may overtake each other in stages."""

    def __init__(
        self,
        ensemble: combine.Ensemble,
        like: dict[str, Any],
        stages: "dict[str, _Stage]",
        intervals: Intervals | None = None,
    ):
        self.ensemble, self.like, self._intervals = ensemble, like, intervals
        self._stages = stages

    @classmethod
    def fit(
        cls, source: Any, *, out: str | Path, recipe: str = "table", resume: bool = False, threads: int = 0, **settings: Any
    ) -> "Predictor":
        """Fit an ensemble in the folder `out`, as scripts/fit.py does, and load it.

        source : a path, a list of paths, or a pandas or polars DataFrame. settings : those of scripts/fit.py, such as
        `target`, `time_limit` in seconds, `metric`, `time`, `group`, `drop` and `test`. resume : go on with the fit in
        `out`. Training runs in processes of its own. Raises `UserError` for mistakes, `Failure` if the training is stopped.
        """
        fitting.fit(source, out, recipe, resume, {**settings, "threads": threads})
        return cls.load(Path(out) / "ensemble", threads)

    @classmethod
    def load(cls, folder: str | Path, threads: int = 0) -> "Predictor":
        """Load the ensemble and each of its members, `threads` of OpenMP each; 0 for as many cores as are granted.

        Raises `UserError` for a folder that is no sound ensemble, and for a member that is gone, damaged, of an unknown
        kind, or trained anew since the ensemble was fitted.
        """
        if threads < 0:
            raise UserError(f"threads={threads} is impossible: give a number of cores, or 0 for as many as are granted")
        folder = Path(folder)
        description, like = new_data.read_fitted(folder)
        ensemble = combine.Ensemble.from_dict(description["combiner"])
        of_all = {"recipe": like["recipe"], "like": like}
        about: dict[str, dict[str, Any]] = {PREPARATION: of_all}
        for name, member in new_data.member_folders(folder, description, ensemble.member_names).items():
            new_data.check_member(name, folder, description["members"][name])
            members.kind_of(member)
            about[name] = {**of_all, "name": name, "folder": str(member), "threads": threads}
        stages = {name: _Stage(name, of_stage) for name, of_stage in about.items()}
        loaded = cls(ensemble, like, stages, new_data.intervals_of(description))
        try:
            for stage in stages.values():
                stage.answer()
        except BaseException:
            loaded.close()
            raise
        return loaded

    def predict(self, rows: Any, products: Any = None) -> Any:
        """The predictions of new rows.

        rows : a path or a list of paths, a pandas or polars DataFrame, or an Arrow table, with the columns that the table
        had in training; the target is not needed. Of reviews: columns of Amazon Reviews 2023 or another known form, and
        `products`, their metadata, if the members learned with them.

        Returns a frame of the same kind, polars for paths: `row_id`, the row's number from 0 on, the id column as it was
        given, `prediction` (of two classes the probability of the second, of several one column for each), and `why`.
        It is in the order of the rows; for an Arrow table, and for reviews, in that of `forecast.parquet`. Raises
        `UserError` for rows that cannot be prepared, and `Failure` if a member's process is lost.
        """
        new_data.of_recipe(self.like).check(self.like, True, products is not None)
        if isinstance(rows, (str, Path, list, tuple)):
            paths = [str(path) for path in ([rows] if isinstance(rows, (str, Path)) else rows)]
            tables = {} if products is None else {"products": to_arrow(products)[0]}
            import polars

            return polars.from_arrow(self._predict({"source": paths}, tables, for_people=True))
        table, back = to_arrow(rows)
        tables = {"reviews": table, **({} if products is None else {"products": to_arrow(products)[0]})}
        return back(self._predict({}, tables, for_people=not isinstance(rows, pa.Table)))

    def _predict(self, task: dict[str, Any], tables: dict[str, pa.Table], for_people: bool) -> pa.Table:
        """The forecast as `forecast.parquet` holds it, or with `for_people` as `in_order_of_rows` describes.

        task : of the preparation. tables : what else it is to read.
        """
        with tempfile.TemporaryDirectory(prefix="ensemble-") as name:
            scratch = Path(name)
            for what, table in tables.items():
                pq.write_table(table, scratch / f"{what}.parquet", compression="none")
            data = str(scratch / "prepared")
            named = {"reviews": "source", "products": "metadata"}
            task = {**task, "out": data, **{named[what]: [str(scratch / f"{what}.parquet")] for what in tables}}
            try:
                self._stages[PREPARATION].ask(task)
            except UserError as error:
                raise UserError(str(error).replace(f"{name}{os.sep}", "").replace(".parquet", "")) from None
            names = self.ensemble.member_names
            files = [scratch / f"{member}.parquet" for member in names]
            with ThreadPoolExecutor(len(names)) as pool:
                asked = [
                    pool.submit(self._stages[member].ask, {"data": data, "out": str(file)})
                    for member, file in zip(names, files, strict=True)
                ]
                for answer in asked:
                    answer.result()
            read = [predictions.read(file) for file in files]
            template, columns = predictions.align(read)
            forecast.write_forecast(scratch, data, template, columns, self.ensemble, read, self._intervals)
            found = pq.read_table(scratch / "forecast.parquet")
            if not for_people:
                return found
            return in_order_of_rows(found, pyarrow.csv.read_csv(scratch / "forecast.csv", convert_options=WHY)["why"])

    def lost(self) -> list[str]:
        """The stages whose process has ended, so that nothing can be predicted any more."""
        return [name for name, stage in self._stages.items() if not stage.is_alive()]

    def close(self) -> None:
        """End the members' processes; what they are at is finished first."""
        for stage in self._stages.values():
            stage.end()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def in_order_of_rows(found: pa.Table, why: pa.ChunkedArray) -> pa.Table:
    """A forecast with its reasons in words, in the order of its row ids and without ranks; as it is if it has no row ids."""
    found = found.drop_columns(["reasons"]).append_column("why", why)
    if "row_id" not in found.column_names:
        return found
    return found.sort_by("row_id").drop_columns([name for name in ("rank",) if name in found.column_names])


class _Stage:
    """The process of one stage; it ends when this one does, since its input ends then."""

    def __init__(self, name: str, about: dict[str, Any]):
        self.name = name
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ensemble.predictor.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "TQDM_DISABLE": "1"},
        )
        self._say(about)

    def ask(self, task: dict[str, Any]) -> None:
        """Have a task done; one at a time."""
        with self._lock:
            self._say(task)
            self.answer()

    def _say(self, content: dict[str, Any]) -> None:
        assert self._process.stdin
        try:
            print(json.dumps(content), file=self._process.stdin, flush=True)
        except OSError:
            raise self._is_lost() from None

    def answer(self) -> None:
        """Wait for the answer, and raise what it says."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise self._is_lost()
        answer = json.loads(line)
        if "mistake" in answer:
            raise UserError(answer["mistake"])
        if "failure" in answer:
            raise Failure(f"{self.name}: {answer['failure']}")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        with self._lock:
            assert self._process.stdin
            assert self._process.stdout
            try:
                self._process.stdin.close()
                self._process.wait(END_TIMEOUT_S)
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()

    def _is_lost(self) -> Failure:
        return Failure(
            f"the process of {self.name} has ended; its last words are on standard error: load the ensemble again"
        )
