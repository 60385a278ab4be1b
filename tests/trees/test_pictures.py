"""Pictures with bars for features: column names of any length and any characters can be drawn and read."""

from pathlib import Path

import numpy as np
import pytest

from ensemble.trees import contributions, train

NAMES = ["c" * 300 + "1", "c" * 300 + "2", "a $ per $ {unit", "a\\b^_", "plain"]


class Rows:
    """The attributes of `TreeData` that a picture of contributions reads."""

    features, categories = NAMES, dict[str, list[str]]()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The labels of the bars of each picture."""
    from matplotlib.figure import Figure

    result, save = [], Figure.savefig

    def savefig(figure: Figure, *arguments: object, **settings: object) -> None:
        save(figure, *arguments, **settings)
        axes = figure.axes[0]
        assert len(axes.patches) == len(axes.get_yticks())
        result.append([label.get_text() for label in axes.get_yticklabels()])

    monkeypatch.setattr(Figure, "savefig", savefig)
    return result


def test_a_long_name_is_shortened_in_pictures(tmp_path: Path, drawn: list[list[str]]) -> None:
    """A name of 300 characters would leave no room for the bars, equal beginnings would be one bar, `$` a formula."""
    train.draw_importance(dict(zip(NAMES, range(5, 0, -1), strict=True)), tmp_path / "a.png", "xgboost $ $ {")
    summary = contributions.Summary(len(NAMES))
    summary.add(np.ones((3, 5), np.float32), np.full((3, 5), [5.0, 4, 3, 2, 1], np.float32))
    contributions.draw(tmp_path / "b.png", Rows(), summary, "xgboost $ $ {", "log odds")  # type: ignore[arg-type]
    for labels in drawn:
        plain, odd, money, second, first = labels
        assert (plain, odd, money) == ("plain", "a\\b^_", "a $ per $ {unit")
        assert len(first) == len(second) == 40
        assert (first[-2:], second[-2:]) == ("c1", "c2")
    assert len(drawn) == 2
