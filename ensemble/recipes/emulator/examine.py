"""Scores of the values and of the derivatives of a trained network, as JSON.

    python -m ensemble.recipes.emulator.examine member=runs/emulator/members/mlp data=runs/emulator/prepared out=runs/scores

OUT/scores.json has, for one split:

    root_mean_squared_error, r_squared    of the targets with their noise
    ceiling, share_of_ceiling             if the formula is known, the R² of the formula, and r_squared divided by it
    jacobian                              if the true derivatives are known. With the Jacobians J of the network, for all
                                          entries (`all`), and for each input or each small offset on a ring (`inputs`):
                                          `error`, |J - J_true| / |J_true| in the Frobenius norm; `mean` and `true_mean` of
                                          the entries; and `right_sign`, the share of Σ |J_true| that is in entries whose
                                          sign is right in J
    sample                                some entries of both Jacobians, times the standard deviation of the input
    orbit                                 for a ring, the first two points at each step of two trajectories from the same
                                          state: of the true model and of the network

The report starts this module as a process, since PyTorch and the tree libraries must not be loaded in the same process.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble import configuration, errors

NUM_SAMPLED = 300
"""The largest number of entries in `sample`."""
LEAST_SHOWN = 0.02
"""The smallest absolute value of an entry in `sample`, relative to the largest one."""
NUM_STATES = 400
"""The largest number of states of a ring whose Jacobians are compared. Each Jacobian has inputs × outputs entries."""
ORBIT_STEPS, LARGEST = 80, 1e6
"""Number of steps of `orbit`, and the absolute value to which the states of a network are clipped if it diverges."""
MOST_DISTANT = 3
"""The largest offset on a ring in `inputs` of `jacobian`. Points farther apart hardly influence each other in one step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamineConfig:
    """The network and the data."""

    member: str = "???"
    """The folder of a run of scripts/train.py."""
    data: str = "???"
    """The prepared data that the member was trained on."""
    out: str = "???"
    """The folder to write scores.json to."""
    split: str = "test"
    """The split to predict."""
    overwrite: bool = False
    """Replace `out` if it exists."""


def scores(member: str, data: str, split: str) -> dict[str, Any]:
    """The content of scores.json. Raises `UserError` for a damaged checkpoint, for a network of another recipe, and for data
    that the network was not trained on."""
    from ensemble.neural.predict import NeuralMember
    from ensemble.recipes.emulator import lorenz96, sea_ice

    network = NeuralMember(member, None, data, split=split, of_recipe="emulator")
    recipe, model = network.recipe_of(data), network.model.eval()
    columns = recipe.rows(split).columns
    inputs, outputs = (columns[name].all().astype(np.float32) for name in ("inputs", "outputs"))
    spread = ((outputs - outputs.mean(axis=0, dtype=np.float64)) ** 2).sum()

    def r_squared(values: np.ndarray) -> float:
        return float(1 - ((values - outputs) ** 2).sum() / spread)

    predicted = _in_pieces(model, inputs, 4096)
    scored: dict[str, Any] = {
        "member": member,
        "split": split,
        "examples": len(outputs),
        "root_mean_squared_error": float(np.sqrt(((predicted - outputs) ** 2).mean())),
        "r_squared": r_squared(predicted),
    }
    facts = recipe.facts
    if not facts["formula"]:
        return scored
    if facts["system"] == lorenz96.NAME:
        states = inputs[:NUM_STATES]
        slopes, truth = _in_pieces(model.jacobian, states, 500), lorenz96.jacobian(states.astype(np.float64))
        near = range(-MOST_DISTANT, MOST_DISTANT + 1)
        parts = {f"{offset:+d}": tuple(lorenz96.diagonal(matrix, offset) for matrix in (slopes, truth)) for offset in near}
        deviation = inputs.std()
        scored["orbit"] = _orbit(inputs[0], model)
    else:
        slopes, truth = _in_pieces(model.jacobian, inputs, 500), sea_ice.jacobian(inputs)[:, None]
        parts = {name: (slopes[:, 0, number], truth[:, 0, number]) for number, name in enumerate(facts["inputs"])}
        deviation = inputs.std(axis=0)
        ceiling = r_squared(sea_ice.concentration(inputs)[:, None])
        scored |= {"ceiling": ceiling, "share_of_ceiling": scored["r_squared"] / ceiling}
    by_input = {name: compare_jacobians(*part) for name, part in parts.items()}
    return {
        **scored,
        "jacobian": {"all": compare_jacobians(slopes, truth), "inputs": by_input},
        "sample": _sample((truth * deviation).reshape(-1), (slopes * deviation).reshape(-1)),
    }


def _in_pieces(function: Callable[[Any], Any], inputs: np.ndarray, at_once: int) -> np.ndarray:
    """The results of a function for all inputs, `at_once` of them at a time; float64."""
    import torch

    with torch.no_grad():
        return torch.cat([function(piece) for piece in torch.from_numpy(inputs).split(at_once)]).double().numpy()


def _sample(true: np.ndarray, network: np.ndarray) -> dict[str, list[float]]:
    """Random entries of the true Jacobian, and those of the network in the same places. Entries near 0 are left out."""
    large = np.flatnonzero(np.abs(true) > LEAST_SHOWN * np.abs(true).max())
    chosen = np.random.default_rng(0).choice(large, min(NUM_SAMPLED, len(large)), replace=False)
    return {"true": np.round(true[chosen], 5).tolist(), "network": np.round(network[chosen], 5).tolist()}


def compare_jacobians(slopes: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """The relative error of derivatives, both means, and the share of the true magnitude in entries with the right sign."""
    magnitude = np.abs(truth)
    return {
        "error": float(np.linalg.norm(slopes - truth) / np.linalg.norm(truth)),
        "mean": float(slopes.mean()),
        "true_mean": float(truth.mean()),
        "right_sign": float(magnitude[np.sign(slopes) == np.sign(truth)].sum() / magnitude.sum()),
    }


def _orbit(state: np.ndarray, model: Any) -> dict[str, list[list[float]]]:
    """The first two points of a ring at each step of the true model and of the network, both started from `state`."""
    import torch

    from ensemble.recipes.emulator import lorenz96

    true, emulated = [state.astype(np.float64)], [torch.from_numpy(state.copy())]
    with torch.no_grad():
        for _ in range(ORBIT_STEPS):
            true.append(lorenz96.step(true[-1][None])[0])
            emulated.append(model(emulated[-1][None])[0].clamp(-LARGEST, LARGEST))
    return {
        "true": np.round(np.stack(true)[:, :2], 3).tolist(),
        "network": np.round(torch.stack(emulated)[:, :2].double().numpy(), 3).tolist(),
    }


def main() -> None:
    settings = configuration.from_command_line(ExamineConfig, __doc__)

    from ensemble import folders

    with folders.new_folder(settings.out, settings.overwrite, "scores of an emulator") as folder:
        scored = scores(settings.member, settings.data, settings.split)
        folders.write_json(folder / "scores.json", scored)
        folders.write_manifest(folder, {"kind": "scores of an emulator"})
    error = f", relative error of the Jacobian {scored['jacobian']['all']['error']:.4f}" if "jacobian" in scored else ""
    print(f"{settings.out}: RMSE {scored['root_mean_squared_error']:.5g}, R² {scored['r_squared']:.5f}{error}")


if __name__ == "__main__":
    errors.run(main)
