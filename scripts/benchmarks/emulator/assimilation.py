"""Analysis errors on Lorenz-96; those of EKF and LETKF are compared with DAPPER's, in its set-up mods/Lorenz96/sakov2008.py.

Both projects observe all 40 points with unit variance at every step, use the same inflation, ensemble size and localisation
radius, and score the same number of cycles after 400 of spin-up. Truth and noise differ, so means over seeds are compared.
DAPPER's EKF linearises differently: its Jacobian of a step is the matrix exponential of the tendency's Jacobian at the
beginning of the step.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import command
from ensemble.errors import UserError
from ensemble.recipes.emulator.assimilation.settings import AssimilateConfig

FOREIGN_RUN = Path(__file__).with_name("foreign_run.py")


@command
def emulator_dapper(python: str = "???", member: str = "???", data: str = "???") -> dict[str, Any]:
    """Analysis errors of EKF, 4D-Var and LETKF with the true model, and of DAPPER's EKF and LETKF; a CPU minute.

    python : an interpreter with DAPPER: python3 -m venv V && V/bin/pip install dapper==1.7.1
    member : a neural member for Lorenz-96, whose errors are measured too
    data : the prepared data that the member was trained on
    """
    if not Path(python).exists():
        raise UserError(
            f"there is no {python}: python3 -m venv V && V/bin/pip install dapper==1.7.1, and give python=V/bin/python"
        )
    from ensemble.recipes.emulator import trained

    network = trained.lorenz96_network_of(member, data)

    from ensemble.recipes.emulator.assimilation import experiment, models

    settings = AssimilateConfig(member=member, data=data, out="", seeds=5, cycles=1000)
    assimilated = experiment.run(settings, models.Emulated(network))
    print(experiment.as_text(experiment.table(assimilated.errors)), flush=True)
    names = ("seeds", "cycles", "spin_up", "members", "inflation", "ensemble_inflation", "radius")
    words = [str(getattr(settings, name)) for name in names]
    done = subprocess.run([python, "-P", FOREIGN_RUN, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"DAPPER ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    dapper = json.loads(done.stdout.splitlines()[-1])
    return {
        "cycles": settings.cycles,
        "spin_up": settings.spin_up,
        "dapper_version": dapper["version"],
        "analysis_rmse": {
            method: {
                **{name: _summary(values.mean(axis=0).tolist()) for name, values in by_model.items()},
                **({"DAPPER": _summary(dapper[method])} if method in dapper else {}),
            }
            for method, by_model in assimilated.errors.items()
        },
    }


def _summary(values: list[float]) -> dict[str, Any]:
    return {
        "mean": round(float(np.mean(values)), 4),
        "standard_error": round(float(np.std(values, ddof=1) / len(values) ** 0.5), 4),
        "seeds": [round(value, 4) for value in values],
    }
