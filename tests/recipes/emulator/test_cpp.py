"""Compiled files, and the C++ program of the recipe, built against the installed torch: both compared with the network."""

import csv
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import small_networks
import torch

from ensemble import folders
from ensemble.errors import UserError
from ensemble.recipes.emulator import formats
from ensemble.recipes.emulator.networks import Emulator

SOURCE = Path(formats.__file__).parent / "cpp"
TIMEOUT_S = 900
pytestmark = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("g++")),
    reason="there is no C++ compiler: apt-get install cmake g++ ninja-build",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the commands of CMakeLists.txt."""
    folder = tmp_path_factory.mktemp("cpp")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    where = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    for command in (["cmake", *generator, "-S", SOURCE, "-B", folder, where], ["cmake", "--build", folder]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "emulate"


@pytest.fixture(scope="module")
def network() -> Emulator:
    return small_networks.network("mlp").double()


@pytest.fixture(scope="module")
def rows(network: Emulator, tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, Path]:
    (x,) = formats.arguments_of(network, 6, seed=3)["forward"]
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    lines = [
        ",".join(small_networks.manifest(network)["emulator"]["inputs"]),
        *(",".join(map(repr, row)) for row in x.tolist()),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return x, path


@pytest.fixture(scope="module")
def models(network: Emulator, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for suffix in (".ts", ".pt2"):
        formats.export(network, small_networks.manifest(network), folder / f"m{suffix}", "float64", ("forward", "jacobian"))
    return {suffix: folder / f"m{suffix}" for suffix in (".ts", ".pt2")}


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, env=environment, timeout=240, check=False
    )


@pytest.mark.parametrize("suffix", [".ts", ".pt2"])
def test_outputs_and_jacobians(
    suffix: str, program: Path, models: dict[str, Path], network: Emulator, rows: tuple[torch.Tensor, Path]
) -> None:
    """C++ would give normalised units, single precision, or a transposed Jacobian."""
    x, path = rows
    done = run(program, models[suffix], path)
    assert done.returncode == 0, done.stderr
    names, *lines = csv.reader(done.stdout.splitlines())
    assert names[:4] == ["out0", "out1", "dout0/din0", "dout0/din1"]
    result = np.array(lines, dtype=np.float64)
    expected = torch.cat((network(x), network.jacobian(x).flatten(1)), dim=1).detach().numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_another_processor_is_refused(
    program: Path, models: dict[str, Path], rows: tuple[torch.Tensor, Path], tmp_path: Path
) -> None:
    """The program would end with SIGILL. The texts of the file are changed to name an instruction set of no processor."""
    foreign = tmp_path / "foreign.pt2"
    with zipfile.ZipFile(models[".pt2"]) as source, zipfile.ZipFile(foreign, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("metadata.json"):
                content = content.replace(b"x86_64 ", b"x86_64 avx1024 ").replace(b"aarch64 ", b"aarch64 avx1024 ")
            target.writestr(entry, content)
    done = run(program, foreign, rows[1])
    assert done.returncode == 2
    assert "was compiled for a processor with avx1024, which this one lacks: export the member again" in done.stderr
    assert done.stderr.count("\n") == 1


HEADER = "in0,in1,in2,in3,in4,in5,in6"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("in0,in1\n1,2\n", f"has other columns than the model, which needs {HEADER}\n"),
        (f"{HEADER},\n1,2,3,4,5,6,7\n", f"has other columns than the model, which needs {HEADER}\n"),
        (f",{HEADER}\r\n0,1,2,3,4,5,6,7\r\n", f"has other columns than the model, which needs {HEADER}\n"),
        (f"{HEADER}\n1,2,3\n", "row 1 has 3 values, not 7"),
        (f"{HEADER}\n1,2,,3,4,5,6,7\n", "row 1 has 8 values, not 7"),
        (f"{HEADER}\n1,2,,4,5,6,7\n", "row 1 has no value for in2: write a number or nan\n"),
        (f"{HEADER}\r\n1,2,3,4,5,6,7\r\n1,2,3,4,5,6,\r\n", "row 2 has no value for in6: write a number or nan\n"),
        (f"{HEADER}\n1,2,3,4,5,6,7m\n", "'7m' in row 1 is not a number"),
        (f"{HEADER}\n1,2,3,4,5,6,1e999\n", "'1e999' in row 1 is not a number"),
        ("", "cannot be read or is empty"),
    ],
)
def test_a_wrong_table_is_refused(text: str, message: str, program: Path, models: dict[str, Path], tmp_path: Path) -> None:
    """A column in the wrong position would give a plausible number."""
    (tmp_path / "rows.csv").write_text(text)
    done = run(program, models[".ts"], tmp_path / "rows.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_tiny_and_missing_numbers_and_empty_lines(program: Path, models: dict[str, Path], tmp_path: Path) -> None:
    """Denormal numbers, which NumPy writes, would be refused, or a missing value would give a number."""
    (tmp_path / "rows.csv").write_text(f"{HEADER}\r\n\r\n1,2,3,4,5,6,4.9e-324\r\n\n1,2,3,4,5,6, 0\nnan,2,3,4,5,6,7\n")
    done = run(program, models[".ts"], tmp_path / "rows.csv")
    assert done.returncode == 0, done.stderr
    tiny, zero, missing = np.array([*csv.reader(done.stdout.splitlines()[1:])], dtype=np.float64)
    np.testing.assert_allclose(tiny, zero, rtol=1e-12)
    assert np.isnan(missing).all()


def test_the_time_of_no_row_is_refused(program: Path, models: dict[str, Path], tmp_path: Path) -> None:
    """The program would end with SIGFPE."""
    (tmp_path / "rows.csv").write_text(HEADER + "\n")
    done = run(program, models[".ts"], tmp_path / "rows.csv", "time")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("rows.csv has no rows, and the time of one is needed: add a row\n")


@pytest.mark.parametrize("suffix", [".ts", ".pt2"])
def test_a_damaged_model_is_one_error(
    suffix: str, program: Path, models: dict[str, Path], rows: tuple[torch.Tensor, Path], tmp_path: Path
) -> None:
    """The user would see a stack of C++ functions."""
    content = models[suffix].read_bytes()
    (tmp_path / f"damaged{suffix}").write_bytes(content[: len(content) // 2])
    done = run(program, tmp_path / f"damaged{suffix}", rows[1])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path / f'damaged{suffix}'} is damaged, or does not fit this libtorch (")
    assert done.stderr.endswith("): export the member again\n")
    assert done.stderr.count("\n") == 1
    assert "frame #" not in done.stderr


def test_another_file_is_refused(program: Path, rows: tuple[torch.Tensor, Path]) -> None:
    """The user would see a traceback of libtorch."""
    assert "is not a .ts or .pt2 file" in run(program, sys.executable, rows[1]).stderr
    assert "cannot be read: check the path" in run(program, "nothing.ts", rows[1]).stderr
    assert run(program).returncode == 2


def test_aotinductor_from_python(models: dict[str, Path], network: Emulator, rows: tuple[torch.Tensor, Path]) -> None:
    """The compiled file would compute something else than the network, or could not be replaced by a second export."""
    methods, metadata = formats.load_pt2(models[".pt2"])
    assert list(methods) == metadata["methods"] == ["forward", "jacobian"]
    for name, method in methods.items():
        torch.testing.assert_close(method(rows[0]), getattr(network, name)(rows[0]), rtol=1e-12, atol=1e-13)
    assert metadata["fingerprint"] == "f00d"
    assert metadata["instruction_set"] == formats.instruction_set()
    folders.refuse_foreign_file(models[".pt2"], "exported model")


def test_another_processor_is_refused_by_python(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The program would end with SIGILL."""
    monkeypatch.setattr(formats, "instruction_set", lambda: ["x86_64"])
    with pytest.raises(UserError, match=r"compiled for a processor with .*, which this one lacks: export the member again"):
        formats.load_pt2(models[".pt2"])
