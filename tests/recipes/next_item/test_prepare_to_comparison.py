"""The commands of the README for next_item: ranking files, candidates, trees, ensemble, report and table."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import ranked
from scripts_run import fork as run

from ensemble import folders
from ensemble.arrow import open_table

NUM_USERS, NUM_ITEMS, LENGTH = 400, 40, 9


def walks(file: Path) -> None:
    """Half of the items follow from the one before, half are random; many are taken in some weeks only."""
    generator = np.random.default_rng(0)
    lines = []
    for user in range(NUM_USERS):
        days = np.sort(generator.integers(0, 200, LENGTH))
        item, taken = -1, []
        for day in days:
            if item >= 0 and generator.random() < 0.5:
                item = (item + 7) % NUM_ITEMS
            else:
                item = (day // 10 * 2 + generator.integers(0, 6)) % NUM_ITEMS
            taken.append(item)
        lines += [f"{user}::{item}::3::{86_400 * (15_000 + day)}" for item, day in zip(taken, days, strict=True)]
    file.write_text("\n".join(lines) + "\n")


def scores_of_a_network(data: Path) -> np.ndarray:
    """Scores of a member that has learned which item follows from the last one, with noise."""
    generator = np.random.default_rng(1)
    manifest, item = folders.read_manifest(data), open_table(data / "events")["item"].to_numpy()
    names = open_table(data / "items")["item_id"].to_numpy().astype(int)
    number = np.empty(NUM_ITEMS, int)
    number[names] = np.arange(manifest["items"])
    back = {"validation": 2, "test": 2, "forecast": 1}
    last = np.concatenate([item[open_table(data / "rows" / s)["end"].to_numpy() - back[s]] for s in back])
    score = generator.normal(size=(len(last), manifest["items"]))
    score[np.arange(len(last)), number[(names[last - 1] + 7) % NUM_ITEMS]] += 2
    return score


def value(scores: dict[str, Any], name: str) -> float:
    return scores["scores"][name]["ndcg_at_10"]["value"]


def test_next_item_becomes_a_table(tmp_path: Path) -> None:
    """A stage would not read what the one before wrote, or trees would have lower scores than the members they rerank."""
    walks(tmp_path / "ratings.dat")
    data, candidates = tmp_path / "prepared", tmp_path / "candidates"
    once = ("core=1", "repeats=first")
    run("prepare_data", "--recipe", "next_item", f"source=[{tmp_path}/ratings.dat]", f"out={data}", *once)
    run("predict", "member=popularity", f"data={data}", f"out={tmp_path}/rankings")
    ranked.write(tmp_path / "rankings", data, "network", scores_of_a_network(data))
    ranked_items = (f"rankings=[{tmp_path}/rankings]", "num_candidates=20")  # so that some targets are missed
    prepared = run("prepare_data", "--recipe", "candidates", f"data={data}", *ranked_items, f"out={candidates}")
    assert "with target" in prepared
    trees = ("library=lightgbm", "num_rounds=40", "learning_rate=0.1", "threads=1")
    run("train_trees", *trees, f"data={candidates}", f"out={tmp_path}/members/lightgbm")
    for name in (f"{tmp_path}/members/lightgbm", "network", "popularity"):
        run("predict", f"member={name}", f"data={candidates}", f"out={tmp_path}/predictions", "threads=1")
    fitted = (f"predictions={tmp_path}/predictions", f"data={candidates}", f"out={tmp_path}/ensemble")
    output = run("ensemble_predictor", "fit", *fitted, "num_draws=20")
    scores = folders.read_json(tmp_path / "ensemble" / "scores.json")
    assert sorted(scores["members"]) == ["lightgbm", "network"]
    ensemble_score, best = value(scores, "ensemble"), value(scores, scores["best_member"])
    assert ensemble_score > best - 0.01
    assert best > value(scores, "network") + 0.1
    assert value(scores, "network") > value(scores, "popularity")
    forecast = pyarrow.csv.read_csv(tmp_path / "ensemble/forecast.csv").to_pylist()
    assert [row["rank"] for row in forecast[:20]] == [*range(1, 11), *range(1, 11)]
    assert len(forecast) == 10 * NUM_USERS
    events = open_table(data / "events")["item"].to_numpy()
    names = open_table(data / "items")["item_id"].to_numpy().astype(int)
    follows, is_new = {}, {}
    users = open_table(data / "users")["user_id"].to_pylist()
    for user, row in zip(users, open_table(data / "rows/forecast").to_pylist(), strict=True):
        taken = names[events[row["begin"] : row["end"]] - 1]
        follows[int(user)] = (taken[-1] + 7) % NUM_ITEMS
        is_new[int(user)] = follows[int(user)] not in taken
    first = {row["user_id"]: row["item_id"] for row in reversed(forecast)}
    assert np.mean([first[user] == follows[user] for user in first if is_new[user]]) > 0.6
    of_ensemble = (f"{name}={tmp_path}/{name}" for name in ("ensemble", "predictions"))
    run("report", *of_ensemble, f"data={candidates}", f"out={tmp_path}/report.html")
    page = (tmp_path / "report.html").read_text()
    assert "--recipe candidates" in page
    assert "groups with a relevant row are scored" in scores["left_out"], "of sequences whose item is a candidate"
    assert scores["left_out"] in output
    assert scores["left_out"] in page
    assert f"member=network data={candidates}" in page
    table = ("compare_rankings", f"rankings={tmp_path}/rankings", f"data={data}", f"out={tmp_path}/table", "num_draws=20")
    of_candidates = (f"{name}={tmp_path}/{name}" for name in ("candidates", "predictions", "ensemble"))
    rows = [line.split("|")[1].strip() for line in run(*table, *of_candidates).splitlines() if line.startswith("| ")]
    assert sorted(rows[1:]) == ["ensemble", "lightgbm", "network", "popularity (baseline)"]
