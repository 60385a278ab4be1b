"""The loaded ensemble: the forecast equals that from files, each member is read once, and pickles are never loaded."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow.parquet as pq
import pytest

from ensemble import folders
from ensemble.errors import Failure, UserError
from ensemble.predictor import new_data
from ensemble.predictor.loaded import Predictor
from ensemble.recipes.hot_sellers import requests


@pytest.fixture(scope="module")
def predictor(fitted: Path) -> Iterator[Predictor]:
    with Predictor.load(fitted / "ensemble", threads=1) as loaded:
        yield loaded


@pytest.fixture
def copied(fitted: Path, trees: Path, tmp_path: Path) -> Path:
    """A copy of the members, of the ensemble, and of that of trees."""
    return Path(shutil.copytree(fitted, tmp_path / "fitted"))


class Payload:
    """An object whose pickle creates the file when it is loaded."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.file,)


def sign_again(fitted: Path, name: str, ensemble: Path) -> None:
    """Make the manifests of a member and of the ensemble agree with what is there now, as a forger would."""
    folder = fitted / "members" / name
    folder = folder / "best" if (folder / "best").is_dir() else folder
    (folder / folders.NAME).unlink()
    fingerprint = folders.write_manifest(folder, {"kind": "tree member"})["fingerprint"]
    description = folders.read_json(ensemble / "ensemble.json")
    description["members"][name]["model"] = fingerprint
    folders.write_json(ensemble / "ensemble.json", description)
    (ensemble / folders.NAME).unlink()
    folders.write_manifest(ensemble, {"kind": "ensemble"})


def test_the_forecast_is_that_of_the_files(
    predictor: Predictor, fitted: Path, request_rows: Any, raw_market: tuple[Path, Path]
) -> None:
    """A loaded member would have other predictions than from its files, a table would lose values of the raw files, or a
    path of products would be refused with the advice to give a path."""
    request = requests.Request(**request_rows)
    assert request.products
    forecast = predictor.predict(requests.review_table(request.reviews), requests.product_table(request.products))
    assert forecast.equals(pq.read_table(fitted / "ensemble/forecast.parquet"), check_metadata=True)
    from_paths = predictor.predict(raw_market[0], str(raw_market[1])).drop("why")
    assert from_paths.equals(pl.read_parquet(fitted / "ensemble/forecast.parquet").drop("reasons"))


def test_a_forecast_after_one_that_was_interrupted_is_its_own(
    predictor: Predictor, fitted: Path, request_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C, each later call would read the answer to the one before it, or wait for ever for one that was lost."""
    request = requests.Request(**request_rows)
    tables = requests.review_table(request.reviews), requests.product_table(request.products or [])
    process = predictor.workers["preparation"].process
    read = process.stdout

    class Interrupted:
        closed = False

        def readline(self) -> str:
            assert read
            answer = read.readline()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return answer

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patched:
        patched.setattr(process, "stdout", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            predictor.predict(*tables)
    signal.signal(signal.SIGINT, before)
    for _ in range(2):
        assert predictor.predict(*tables).equals(pq.read_table(fitted / "ensemble/forecast.parquet"))


def test_a_predictor_of_another_process_is_refused(
    predictor: Predictor, request_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fork, as in a pool of processes, one process would get the answers to another."""
    request = requests.Request(**request_rows)
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with pytest.raises(UserError, match="loaded in another process: load it in each process, after the fork"):
        predictor.predict(requests.review_table(request.reviews), requests.product_table(request.products or []))


def test_a_deleted_current_folder_is_named(
    predictor: Predictor, request_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook whose folder was deleted would end in a FileNotFoundError without the name of a file."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UserError, match="the current folder was deleted: change to another one"):
        predictor.predict("reviews.jsonl", requests.product_table(request_rows["products"]))


def test_a_pickle_is_the_folder_loaded_again(trees: Path, request_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """joblib, a pool of processes or a copy would end in "cannot pickle '_thread.lock' object"."""
    monkeypatch.chdir(trees.parent)
    with Predictor.load("trees", threads=1) as loaded:
        stored = pickle.dumps(loaded)
    assert repr(loaded) == f"Predictor.load('{trees}', threads=1)"
    monkeypatch.chdir("/")
    request = requests.Request(**request_rows)
    with pickle.loads(stored) as copied:
        forecast = copied.predict(requests.review_table(request.reviews), requests.product_table(request.products or []))
    assert forecast.equals(pq.read_table(trees / "forecast.parquet"))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("ensemble/ensemble.json", b"0.", b"1."),
        ("ensemble/like.json", b'"prepared data"', b'"Prepared data"'),
        ("members/xgboost/summary.json", b"1", b"2"),
        ("members/transformer/config.json", b"1", b"2"),
        ("members/transformer/best/model.safetensors", b"\x00", b"\x01"),
    ],
)
def test_an_edit_that_keeps_size_and_time_is_found(
    file: str, old: bytes, new: bytes, copied: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """A forecast would be by other weights or another model than those that were scored, after an edit or a bad disk."""
    path, (reviews, products) = copied / file, raw_market
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(stream.read().rindex(old))
        stream.write(new)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    with pytest.raises(UserError, match=rf"{path.name} was changed after it was written"):
        Predictor.load(copied / "ensemble", threads=1)
    with pytest.raises(UserError, match=rf"{path.name} was changed after it was written"):
        new_data.predict(copied / "ensemble", (str(reviews),), (str(products),), tmp_path / "new", {})
    assert not (tmp_path / "new").exists()


def test_the_number_of_threads_is_printed_once(trees: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A service would print the same lines and warnings for each of its tree members."""
    with Predictor.load(trees, threads=2):
        pass
    assert capfd.readouterr().err.count("OMP_NUM_THREADS=2 ") == 1


def test_a_program_without_docstrings_predicts(trees: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an image with PYTHONOPTIMIZE=2 the import of LightGBM would fail: 'NoneType' has no attribute 'partition'."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    with Predictor.load(trees, threads=1) as loaded:
        assert loaded.lost() == []


def test_the_processes_of_a_predictor_that_is_deleted_end(trees: Path) -> None:
    """A notebook that loads an ensemble again and again would keep the processes of all of them."""
    predictor = Predictor.load(trees, threads=1)
    processes = [psutil.Process(worker.process.pid) for worker in predictor.workers.values()]
    del predictor
    assert psutil.wait_procs(processes, timeout=60)[1] == []


def test_a_forked_process_does_not_keep_the_workers_alive(trees: Path) -> None:
    """A pool of processes has the pipes of the workers too: each of these was killed only after a wait of 10 s."""
    predictor = Predictor.load(trees, threads=1)
    processes = [worker.process for worker in predictor.workers.values()]
    pipes = [process.stdin.fileno() for process in processes if process.stdin]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=pipes):
        predictor.close()
    predictor.close()
    assert [process.returncode for process in processes] == [0] * len(processes)


def test_members_are_read_once(fitted: Path, request_rows: Any, tmp_path: Path) -> None:
    """Every request would wait for the members to be loaded: here they are gone after the first load."""
    folder = Path(shutil.copytree(fitted, tmp_path / "moved"))
    request = requests.Request(**request_rows)
    assert request.products
    with Predictor.load(folder / "ensemble", threads=1) as loaded:
        shutil.rmtree(folder)
        forecast = loaded.predict(requests.review_table(request.reviews), requests.product_table(request.products))
    assert forecast.equals(pq.read_table(fitted / "ensemble/forecast.parquet"))


def test_a_request_that_cannot_be_prepared_disturbs_nothing(predictor: Predictor, request_rows: Any) -> None:
    """A mistake would cause a traceback, name a temporary file, or leave the answer to one request for the next one."""
    request = requests.Request(**request_rows)
    table = requests.review_table(request.reviews)
    with pytest.raises(UserError, match="the members were trained with product metadata, but none are given: add metadata"):
        predictor.predict(table)
    assert request.products
    products = requests.product_table(request.products)
    with pytest.raises(UserError, match=r"^reviews ") as caught:
        predictor.predict(table.drop_columns(["rating"]), products)
    assert "/" not in str(caught.value)
    assert predictor.predict(table, products).num_rows


def test_warnings_about_reviews_are_python_s(predictor: Predictor, request_rows: Any) -> None:
    """A notebook would show a forecast from a tenth of the products, or from a file with bad lines, without a warning."""
    names = sorted({review["parent_asin"] for review in request_rows["reviews"]})[:40]
    request = requests.Request(**{kind: [row for row in rows if row["parent_asin"] in names]
                                  for kind, rows in request_rows.items()})  # fmt: skip
    for review in request.reviews[:2]:
        review["rating"] = 7.0
    assert request.products
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predictor.predict(requests.review_table(request.reviews), requests.product_table(request.products))
    messages = [str(warning.message) for warning in caught]
    assert any("of the products that the members learned from" in message for message in messages)
    assert any(message.endswith("% of the products lack metadata, more than in the training data: give it, or expect "
                                "worse predictions") for message in messages)  # fmt: skip
    assert any(message.startswith("2 of ") and "left out: impossible rating (reviews:1)" in message for message in messages)


def test_a_lost_process_is_named(trees: Path, request_rows: Any) -> None:
    """A caller would wait for ever for a member that the kernel killed."""
    request = requests.Request(**request_rows)
    assert request.products
    with Predictor.load(trees, threads=1) as loaded:
        assert not loaded.lost()
        process = loaded.workers["xgboost"].process
        process.kill()
        process.wait()
        assert loaded.lost() == ["xgboost"]
        with pytest.raises(Failure, match="the process of xgboost has ended"):
            loaded.predict(requests.review_table(request.reviews), requests.product_table(request.products))


@pytest.mark.parametrize("file", ["xgboost/model.ubj", "lightgbm/model.txt", "transformer/best/model.safetensors"])
def test_a_pickle_for_a_model_is_never_read(file: str, copied: Path, tmp_path: Path) -> None:
    """Whoever can write a model's file could run code. The checksum differs; with a new checksum the file is no model."""
    trap = tmp_path / "read"
    pickle.loads(pickle.dumps(Payload(trap)))
    assert trap.exists(), "this test could not fail"
    trap.unlink()
    path, ensemble = copied / "members" / file, copied / ("ensemble" if file.startswith("transformer") else "trees")
    path.write_bytes(pickle.dumps(Payload(trap)).ljust(path.stat().st_size, b"."))
    with pytest.raises(UserError, match="was changed after it was written"):
        Predictor.load(ensemble)
    sign_again(copied, file.partition("/")[0], ensemble)
    with pytest.raises((UserError, Failure)):  # raised by the library's reader; LightGBM's ends the process
        Predictor.load(ensemble)
    assert not trap.exists()


def test_a_kind_of_member_that_is_not_known_is_refused(copied: Path, tmp_path: Path) -> None:
    """A folder could bring its own loader: here a pickle beside the model, and a summary that names it."""
    trap = tmp_path / "read"
    folder = copied / "members/xgboost"
    (folder / "model.pkl").write_bytes(pickle.dumps(Payload(trap)))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "kind": "pickle"}))
    sign_again(copied, "xgboost", copied / "ensemble")
    with pytest.raises(UserError, match="is of kind 'pickle', not one of neural, xgboost, lightgbm"):
        Predictor.load(copied / "ensemble")
    assert not trap.exists()


def test_nothing_is_loaded_half(fitted: Path, tmp_path: Path) -> None:
    """A damaged ensemble, or an impossible number of threads, would be detected only at the first request."""
    with pytest.raises(UserError, match="threads=-1 is impossible"):
        Predictor.load(fitted / "ensemble", threads=-1)
    with pytest.raises(UserError, match=r"ensemble.json does not exist"):
        Predictor.load(tmp_path)


def test_a_worker_whose_program_was_killed_ends_without_a_traceback() -> None:
    """A traceback for each member would appear in the log, as if the workers had failed."""
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "ensemble.predictor.worker"]
    config = json.dumps({"trusted": [], "manifest": {"recipe": "table"}})
    done = subprocess.run(line, input=config, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_without_a_task_ends_without_a_message() -> None:
    """Ctrl-C while a Predictor is loaded would print a traceback, and PYTHONWARNINGS=error a warning of each worker."""
    line = [sys.executable, "-W", "error", "-m", "ensemble.predictor.worker"]
    done = subprocess.run(line, input="", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def answer_of_a_worker(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, redirection: str = "") -> str:
    """What a worker answers that imports a recipe of the user. package : the code of its package."""
    (folder / "own").mkdir()
    (folder / "own/__init__.py").write_text(package)
    (folder / "own/settings.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    line = ["bash", "-c", f'exec "$@" {redirection}', "_", sys.executable, "-m", "ensemble.predictor.worker"]
    config = json.dumps({"trusted": ["own"], "manifest": {"recipe": "table"}})
    done = subprocess.run(line, input=config, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0
    return done.stdout


def test_messages_of_a_program_without_standard_error_are_no_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `2>&-`, a line that a library prints, such as one of OpenMP, would be read as an answer: a JSONDecodeError."""
    package = "import os; os.write(2, b'OMP: a message\\n')"
    assert answer_of_a_worker(package, tmp_path, monkeypatch, "2>&-") == '{"notes": []}\n'


def test_a_read_only_folder_of_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container with a read-only disk a service would end with a traceback, as if its members were damaged."""
    package = "raise FileNotFoundError(2, 'No usable temporary directory found in /tmp')"
    answer = json.loads(answer_of_a_worker(package, tmp_path, monkeypatch))
    assert answer["mistake"].endswith("set TMPDIR to a folder that you may write")
