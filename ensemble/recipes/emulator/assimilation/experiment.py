"""Twin experiments of data assimilation with the true model and an emulator.

The results are the errors of the analyses, and those of the emulator's Jacobians.
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.recipes.emulator import lorenz96
from ensemble.recipes.emulator.assimilation import twin as twins
from ensemble.recipes.emulator.assimilation.kalman import extended_kalman_filter
from ensemble.recipes.emulator.assimilation.letkf import letkf
from ensemble.recipes.emulator.assimilation.models import Model
from ensemble.recipes.emulator.assimilation.settings import METHODS, AssimilateConfig
from ensemble.recipes.emulator.assimilation.twin import Twin
from ensemble.recipes.emulator.assimilation.variational import four_d_var

NUM_JACOBIANS = 200
TRUTH, EMULATOR = "true model", "emulator"


@dataclasses.dataclass(frozen=True)
class JacobianErrors:
    """Errors of an emulator relative to the true model, on NUM_JACOBIANS states of the scored cycles.

    one_step : root mean square error of the state after one time step
    relative : Frobenius norm of the errors of all Jacobians, divided by the norm of the true Jacobians
    true, emulated : the Jacobians of both models, (NUM_JACOBIANS, N, N) for N points
    """

    one_step: float
    relative: float
    true: np.ndarray
    emulated: np.ndarray


@dataclasses.dataclass(frozen=True)
class Assimilated:
    """The result of `run`.

    errors : for each method and model, root mean square errors of the analyses over the points, (scored cycles, seeds);
        infinite where the model diverged
    analyses : for each method and model, the analyses of the first seed, (scored cycles, N)
    jacobians : None without an emulator
    """

    twin: Twin
    errors: dict[str, dict[str, np.ndarray]]
    analyses: dict[str, dict[str, np.ndarray]]
    jacobians: JacobianErrors | None


def run(settings: AssimilateConfig, emulator: Model | None) -> Assimilated:
    """Run every method with the true model, and with `emulator` if it is given, on the same observations."""
    check(settings)
    seeds = range(settings.seeds)
    twin = twins.draw(settings.cycles, seeds, settings.spin_up)
    assimilate = {
        "ekf": partial(extended_kalman_filter, inflation=settings.inflation),
        "4dvar": partial(
            four_d_var, window=settings.window, background_variance=settings.background_variance,
            num_outer=settings.outer_loops,
        ),
        "letkf": partial(
            letkf, num_members=settings.members, inflation=settings.ensemble_inflation, radius=settings.radius, seeds=seeds
        ),
    }  # fmt: skip
    models: dict[str, Model] = {TRUTH: lorenz96, **({EMULATOR: emulator} if emulator else {})}
    errors: dict[str, dict[str, np.ndarray]] = {}
    analyses: dict[str, dict[str, np.ndarray]] = {}
    for method in settings.methods:
        errors[method], analyses[method] = {}, {}
        for name, model in models.items():
            with np.errstate(over="ignore", invalid="ignore"):
                try:
                    analysed = assimilate[method](model, twin)
                except np.linalg.LinAlgError:
                    analysed = np.full_like(twin.truth, np.nan)
                # If a model diverges, its error is infinite
                errors[method][name] = np.nan_to_num(twin.scored(analysed), nan=np.inf, posinf=np.inf)
            analyses[method][name] = analysed[-settings.cycles :, 0]
    return Assimilated(twin, errors, analyses, jacobian_errors(emulator, twin) if emulator else None)


def jacobian_errors(emulator: Model, twin: Twin) -> JacobianErrors:
    states = twin.truth[twin.spin_up :].reshape(-1, twin.truth.shape[-1])
    chosen = states[np.linspace(0, len(states) - 1, NUM_JACOBIANS).astype(int)]
    true, emulated = lorenz96.jacobian(chosen), emulator.jacobian(chosen)
    return JacobianErrors(
        one_step=float(np.sqrt(np.mean((emulator.step(chosen) - lorenz96.step(chosen)) ** 2))),
        relative=float(np.linalg.norm(emulated - true) / np.linalg.norm(true)),
        true=true,
        emulated=emulated,
    )


def table(errors: Mapping[str, Mapping[str, np.ndarray]]) -> list[dict[str, Any]]:
    """A row for each method and model: the mean error, the least and largest mean of one seed, and the ratio of the mean
    error to that with the true model."""
    rows: list[dict[str, Any]] = []
    for method, by_model in errors.items():
        true_mean = float(by_model[TRUTH].mean())
        for name, values in by_model.items():
            by_seed, mean = values.mean(axis=0), float(values.mean())
            ends = {"least": float(by_seed.min()), "most": float(by_seed.max())}
            rows.append({"method": METHODS[method], "model": name, "mean": mean, **ends, "ratio": mean / true_mean})
    return rows


def as_text(rows: list[dict[str, Any]]) -> str:
    """The table as text for the terminal."""
    lines = [f"{'method':24} {'model':12} {'analysis RMSE':>13}   {'seeds':15}   ratio to the true model"]
    lines += ["{method:24} {model:12} {mean:13.4f}   {least:.4f} – {most:.4f}   {ratio:8.3f}".format(**row) for row in rows]
    return "\n".join(lines)


def check(settings: AssimilateConfig) -> None:
    """Raise `UserError` for an impossible setting."""
    configuration.check(
        settings,
        at_least_1="cycles inflation window outer_loops ensemble_inflation",
        at_least_0="spin_up",
        methods=(bool(settings.methods) and set(settings.methods) <= set(METHODS), f"one or more of {', '.join(METHODS)}"),
        seeds=(1 <= settings.seeds <= 1000, "from 1 to 1000"),
        members=(settings.members >= 2, "at least 2"),
        background_variance=(0 < settings.background_variance < math.inf, "more than 0, and finite"),
        radius=(settings.radius > 0, "more than 0"),
    )
    if bool(settings.member) == bool(settings.model) or settings.model not in ("", "truth"):
        raise UserError(
            f"model={settings.model} and member={settings.member}: give model=truth, or member=FOLDER with data=FOLDER"
        )
    if bool(settings.member) != bool(settings.data):
        raise UserError(f"member={settings.member} and data={settings.data} go together: give both, or model=truth alone")
