"""The comparison of next_item members: scores, the choice of the best member, and members that rank only candidates."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from scripts_run import started as run

from ensemble import folders, predictions
from ensemble.arrow import TableWriter, open_table, read_columns
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.recipes.next_item import baselines, comparison, item_ranks, prepare, rankings
from ensemble.recipes.next_item.rankings import Rankings
from ensemble.recipes.next_item.settings import PrepareConfig


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 users who walk through 40 items, mostly one step further."""
    generator = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("walks")
    lines = []
    for user in range(120):
        steps = np.where(generator.random(generator.integers(3, 30)) < 0.7, 1, generator.integers(40))
        lines.append(f"{user} {' '.join(map(str, steps.cumsum() % 40))}\n")
    (folder / "raw.txt").write_text("".join(lines))
    prepare.prepare(PrepareConfig(source=(str(folder / "raw.txt"),), out=str(folder / "prepared"), core=1))
    return folder / "prepared"


@pytest.fixture(scope="module")
def files(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rankings of both baselines, of a slightly better member, and of one that is the best on test but not on validation."""
    folder = tmp_path_factory.mktemp("rankings")
    for split in ("validation", "test"):
        rankings_of = {name: baselines.predict(data, split, name) for name in baselines.NAMES}
        rank = np.maximum(rankings_of["co_occurrence"]["rank"] - 1, 1)
        rankings_of["network"] = {**rankings_of["co_occurrence"], "rank": rank, "config": {"kind": "neural"}}
        rank = np.full_like(rank, 1 if split == "test" else 40)
        rankings_of["overfitted"] = {**rankings_of["network"], "rank": rank}
        for name, columns in rankings_of.items():
            rankings.write(folder / f"{name}.{split}.parquet", Rankings(**columns, split=split, member=name))
    return folder


def test_the_table_has_every_member_and_chooses_on_validation(data: Path, files: Path, tmp_path: Path) -> None:
    """The member with the best test score would be chosen, or a baseline would be called the best member."""
    table = comparison.read(files, data, "test")
    best = comparison.best_on_validation(files, table)
    assert best == "network"
    text = comparison.write(tmp_path, comparison.score(table, data, best, 50, 0))
    assert folders.verify(tmp_path)["kind"] == comparison.KIND
    assert {path.name for path in tmp_path.iterdir()} == {"table.md", "scores.json", "by_length.png", "manifest.json"}
    assert (tmp_path / "table.md").read_text() == text
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    names = [row.split("|")[1].strip() for row in rows]
    assert names[0] == "overfitted"
    assert sorted(names[1:]) == ["co_occurrence (baseline)", "network", "popularity (baseline)"]
    assert all(row.count("|") == rows[0].count("|") for row in rows)

    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["best_on_validation"] == "network"
    for member in table.members:
        entry = scores["members"][member.name]
        ndcg = np.where(member.rank <= 10, 1 / np.log2(member.rank + 1), 0)
        assert entry["ndcg_at_10"]["value"] == pytest.approx(ndcg.mean())
        assert entry["scores"]["ndcg_at_10"] == pytest.approx(ndcg.mean())
        assert entry["ndcg_at_10"]["low"] < ndcg.mean() < entry["ndcg_at_10"]["high"] or member.name == "overfitted"
        assert sum(part["rows"] for part in entry["by_length"].values()) == len(ndcg)
    less = scores["members"]["popularity"]["less_best_on_validation"]
    assert less["value"] == pytest.approx(
        scores["members"]["popularity"]["ndcg_at_10"]["value"] - scores["members"]["network"]["ndcg_at_10"]["value"]
    )
    assert less["low"] < less["value"] < less["high"] < 0
    assert scores["members"]["network"]["less_best_on_validation"] == {"value": 0, "low": 0, "high": 0}


def test_a_better_baseline_is_not_called_the_best_member(data: Path, files: Path, tmp_path: Path) -> None:
    """A reader would take a baseline for the chosen member, or not see that it is better."""
    for split in ("validation", "test"):
        for name in baselines.NAMES:
            shutil.copy(files / f"{name}.{split}.parquet", tmp_path)
        columns = baselines.predict(data, split, "popularity") | {"config": {"kind": "neural"}}
        columns["rank"] = columns["rank"] + 5
        rankings.write(tmp_path / f"network.{split}.parquet", Rankings(**columns, split=split, member="network"))
    table = comparison.read(tmp_path, data, "test")
    best = comparison.best_on_validation(tmp_path, table)
    assert best == "network"
    text = comparison.as_text(comparison.score(table, data, best, 10, 0))
    assert "The best trained member on validation is network; baselines are scored too, but never chosen." in text
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]
    assert rows.index("network") > rows.index("co_occurrence (baseline)")


def test_of_few_items_there_is_no_sample_of_101(data: Path, files: Path) -> None:
    """A score among 101 items would be shown for 40 items, although it is then a score among all."""
    table = comparison.read(files, data, "test")
    scores = comparison.score(table, data, "network", 10, 0)
    assert all("ndcg_at_10_of_101" not in member["scores"] for member in scores["members"].values())
    text = comparison.as_text(scores)
    assert "There are only 40 items, so there are no metrics on a sample of 101." in text
    assert all(line.endswith("| – |") for line in text.splitlines() if line.startswith(("| network", "| popularity")))
    many = comparison.as_text(scores | {"items": 101})
    assert "sample of 101" not in many


def test_the_scripts_lead_to_the_table(data: Path, tmp_path: Path) -> None:
    """The commands of the docstrings of both scripts would not work, or the train split would be predicted."""
    done = run("predict", "member=co_occurrence", f"data={data}", f"out={tmp_path / 'rankings'}")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "rankings").iterdir())) == 3
    words = (f"data={data}", f"out={tmp_path / 'table'}", f"rankings={tmp_path / 'rankings'}")
    done = run("compare_rankings", *words, "num_draws=10")
    assert done.returncode == 0, done.stderr
    assert "| co_occurrence (baseline) |" in done.stdout
    assert (tmp_path / "table/by_length.png").stat().st_size > 1000
    forecast = pyarrow.csv.read_csv(tmp_path / "table/forecast.csv").to_pylist()
    ranking = rankings.read(tmp_path / "rankings/co_occurrence.forecast.parquet")
    users, items = (open_table(data / f"{name}s")[f"{name}_id"].to_pylist() for name in ("user", "item"))
    expected = [
        (str(users[user]), place + 1, str(items[item - 1]))
        for user, shown in zip(ranking.user, ranking.items, strict=True)
        for place, item in enumerate(shown[:10])
        if item
    ]
    assert [(str(row["user_id"]), row["rank"], str(row["item_id"])) for row in forecast] == expected
    assert len({row["user_id"] for row in forecast}) == len(users)
    other = dataclasses.replace(ranking, config={**ranking.config, "model": "another"})
    rankings.write(tmp_path / "rankings/co_occurrence.forecast.parquet", other)
    refused = run("compare_rankings", *words, "num_draws=10", "overwrite=true")
    assert refused.returncode == 2
    assert (
        "co_occurrence.forecast.parquet is of another model or of other data than the file of validation" in refused.stderr
    )
    done = run("predict", "member=popularity", "splits=[train]", *words[:2])
    assert done.returncode == 2
    assert done.stderr == f"error: {data} has no split 'train' to predict: it has validation, test, forecast\n"


def test_files_of_other_data_or_splits_are_refused(data: Path, files: Path, prepared: Path, tmp_path: Path) -> None:
    """Ranks would be scored by the popularity of other items."""
    with pytest.raises(UserError, match="which ranks no items: set data= to data of next_item"):
        comparison.read(files, prepared, "test")
    with pytest.raises(UserError, match="there are no files of test in"):
        comparison.read(tmp_path, data, "test")
    foreign = dataclasses.replace(rankings.read(files / "network.test.parquet"), fingerprint="f00d")
    rankings.write(tmp_path / "network.test.parquet", foreign)
    with pytest.raises(UserError, match=r"of data with the fingerprint f00d, but data=.* and the split is test"):
        comparison.read(tmp_path, data, "test")
    ranking = rankings.read(files / "network.test.parquet")
    rankings.write(tmp_path / "network.test.parquet", dataclasses.replace(ranking, target=ranking.target + 1000))
    with pytest.raises(UserError, match=r"network ranks the item 10\d\d for test, but the data have 40 items"):
        comparison.read(tmp_path, data, "test")
    (tmp_path / "network.test.parquet").write_bytes((files / "network.test.parquet").read_bytes())
    table = comparison.read(tmp_path, data, "test")
    with pytest.raises(UserError, match=re.escape("network.validation.parquet does not exist: write it")):
        comparison.best_on_validation(tmp_path, table)
    (tmp_path / "network.validation.parquet").write_bytes((files / "network.test.parquet").read_bytes())
    with pytest.raises(UserError, match="is of test of data"):
        comparison.best_on_validation(tmp_path, table)


def test_the_forecast_has_no_items_that_were_taken(data: Path, tmp_path: Path) -> None:
    """A ranking file of another program with items taken before would forecast them again, and fewer than ten new ones."""
    history = dict(zip(*read_columns(data / "rows/forecast", ("row_id", "end")).values(), strict=True))
    item = read_columns(data / "events", ["item"])["item"]
    for split in ("validation", "test", "forecast"):
        columns = baselines.predict(data, split, "popularity")
        expected = columns["items"][:, :10].copy()
        if split == "forecast":  # the last event of each user, instead of items that were not taken
            last = np.array([item[history[row] - 1] for row in columns["row_id"]])
            columns["items"] = np.concatenate([last[:, None], columns["items"][:, :-1]], axis=1)
        rankings.write(tmp_path / f"popularity.{split}.parquet", Rankings(**columns, split=split, member="popularity"))
    comparison.compare(tmp_path / "table", data, tmp_path, num_draws=2, seed=0)
    forecast = pyarrow.csv.read_csv(tmp_path / "table/forecast.csv")
    ids = open_table(data / "items")["item_id"].to_pylist()
    assert forecast["item_id"].cast("string").to_pylist() == [str(ids[item - 1]) for item in expected[expected > 0]]
    shown = np.arange(1, 11) + np.zeros((len(expected), 1), int)
    assert forecast["rank"].to_pylist() == shown[expected > 0].tolist()


def test_rankings_without_targets_are_not_scored(data: Path, tmp_path: Path) -> None:
    """All members would have the score 0, or the forecast would be that before each user's last event."""
    for split in ("validation", "test", "forecast"):
        ranking = Rankings(**baselines.predict(data, split, "popularity"), split=split, member="popularity")
        rankings.write(tmp_path / f"popularity.{split}.parquet", ranking)
    with pytest.raises(UserError, match="split=forecast has no targets, so nothing can be scored: compare split=test"):
        comparison.read(tmp_path, data, "forecast")
    shutil.copy(tmp_path / "popularity.test.parquet", tmp_path / "popularity.forecast.parquet")
    with pytest.raises(UserError, match=r"popularity.forecast.parquet holds a ranking of test: name it popularity.test.par"):
        comparison.compare(tmp_path / "table", data, tmp_path, num_draws=2, seed=0)


def test_ranks_among_candidates_are_those_of_a_loop() -> None:
    """A target that is no candidate would have a rank, or ties would depend on the order of rows."""
    generator = np.random.default_rng(0)
    place, item = np.divmod(generator.permutation(50 * 30)[:600], 30)
    item, score, target = item + 1, generator.integers(0, 8, 600).astype(float), generator.integers(1, 31, 50)
    rank, items = comparison.among_candidates(50, place, item, item == target[place], score)
    tie_key = item_ranks.tie_key(np.arange(31)).tolist()
    for row in range(50):
        here = place == row
        own = dict(zip(item[here].tolist(), score[here].tolist(), strict=True))
        best = sorted(own, key=lambda item: (-own[item], tie_key[item]))
        assert [item for item in items[row] if item] == best[:10]
        if target[row] in own:
            assert rank[row] == 1 + best.index(target[row])
        else:
            assert np.isinf(rank[row])
    assert np.isinf(rank).any()
    assert np.isfinite(rank).any()


def test_equal_scores_are_as_good_as_a_random_order() -> None:
    """With the mean rank 10.5, none of 20 tied candidates would count for HR@10, and all of 18 would."""
    for num_candidates in (18, 20):
        row, item = np.divmod(np.arange(4000 * num_candidates), num_candidates)
        item = (item + row) % 1000
        rank, _ = comparison.among_candidates(4000, row, item, item == (row + 3) % 1000, np.zeros(len(row)))
        assert (rank <= 10).mean() == pytest.approx(10 / num_candidates, abs=0.03)


@pytest.fixture
def candidates(data: Path, files: Path, tmp_path: Path) -> Path:
    """The 20 best items of co_occurrence for each sequence, in the format of the recipe candidates."""
    ranking = rankings.read(files / "co_occurrence.test.parquet")
    columns = {
        "row_id": np.arange(ranking.items[:, :20].size),
        "sequence": np.repeat(ranking.row_id, 20),
        "item": ranking.items[:, :20].ravel().astype(np.int64),
    }
    table = pa.table(columns).filter(columns["item"] > 0)
    with folders.new_folder(tmp_path / "candidates", False, folders.PREPARED) as folder:
        with TableWriter(folder / "rows" / "test", table.schema) as writer:
            writer.write(table)
        folders.write_manifest(
            folder,
            {**folders.first_entries("candidates", 1), "data": ranking.fingerprint, "rankings": {"co_occurrence": {}}},
        )
    return tmp_path / "candidates"


def test_a_member_on_candidates_stands_beside_the_others(data: Path, files: Path, candidates: Path, tmp_path: Path) -> None:
    """The rank of a tree model would be that of another row, or be better because it ranks fewer items."""
    rows = open_table(candidates / "rows/test")
    manifest = folders.read_manifest(candidates)
    ranking = rankings.read(files / "co_occurrence.test.parquet")
    score_of = {
        (row, item): float(score)
        for row, items, scores in zip(ranking.row_id, ranking.items, ranking.scores, strict=True)
        for item, score in zip(items, scores, strict=True)
    }
    pairs = list(zip(rows["sequence"].to_pylist(), rows["item"].to_pylist(), strict=True))
    order = np.random.default_rng(0).permutation(len(pairs))
    tree = Predictions(
        row_id=rows["row_id"].to_numpy()[order],
        target=np.zeros(len(pairs)),
        prediction=np.array([score_of[pair] for pair in pairs])[order],
        group=rows["sequence"].to_numpy()[order],
        cluster=rows["sequence"].to_numpy()[order],
        recipe="candidates",
        split="test",
        member="tree",
        fingerprint=manifest["fingerprint"],
        output="score",
    )
    predictions.write(tmp_path / "predictions/tree.test.parquet", tree)
    predictions.write(tmp_path / "ensemble/test.parquet", dataclasses.replace(tree, member="ensemble"))
    table = comparison.read(files, data, "test")
    table = comparison.read_candidates(table, candidates, tmp_path / "predictions", tmp_path / "ensemble")
    by_name = {member.name: member for member in table.members}
    all_items, tree_member = by_name["co_occurrence"], by_name["tree"]
    within = np.isfinite(tree_member.rank)
    assert 0 < within.sum() < len(within)
    np.testing.assert_array_equal(tree_member.rank[all_items.rank <= 10], all_items.rank[all_items.rank <= 10])
    np.testing.assert_array_equal(tree_member.items, all_items.items)
    np.testing.assert_array_equal(by_name["ensemble"].rank, tree_member.rank)
    scores = comparison.score(table, data, "network", 20, 0)["members"]
    assert scores["tree"]["scores"]["ndcg_at_10"] == pytest.approx(scores["co_occurrence"]["scores"]["ndcg_at_10"])
    assert "ndcg_at_10_of_101" not in scores["tree"]["scores"]
    assert "| tree |" in comparison.as_text(comparison.score(table, data, "network", 20, 0))

    table = comparison.read(files, data, "test")
    for kind, number in (("baseline", 0), ("xgboost", 1)):
        namesake = dataclasses.replace(tree, member="co_occurrence", config={"kind": kind})
        predictions.write(tmp_path / "namesakes/co_occurrence.test.parquet", namesake)
        extended = comparison.read_candidates(table, candidates, tmp_path / "namesakes", "")
        assert len(extended.members) == len(table.members) + number
    with pytest.raises(UserError, match="two members have one name"):
        comparison.score(extended, data, "network", 20, 0)
    predictions.write(tmp_path / "predictions/tree.test.parquet", dataclasses.replace(tree, fingerprint="f00d"))
    with pytest.raises(UserError, match="with the fingerprint f00d, but"):
        comparison.read_candidates(table, candidates, tmp_path / "predictions", "")
    short = {name: getattr(tree, name)[1:] for name in predictions.COLUMNS}
    predictions.write(tmp_path / "predictions/tree.test.parquet", dataclasses.replace(tree, **short))
    with pytest.raises(UserError, match="has other rows than test of"):
        comparison.read_candidates(table, candidates, tmp_path / "predictions", "")
    with pytest.raises(UserError, match="compare split=test, or leave candidates out"):
        comparison.read_candidates(comparison.read(files, data, "validation"), candidates, "", "")
    with pytest.raises(UserError, match="the data of the ranking files: prepare them with"):
        comparison.read_candidates(table, data, "", "")


@pytest.mark.parametrize("first", [0, 1])
def test_ranking_files_without_some_rows_of_the_candidates_are_refused(
    first: int, data: Path, files: Path, candidates: Path, tmp_path: Path
) -> None:
    """Candidates would be scored as those of another sequence, or end with a traceback if the last row is missing."""
    ranking = rankings.sorted_by_row(rankings.read(files / "network.test.parquet"))
    part = {name: getattr(ranking, name)[first::2] for name in rankings.COLUMNS}
    rankings.write(tmp_path / "part/network.test.parquet", dataclasses.replace(ranking, **part))
    with pytest.raises(UserError, match=r"lack rows of test that .*candidates has: predict again"):
        comparison.read_candidates(comparison.read(tmp_path / "part", data, "test"), candidates, "", "")
