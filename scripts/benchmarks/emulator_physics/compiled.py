"""A network of 14 → 64 × 3 → 1 in C++ (TorchScript and AOTInductor) and in Python: one row and 100,000 rows, one thread.

    python scripts/benchmark.py emulator_cpp

The program of ensemble/recipes/emulator/cpp is built with CMake against the installed torch.
"""

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.emulator_physics.jacobians import NUM_INPUTS, NUM_ROWS, WIDTHS, random_network
from benchmarks.timing import ONE_THREAD, ROOT
from ensemble.errors import UserError
from ensemble.recipes.emulator import formats, networks

SOURCE = ROOT / "ensemble/recipes/emulator/cpp"
ROWS_OF_FILE = 1000


def emulator_cpp(build: str) -> dict[str, Any]:
    """Median microseconds of one row and seconds of 100,000 rows, for forward and jacobian, in Python and in C++."""
    network = random_network()
    names = [f"x{number}" for number in range(NUM_INPUTS)]
    manifest = {"fingerprint": "", "emulator": {"system": "random", "inputs": names, "outputs": ["y"], "units": {}}}
    folder = Path(build)
    program = build_program(folder)
    rows = torch.randn(ROWS_OF_FILE, NUM_INPUTS)
    csv = folder / "rows.csv"
    csv.write_text("\n".join([",".join(names), *(",".join(map(repr, row)) for row in rows.tolist())]), encoding="utf-8")
    results: dict[str, Any] = {"python_eager": _in_python(network, rows)}
    for suffix in (".ts", ".pt2"):
        file = folder / f"model{suffix}"
        formats.export(network, manifest, file, "float32", ("forward", "jacobian"))
        done = subprocess.run([*ONE_THREAD, program, file, csv, "time"], check=True, capture_output=True, text=True)
        results[f"cpp{suffix}"] = json.loads(done.stdout)
        print(f"{suffix}: {results[f'cpp{suffix}']}", flush=True)
    return {"network": [NUM_INPUTS, *WIDTHS, 1], "dtype": "float32", **results}


def build_program(folder: Path) -> Path:
    """Compile the program in `folder`, and return its path."""
    if not (shutil.which("cmake") and shutil.which("g++")):
        raise UserError("cmake and g++ are needed: apt-get install cmake g++ ninja-build")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    libtorch = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    subprocess.run(["cmake", *generator, "-S", SOURCE, "-B", folder, libtorch], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder], check=True, stdout=subprocess.DEVNULL)
    return folder / "emulate"


def _in_python(network: networks.Emulator, rows: torch.Tensor) -> dict[str, Any]:
    one, many = rows[:1], rows.repeat(NUM_ROWS // len(rows), 1)
    return {
        name: {"one_us": round(1e6 * _median(method, one, 2000), 3), "100k_s": round(_median(method, many, 7), 5)}
        for name, method in (("forward", network.forward), ("jacobian", network.jacobian))
    }


def _median(method: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, rounds: int) -> float:
    times = []
    with torch.inference_mode():
        method(x)
        for _ in range(rounds):
            began = time.perf_counter()
            method(x)
            times.append(time.perf_counter() - began)
    return statistics.median(times)
