"""How well a trained network reproduces the values and the derivatives of what it emulates, as JSON.

    python -m ensemble.recipes.emulator.examine member=runs/emulator/members/mlp data=runs/emulator/prepared out=runs/scores

OUT/scores.json has, of one split:

    root_mean_squared_error, r_squared    of the targets as they are, with their noise
    ceiling, share_of_ceiling             the R² of the formula without noise, where it is known, and r_squared over it
    jacobian                              where the true derivatives are known, of all entries (`all`) and by input, or by
                                          distance on a ring (`inputs`): `error`, |J - J_true| / |J_true| in the Frobenius
                                          norm, the means of both, and `right_sign`, the share of Σ |J_true| with its sign
    sample                                entries of both Jacobians times the standard deviation of the input
    orbit                                 of a ring: two points along a trajectory of the true model, and of the network

The report's page runs this in a process of its own, since PyTorch and the tree libraries must not share one.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from ensemble import configuration, errors

if TYPE_CHECKING:
    import numpy as np

NUM_SAMPLED = 300
"""Entries of the Jacobians in `sample`."""
LEAST_SHOWN = 0.02
"""The size of such an entry relative to the largest."""
NUM_STATES = 400
"""States of a ring whose Jacobians are compared: each has inputs × outputs entries."""
ORBIT_STEPS, LARGEST = 80, 1e6
"""Steps of `orbit`, and the size at which a network that diverges is held."""
AT_ONCE = 4096
MOST_DISTANT = 3
"""Distances on a ring in `jacobian`; beyond them one step has almost no influence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamineConfig:
    """Which network, on which data."""

    member: str = "???"
    """The folder of a run of scripts/train.py."""
    data: str = "???"
    """The prepared data that it learned from."""
    out: str = "???"
    """The folder to write scores.json to."""
    split: str = "test"
    """The split to predict."""
    overwrite: bool = False
    """Replace `out` if it exists."""


def scores(member: str, data: str, split: str) -> dict[str, Any]:
    """The content of scores.json. Raises `UserError` for a damaged checkpoint, and for one of other data."""
    from pathlib import Path

    import numpy as np
    import torch

    from ensemble import folders
    from ensemble.errors import UserError
    from ensemble.neural import checkpoint
    from ensemble.neural.settings import config_class
    from ensemble.recipes.emulator import lorenz96, sea_ice, training

    best = Path(member) / "best"
    folders.verify(best)
    state, about = folders.read_json(best / "state.json"), folders.read_manifest(data)
    if state["fingerprint"] != about["fingerprint"]:
        raise UserError(
            f"{member} was trained on data {state['fingerprint']}, but {data} is {about['fingerprint']}: name its data"
        )
    settings: Any = configuration.from_dict(config_class(state["recipe"]), state["config"])
    recipe = training.make(settings.recipe, data)
    model = recipe.model().eval()
    checkpoint.load_weights(best, model)
    columns = recipe.rows(split).columns
    inputs, outputs = (columns[name].all().astype(np.float32) for name in ("inputs", "outputs"))
    is_ring = about["emulator"]["system"] == training.LORENZ96
    looked_at = inputs[:NUM_STATES] if is_ring else inputs
    with torch.no_grad():
        pieces = [torch.from_numpy(inputs[begin : begin + AT_ONCE].copy()) for begin in range(0, len(inputs), AT_ONCE)]
        found = torch.cat([model(piece) for piece in pieces]).double().numpy()
        pieces = [torch.from_numpy(looked_at[begin : begin + 500].copy()) for begin in range(0, len(looked_at), 500)]
        slopes = torch.cat([model.jacobian(piece) for piece in pieces]).double().numpy()
    spread = ((outputs - outputs.mean(axis=0, dtype=np.float64)) ** 2).sum()

    def r_squared(values: np.ndarray) -> float:
        return float(1 - ((values - outputs) ** 2).sum() / spread)

    scored: dict[str, Any] = {
        "member": member,
        "split": split,
        "examples": len(outputs),
        "root_mean_squared_error": float(np.sqrt(((found - outputs) ** 2).mean())),
        "r_squared": r_squared(found),
    }
    if not about["emulator"]["formula"]:
        return scored
    names = about["emulator"]["inputs"]
    if is_ring:
        truth = lorenz96.jacobian(looked_at.astype(np.float64))
        near = range(-MOST_DISTANT, MOST_DISTANT + 1)
        own, true = ({f"{distance:+d}": _diagonal(of, distance) for distance in near} for of in (slopes, truth))
        deviation = inputs.std()
        scored |= {"orbit": _orbit(inputs[0], model)}
    else:
        truth = sea_ice.jacobian(inputs)[:, None]
        own, true = ({name: of[:, 0, number] for number, name in enumerate(names)} for of in (slopes, truth))
        deviation = inputs.std(axis=0)
        ceiling = r_squared(sea_ice.concentration(inputs)[:, None])
        scored |= {"ceiling": ceiling, "share_of_ceiling": scored["r_squared"] / ceiling}
    random = np.random.default_rng(0)
    scaled = [(of * deviation).reshape(-1) for of in (truth, slopes)]
    large = np.flatnonzero(np.abs(scaled[0]) > LEAST_SHOWN * np.abs(scaled[0]).max())  # most entries are nearly 0
    sampled = random.choice(large, min(NUM_SAMPLED, len(large)), replace=False)
    return {
        **scored,
        "jacobian": {
            "all": _compared(slopes, truth),
            "inputs": {name: _compared(own[name], true[name]) for name in own},
        },
        "sample": {"true": np.round(scaled[0][sampled], 5).tolist(), "network": np.round(scaled[1][sampled], 5).tolist()},
    }


def _compared(found: "np.ndarray", truth: "np.ndarray") -> dict[str, float]:
    import numpy as np

    magnitude = np.abs(truth)
    return {
        "error": float(np.linalg.norm(found - truth) / np.linalg.norm(truth)),
        "mean": float(found.mean()),
        "true_mean": float(truth.mean()),
        "right_sign": float(magnitude[np.sign(found) == np.sign(truth)].sum() / magnitude.sum()),
    }


def _diagonal(jacobian: "np.ndarray", distance: int) -> "np.ndarray":
    """The derivatives of each point by the point `distance` places further on the ring, (states, points)."""
    import numpy as np

    point = np.arange(jacobian.shape[1])
    return jacobian[:, point, (point + distance) % len(point)]


def _orbit(state: "np.ndarray", model: Any) -> dict[str, list[list[float]]]:
    """The first two points of a ring at each step of the true model and of the network from one state."""
    import numpy as np
    import torch

    from ensemble.recipes.emulator import lorenz96

    true, own = [state.astype(np.float64)], [torch.from_numpy(state.copy())]
    with torch.no_grad():
        for _ in range(ORBIT_STEPS):
            true.append(lorenz96.step(true[-1][None])[0])
            own.append(model(own[-1][None])[0].clamp(-LARGEST, LARGEST))
    return {
        "true": np.round(np.stack(true)[:, :2], 3).tolist(),
        "network": np.round(torch.stack(own)[:, :2].double().numpy(), 3).tolist(),
    }


def main() -> None:
    settings = configuration.from_command_line(ExamineConfig, __doc__)

    from ensemble import folders

    found = scores(settings.member, settings.data, settings.split)
    with folders.new_folder(settings.out, settings.overwrite, "scores of an emulator") as folder:
        folders.write_json(folder / "scores.json", found)
        folders.write_manifest(folder, {"kind": "scores of an emulator"})
    error = f", relative error of the Jacobian {found['jacobian']['all']['error']:.4f}" if "jacobian" in found else ""
    print(f"{settings.out}: RMSE {found['root_mean_squared_error']:.5g}, R² {found['r_squared']:.5f}{error}")


if __name__ == "__main__":
    errors.run(main)
