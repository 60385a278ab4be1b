"""Evaluate an emulator in data assimilation: twin experiments with Lorenz-96, as a table and a page.

python scripts/assimilate.py model=truth out=runs/lorenz96/truth.html
python scripts/assimilate.py member=runs/lorenz96/members/bilinear data=runs/lorenz96/prepared \\
    out=runs/lorenz96/bilinear.html
"""

from pathlib import Path

from ensemble import configuration, errors
from ensemble.recipes.emulator.assimilation.settings import AssimilateConfig


def main() -> None:
    settings = configuration.from_command_line(AssimilateConfig, __doc__)

    from ensemble import folders

    folders.refuse_foreign_file(Path(settings.out), "page")
    folders.refuse_unwritable(settings.out)

    from ensemble.recipes.emulator import trained

    network = trained.lorenz96_network_of(settings.member, settings.data) if settings.member and settings.data else None

    from ensemble.recipes.emulator.assimilation import experiment, models, page

    assimilated = experiment.run(settings, models.Emulated(network) if network else None)
    print(experiment.as_text(experiment.table(assimilated.errors)))
    if errors_of_jacobian := assimilated.jacobians:
        one_step, relative = errors_of_jacobian.one_step, errors_of_jacobian.relative
        print(f"one step: RMSE {one_step:.4f}, Jacobian: relative error {relative:.4f}")
    page.write(assimilated, settings, Path(settings.out))
    print(f"the page is {settings.out}")


if __name__ == "__main__":
    errors.run(main)
