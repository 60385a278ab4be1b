"""The make targets of the demos."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_demos_spare_files_of_the_users(tmp_path: Path) -> None:
    """A demo in a folder of the user would delete the user's files, or its output would not name the next step."""
    kept = [tmp_path / name for name in ("demo/raw/reviews.csv", "sudoku/members/mine/notes", "sudoku/predictions/a.csv")]
    own = [tmp_path / name for name in ("sudoku/members/trm_0/manifest.json", "sudoku/predictions/trm_0.test.parquet")]
    for file in (*kept, *own):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "accelerate"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (tmp_path / "venv" / "installed").touch()
    folders = [f"VENV={tmp_path / 'venv'}", f"DEMO={tmp_path / 'demo'}", f"SUDOKU={tmp_path / 'sudoku'}"]
    command: list[str | Path] = ["make", "--directory", ROOT, *folders, "demo", "demo-sudoku"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert [file for file in kept if not file.exists()] == []
    assert [file for file in own if file.exists()] == []
    assert f"source {programs / 'activate'}" in done.stdout
