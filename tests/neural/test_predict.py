"""Which networks are loaded: not those of a package that the user did not name, nor those of another recipe."""

import json
import sys
from pathlib import Path

import pytest

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural.predict import NeuralMember


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from somebody else, beside a package whose import leaves a file."""
    (tmp_path / "planted").mkdir()
    touch = f"import pathlib\n\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    for name in ("__init__", "settings"):
        (tmp_path / "planted" / f"{name}.py").write_text(touch)
    (tmp_path / "member/best").mkdir(parents=True)
    (tmp_path / "member/best/state.json").write_text(json.dumps({"recipe": "planted", "config": {}}))
    folders.write_manifest(tmp_path / "member/best", {"kind": "weights"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "member"


def test_a_downloaded_network_imports_nothing(member: Path) -> None:
    """A folder from somebody else would run code on this machine by the name of its recipe."""
    with pytest.raises(UserError, match="if you trust that package, add --recipe planted"):
        NeuralMember(member, None, "data")
    assert not (member.parent / "imported").exists()
    assert "planted" not in sys.modules


def test_a_network_of_another_recipe_is_refused(member: Path) -> None:
    """The scores of a Sudoku network, or an export, would end in a traceback after the prediction of all rows."""
    with pytest.raises(
        UserError, match=f"^{member} is a network of the recipe planted, not of sudoku: name another member$"
    ):
        NeuralMember(member, None, "data", of_recipe="sudoku")
    assert not (member.parent / "imported").exists()
