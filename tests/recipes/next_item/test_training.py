"""The recipe next_item: batches, ranks and metrics compared with plain loops, and that it learns a known rule."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ranked
import torch
import walks
from accelerate import Accelerator

from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import config_class
from ensemble.recipes.next_item import baselines, prepare, rankings, training
from ensemble.recipes.next_item.settings import PrepareConfig, RecipeConfig

NUM_ITEMS = walks.NUM_ITEMS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users who walk through the items, each step one further: the next item follows from the last."""
    return walks.prepared(tmp_path_factory.mktemp("next_item"))


def recipe_of(data: Path, **settings: object) -> training.NextItem:
    return training.make(RecipeConfig(**{"max_length": 10, "width": 16, "dropout": 0.0, **settings}), str(data))  # type: ignore[arg-type]


def plain(data: Path, split: str, row: int, max_length: int = 10) -> tuple[list[int], list[int], list[int], list[int]]:
    """A row's newest items, their times, the item after each, and all items before the last."""
    events, at = open_table(data / "events").to_pydict(), open_table(data / "rows" / split).slice(row, 1).to_pylist()[0]
    begin, end = at["begin"], at["end"]
    first = max(begin, end - 1 - max_length)
    return (
        events["item"][first : end - 1], events["time"][first : end - 1], events["item"][first + 1 : end],
        events["item"][begin : end - 1],
    )  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"time_aware": True, "num_layers": 3}, {"num_streams": 4, "widening": 3}])
def test_the_size_of_a_model_is_known_before(data: Path, settings: dict[str, object]) -> None:
    """A model that fits would be refused, or one that does not fit would be built until the system kills the process."""
    recipe = recipe_of(data, **settings)
    assert recipe.size(4).num_parameters == sum(parameter.numel() for parameter in recipe.model().parameters())
    assert recipe.size(8).batch_bytes > recipe.size(4).batch_bytes > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 10**6},
        {"max_length": 10**12},
        {"num_layers": 10**9},
        {"loss": "bce", "num_negatives": 10**10},
        {"num_streams": 10**6},
    ],
)
def test_what_does_not_fit_into_memory_is_refused(data: Path, settings: dict[str, object], tmp_path: Path) -> None:
    """The system would kill the training without a message."""
    config = config_class("next_item")(data=str(data), out=str(tmp_path / "run"), recipe=RecipeConfig(**settings))  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"the training needs at least .* GB of memory \(.* parameters.* GB are available: reduce recipe"
    ):
        loop.train(training.make(config.recipe, str(data)), config, Accelerator(cpu=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ["bce", "gbce"])
def test_negatives_avoid_the_whole_past_and_nothing_later(data: Path, loss: str) -> None:
    """Items before the newest max_length would be negatives, or the negatives would depend on later events."""
    recipe = recipe_of(data, max_length=3, loss=loss)
    rows, at = recipe.rows("train"), open_table(data / "rows" / "train")
    item = open_table(data / "events")["item"].to_numpy()
    num_beyond_window = 0
    for row, (begin, end) in enumerate(zip(at["begin"].to_numpy(), at["end"].to_numpy(), strict=True)):
        (own,) = rows.gather(np.array([row]))["taken.0"]
        past = sorted(set(item[begin:end].tolist()))
        assert (own[own <= NUM_ITEMS] + torch.arange(int((own <= NUM_ITEMS).sum()))).tolist() == past
        num_beyond_window += len(set(past) - set(item[max(begin, end - 4) : end].tolist()))
    assert num_beyond_window > 100
    batch = rows.gather(np.arange(len(rows)))
    negative = training.losses.draw_negatives(batch, NUM_ITEMS, 200)
    assert set(negative.flatten().tolist()) == set(range(1, NUM_ITEMS + 1))
    assert "taken.0" not in recipe_of(data).rows("train").gather(np.arange(3))


@pytest.mark.parametrize("num_groups", [1, 3, 8])
def test_a_training_batch_holds_each_sequence_once(data: Path, num_groups: int) -> None:
    """A position would be trained with the target of another one, or later items would be inputs."""
    rows = recipe_of(data, time_aware=True, num_groups=num_groups, loss="bce").rows("train")
    asked = np.array([7, 2, 40, 13, 13, 0, 5, 21])
    batch = rows.gather(asked)
    flat, targets, times, actual = [], {}, [], []
    for number in range(num_groups):
        items = batch[f"items.{number}"]
        flat += items.flatten().tolist()
        times += batch[f"times.{number}"].flatten().tolist()
    targets = dict(zip(batch["places"].tolist(), batch["target"].tolist(), strict=True))
    assert {place for place, item in enumerate(flat) if item} == targets.keys()
    offset = 0
    for number in range(num_groups):
        items, taken = batch[f"items.{number}"], batch[f"taken.{number}"]
        for row, own in zip(items, taken, strict=True):
            length = int((row > 0).sum())
            span = range(offset, offset + length)
            actual.append((row[:length].tolist(), [times[place] for place in span], [targets[place] for place in span]))
            distinct = own[own <= NUM_ITEMS] + torch.arange(int((own <= NUM_ITEMS).sum()))
            assert {*actual[-1][0], *actual[-1][2]} <= set(distinct.tolist())
            offset += len(row)
    expected = []
    for row in asked:
        items, when, following, _ = plain(data, "train", row)
        gaps = [gap for gap in np.diff(when) if gap > 0]
        unit = min(gaps) if gaps else 1
        expected.append((items, [round((time - when[0]) / unit) for time in when], following))
    assert sorted(actual) == sorted(expected)


@pytest.mark.parametrize("time_aware", [False, True])
def test_ranks_are_those_of_a_loop(data: Path, time_aware: bool) -> None:
    """Items taken before would be ranked, ties would depend on the order of items, or rows would be exchanged."""
    torch.manual_seed(0)
    recipe = recipe_of(data, time_aware=time_aware)
    model = recipe.model().eval()
    with torch.no_grad():
        model.item_VD[5] = model.item_VD[6]  # a tie in each row
    rows = np.arange(len(recipe.rows("test")))
    actual = recipe.predict(model, recipe.rows("test").gather(rows))
    for row in rows:
        alone = recipe.predict(model, recipe.rows("test").gather(np.array([row])))
        torch.testing.assert_close(alone["rank"][0], actual["rank"][row])
        items, _, following, seen = plain(data, "test", row)
        target = following[-1]
        batch = recipe.rows("test").gather(np.array([row]))
        assert batch["items.0"][0].tolist() == items
        score = (model(batch) @ model.item_VD.T)[0].tolist()
        others = [item for item in range(1, NUM_ITEMS + 1) if item != target and item not in seen]
        assert float(actual["rank"][row]) == pytest.approx(ranked.rank_in_loops(target, others, score, 1e-6))
        best = sorted([*others, target], key=lambda item: -score[item])[:5]
        if not {5, 6} & set(best):
            assert actual["items"][row, :5].tolist() == best
            assert actual["scores"][row, :5].tolist() == pytest.approx([score[item] for item in best], abs=1e-6)
        shown = actual["items"][row].tolist()
        assert sorted(item for item in shown if item) == sorted([*others, target])
        assert actual["scores"][row].min() == min(actual["scores"][row, : len(others) + 1])
        drawn = [item for item in batch["sampled"][0].tolist() if item]
        assert not {*drawn} & {target, *seen}
        assert float(actual["rank_of_101"][row]) == pytest.approx(ranked.rank_in_loops(target, drawn, score, 1e-6))


@pytest.mark.parametrize("time_aware", [False, True])
def test_a_forecast_has_all_events_as_input(data: Path, time_aware: bool) -> None:
    """The last event of a user would be missing, or what the user took would be recommended again."""
    torch.manual_seed(0)
    recipe = recipe_of(data, time_aware=time_aware)
    model = recipe.model().eval()
    rows = recipe.rows("forecast")
    actual = recipe.predict(model, rows.gather(np.arange(len(rows))))
    events = open_table(data / "events")["item"].to_numpy()
    for row, at in enumerate(open_table(data / "rows/forecast").to_pylist()):
        taken = events[at["begin"] : at["end"]].tolist()
        batch = rows.gather(np.array([row]))
        assert batch["items.0"][0].tolist() == taken[-10:]
        score = (model(batch) @ model.item_VD.T)[0].tolist()
        left = sorted(set(range(1, NUM_ITEMS + 1)) - set(taken), key=lambda item: -score[item])
        assert [item for item in actual["items"][row].tolist() if item] == left
        assert int(actual["length"][row]) == len(taken)
    assert actual["rank"].isinf().all()
    assert not actual["target"].any()
    assert not actual["prediction"].any()


class Popularity(torch.nn.Module):
    """A model whose score of an item is its count, with all that the recipe needs for a prediction."""

    def __init__(self, count: torch.Tensor):
        super().__init__()
        self.item_VD = torch.nn.functional.pad(count.float(), (1, 0))[:, None]

    def forward(self, batch: dict[str, torch.Tensor], use: Callable[..., torch.Tensor]) -> torch.Tensor:
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else None
        return use(torch.ones(len(batch["target"]), 1, dtype=dtype), self.item_VD)


@pytest.mark.parametrize("is_bf16", [False, True])
def test_a_network_is_ranked_as_the_baselines_are(is_bf16: bool, data: Path, tmp_path: Path) -> None:
    """Members and baselines would be ranked by different rules, or different scores would be tied in bf16."""
    generator, chance = np.random.default_rng(0), np.geomspace(1, 0.02, 120)
    taken = [generator.choice(120, 20, replace=False, p=chance / chance.sum()) for _ in range(1500)]
    # One user took the target before; another one took all items, of which item 120 has no training event
    taken += [np.array([5, 6, 7, 5]), np.append(np.arange(121), 5)]
    (tmp_path / "raw").write_text("".join(f"{user} {' '.join(map(str, items))}\n" for user, items in enumerate(taken)))
    prepare.prepare(PrepareConfig(source=(str(tmp_path / "raw"),), out=str(tmp_path / "prepared"), core=1))
    expected = baselines.predict(tmp_path / "prepared", "test", "popularity")
    recipe = recipe_of(tmp_path / "prepared")
    assert len(recipe.count.unique()) < 120, "no two items tie"
    assert len(recipe.count.bfloat16().unique()) < len(recipe.count.unique()), "bf16 holds the counts"
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        actual = recipe.predict(Popularity(recipe.count), recipe.rows("test").gather(np.arange(len(recipe.rows("test")))))
    for name in ("rank", "rank_of_101", "target", "length", "scores"):
        np.testing.assert_array_equal(actual[name].numpy(), expected[name], err_msg=name)
    assert np.isinf(expected["rank"]).tolist() == [False] * 1500 + [True] * 2
    assert actual["prediction"][-2:].tolist() == [0, 0]
    assert not actual["items"][-1].any()
    assert recipe.metrics({name: values.numpy() for name, values in actual.items()})["mrr_at_20"] > 0


def test_a_score_that_is_no_number_has_no_rank(data: Path) -> None:
    """No comparison with NaN is true: a model that diverged would have the best rank of all."""
    recipe = recipe_of(data)
    model = recipe.model().eval()
    batch = recipe.rows("test").gather(np.arange(20))
    whole = recipe.predict(model, batch)
    for wrong in (torch.nan, torch.inf):
        with torch.no_grad():
            model.item_VD[7] = wrong
        actual = recipe.predict(model, batch)
        seen = batch["seen_row"][batch["seen_item"] == 7]
        for row in {*range(20)} - {*seen.tolist()}:
            assert actual["prediction"][row].isnan()
            assert actual["rank"][row].isnan()
    assert whole["prediction"].isfinite().all()


def test_predictions_of_a_member_become_a_ranking_file(data: Path, tmp_path: Path) -> None:
    """The ranking file of a trained network could not be read, or its rows would be in another order."""
    recipe = recipe_of(data)
    config = config_class("next_item")(
        data=str(data), out=str(tmp_path / "run"), recipe=recipe.config, max_epochs=1, trackers=(), batch_size=20
    )
    loop.train(recipe, config, Accelerator(cpu=True))
    member = NeuralMember(tmp_path / "run", Accelerator(cpu=True), data)
    for split in ("validation", "test", "forecast"):
        rows = open_table(data / "rows" / split)
        path = tmp_path / f"sasrec.{split}.parquet"
        rankings.write(path, rankings.Rankings(**member.predict(data, split), split=split, member="sasrec"))
        actual = rankings.read(path)
        assert actual.row_id.tolist() == rows["row_id"].to_pylist()
        assert actual.user.tolist() == rows["user"].to_pylist()
        item = open_table(data / "events")["item"].to_numpy()
        targets = item[rows["end"].to_numpy() - 1] if split != "forecast" else np.zeros(len(rows))
        assert actual.target.tolist() == targets.tolist()
        assert actual.items.shape == actual.scores.shape == (len(rows), NUM_ITEMS)
        shown = actual.items[actual.rank == 1, 0]
        assert shown.tolist() == actual.target[actual.rank == 1].tolist()


def test_metrics_are_those_of_a_loop(data: Path) -> None:
    """A metric would have another definition than its name."""
    recipe = recipe_of(data)
    rank = np.array([1, 2.5, 10, 11, 30], np.float32)
    top = np.tile(np.arange(1, 21), (5, 1))
    scores = recipe.metrics({"rank": rank, "items": top, "target": np.array([1, 2, 3, 4, 5])})
    assert scores["hr_at_10"] == pytest.approx(3 / 5)
    assert scores["hr_at_1"] == pytest.approx(1 / 5)
    assert scores["ndcg_at_10"] == pytest.approx((1 + 1 / np.log2(3.5) + 1 / np.log2(11)) / 5)
    assert scores["mrr_at_20"] == pytest.approx((1 + 1 / 2.5 + 1 / 10 + 1 / 11) / 5)
    assert scores["coverage_at_10"] == pytest.approx(10 / NUM_ITEMS)
    assert len(scores) == 14, "more is logged at each validation than a line of the log holds"


@pytest.mark.parametrize("settings", [
    {"loss": "cross_entropy"}, {"loss": "sampled_softmax", "num_negatives": 20, "negative_power": 0.5},
    {"loss": "bce", "num_negatives": 4}, {"loss": "gbce", "num_negatives": 8}, {"time_aware": True}, {"num_streams": 2},
    {"time_aware": True, "num_streams": 2},
], ids=str)  # fmt: skip
def test_a_planted_signal_is_learned(settings: dict[str, object], data: Path, tmp_path: Path) -> None:
    """A loss with a wrong sign or position, or a variant that cannot learn, would not be noticed on real data."""
    recipe = recipe_of(data, **settings)
    config = config_class("next_item")(
        data=str(data), out=str(tmp_path / "run"), batch_size=20, max_epochs=12, learning_rate=0.01, warmup_steps=5,
        evaluations_per_epoch=1, patience=12, trackers=(),
    )  # fmt: skip
    summary = loop.train(recipe, config, Accelerator(cpu=True))
    assert summary["validation_ndcg_at_10"] > 0.45  # a random order has 0.15


def test_data_without_times_are_refused(data: Path, tmp_path: Path) -> None:
    """Line numbers would be used as times."""
    (tmp_path / "raw").write_text("".join(f"{user} {item}\n" for user in range(1, 9) for item in range(1, 9)))
    prepare.prepare(PrepareConfig(source=(str(tmp_path / "raw"),), out=str(tmp_path / "prepared"), core=1))
    with pytest.raises(
        UserError, match=r"recipe\.time_aware=true is impossible: it must be false, since the data of .* have no times"
    ):
        recipe_of(tmp_path / "prepared", time_aware=True)
    with pytest.raises(UserError, match="the nearest one is 15"):
        recipe_of(data, num_heads=3)


def test_intervals_need_a_layer(data: Path) -> None:
    """The training would run on one rank, and fail on two with the advice to change the code of the recipe."""
    assert recipe_of(data, num_layers=0).config.num_layers == 0
    with pytest.raises(
        UserError, match=r"recipe\.num_layers=0 is impossible: it must be at least 1 with recipe\.time_aware"
    ):
        recipe_of(data, num_layers=0, time_aware=True)
