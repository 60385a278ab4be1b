"""DAPPER's EKF and LETKF on Lorenz-96, for `benchmark.py emulator_dapper`, run by an interpreter that has DAPPER.

    V/bin/python -P scripts/benchmarks/emulator/foreign_run.py SEEDS CYCLES SPIN_UP MEMBERS EKF_INFLATION \
        ENSEMBLE_INFLATION RADIUS

The last line of the output is JSON: the version of DAPPER, and the analysis RMSE of each method and seed.
"""

import json
import sys
from importlib.metadata import version


def main() -> None:
    seeds, cycles, spin_up, members = map(int, sys.argv[1:5])
    inflation, ensemble_inflation, radius = map(float, sys.argv[5:])
    import dapper
    import dapper.da_methods as da
    import dapper.mods as modelling
    from dapper.mods.Lorenz96.sakov2008 import HMM

    step = 0.05
    HMM.tseq = modelling.Chronology(step, dko=1, Ko=spin_up + cycles - 1, BurnIn=spin_up * step)
    errors: dict[str, list[float]] = {"ekf": [], "letkf": []}
    for seed in range(seeds):
        methods = {
            "ekf": da.ExtKF(infl=inflation),
            "letkf": da.LETKF(N=members, rot=True, infl=ensemble_inflation, loc_rad=radius),
        }
        for name, method in methods.items():
            dapper.set_seed(3000 + seed)
            truth, observations = HMM.simulate()
            method.assimilate(HMM, truth, observations, liveplots=False)
            method.stats.average_in_time()
            errors[name].append(float(method.avrgs.err.rms.a.val))
    print(json.dumps({"version": version("dapper"), **errors}))


if __name__ == "__main__":
    main()
