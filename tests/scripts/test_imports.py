"""What commands do not import with LightGBM, XGBoost and pyarrow, and not read with Matplotlib."""

import subprocess
import sys
from pathlib import Path

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


ARROW = """
import sys
from ensemble import errors
def main():
    from ensemble import predictions
    table = predictions.pa.table({"a": predictions.np.arange(3)})
    print("pandas" in sys.modules, table["a"].to_numpy().sum())
    print(table.to_pandas()["a"].sum())
errors.run(main)
"""
PICTURES = """
import sys
from ensemble import errors
from ensemble.report import svg
from ensemble.trees import train
def main():
    print(svg.draw("curve", lambda axes: axes.plot([1, 2]), "a curve"))
    train.draw_importance({"age": 1.0}, sys.stdout.buffer, "xgboost")
errors.run(main)
"""


def printed(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")


@pytest.mark.parametrize("module", ["lgbm", "xgb"])
def test_a_command_imports_the_library_alone(module: str) -> None:
    """Each start would take a second longer, for classes that no command uses."""
    assert printed(LEAN.format(module=module))[:2] == ["[]", "1"]


def test_a_program_of_the_user_has_the_wrappers() -> None:
    """LGBMRegressor would raise an error that scikit-learn is missing."""
    assert printed(ORDINARY)[0] == "1"


def test_pyarrow_in_a_command_leaves_pandas_out() -> None:
    """Each start would take half a second longer; or a table could not become a DataFrame any more."""
    assert printed(ARROW)[:2] == ["False 3", "3"]


def test_a_matplotlibrc_of_the_user_does_not_count(tmp_path: Path) -> None:
    """A fit would end without its report on a machine that lacks LaTeX, or the pictures would be cut."""
    pictures = []
    for name, content in (("none", ""), ("own", "text.usetex: True\nsavefig.bbox: tight\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "matplotlibrc").write_text(content)
        done = subprocess.run([sys.executable, "-c", PICTURES], capture_output=True, check=False, cwd=tmp_path / name)
        assert done.returncode == 0, done.stderr
        pictures.append(done.stdout)
    assert pictures[0] == pictures[1]


def test_the_backend_of_a_notebook_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that a notebook starts by another Python, as in `!.venv/bin/python …`, would end in a traceback of Matplotlib
    before its report."""
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    done = subprocess.run([sys.executable, "-c", PICTURES], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
