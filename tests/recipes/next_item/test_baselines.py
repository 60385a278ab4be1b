"""The baselines, and the sample of 100 items, compared with plain loops."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import ranked

from ensemble.arrow import open_table
from ensemble.recipes.next_item import baselines, item_ranks, prepare
from ensemble.recipes.next_item.settings import PrepareConfig

NUM_ITEMS = 230


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users who take popular items, some again and again, and often an item's neighbour after it."""
    generator = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("items")
    lines = []
    for user in range(80):
        items = np.minimum(generator.geometric(0.02, generator.integers(3, 25)), NUM_ITEMS)
        follows = generator.random(len(items)) < 0.4
        items[1:] = np.where(follows[1:], items[:-1] % NUM_ITEMS + 1, items[1:])
        lines.append(f"{user} {' '.join(map(str, items))}\n")
    lines.append(f"80 {' '.join(map(str, range(1, NUM_ITEMS + 1)))} 1\n")  # nothing is left to draw or to show
    (folder / "raw.txt").write_text("".join(lines))
    prepare.prepare(PrepareConfig(source=(str(folder / "raw.txt"),), out=str(folder / "prepared"), core=1))
    return folder / "prepared"


def in_loops(data: Path, name: str) -> list[tuple[dict[str, int], list[int], dict[int, float]]]:
    """For each row of test: the row of the table, its items, the last of which is the target, and the score of each item."""
    item = open_table(data / "events")["item"].to_pylist()
    learned = [item[row["begin"] : row["end"]] for row in open_table(data / "rows/train").to_pylist()]
    count = Counter(item for sequence in learned for item in sequence)
    after = Counter(pair for sequence in learned for pair in pairwise(sequence))
    levels = sorted({count[item] for item in range(1, NUM_ITEMS + 1)})
    scored_rows = []
    for row in open_table(data / "rows/test").to_pylist():
        taken = item[row["begin"] : row["end"]]
        score = {item: float(count[item]) for item in range(1, NUM_ITEMS + 1)}
        if name == "co_occurrence":
            score = {item: after[taken[-2], item] + levels.index(count[item]) / len(levels) for item in score}
        scored_rows.append((row, taken, score))
    return scored_rows


@pytest.mark.parametrize("name", baselines.NAMES)
@pytest.mark.parametrize("at_once", [1, 7 * NUM_ITEMS, 1 << 22])
def test_a_baseline_ranks_as_loops_do(name: str, at_once: int, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member would be compared with a baseline that does not follow its rule, or that depends on the batch."""
    monkeypatch.setattr(baselines, "SCORES_AT_ONCE", at_once)
    ranking = baselines.predict(data, "test", name)
    num_short, num_taken, num_empty = 0, 0, 0
    tie_key = [0, *item_ranks.tie_key(np.arange(1, NUM_ITEMS + 1)).tolist()]
    assert len(set(tie_key)) == NUM_ITEMS + 1
    for number, (row, (*seen, target), score) in enumerate(in_loops(data, name)):
        assert (ranking["row_id"][number], ranking["user"][number]) == (row["row_id"], row["user"])
        assert (ranking["length"][number], ranking["target"][number]) == (len(seen), target)
        left = [item for item in score if item not in seen]
        others = [item for item in left if item != target]
        expected = ranked.rank_in_loops(target, others, score) if target in left else np.inf
        assert ranking["rank"][number] == expected
        shown = sorted(left, key=lambda item: (-score[item], tie_key[item]))[: item_ranks.NUM_TOP]
        num_missing = item_ranks.NUM_TOP - len(shown)
        num_short += num_missing > 0
        num_taken += target in seen
        num_empty += not shown
        assert ranking["items"][number].tolist() == shown + [0] * num_missing
        if np.isfinite(expected) and expected <= item_ranks.NUM_TOP:
            assert shown[int(expected) - 1] == target, "the rank of the target is not its place in the list"
        scores = [score[item] for item in shown] or [ranking["scores"][number, 0]]
        scores += scores[-1:] * (len(ranking["scores"][number]) - len(scores))
        np.testing.assert_allclose(ranking["scores"][number], scores, rtol=1e-12)
    assert min(num_short, num_taken - num_empty, num_empty) > 0, "this test has lost a case"


@pytest.mark.parametrize("name", baselines.NAMES)
def test_a_forecast_follows_the_last_event(name: str, data: Path) -> None:
    """The last item of a user would be forecast, as in test, or be left out of the history."""
    forecast, test = (baselines.predict(data, split, name) for split in ("forecast", "test"))
    assert forecast["user"].tolist() == list(range(81))
    rows_of_test = {user: number for number, user in enumerate(test["user"].tolist())}
    assert len(rows_of_test) > 70
    after = Counter(pair for _, taken, _ in in_loops(data, name) for pair in pairwise(taken[:-2]))
    assert np.isinf(forecast["rank"]).all()
    assert not forecast["target"].any()
    for user, number in rows_of_test.items():
        item = int(test["target"][number])
        assert forecast["length"][user] == test["length"][number] + 1
        assert item not in forecast["items"][user]
        if name == "popularity":
            left = [other for other in test["items"][number].tolist() if other not in (0, item)]
            assert [other for other in forecast["items"][user].tolist() if other][: len(left)] == left
        elif forecast["scores"][user, 0] >= 1:
            assert after[item, int(forecast["items"][user, 0])] == int(forecast["scores"][user, 0])


@pytest.mark.parametrize("name", baselines.NAMES)
def test_ties_do_not_show_the_next_item(name: str, tmp_path: Path) -> None:
    """The next new item of a user would be the first of those with equal scores, and trees would learn this."""
    (tmp_path / "raw").write_text("".join(f"1::{item}::3::{86_400 * (10_000 + item)}\n" for item in range(100)))
    split = {"split": "time", "validation_from": "1997-06-10", "test_from": "1997-06-20"}
    prepare.prepare(PrepareConfig(source=(str(tmp_path / "raw"),), out=str(tmp_path / "prepared"), core=1, **split))  # type: ignore[arg-type]
    ranking = baselines.predict(tmp_path / "prepared", "test", name)
    assert len(ranking["target"]) > 50
    assert (ranking["items"][:, 0] == ranking["target"]).mean() < 0.2


@pytest.mark.parametrize("name", baselines.NAMES)
def test_the_rank_among_101_is_that_of_a_loop(name: str, data: Path) -> None:
    """The sampled rank would be among other items than the sampled ones."""
    ranking = baselines.predict(data, "test", name)
    for number, (row, taken, score) in enumerate(in_loops(data, name)):
        owner = np.zeros(len(taken), int)
        drawn = item_ranks.sampled_items(np.array([row["row_id"]]), owner, np.array(taken), NUM_ITEMS)[0]
        assert ranking["rank_of_101"][number] == ranked.rank_in_loops(taken[-1], [item for item in drawn if item], score)


def test_100_items_are_drawn_that_were_not_taken() -> None:
    """A negative could be an item that the user took, or some items would never be sampled."""
    generator = np.random.default_rng(0)
    row_id = np.arange(400) * 13
    taken = [generator.integers(1, 31, generator.integers(1, 12)) for _ in row_id]
    owner = np.repeat(np.arange(400), [len(items) for items in taken])
    sampled = item_ranks.sampled_items(row_id, owner, np.concatenate(taken), 30)
    assert sampled.shape == (400, 100)
    drawn = np.zeros(31)
    for row, own in zip(sampled, taken, strict=True):
        free = np.setdiff1d(np.arange(1, 31), own)
        assert np.isin(row, free).all()
        np.add.at(drawn, free, -100 / len(free))
        np.add.at(drawn, row, 1)
    assert np.abs(drawn).max() < 5 * np.sqrt(400 * 100 / 30)  # five deviations


def test_the_draw_is_a_function_of_the_row() -> None:
    """Members, ranks and batches would be scored among different items, and no score could be reproduced."""
    row_id, owner, taken = np.array([5, 0, 9]), np.array([0, 1, 1, 2]), np.array([3, 1, 500, 7])
    sampled = item_ranks.sampled_items(row_id, owner, taken, 1000)
    for row in range(3):
        alone = item_ranks.sampled_items(row_id[[row]], 0 * owner[owner == row], taken[owner == row], 1000)[0]
        np.testing.assert_array_equal(alone, sampled[row])
    assert len({tuple(row) for row in sampled}) == 3
    # The first output of splitmix64 begun at 0, as its authors publish it
    assert item_ranks.uniform(np.array([0]))[0, 0] == (0xE220A8397B1DCDAF >> 11) / 2**53
    everything = item_ranks.sampled_items(np.array([1]), np.zeros(5, int), np.arange(1, 6), 5)
    assert not everything.any()
