"""A fit of a recipe whose members rank items: killed between its parts, it ends with the bits of an uninterrupted one."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import walks

from ensemble import configuration, folders
from ensemble.neural import settings
from ensemble.pipeline import network, plan, run
from ensemble.pipeline.budget import Budget
from ensemble.pipeline.settings import config_class
from ensemble.recipes.next_item import plan as of_recipe
from ensemble.recipes.next_item.candidates.settings import PrepareConfig

ROOT = Path(__file__).resolve().parents[2]
NUM_USERS = 160
WORDS = ("--recipe", "next_item", "core=1", "time_limit=0", "num_draws=3", "threads=1")
SMALL = """
from ensemble.recipes.next_item import plan
plan.TREES.update(num_rounds=12, learning_rate=0.3)
plan.preset = lambda *_: {"max_epochs": 3, "learning_rate": 0.01, "batch_size": 32, "recipe.width": 16}
"""
"""Statements for a small network and few trees."""
RANKED = "from ensemble.recipes.next_item.candidates import prepare; send_at(prepare, 'split_sequences', 1, signal.SIGKILL)"
GROWING = "from ensemble.trees import train; send_at(train, 'train', 2, signal.SIGKILL)"
FILES = {
    "fit.json", "prepared", "rankings", "candidates", "members", "predictions", "ensemble", "all", "leaderboard.json",
    "report.html",
}  # fmt: skip


@pytest.fixture
def start(tmp_path: Path, fit_after: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the command, which may kill itself, and returns its output and exit code."""
    walks.raw(tmp_path, num_users=NUM_USERS, jumps=0.3)

    def start(out: str, *words: str, statement: str = "") -> Any:
        return fit_after(SMALL + statement, "source=[raw.txt]", f"out={out}", *WORDS, *words)

    return start


def times(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file() and file.name[0] != "."}


def test_killed_between_its_parts_it_ends_with_the_same_bits(start: Callable[..., Any], tmp_path: Path) -> None:
    """The fit would stop, train the network twice, or give other trees for the same data."""
    out, resume = tmp_path / "out", ("--resume", "auto")
    done = start("out", *resume, statement=RANKED)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (out / "members/sasrec/status").read_text() == "done\n"
    assert not (out / "candidates").exists()
    times_before = times(out / "members/sasrec") | times(out / "rankings")
    assert len(list((out / "rankings").glob("*.parquet"))) == 9
    done = start("out", *resume, statement=GROWING)  # when LightGBM is complete
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "sasrec is complete already" in done.stderr
    assert "predicting with" not in done.stderr
    times_before |= times(out / "candidates")
    done = start("out", *resume)
    assert done.returncode == 0, done.stderr
    assert "lightgbm is complete already" in done.stderr
    assert {file: file.stat().st_mtime_ns for file in times_before} == times_before
    assert {path.name for path in out.iterdir()} == FILES

    compared = folders.read_json(out / "all/scores.json")
    board = {row["member"]: row for row in folders.read_json(out / "leaderboard.json")}
    assert board.keys() == {"ensemble", "sasrec", "lightgbm", "xgboost", "popularity", "co_occurrence"}
    for name, row in board.items():
        assert (row["metric"], row["split"]) == ("ndcg_at_10", "test")
        assert [row[end] for end in ("value", "low", "high")] == list(compared["members"][name]["ndcg_at_10"].values())
        is_trained = name in ("sasrec", "lightgbm", "xgboost")
        assert [row[fact] is not None for fact in ("weight", "seconds", "megabytes")] == [is_trained] * 3
    assert compared["rows"] == NUM_USERS  # all, whether the next item is a candidate or not
    printed = done.stdout.splitlines()
    first = next(number for number, line in enumerate(printed) if line.startswith("ndcg at 10 on the test split"))
    assert [line.split()[0] for line in printed[first + 1 :]] == list(board)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "scripts/fit.py --recipe next_item" in page
    assert "xgboost" in (out / "all/table.md").read_text()

    whole = start("whole")
    assert whole.returncode == 0, whole.stderr
    for name in ("lightgbm/model.txt", "xgboost/model.ubj"):
        assert (tmp_path / "whole/members" / name).read_bytes() == (out / "members" / name).read_bytes()
    assert (tmp_path / "whole/all/scores.json").read_bytes() == (out / "all/scores.json").read_bytes()


@pytest.mark.parametrize(
    ("users", "events", "preset"),
    [(943, 99_287, "ml-100k"), (6040, 999_611, "ml-1m"), (22_363, 198_502, "beauty"), (200, 1000, "ml-100k")],
)
def test_the_network_has_the_settings_of_a_preset(users: int, events: int, preset: str) -> None:
    """The network would be trained with settings that nobody measured, or without those of the training."""
    manifest = {"recipe": "next_item", "users": users, "events": events, "splits": {"validation": {"rows": users}}}
    sasrec = of_recipe.plan(manifest, 1)[0]
    words = network.training_arguments(sasrec, Path("prepared"), Path("sasrec"), manifest, None)[2:]
    file = ROOT / f"ensemble/recipes/next_item/presets/{preset}.yaml"
    schema = settings.config_class("next_item")
    assert configuration.load(schema, None, words) == configuration.load(schema, file, ["data=prepared", "out=sasrec"])


def test_without_enough_candidates_the_rankings_are_compared(start: Callable[..., Any], tmp_path: Path) -> None:
    """A fit of sparse data would train its network and then stop, without a score, or keep the ensemble of other data."""
    assert start("out").returncode == 0
    taken = np.arange(80 * 20).reshape(80, 20)  # no item is in two histories
    (tmp_path / "raw.txt").write_text("".join(f"{user} {' '.join(map(str, row))}\n" for user, row in enumerate(taken)))
    done = start("out", "overwrite=true")
    assert done.returncode == 0, done.stderr
    assert "too few candidates for lightgbm, xgboost: the train split has " in done.stderr
    assert "fewer than 10; only the rankings are compared" in done.stderr
    board = folders.read_json(tmp_path / "out/leaderboard.json")
    assert {row["member"] for row in board} == {"sasrec", "popularity", "co_occurrence"}
    assert [row["value"] for row in board] == sorted((row["value"] for row in board), reverse=True)
    assert "ndcg at 10 on the test split" in done.stdout
    left = {path.name for path in (tmp_path / "out").iterdir()} - {"predictions"}  # those of baselines stay
    assert left == FILES - {"candidates", "predictions", "ensemble", "report.html"}
    again = start("out", "--resume", "auto")
    assert again.returncode == 0, again.stderr
    assert done.stdout.endswith(again.stdout)


def test_time_is_kept_for_the_follow_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network would take all of the time, or its start would exceed a limit that is too short for it."""
    monkeypatch.setattr(run, "plan", plan.plan)
    walks.raw(tmp_path, num_users=NUM_USERS)
    seconds_of: dict[str, float] = {}

    def train(member: Any, *others: Any) -> bool:
        seconds_of[member.name] = others[5]
        return False  # as a network that failed

    monkeypatch.setattr(network, "train", train)
    monkeypatch.setattr(of_recipe, "TREES", {"num_rounds": 4})

    def fit(out: str, limit: float) -> dict[str, Any]:
        config = config_class("next_item")(
            source=(str(tmp_path / "raw.txt"),), out=str(tmp_path / out), core=1, time_limit=limit, num_draws=3, threads=1
        )
        return {row["member"]: row for row in run.fit(config, "next_item", False, Budget(limit, passed=0.0))}

    board = fit("out", 3600.0)
    manifest = folders.read_manifest(tmp_path / "out/prepared")
    second = of_recipe.follow_up(manifest, tmp_path, tmp_path)
    reserved_s = second.seconds + second.finish_seconds
    assert 2000 < seconds_of["sasrec"] < (3600 - reserved_s) * 10 / 12
    assert board.keys() == {"ensemble", "lightgbm", "xgboost", "popularity", "co_occurrence"}
    seconds_of.clear()
    assert "ensemble" in fit("short", 40.0)
    assert not seconds_of


def test_ten_minutes_are_enough_for_all_members() -> None:
    """A fit of a dataset as large as Amazon Beauty, with the time limit of the README, would leave the trees out."""
    manifest = {"users": 22_363, "events": 198_502, "items": 12_101}
    manifest["splits"] = {split: {"rows": manifest["users"]} for split in ("train", "validation", "test")}
    second = of_recipe.follow_up(manifest, Path("prepared"), Path("rankings"))
    sasrec, *trees = of_recipe.plan(manifest, 2)
    left = 600 - 2 - second.seconds - second.finish_seconds
    seconds = left * run.share_of(sasrec, trees, left)
    assert seconds > 380
    assert left - seconds > 4 * 19  # the two libraries took 19 seconds together


@pytest.mark.parametrize("num_sequences", [of_recipe.LEAST_SEQUENCES, 120, 249, 250, 5_000])
def test_no_part_of_few_sequences_is_tiny(num_sequences: int) -> None:
    """A fit would train its network, and then stop, since a part has fewer than ten next items among its candidates."""
    manifest = {"items": 100, "splits": {split: {"rows": num_sequences} for split in ("validation", "test")}}
    settings = of_recipe.follow_up(manifest, Path("prepared"), Path("rankings")).settings
    shares = settings.get("shares", PrepareConfig().shares)
    assert num_sequences * min(shares) / sum(shares) >= 20
