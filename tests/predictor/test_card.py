"""The model card, and its way to the Hub: the real client against a stub of the Hub's API on loopback."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from ensemble import folders, predictions
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import card
from ensemble.predictor import fit as predictor
from ensemble.predictor import hub as hub_module
from ensemble.recipes.hot_sellers import baselines

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def fitted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an ensemble of one member, with its card."""
    folder = tmp_path_factory.mktemp("card")
    for split in ("blend", "test", "forecast"):
        columns = baselines.predict(prepared, split)
        growth = columns["prediction"]
        columns |= {"prediction": growth / (growth + 1), "config": {"kind": "xgboost"}}
        predictions.write(folder / f"files/member.{split}.parquet", Predictions(**columns, split=split, member="member"))
    predictor.fit(folder / "files", prepared, folder / "ensemble", num_draws=20)
    return folder / "ensemble"


def test_the_card_says_what_the_folder_holds(fitted: Path, prepared: Path) -> None:
    """A reader of the Hub would see other figures, dates or data than those that were measured."""
    read = ModelCard.load(fitted / card.NAME)
    scores, manifest = folders.read_json(fitted / "scores.json"), folders.read_manifest(prepared)
    assert read.data.library_name == "accelerate-ensemble"
    by_metric = {result.metric_type: result for result in read.data.eval_results or []}
    assert set(by_metric) == set(card.SHOWN["binary"])
    for name, result in by_metric.items():
        interval = scores["scores"]["ensemble"][name]
        assert result.metric_value == pytest.approx(interval["value"], abs=1e-6)
        assert result.metric_args == {"low": interval["low"], "high": interval["high"], "confidence": 0.95}
    assert f"`{manifest['fingerprint']}`" in read.text
    for split, facts in manifest["splits"].items():
        hot = "–" if split == FORECAST else f"{facts['hot']:,}"
        assert f"| {split} | {facts['first_week']} | {facts['last_week']} | {facts['rows']:,} | {hot} |" in read.text
    assert re.search(r"^\| member \| 1\.000 \| 0\.\d{4} \[0\.\d{4}, 0\.\d{4}\]", read.text, re.MULTILINE)
    assert "## Limits" in read.text


def test_a_score_that_is_undefined_is_left_out(fitted: Path, prepared: Path, tmp_path: Path) -> None:
    """The Hub would refuse the whole card because of a NaN or an empty value in its metadata."""
    scores = folders.read_json(fitted / "scores.json")
    for intervals in scores["scores"].values():
        intervals["roc_auc"] = dict.fromkeys(intervals["roc_auc"])
    card.write(tmp_path, folders.read_manifest(prepared), scores | {"warnings": ["only 3 rows are positive"]})
    read = ModelCard.load(tmp_path / card.NAME)
    assert {result.metric_type for result in read.data.eval_results or []} == set(card.SHOWN["binary"]) - {"roc_auc"}
    assert "| – |" in read.text
    assert "## Limits\n\n- Warning: only 3 rows are positive.\n" in read.text


def test_the_card_names_the_products_that_are_ranked(fitted: Path, prepared: Path, tmp_path: Path) -> None:
    """A reader would look for products in the forecast that have too few reviews to be ranked."""
    manifest = folders.read_manifest(prepared)
    manifest["config"] |= {"min_reviews": 5, "base_weeks": 3}
    card.write(tmp_path, manifest, folders.read_json(fitted / "scores.json"))
    assert "For each product with at least 5 reviews in the last 3 weeks:" in ModelCard.load(tmp_path / card.NAME).text


def test_scores_of_any_size_are_short() -> None:
    """An error of 1.2e30 would have 35 digits, most of them wrong."""
    shown = {1.152384e30: "1.152e+30", 919058.1234: "919058.1234", 0.000038: "3.8e-05", 0.0: "0.0000"}
    assert {value: card.decimals(value) for value in shown} == shown


def test_the_card_names_the_weights_of_the_scores(fitted: Path, prepared: Path) -> None:
    """A reader could not reproduce weighted scores, since only the report mentioned the weights."""
    scores, manifest = folders.read_json(fitted / "scores.json"), folders.read_manifest(prepared)
    manifest["config"]["weight"] = "people"
    assert "weighted" not in card.default_parts(manifest, scores).counts
    counts = card.default_parts(manifest, {**scores, "weighted": True}).counts
    assert counts.endswith(". The scores are weighted by `people`.")


class Hub(BaseHTTPRequestHandler):
    """What `create_repo` and `upload_folder` ask of the Hub; the requests are kept."""

    requests: list[tuple[str, str, str | None, bytes]]
    refuse = False
    private = True

    def do_GET(self) -> None:
        self._note()
        if self.refuse:
            return self._answer(401, {"error": "Invalid credentials"})
        self._answer(200, {"sha": "0" * 40, "siblings": [], "id": "me/forecast", "private": self.private})

    def do_POST(self) -> None:
        body = self._note()
        if self.refuse:
            self._answer(401, {"error": "Invalid credentials"})
        elif self.path.endswith("/preupload/main"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        else:
            address = f"http://{self.headers['Host']}/me/forecast"
            self._answer(200, {"url": address, "commitUrl": f"{address}/commit/1", "commitOid": "1", "name": "me/forecast"})

    def _note(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append((self.command, self.path, self.headers.get("Authorization"), body))
        return body

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:
        """Nothing: requests are kept in `requests`."""


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    handler = type("OwnHub", (Hub,), {"requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def push(folder: Path, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/push_to_hub.py"), f"ensemble={folder}", "repository=me/forecast"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    clean |= {"HF_HOME": str(home), **environment}
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def address(hub: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{hub.server_address[1]}"


def test_what_is_uploaded_is_the_folder(fitted: Path, hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """A file would be missing on the Hub or differ there, or the repository would be public."""
    done = push(fitted, tmp_path, HF_ENDPOINT=address(hub), HF_TOKEN="hf_test")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"uploaded: {address(hub)}/me/forecast/commit/1"
    requests = hub.RequestHandlerClass.requests  # type: ignore[attr-defined]
    assert {token for method, _, token, _ in requests if method == "POST"} == {"Bearer hf_test"}
    created = next(json.loads(body) for _, path, _, body in requests if path == "/api/repos/create")
    assert (created["name"], created["visibility"]) == ("forecast", "private")
    lines = next(body for _, path, _, body in requests if path.endswith("/commit/main")).splitlines()
    sent = {line["value"]["path"]: line["value"]["content"] for line in map(json.loads, lines) if line["key"] == "file"}
    assert {name: base64.b64decode(content) for name, content in sent.items()} == {
        path.name: path.read_bytes() for path in fitted.iterdir()
    }


def test_offline_it_says_what_it_would_send(fitted: Path, hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """On a compute node a user could not see what would be uploaded, or it would be uploaded."""
    done = push(fitted, tmp_path, HF_ENDPOINT=address(hub), HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stderr) == (0, "")
    *files, last = done.stdout.splitlines()
    sizes = {name: int(size.replace(",", "")) for size, name in map(str.split, files)}
    assert sizes == {path.name: path.stat().st_size for path in fitted.iterdir()}
    total = f"{len(sizes)} files, {sum(sizes.values()):,} bytes"
    assert last == f"offline: nothing was sent; {total} would go to the private repository me/forecast"
    assert not hub.RequestHandlerClass.requests  # type: ignore[attr-defined]


def test_an_impossible_name_of_a_repository_is_refused_offline_too(fitted: Path) -> None:
    """A trial run would confirm an upload that the Hub refuses."""
    for repository in ("x", "me/hot sellers", "https://huggingface.co/me/x", "me/x/y"):
        with pytest.raises(UserError, match=r"repository must be OWNER/NAME on the Hub"):
            hub_module.push(fitted, repository)


def test_what_cannot_be_uploaded_is_said_in_a_sentence(fitted: Path, hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """A missing token, a refusal or a Hub that does not answer would end in a traceback of the client."""
    done = push(fitted, tmp_path, HF_ENDPOINT=address(hub))
    assert (done.returncode, done.stderr) == (
        2, "error: there is no token for the Hub: set HF_TOKEN, or log in with `hf auth login`\n",
    )  # fmt: skip
    hub.RequestHandlerClass.private = False  # type: ignore[attr-defined]
    done = push(fitted, tmp_path, HF_ENDPOINT=address(hub), HF_TOKEN="hf_test")
    assert done.returncode == 2, done.stderr
    assert "error: me/forecast exists and is public: name another" in done.stderr.splitlines()[-1]
    assert not any(path.endswith("/commit/main") for _, path, _, _ in hub.RequestHandlerClass.requests)  # type: ignore[attr-defined]
    hub.RequestHandlerClass.refuse = True  # type: ignore[attr-defined]
    done = push(fitted, tmp_path, HF_ENDPOINT=address(hub), HF_TOKEN="hf_test")
    assert done.returncode == 2, done.stderr
    assert "error: the Hub refused me/forecast (" in done.stderr.splitlines()[-1]
    done = push(fitted, tmp_path, HF_ENDPOINT="http://127.0.0.1:1", HF_TOKEN="hf_test")
    assert done.returncode == 1, done.stderr
    assert "failed: the Hub at http://127.0.0.1:1 does not answer" in done.stderr
    assert "Traceback" not in done.stderr
