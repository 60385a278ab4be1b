"""The recipe hot_sellers and its model: batches, losses, masks, and what the model can learn."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from small_market import config_for, steady_market

from ensemble import folders, metrics
from ensemble.arrow import open_table
from ensemble.data.inputs import LEARNED
from ensemble.errors import UserError
from ensemble.neural import checkpoint, loop, refit
from ensemble.neural.loader import Batch, BatchPlan, Feed, in_order
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import config_class
from ensemble.predictor import bag
from ensemble.recipes.hot_sellers import model, prepare
from ensemble.recipes.hot_sellers.model import HashedTextEncoder
from ensemble.recipes.hot_sellers.settings import MarketConfig, PrepareConfig, RecipeConfig
from ensemble.recipes.hot_sellers.training import HotSellers, PanelRows, make

torch.set_num_threads(1)  # two threads that wait for each other on a busy machine are slower than one
SMALL = {"width": 8, "num_layers": 1, "num_reviews": 3, "dropout": 0.0}


def recipe(folder: Path, **settings: Any) -> HotSellers:
    return make(RecipeConfig(**{**SMALL, **settings}), str(folder))


def loss_and_gradient(recipe: HotSellers, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss, and every parameter's gradient in one vector."""
    model.zero_grad()
    loss_sum, count, _ = recipe.step(model, batch, None)
    (loss_sum / count).backward()
    return (loss_sum / count).detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.fixture(scope="module")
def batch(prepared: Path) -> Batch:
    return recipe(prepared).rows("train").gather(np.arange(0, 640, 10))


# Batches


def test_a_batch_holds_what_the_tables_hold(prepared: Path) -> None:
    """A week would be at the position of another week, or a review would be of another product or from after week t."""
    rows = recipe(prepared).rows("validation")
    table = open_table(prepared / "rows/validation").to_pylist()
    weeks, reviews = (open_table(prepared / name).to_pylist() for name in ("weeks", "reviews"))
    drawn = np.random.default_rng(0).permutation(len(table))[:60]
    batch = rows.gather(drawn)
    for number, row in enumerate(drawn):
        entry = table[row]
        series = np.zeros((52, 8))
        for week in weeks[entry["weeks_begin"] : entry["weeks_end"]]:
            num = week["reviews"]
            means = [week[name] / num for name in ("rating", "fives", "ones", "verified", "images", "words", "sentiment")]
            means[0] = (means[0] - 30) / 20
            means[5], means[6] = np.log1p(means[5]) / 4, means[6] / 4
            series[51 - (entry["week"] - week["week"])] = [np.log1p(num), *means]
        assert batch["series"][number].numpy() == pytest.approx(series, abs=1e-5)
        assert batch["valid_weeks"][number].sum() == min(52, entry["age"] + 1)
        assert batch["valid_weeks"][number, -1]
        own_reviews = reviews[entry["reviews_begin"] : entry["reviews_end"]][::-1][:3]
        assert all(review["week"] <= entry["week"] for review in own_reviews)
        assert batch["valid_reviews"][number].tolist() == [True] * len(own_reviews) + [False] * (3 - len(own_reviews))
        for place, review in enumerate(own_reviews):
            assert batch["tokens"][number, place].tolist() == review["tokens"]
            facts = [(review["rating"] - 3) / 2, np.log1p(entry["week"] - review["week"]) / 4]
            assert batch["rating_and_age"][number, place].numpy() == pytest.approx(facts, abs=1e-6)
        assert not batch["tokens"][number, len(own_reviews) :].any()
        for name in ("hot", "growth", "rating_next", "engagement"):
            assert batch[name][number].item() == pytest.approx(entry[name], nan_ok=True)


def test_workers_open_the_files_themselves(prepared: Path) -> None:
    """Every DataLoader worker would get its own copy of the whole data through a pipe."""
    rows = recipe(prepared).rows("train")
    assert len(pickle.dumps(rows)) < 20_000
    with Feed(rows, in_order(12, 9, 1, 0), device=torch.device("cpu"), num_workers=2, prefetch_factor=2) as feed:
        batches = list(feed)
    assert [len(micro.rows) for micro, _ in batches] == [9, 3]
    for micro, batch in batches:
        expected = rows.gather(micro.rows)
        assert all(torch.equal(batch[name].nan_to_num(7), expected[name].nan_to_num(7)) for name in expected)


# The model


def test_the_model_sees_no_place_that_is_masked(prepared: Path, batch: Batch) -> None:
    """The padding of a young product, or of one with few reviews, would change its forecast."""
    torch.manual_seed(0)
    model = recipe(prepared).model().eval()
    with torch.no_grad():
        before = model(batch)
        changed = {name: tensor.clone() for name, tensor in batch.items()}
        changed["series"][~batch["valid_weeks"]] = 1e3
        changed["tokens"][~batch["valid_reviews"]] = 5
        changed["rating_and_age"][~batch["valid_reviews"]] = 1e3
        assert not batch["valid_weeks"].all()
        assert not batch["valid_reviews"].all()
        assert torch.allclose(model(changed), before, atol=1e-5)
        seen = {name: tensor.clone() for name, tensor in batch.items()}
        seen["series"][batch["valid_weeks"]] += 1
        assert not torch.allclose(model(seen), before, atol=1e-3)
        seen = {name: tensor.clone() for name, tensor in batch.items()}
        seen["tokens"] = seen["tokens"].flip(-1).roll(1, dims=0)
        assert not torch.allclose(model(seen), before, atol=1e-5)


def test_a_forecast_does_not_depend_on_the_other_rows_of_a_batch(prepared: Path) -> None:
    """A forecast would depend on which rows share its batch."""
    torch.manual_seed(0)
    hot_sellers = recipe(prepared)
    model, rows = hot_sellers.model().eval(), hot_sellers.rows("test")
    with torch.no_grad():
        together = model(rows.gather(np.arange(20)))
        alone = torch.cat([model(rows.gather(np.array([row]))) for row in range(20)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_unknown_features_and_empty_texts_give_finite_forecasts(prepared: Path, batch: Batch) -> None:
    """A product without a year of history, or with wordless reviews only, would be forecast NaN."""
    hot_sellers = recipe(prepared)
    model = hot_sellers.model()
    empty = {**batch, "features": torch.full_like(batch["features"], torch.nan), "tokens": torch.zeros_like(batch["tokens"])}
    empty["valid_reviews"] = torch.zeros_like(batch["valid_reviews"])
    assert torch.isfinite(model(empty)).all()
    _, gradient = loss_and_gradient(hot_sellers, model, empty)
    assert torch.isfinite(gradient).all()


def test_features_come_standardised_over_the_training_rows(prepared: Path) -> None:
    """Counts of thousands would outweigh shares, and a feature that is sometimes unknown would look like an average one."""
    hot_sellers = recipe(prepared)
    features = hot_sellers.rows("train").gather(np.arange(len(hot_sellers.rows("train"))))["features"]
    standard, known = hot_sellers.model().standardised_features(features).double().chunk(2, dim=1)
    assert torch.equal(known, torch.isfinite(features).double())
    logarithm = features.double().sign() * features.double().abs().log1p()
    mean = logarithm.nanmean(dim=0)
    scale = (logarithm - mean).square().nanmean(dim=0).sqrt()
    expected = torch.where(known > 0, ((logarithm - mean) / scale).clamp(-5, 5), 0.0)
    varies = scale > 1e-6  # a share that is always 1 is 1 ± 1e-16
    assert torch.allclose(standard[:, varies], expected[:, varies], atol=1e-2)
    assert not varies.all()
    assert standard[:, ~varies].abs().max() < 1e-6


def test_features_that_do_not_vary_in_training_change_no_forecast(tmp_path: Path) -> None:
    """Those of last year, unknown in the first 52 weeks, would reach weights of the network that training left random."""
    prepare.prepare(config_for(tmp_path, steady_market(60)))
    hot_sellers = recipe(tmp_path / "out")
    model, rows = hot_sellers.model().eval(), hot_sellers.rows("train")
    features = rows.gather(np.arange(len(rows)))["features"]
    before = hot_sellers.rows("forecast").gather(np.arange(5))
    unknown, constant = features.isnan().all(dim=0), (features == features[0]).all(dim=0)
    assert before["features"][:, unknown].isfinite().any()
    assert constant.any()
    after = {**before, "features": before["features"].masked_fill(unknown, torch.nan)}
    after["features"] += constant
    assert torch.equal(model(after), model(before))


def test_training_begins_at_the_base_rate(prepared: Path, batch: Batch) -> None:
    """The first hundred steps would only learn that hot rows are rare."""
    torch.manual_seed(0)
    hot_sellers = recipe(prepared)
    with torch.no_grad():
        mean = torch.sigmoid(hot_sellers.model()(batch)[:, 0]).mean().item()
    splits = folders.read_manifest(prepared)["splits"]["train"]
    assert mean == pytest.approx(splits["hot"] / splits["rows"], rel=0.5)


def test_scores_need_no_cache(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a home folder that is full, or read-only as in many containers, a training would fail at its first evaluation."""
    import evaluate

    (tmp_path / "file").touch()
    monkeypatch.setattr(evaluate.module.config, "HF_METRICS_CACHE", str(tmp_path / "file/cache"))
    columns = {"prediction": np.array([0.1, 0.8, 0.3]), "target": np.array([0, 1, 0]), "group": np.array([1, 1, 2])}
    assert recipe(prepared).metrics(columns)["roc_auc"] == 1


def test_without_layers_a_text_is_the_mean_of_its_words() -> None:
    """text_layers=0 would still mix words, or count padding as one."""
    torch.manual_seed(0)
    encoder = HashedTextEncoder(vocabulary_size=20, num_tokens=4, width=6, num_layers=0, num_heads=2)
    encoded = encoder(torch.tensor([[3, 7, 0, 0], [0, 0, 0, 0]]))
    words = encoder.embedding.weight[[3, 7]] + encoder.position_LD[:2]
    assert torch.allclose(encoded[0], words.mean(dim=0), atol=1e-6)
    assert not encoded[1].any()


@pytest.mark.parametrize("num_rows", [1, 3, 50])
def test_groups_by_length_change_no_output(
    num_rows: int, prepared: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row would get the output of another one, or a week or a word would be cut off."""
    few = {name: tensor[:num_rows] for name, tensor in batch.items()}
    few["tokens"][0] = 0
    network = recipe(prepared).model().eval()
    in_groups = network(few)
    monkeypatch.setattr(model, "NUM_GROUPS", 1)
    assert few["valid_weeks"].sum(1).unique().numel() > 1 or num_rows == 1
    assert torch.allclose(in_groups, network(few), atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"text_layers": 0}, {"num_reviews": 0}, {"num_layers": 0}, {"weight_rating": 0.0}, {"loss": "focal"}]
)
def test_every_trainable_parameter_gets_a_gradient(settings: dict[str, Any], prepared: Path, batch: Batch) -> None:
    """On two ranks the second step would end with PyTorch's error about unused parameters."""
    hot_sellers = recipe(prepared, **settings)
    model = hot_sellers.model()
    loss_and_gradient(hot_sellers, model, batch)
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None] == []


def test_without_reviews_no_text_is_read(prepared: Path) -> None:
    """num_reviews=0 would carry, gather and train an encoder that is not used."""
    hot_sellers = recipe(prepared, num_reviews=0)
    assert hot_sellers.model().text_encoder is None
    assert not {"tokens", "rating_and_age", "valid_reviews"} & hot_sellers.rows("train").gather(np.arange(3)).keys()


@pytest.mark.parametrize("settings", [{}, {"text_layers": 0}, {"num_reviews": 0}])
def test_gradient_checkpointing_changes_no_gradient(settings: dict[str, Any], prepared: Path, batch: Batch) -> None:
    """Recomputed blocks would draw another dropout, or be left out of the gradient."""
    gradients = []
    for recompute in (False, True):
        hot_sellers = recipe(prepared, gradient_checkpointing=recompute, **{**settings, "dropout": 0.3})
        torch.manual_seed(0)
        model = hot_sellers.model().train()
        torch.manual_seed(1)
        gradients.append(loss_and_gradient(hot_sellers, model, batch))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.linalg.norm(gradients[0][1] - gradients[1][1]) <= 1e-6 * torch.linalg.norm(gradients[0][1])


# The loss


def test_the_loss_is_the_weighted_sum_of_the_heads(prepared: Path, batch: Batch) -> None:
    """A weight would be ignored, a head would learn the target of another, or the count would not be that of the rows."""
    hot_sellers = recipe(prepared, weight_growth=0.5, weight_rating=0.2, weight_engagement=0.1)
    model = hot_sellers.model().eval()
    with torch.no_grad():
        loss_sum, count, state = hot_sellers.step(model, batch, None)
        hot, growth, rating, engagement = model(batch).unbind(dim=-1)
        expected = F.binary_cross_entropy_with_logits(hot, batch["hot"], reduction="sum")
        for weight, output, target in (
            (0.5, growth, torch.log(1 + batch["growth"])),
            (0.2, rating, (batch["rating_next"] - 3) / 2),
            (0.1, engagement, torch.log(1 + batch["engagement"])),
        ):
            known = ~target.isnan()
            expected = expected + weight * F.smooth_l1_loss(output[known], target[known], reduction="sum")
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (count.item(), state) == (64, None)


def test_the_focal_loss_is_that_of_its_paper(prepared: Path, batch: Batch) -> None:
    """The loss would not be equation 4 of Lin et al. 2017, or with γ = 0 not the cross-entropy."""
    heads = {"weight_growth": 0.0, "weight_rating": 0.0, "weight_engagement": 0.0}
    torch.manual_seed(0)
    model = recipe(prepared).model().eval()
    losses = {}
    with torch.no_grad():
        for gamma in (0.0, 2.0):
            losses[gamma] = recipe(prepared, loss="focal", focal_gamma=gamma, **heads).step(model, batch, None)[0].item()
        cross_entropy = recipe(prepared, loss="bce", **heads).step(model, batch, None)[0].item()
        probability = torch.sigmoid(model(batch)[:, 0].double())
        right = torch.where(batch["hot"] > 0.5, probability, 1 - probability)
    assert losses[0.0] == pytest.approx(cross_entropy, rel=1e-6)
    assert losses[2.0] == pytest.approx((-((1 - right) ** 2) * right.log()).sum().item(), rel=1e-5)


def test_missing_targets_leave_the_loss_finite(prepared: Path, batch: Batch) -> None:
    """A product without a review in the horizon has no mean rating: one NaN would make every weight NaN."""
    hot_sellers = recipe(prepared)
    model = hot_sellers.model()
    unknown = torch.full_like(batch["hot"], torch.nan)
    _, gradient = loss_and_gradient(hot_sellers, model, {**batch, "rating_next": unknown, "engagement": unknown})
    without = recipe(prepared, weight_rating=0.0, weight_engagement=0.0)
    _, expected = loss_and_gradient(without, model, batch)
    assert torch.isfinite(gradient).all()
    assert torch.linalg.norm(gradient - expected) <= 1e-5 * torch.linalg.norm(expected)


# Training


def train_config(out: Path, data: Path, **settings: Any) -> Any:
    values = {"batch_size": 64, "max_epochs": 2.0, "learning_rate": 0.01, "warmup_steps": 5, "evaluations_per_epoch": 1}
    given = {"recipe": RecipeConfig(**SMALL), **values, **settings}
    return config_class("hot_sellers")(data=str(data), out=str(out), **given)


@pytest.mark.parametrize("part", ["table", "series", "text"])
def test_a_planted_signal_is_learned(
    part: str, prepared: Path, accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the model would be cut off from the loss: the table, the weekly series, or the words of the reviews."""
    words, count = np.unique(recipe(prepared).rows("train").gather(np.arange(500))["tokens"][:, 0], return_counts=True)
    word = int(words[np.argsort(-count)[10]])  # in about every fifth review
    target = {
        "table": lambda batch: batch["features"][:, 2] > 4,
        "series": lambda batch: batch["series"][:, -3, 0] > 0.5,
        "text": lambda batch: (batch["tokens"][:, 0] == word).any(dim=-1),
    }[part]
    gather = PanelRows.gather

    def with_target(rows: PanelRows, numbers: np.ndarray, epoch: int = 0) -> Batch:
        batch = gather(rows, numbers)
        return {**batch, "hot": target(batch).float()}

    monkeypatch.setattr(PanelRows, "gather", with_target)
    hot_sellers = recipe(prepared, num_reviews=1)
    config = train_config(tmp_path / "run", prepared, learning_rate=0.03, recipe=hot_sellers.config)
    summary = loop.train(hot_sellers, config, accelerator)
    logged = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in logged if line["kind"] == "train"]
    assert losses[-1] < 0.6 * losses[0]
    assert summary["validation_average_precision"] > 0.9


def test_a_member_learns_the_signals_of_the_generated_market(accelerator: Accelerator, tmp_path: Path) -> None:
    """Rows would be paired with the labels of other rows, so that average precision would fall to the base rate."""
    data = tmp_path / "prepared"
    prepare.prepare(PrepareConfig(out=str(data), market=MarketConfig(num_products=600, num_reviews=40_000)))
    settings = RecipeConfig(text_layers=0)
    config = config_class("hot_sellers")(
        data=str(data), out=str(tmp_path / "run"), batch_size=128, max_epochs=1.0, learning_rate=3e-3, recipe=settings
    )
    loop.train(make(settings, str(data)), config, accelerator)
    predictions = NeuralMember(tmp_path / "run", accelerator, data).predict(data, "test")
    scores = metrics.binary_scores(predictions["target"], predictions["prediction"], predictions["group"])
    assert scores["average_precision"] >= 2 * predictions["target"].mean()


@pytest.mark.parametrize("micro_batch_size", [64, 32, 8])
def test_the_gradient_of_the_real_model_does_not_depend_on_the_micro_batch_size(
    micro_batch_size: int, prepared: Path, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Accumulation of gradients would change the gradient of the real model."""
    config = train_config(tmp_path / "run", prepared, micro_batch_size=micro_batch_size, max_epochs=0.001, clip_norm=0)
    hot_sellers = HotSellers(config.recipe, prepared)
    loop.train(hot_sellers, config, accelerator)
    # After one step AdamW's first moment is 0.1 of the gradient
    _, state = checkpoint.read(tmp_path / "run/checkpoints/step-00000001")
    moments = [state[f"optimizer0.{number}.exp_avg"] for number in range(sum(key.endswith("exp_avg") for key in state))]
    torch.manual_seed(config.seed)
    model = hot_sellers.model()
    rows = next(BatchPlan(len(hot_sellers.rows("train")), 64, 0, 1, 0, config.seed).micro_batches(0, 1)).rows
    loss_and_gradient(hot_sellers, model, hot_sellers.rows("train").gather(rows))
    matrices = [p.grad for p in model.parameters() if p.dim() >= 2]
    vectors = [p.grad for p in model.parameters() if p.dim() < 2]
    expected = torch.cat([0.1 * gradient.flatten() for gradient in [*matrices, *vectors] if gradient is not None])
    first_moments = torch.cat([moment.flatten() for moment in moments])
    assert torch.linalg.norm(first_moments - expected) <= 1e-6 * torch.linalg.norm(expected)


# Refusals


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"width": 10, "num_heads": 4}, "recipe.width=10 must be a positive multiple of recipe.num_heads=4: the .* is 8"),
        ({"width": 0}, "recipe.width=0 is impossible: it must be at least 1"),
        ({"num_heads": -1}, "recipe.num_heads=-1 is impossible"),
        ({"num_layers": -1}, "recipe.num_layers=-1 is impossible: it must be 0 or more"),
        ({"text_layers": -1}, "recipe.text_layers=-1 is impossible"),
        ({"num_reviews": -2}, "recipe.num_reviews=-2 is impossible"),
        ({"dropout": 1.0}, "recipe.dropout=1.0 is impossible: it must be 0 or more and below 1"),
        ({"focal_gamma": -1.0}, "recipe.focal_gamma=-1.0 is impossible"),
        ({"weight_growth": -1.0}, "recipe.weight_growth=-1.0 is impossible"),
        ({"weight_rating": -1.0}, "recipe.weight_rating=-1.0 is impossible"),
        ({"weight_engagement": -1.0}, "recipe.weight_engagement=-1.0 is impossible"),
        ({"text_encoder": "bert"}, "recipe.text_encoder=bert is impossible: it must be '', as panel.tokenizer of the data"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], sentence: str, prepared: Path) -> None:
    """A typo would train another model than meant, or end in PyTorch's traceback."""
    with pytest.raises(UserError, match=sentence):
        recipe(prepared, **settings)


def test_other_data_are_refused(prepared_copy: Path) -> None:
    """A split that is not there, or data of another recipe, would end in a traceback."""
    with pytest.raises(UserError, match="has no split 'tset': it has train, validation, blend, test, forecast"):
        recipe(prepared_copy).rows("tset")
    manifest = folders.read_manifest(prepared_copy)
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**manifest, "recipe": "sudoku"})
    with pytest.raises(UserError, match="was prepared for the recipe sudoku, not for hot_sellers"):
        recipe(prepared_copy)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"categories": ["", "Other"]}, "categories"),
        ({"has_text": False}, "has_text"),
        ({"config": {"num_tokens": 7, "vocabulary_size": 8192, "tokenizer": ""}}, "panel"),
    ],
)
def test_a_member_refuses_data_that_mean_something_else(
    change: dict[str, Any], what: str, prepared_copy: Path, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Category 3 of the new data would be taken for category 3 of the old: wrong forecasts without a message."""
    config = train_config(tmp_path / "run", prepared_copy, max_epochs=0.001)
    loop.train(HotSellers(config.recipe, prepared_copy), config, accelerator)
    manifest = folders.read_manifest(prepared_copy)
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**manifest, **change})
    with pytest.raises(UserError, match=f"in another way than the training data of .*, with other values of {what}"):
        NeuralMember(tmp_path / "run", accelerator, prepared_copy).predict(prepared_copy, "test")


def test_a_member_without_a_checkpoint_is_refused(prepared: Path, accelerator: Accelerator, tmp_path: Path) -> None:
    """The message about a run that was stopped before its first evaluation would ask for prepared data."""
    with pytest.raises(UserError, match=r"best does not exist: .* scripts/train.py"):
        NeuralMember(tmp_path, accelerator, prepared).predict(prepared, "test")


def test_a_refit_predicts_the_splits_after_blend(
    prepared: Path, accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blend would be predicted by weights that learned it, or new rows by weights that learned only the oldest rows."""
    run, earlier = tmp_path / "run", tmp_path / "earlier"
    monkeypatch.setattr(refit, "score_of", lambda folder, *_: float(folder.name == "final"))  # so that the trial is better
    config = train_config(run, prepared, max_epochs=0.5, refit_epochs=0.5)
    summary = refit.train(HotSellers(config.recipe, prepared), config, accelerator)
    assert summary["refit"]["is_better"]
    shutil.copytree(run, earlier, ignore=shutil.ignore_patterns(refit.NEWEST))
    newest = shutil.copytree(run, tmp_path / "newest", ignore=shutil.ignore_patterns("best", refit.NEWEST))
    shutil.copytree(run / refit.NEWEST / "final", newest / "best")
    member, by_best, by_newest = (NeuralMember(folder, accelerator, prepared) for folder in (run, earlier, newest))
    for split in (*LEARNED, "test", "forecast"):
        expected = (by_best if split in LEARNED else by_newest).predict(prepared, split)["prediction"]
        columns = member.predict(prepared, split)
        assert np.array_equal(columns["prediction"], expected), split
        weights_of = (by_best if split in LEARNED else by_newest).model.state_dict()
        for name, values in NeuralMember(run, None, prepared, split=split).model.state_dict().items():
            assert torch.equal(values, weights_of[name]), (split, name)
        assert columns["config"]["model"] == bag.model_fingerprint(run) != bag.model_fingerprint(earlier)
    assert not np.array_equal(by_best.predict(prepared, "test")["prediction"], columns["prediction"])
    weights = run / refit.NEWEST / "final/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    for read in (bag.model_fingerprint, lambda folder: NeuralMember(folder, accelerator, prepared)):
        with pytest.raises(UserError, match=r"newest/final"):
            read(run)


@pytest.mark.parametrize(
    "settings",
    [{}, {"text_layers": 2, "num_layers": 3}, {"num_reviews": 0}, {"width": 24, "text_layers": 0, "num_layers": 0}],
)
def test_the_size_of_a_model_is_known_before(settings: dict[str, Any], prepared: Path) -> None:
    """A model that fits would be refused, or one that does not fit would be built until the system kills the process."""
    hot_sellers = recipe(prepared, **settings)
    assert hot_sellers.size(4).num_parameters == sum(parameter.numel() for parameter in hot_sellers.model().parameters())


@pytest.mark.parametrize(
    "settings", [{"width": 10**6}, {"num_reviews": 10**6}, {"num_layers": 10**9}, {"text_layers": 10**9, "width": 64}]
)
def test_what_does_not_fit_into_memory_is_refused(settings: dict[str, Any], prepared: Path, tmp_path: Path) -> None:
    """The system would kill the training without a message."""
    config = train_config(tmp_path / "run", prepared)
    hot_sellers = recipe(prepared, **settings)
    with pytest.raises(UserError, match=r"the training needs at least .* GB of memory \(.* GB are available: reduce recipe"):
        loop.train(hot_sellers, config, Accelerator(cpu=True))
    assert not (tmp_path / "run").exists()
