"""The recipe's rows, loss and metrics, and a training of both systems from prepared data to prediction files."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_emulators
import torch
from accelerate import Accelerator

from ensemble import folders, predictions
from ensemble.errors import UserError
from ensemble.neural import evaluation, loop, preflight
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import config_class
from ensemble.recipes.emulator import examine, lorenz96, sea_ice, training
from ensemble.recipes.emulator.settings import RecipeConfig

torch.set_num_threads(1)
SETTINGS: dict[str, dict[str, Any]] = {
    "ice": {"widths": (24, 24), "output": "sigmoid", "jacobian_weight": 0.3},
    "ring": {"network": "bilinear", "widths": (8,), "jacobian_weight": 0.1},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    return {"ice": small_emulators.sea_ice(folder), "ring": small_emulators.lorenz96(folder, num_states=600)}


def recipe(data: dict[str, Path], system: str, **changed: Any) -> training.Emulation:
    return training.make(RecipeConfig(**{**SETTINGS[system], **changed}), str(data[system]))


@pytest.fixture(scope="module")
def trained(data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a run of each system."""
    out = tmp_path_factory.mktemp("runs")
    for system, changed in SETTINGS.items():
        small_emulators.train(
            data[system], out / system, RecipeConfig(**changed), batch_size=50, max_epochs=30, warmup_steps=10
        )
    return {system: out / system for system in SETTINGS}


def test_statistics_are_those_of_the_training_split(data: dict[str, Path]) -> None:
    """Inputs would not be normalised, or with the statistics of other rows."""
    for system in SETTINGS:
        emulation = recipe(data, system)
        pairs = small_emulators.columns(data[system], "pairs", "train")
        inputs, outputs = (pairs[name].astype(np.float64) for name in ("inputs", "outputs"))
        model = emulation.model()
        if system == "ring":
            expected = [inputs.mean(), inputs.std(), (outputs - inputs).mean(), (outputs - inputs).std()]
        else:
            expected = [inputs.mean(axis=0), inputs.std(axis=0), 0.0, 1.0]  # of a sigmoid
        names = ("input_mean", "input_std", "output_mean", "output_std")
        for name, values in zip(names, expected, strict=True):
            assert np.allclose(getattr(model, name).numpy(), values, rtol=1e-5, atol=1e-6), (system, name)


@pytest.mark.parametrize(
    ("system", "settings"),
    [("ice", {}), ("ring", {}), ("ring", {"network": "mlp", "conserve": (1.0,) * 8, "jacobian_weight": 0.0})],
)
def test_the_size_of_a_model_is_known_before(data: dict[str, Path], system: str, settings: dict[str, Any]) -> None:
    """A model that fits would be refused, or one that does not fit would be built until the system kills the process."""
    emulation = recipe(data, system, **settings)
    model = emulation.model()
    assert emulation.size(4).num_parameters == sum(parameter.numel() for parameter in model.parameters())
    batch = emulation.rows("train").gather(np.arange(6))
    saved = preflight.activation_bytes(model, lambda: emulation.step(model, batch, None)[0])
    assert 0 < emulation.size(6).batch_bytes < saved


@pytest.mark.parametrize(("system", "widths"), [("ice", (10**6, 10**6)), ("ring", (10**10,))])
def test_what_does_not_fit_into_memory_is_refused(
    data: dict[str, Path], system: str, widths: tuple[int, ...], tmp_path: Path
) -> None:
    """The system would kill the training without a message."""
    emulation = recipe(data, system, widths=widths)
    config = config_class("emulator")(data=str(data[system]), out=str(tmp_path / "run"), recipe=emulation.config)
    with pytest.raises(UserError, match=r"needs at least .* parameters.*GB are available: reduce recipe.widths, "):
        loop.train(emulation, config, Accelerator(cpu=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("system", SETTINGS)
def test_directions_follow_from_row_and_epoch(data: dict[str, Path], system: str) -> None:
    """The loss would depend on how a batch is divided, or all epochs would have the same directions."""
    rows = recipe(data, system).rows("train")
    whole, later = rows.gather(np.arange(40)), rows.gather(np.arange(40), 1)
    some = rows.gather(np.array([31, 2]))
    assert all(torch.equal(some[name], whole[name][[31, 2]]) for name in some)
    assert 0.3 < (whole["direction"] != later["direction"]).float().mean() < 0.7
    assert 0.3 < (whole["direction"] > 0).float().mean() < 0.7
    assert "direction" in recipe(data, system, jacobian_weight=0.0).rows("validation").gather(np.arange(2))
    assert recipe(data, system, jacobian_weight=0.0).rows("train").gather(np.arange(2)).keys() == {"inputs", "outputs"}
    assert recipe(data, system).rows("blend").gather(np.arange(2)).keys() == whole.keys()  # for a refit


def test_changes_are_true_derivatives(data: dict[str, Path]) -> None:
    """The loss would lead the network to a wrong Jacobian."""
    ice = recipe(data, "ice").rows("train").gather(np.arange(60))
    true = np.einsum("bi,bi->b", sea_ice.jacobian(ice["inputs"].numpy()), ice["direction"].double().numpy())
    assert np.allclose(ice["change"][:, 0].numpy(), true, rtol=1e-4, atol=1e-6)
    ring = recipe(data, "ring").rows("train").gather(np.arange(60), 3)
    states, directions = ring["inputs"].double().numpy(), ring["direction"].double().numpy()
    step = 1e-5
    difference = (lorenz96.step(states + step * directions) - lorenz96.step(states - step * directions)) / (2 * step)
    assert np.allclose(ring["change"].numpy(), difference, rtol=1e-4, atol=1e-4)


def test_a_direction_changes_the_outputs_by_one_deviation(data: dict[str, Path]) -> None:
    """The effect of jacobian_weight would depend on the scale of the data, or on the influence of an input."""
    for system, expected in (("ice", np.sqrt(7.0)), ("ring", 1.0)):
        emulation = recipe(data, system)
        batch = emulation.rows("train").gather(np.arange(len(emulation.rows("train"))))
        change = (batch["change"] - (batch["direction"] if system == "ring" else 0)).numpy()
        assert np.sqrt(((change / emulation.statistics[1].deviation) ** 2).mean()) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("system", SETTINGS)
def test_the_loss_is_a_sum_over_examples(data: dict[str, Path], system: str) -> None:
    """The gradient would depend on how a batch is divided, or the loss would broadcast (B, 1) against (B,)."""
    emulation = recipe(data, system)
    model, batch = (
        emulation.model().double(),
        {name: tensor.double() for name, tensor in emulation.rows("train").gather(np.arange(30)).items()},
    )
    whole, count, _ = emulation.step(model, batch, None)
    halves = [
        emulation.step(model, {name: tensor[part] for name, tensor in batch.items()}, None)
        for part in (slice(7), slice(7, None))
    ]
    assert whole.item() == pytest.approx(sum(loss.item() for loss, _, _ in halves), rel=1e-12)
    assert float(count) == 30
    result, change = model(batch["inputs"], batch["direction"])
    scale = torch.as_tensor(emulation.statistics[1].deviation)
    squared = ((result - batch["outputs"]) / scale) ** 2 + emulation.config.jacobian_weight * (
        (change - batch["change"]) / scale
    ) ** 2
    assert whole.item() == pytest.approx(squared.mean(dim=1).sum().item(), rel=1e-9)


@pytest.mark.parametrize("system", SETTINGS)
def test_metrics_are_those_of_all_rows(data: dict[str, Path], system: str) -> None:
    """R² would be a mean over batches, or lose its digits far from 0."""
    emulation = recipe(data, system)
    model, accelerator = emulation.model(), Accelerator(cpu=True)
    scores = evaluation.score(emulation, model, "validation", 17, accelerator)
    result = evaluation.predict(emulation, model, "validation", 17, accelerator)
    error = result["prediction"].astype(np.float64) - result["target"]
    spread = ((result["target"] - result["target"].mean(axis=0, dtype=np.float64)) ** 2).sum()
    assert scores["root_mean_squared_error"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
    assert scores["r_squared"] == pytest.approx(1 - (error**2).sum() / spread, rel=1e-6)
    assert scores["jacobian_error"] > 0


@pytest.mark.parametrize("system", SETTINGS)
def test_a_trained_network_has_values_and_derivatives(trained: dict[str, Path], data: dict[str, Path], system: str) -> None:
    """Training would not improve the network, or only its values."""
    scores = examine.scores(str(trained[system]), str(data[system]), "test")
    assert scores["r_squared"] > 0.95
    assert scores["jacobian"]["all"]["error"] < 0.4
    assert scores["jacobian"]["all"]["right_sign"] > 0.9
    assert (scores.get("share_of_ceiling", 0.9) < 1) == ("ceiling" in scores or system == "ring")


@pytest.mark.parametrize("system", SETTINGS)
def test_predictions_are_in_the_rows_of_the_trees(
    trained: dict[str, Path], data: dict[str, Path], system: str, tmp_path: Path, accelerator: Accelerator
) -> None:
    """The ensemble would combine predictions of different points."""
    manifest = folders.read_manifest(data[system])
    member = NeuralMember(trained[system], accelerator, data[system])
    file = predictions.Predictions(split="test", member="mlp", **member.predict(data[system], "test"))
    predictions.write(tmp_path / "mlp.test.parquet", file)
    columns = small_emulators.columns(data[system], "rows", "test")
    assert np.array_equal(file.row_id, columns["row_id"])
    assert np.array_equal(file.target, columns[manifest["task"]["target"]].astype(np.float64))
    assert np.array_equal(file.cluster, columns[manifest["task"]["cluster"]])
    error = file.prediction - file.target
    assert 1 - (error**2).mean() / file.target.var() > 0.95


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    r"recipe\.network=bilinear is impossible: it must be mlp: sea_ice has no states on a ring": (
        "ice",
        {"network": "bilinear"},
    ),
    r"recipe\.residual=true is impossible: it must be false unless there are as many outputs as inputs, not 1 and 7": (
        "ice",
        {"residual": True},
    ),
    r"recipe\.output=sigmoid is impossible: it must be linear": ("ring", {"network": "mlp", "output": "sigmoid"}),
    r"recipe\.widths=\[\] is impossible": ("ice", {"widths": ()}),
    r"recipe\.jacobian_weight=-1.* is impossible": ("ice", {"jacobian_weight": -1.0}),
    r"recipe\.jacobian_weight=inf is impossible: it must be finite": ("ice", {"jacobian_weight": math.inf}),
    r"recipe\.conserve=.* is impossible": ("ring", {"conserve": (1.0, 1.0)}),
    r"recipe\.conserve=.* not all of them 0": ("ring", {"conserve": (0.0,) * 8}),
    r"recipe\.conserve: the sum of the squared weights is 0 in float32": ("ring", {"conserve": (1e-25,) * 8}),
    r"recipe\.conserve: the sum of the squared weights is inf .*: multiply all": ("ring", {"conserve": (1e20,) * 8}),
    r"recipe\.conserve: the sum of the squared weights is nan": ("ring", {"conserve": (1.0,) * 7 + (math.nan,)}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_impossible_settings_are_refused(data: dict[str, Path], sentence: str) -> None:
    """Wrong settings would fail during a training, with a traceback."""
    system, changed = REFUSED[sentence]
    with pytest.raises(UserError, match=sentence):
        recipe(data, system, **changed)


def test_a_weight_of_unknown_derivatives_is_refused(data: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of real ice would fail in the first batch."""
    manifest = folders.read_manifest(data["ice"])
    unknown = {**manifest, "emulator": {**manifest["emulator"], "formula": ""}}
    monkeypatch.setattr(folders, "read_manifest", lambda folder: unknown)
    with pytest.raises(UserError, match=r"recipe\.jacobian_weight=0.3 needs true derivatives"):
        recipe(data, "ice")
    assert "direction" not in recipe(data, "ice", jacobian_weight=0.0).rows("validation").gather(np.arange(3))


def test_a_conserved_sum_is_kept(data: dict[str, Path]) -> None:
    """The setting would have no effect."""
    emulation = recipe(data, "ring", network="mlp", residual=True, conserve=(1.0,) * 8)
    batch = emulation.rows("test").gather(np.arange(20))
    result = emulation.model()(batch["inputs"])
    assert torch.allclose(result.sum(dim=1), batch["inputs"].sum(dim=1), atol=1e-4)
