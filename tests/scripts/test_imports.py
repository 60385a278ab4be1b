"""What an import of the tree libraries imports besides them."""

import subprocess
import sys

import pytest

LEAN = """
import sys
from ensemble import errors
def main():
    from ensemble.trees import {module}
    print(sorted({{"sklearn", "pandas"}} & sys.modules.keys()))
    import sklearn.linear_model, pandas
    print(pandas.DataFrame({{"a": [1]}}).a.sum())
errors.run(main)
"""
ORDINARY = "import sys, ensemble.trees.lgbm, lightgbm; print(lightgbm.LGBMRegressor(n_estimators=1).n_estimators)"


def printed(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")


@pytest.mark.parametrize("module", ["lgbm", "xgb"])
def test_a_command_imports_the_library_alone(module: str) -> None:
    """Each start would take a second longer, for classes that no command uses."""
    assert printed(LEAN.format(module=module))[:2] == ["[]", "1"]


def test_a_program_of_the_user_has_the_wrappers() -> None:
    """LGBMRegressor would say that scikit-learn is missing."""
    assert printed(ORDINARY)[0] == "1"
