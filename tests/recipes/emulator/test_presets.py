"""The presets of emulator: each is read, and trains on the data that its head prepares; and the plan of scripts/fit.py."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import small_emulators
import torch

from ensemble import configuration, folders
from ensemble.neural.settings import check, config_class
from ensemble.recipes.emulator import plan, training
from ensemble.recipes.emulator.settings import PrepareConfig

ROOT = Path(__file__).resolve().parents[3]
PRESETS = {file.stem: file for file in (ROOT / "ensemble/recipes/emulator/presets").glob("*.yaml")}
NUM_WEIGHTS = {"sea_ice": 8897, "sea_ice_source": 7 * 16 + 16 + 16 + 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    return {"sea_ice": small_emulators.sea_ice(folder), "lorenz96": small_emulators.lorenz96(folder)}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains_on_the_data_that_it_names(name: str, data: dict[str, Path]) -> None:
    """Users with the data would discover that the command was never tested."""
    head = PRESETS[name].read_text(encoding="utf-8").replace("\\\n#", "")
    prepare, train = (shlex.split(line) for line in re.findall(r"^#   ((?:python|accelerate) .*)", head, re.MULTILINE))
    assert prepare[:4] == ["python", "scripts/prepare_data.py", "--recipe", "emulator"]
    settings: Any = configuration.load(PrepareConfig, None, prepare[4:])
    words = train[train.index("scripts/train.py") + 1 :]
    assert words[:4] == ["--recipe", "emulator", "--config", str(PRESETS[name].relative_to(ROOT))]
    assert words[4] == f"data={settings.out}"
    chosen: Any = configuration.load(config_class("emulator"), PRESETS[name], words[4:])
    check(chosen)
    recipe = training.make(chosen.recipe, str(data[settings.system]))
    model = recipe.model()
    if name in NUM_WEIGHTS:
        assert sum(weight.numel() for weight in model.parameters()) == NUM_WEIGHTS[name]
    rows = recipe.rows("train")
    loss, count, _ = recipe.step(model, rows.gather(torch.arange(20).numpy()), None)
    loss.backward()
    assert count == 20
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_the_plan_has_trees_and_networks_of_both_systems(data: dict[str, Path]) -> None:
    """scripts/fit.py would train networks that do not fit the data, or no trees."""
    manifests = [folders.read_manifest(data[system]) for system in ("sea_ice", "lorenz96")]
    ice, ring = ({member.name: member for member in plan.plan(manifest, 1)} for manifest in manifests)
    assert ice.keys() == {"xgboost", "lightgbm", "mlp", "mlp_tanh", "mlp_16"}
    assert ring.keys() == {"xgboost", "lightgbm", "bilinear", "mlp"}
    assert ice["mlp"].settings["recipe.widths"] == "[64,64,64]"
    assert ice["mlp"].settings[plan.JACOBIAN] > 0
    without_formula = {**manifests[0], "emulator": {**manifests[0]["emulator"], "formula": ""}}
    assert not any(member.settings.get(plan.JACOBIAN) for member in plan.plan(without_formula, 1))
    for member in (*ice.values(), *ring.values()):
        if member.kind == "neural":
            words = [f"{key}={value}" for key, value in member.settings.items()]
            configuration.load(config_class("emulator"), None, [*words, "data=prepared", "out=run"])
