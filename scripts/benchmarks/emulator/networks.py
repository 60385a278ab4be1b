"""A network with 14 inputs, three layers of width 64 and one output, in float32 on one thread: Jacobians, speed in C++."""

import json
import shutil
import statistics
import subprocess
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.func import jacrev, vmap

from benchmarks.commands import command
from benchmarks.runs import enough, in_turn, shown, spread
from benchmarks.timing import ONE_THREAD, ROOT, cpu_seconds
from ensemble.errors import UserError
from ensemble.recipes.emulator import formats, networks

NUM_ROWS, NUM_INPUTS, WIDTHS = 100_000, 14, (64, 64, 64)
SOURCE = ROOT / "ensemble/recipes/emulator/cpp"
ROWS_OF_FILE = 1000


def random_network() -> networks.Emulator:
    """Limit PyTorch to one thread, and return a network with random weights, whose `networks.STATISTICS` are all 1."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ones = {name: torch.ones(NUM_INPUTS if name.startswith("input") else 1) for name in networks.STATISTICS}
    return networks.build("mlp", NUM_INPUTS, 1, widths=WIDTHS, statistics=ones).requires_grad_(False)


@command
def emulator_jacobian(rounds: int = 31) -> dict[str, Any]:
    """Jacobians of 100,000 rows by hand-written propagation, compared with autograd and vmap(jacrev); a CPU minute.

    Methods are called alternately, and each ratio is that of CPU seconds in one round. `products` is a lower bound of any
    method: only the matrix products of the forward and the backward pass, in blocks of rows like ours.

    rounds : calls of each method
    """
    enough(rounds, 1, purpose="a median")
    network = random_network()
    x = torch.randn(NUM_ROWS, NUM_INPUTS)

    def by_autograd() -> torch.Tensor:
        inputs = x.clone().requires_grad_()
        return torch.autograd.grad(network(inputs).sum(), inputs)[0].unsqueeze(1)

    def products() -> None:
        for values in x.split(networks.BLOCK_ROWS):
            for weight in weights:
                values = F.linear(values, weight)
            for weight in reversed(weights):
                values = values @ weight

    weights = [weight for name, weight in network.named_parameters() if name.endswith("weight")]
    methods: dict[str, Callable[[], torch.Tensor]] = {
        "autograd": by_autograd,
        "ours": lambda: network.jacobian(x),
        "vmap_jacrev": lambda: vmap(jacrev(lambda row: network(row.unsqueeze(0)).squeeze(0)))(x),
    }
    reference = methods["vmap_jacrev"]()
    # These calls are also the warm-up
    differences = [float((method() - reference).abs().max() / reference.abs().max()) for method in methods.values()]
    timed: dict[str, Callable[[], object]] = {**methods, "products": products}
    seconds = in_turn({name: partial(cpu_seconds, method) for name, method in timed.items()}, rounds)
    return {
        "rows": NUM_ROWS,
        "network": [NUM_INPUTS, *WIDTHS, 1],
        "rounds": rounds,
        "cpu_s": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "times_of_ours": {
            name: spread([other / ours for other, ours in zip(seconds[name], seconds["ours"], strict=True)], 3)
            for name in ("autograd", "vmap_jacrev", "products")
        },
        "largest_difference": max(differences),
    }


@command
def emulator_cpp(build: str = "runs/emulator_cpp") -> dict[str, Any]:
    """Outputs and Jacobians of one row and of 100,000 in C++ (TorchScript, AOTInductor) and Python; two CPU minutes.

    The program of ensemble/recipes/emulator/cpp is built with CMake against the installed torch.

    build : the folder for the compiled program and the exported files
    """
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
        results[f"cpp{suffix}"] = shown(suffix, json.loads(done.stdout))
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
    """The median seconds of a call, after one call as a warm-up."""
    with torch.inference_mode():
        method(x)
        return statistics.median(timeit.repeat(partial(method, x), number=1, repeat=rounds))
