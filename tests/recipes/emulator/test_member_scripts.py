"""scripts/assimilate.py and scripts/export_model.py with a trained member."""

import sys
from pathlib import Path

import pytest
import small_emulators
import torch
from accelerate import Accelerator
from scripts_run import NETWORKS, forked, run

from ensemble.errors import UserError
from ensemble.neural.predict import NeuralMember
from ensemble.recipes.emulator import examine, formats
from ensemble.recipes.emulator.settings import RecipeConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of the full ring, and a member that was trained for a moment."""
    folder = tmp_path_factory.mktemp("full_ring")
    data = small_emulators.lorenz96(folder, num_points=40).rename(folder / "prepared")
    network = RecipeConfig(network="bilinear", widths=(4,))
    small_emulators.train(data, folder / "member", network, batch_size=20, max_epochs=10.0, warmup_steps=0)
    return folder


def refused(script: str, *words: str) -> str:
    """The error that a script printed, which must be one line."""
    done = forked(script, *words, libraries=NETWORKS)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_assimilation_with_a_member(folder: Path) -> None:
    """The weights of the member would not reach the filter, or torch would be imported before the launcher's settings."""
    words = ["cycles=20", "spin_up=10", "seeds=1", "methods=[letkf]"]
    printed = run(
        "assimilate", f"member={folder / 'member'}", f"data={folder / 'prepared'}", f"out={folder / 'p.html'}", *words
    )
    assert "emulator" in printed
    assert "Jacobian: relative error" in printed
    assert "Jacobian against truth" in (folder / "p.html").read_text(encoding="utf-8")


def test_export_of_a_member(folder: Path) -> None:
    """The file would have random weights, or the names of other data."""
    out = folder / "m.ts"
    words = [f"member={folder / 'member'}", f"data={folder / 'prepared'}", f"out={out}", "dtype=float64"]
    assert "TorchScript, which PyTorch has deprecated, float64, forward, jacobian" in run("export_model", *words)
    with formats.quiet():
        loaded = torch.jit.load(str(out))
    network = NeuralMember(folder / "member", Accelerator(cpu=True), folder / "prepared").model.double()
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(loaded(x), network(x), rtol=1e-12, atol=1e-13)
    assert loaded.input_names[:2] == ["x_0", "x_1"]


def test_other_data_are_refused(folder: Path, tmp_path: Path) -> None:
    """An exported file would record the fingerprint of data that the network was not trained on."""
    data = small_emulators.lorenz96(tmp_path, num_points=40, seed=1)
    for script, out in (("export_model", "m.ts"), ("assimilate", "p.html")):
        words = [f"member={folder / 'member'}", f"data={data}", f"out={tmp_path / out}"]
        assert "was trained on data with the fingerprint" in refused(script, *words)
        assert not (tmp_path / out).exists()


def test_mistakes_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    """The user would see a traceback, or lose a file."""
    member = f"member={folder / 'member'}"
    assert "give data=" in refused("export_model", member, f"out={tmp_path / 'm.ts'}")
    (tmp_path / "notes.html").write_text("mine")
    words = [member, f"data={folder / 'prepared'}", f"out={tmp_path / 'notes.html'}"]
    assert "exists and this project did not write it, so the page does not replace it" in refused("assimilate", *words)
    # Before the member is loaded, and thus before experiments that may take hours
    words = ["member=none", f"data={folder / 'prepared'}", f"out={tmp_path / 'notes.html' / 'page.html'}"]
    assert f"cannot be written, since {tmp_path / 'notes.html'} is a file" in refused("assimilate", *words)
    assert (tmp_path / "notes.html").read_text() == "mine"
    for name in ("precious.csv", "precious.ts", "precious.pt2"):
        (tmp_path / name).write_text("1,2\n")
        words = [member, f"data={folder / 'prepared'}", f"out={tmp_path / name}"]
        assert "exists and this project did not write it, so the exported model does not replace it" in refused(
            "export_model", *words
        )
        assert (tmp_path / name).read_text() == "1,2\n"


def test_an_existing_folder_is_refused_before_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores would be computed, and lost."""
    (tmp_path / "notes").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["examine", "member=not_read", "data=not_read", f"out={tmp_path}"])
    with pytest.raises(UserError, match=f"{tmp_path} exists already"):
        examine.main()
