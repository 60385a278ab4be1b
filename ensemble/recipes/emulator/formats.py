"""Export of a trained network to a file for other programs: AOTInductor, ONNX or TorchScript, in physical units.

    .pt2    compiled by AOTInductor, for C++ and Python with libtorch: the models `forward`, `jacobian`, `tangent`, `adjoint`
    .onnx   for ONNX Runtime: input `x`; outputs `y` and `jacobian`
    .ts     TorchScript, for saber-pytorch and older programs: methods `forward`, `jacobian`, `tangent`, `adjoint`, and
            saber-pytorch's `jac_physical(inputs, mask)`. PyTorch has deprecated it.

All formats accept any batch size from 1 on. The outputs of a file are compared with those of the network before the file
gets its final name. Each file contains a JSON text with names, units, statistics and the fingerprint of the data. A `.pt2`
file also contains the instruction set of the machine that compiled it; `load_pt2`, and cpp/ for C++, refuse it on a machine
without these instructions.
"""

import json
import logging
import math
import platform
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ensemble import folders
from ensemble.errors import Failure, UserError
from ensemble.recipes.emulator.networks import STATISTICS, Emulator

METHODS = ("forward", "jacobian", "tangent", "adjoint")
METADATA = "emulator"
"""The key under which each format stores the JSON text."""
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
"""The largest difference from the network that is allowed, relative to the largest value."""
CHECKED_BATCHES = (1, 3, 64)
"""The batch sizes for which a file is compared with the network."""
EXAMPLE_BATCH = 4
"""The batch size with which a method is traced; the file accepts any other."""
INSTRUCTION_SETS = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "abm", "popcnt", "movbe", "adx", "aes", "vaes", "gfni",
                    "vpclmul", "pclmul", "sha", "amx", "asimd", "sve")  # fmt: skip
"""Prefixes of the flags of a processor for whose instructions compilers generate code."""


def export(
    network: Emulator, manifest: dict[str, Any], out: str | Path, dtype: str = "float32", methods: Sequence[str] = METHODS
) -> dict[str, Any]:
    """Write the network to `out`, whose suffix determines the format, if the file gives the same outputs as the network.

    manifest : the manifest of the data that the network was trained on
    dtype : float32 or float64, the type of inputs and outputs
    methods : the methods of a `.pt2` file, each of which takes 5 to 12 CPU seconds to compile

    Returns the format, the methods, the number of compared rows and the largest relative difference. Raises `UserError` for
    a file that cannot be written, and `Failure` for one that differs from the network, which is not written.
    """
    out = Path(out)
    if out.suffix not in WRITERS:
        raise UserError(f"out={out}: the format follows from the suffix, which is one of {', '.join(WRITERS)}")
    if dtype not in ("float32", "float64"):
        raise UserError(f"dtype={dtype} is not float32 or float64")
    network = network.to(getattr(torch, dtype)).eval().requires_grad_(False)
    metadata = describe(network, manifest)
    with folders.new_file(out, "exported model") as scratch, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"model{out.suffix}"
        options = {"methods": methods} if out.suffix == ".pt2" else {}
        report = compared(network, WRITERS[out.suffix](network, metadata, file, **options))
        if not report["difference"] <= TOLERANCE[network.input_mean.dtype]:
            raise Failure(
                f"{out.name} differs from the network by {report['difference']:.1e}: this is an error of the export"
            )
        scratch.write_bytes(file.read_bytes())
    return {"format": FORMATS[out.suffix], **report}


def describe(network: Emulator, manifest: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a file, as a dictionary that JSON can represent."""
    return {
        "mark": folders.MARK,
        "fingerprint": manifest["fingerprint"],
        **{name: manifest["emulator"][name] for name in ("system", "inputs", "outputs", "units")},
        "normalisation": {name: getattr(network, name).double().tolist() for name in STATISTICS},
        "residual": network.residual,
        "dtype": str(network.input_mean.dtype).removeprefix("torch."),
        "torch": str(torch.__version__),
    }


def texts_of(metadata: dict[str, Any]) -> dict[str, str]:
    """The texts that a file stores: the metadata as JSON, and entries for C++, which has no JSON parser here: the dtype, and
    lists as words separated by spaces."""
    texts = {METADATA: json.dumps(metadata), "dtype": str(metadata["dtype"])}
    for name in ("inputs", "outputs", "instruction_set"):
        if name in metadata:
            texts[name] = " ".join(metadata[name])
    return texts


Method = Callable[..., torch.Tensor]


def compared(network: Emulator, methods: dict[str, Method]) -> dict[str, Any]:
    """Compare methods of a file with those of the network: the number of rows, and the largest difference of any method,
    relative to the largest value, for the batch sizes `CHECKED_BATCHES`."""
    worst, num_rows = 0.0, 0
    for size in CHECKED_BATCHES:
        arguments = arguments_of(network, size, seed=size)
        num_rows += size
        for name, method in methods.items():
            expected = getattr(network, name)(*arguments[name])
            output = method(*arguments[name])
            if output.shape != expected.shape:
                raise Failure(f"{name} of the exported file gives {tuple(output.shape)}, not {tuple(expected.shape)}")
            difference = float((output - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return {"rows": num_rows, "difference": worst, "methods": list(methods)}


def arguments_of(network: Emulator, batch: int, seed: int) -> dict[str, tuple[torch.Tensor, ...]]:
    """Random arguments of each method: x with the mean and the standard deviation of the training data, dx with mean 0 and
    the same standard deviation, and dy with mean 0 and standard deviation 1."""
    generator, dtype = torch.Generator().manual_seed(seed), network.input_mean.dtype

    def normal(size: int) -> torch.Tensor:
        return torch.randn(batch, size, generator=generator, dtype=dtype)

    x = network.input_mean + network.input_std * normal(network.num_inputs)
    dx, dy = normal(network.num_inputs) * network.input_std, normal(network.num_outputs)
    return {"forward": (x,), "jacobian": (x,), "tangent": (x, dx), "adjoint": (x, dy)}


class _Method(torch.nn.Module):
    """A module whose forward pass is one method of a network, or several, whose outputs are then a tuple."""

    def __init__(self, network: Emulator, *names: str):
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *arguments: torch.Tensor) -> Any:
        outputs = [getattr(self.network, name)(*arguments) for name in self.names]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def exported_program(network: Emulator, name: str) -> torch.export.ExportedProgram:
    """A method exported by `torch.export`, with a dynamic batch size."""
    arguments = arguments_of(network, EXAMPLE_BATCH, seed=0)[name]
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(_Method(network, name), arguments, dynamic_shapes=(({0: batch},) * len(arguments),))


# ------------------------------------------------------------------------------------------------ AOTInductor


def write_pt2(network: Emulator, metadata: dict[str, Any], file: Path, methods: Sequence[str]) -> dict[str, Method]:
    """Write a package with a compiled model for each method, and load it; this needs a C++ compiler."""
    from torch._inductor import aot_compile
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch._inductor.package import package_aoti

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError(".pt2 files need a C++ compiler: apt install g++, or choose .onnx") from None
    texts = texts_of({**metadata, "methods": list(methods), "instruction_set": instruction_set()})
    models = {}
    for name in methods:
        program = exported_program(network, name)
        options = {"aot_inductor.package": True, "aot_inductor.metadata": dict(texts)}
        with quiet():
            models[name] = aot_compile(program.module(), program.example_inputs[0], options=options)
    package_aoti(str(file), models)  # type: ignore[arg-type]
    return load_pt2(file)[0]


def load_pt2(file: str | Path) -> tuple[dict[str, Method], dict[str, Any]]:
    """The methods of a `.pt2` file and its metadata; `UserError` if the processor lacks instructions of the file."""
    from torch._inductor.package import load_package

    reader: Any = torch._C._aoti.AOTIModelPackageLoader
    metadata = json.loads(reader.load_metadata_from_package(str(file), "forward")[METADATA])
    missing = sorted(set(metadata["instruction_set"]) - set(instruction_set()))
    if missing:
        raise UserError(
            f"{file} was compiled for a processor with {', '.join(missing)}, which this one lacks: export the member again "
            "on this machine"
        )
    return {name: load_package(str(file), name, run_single_threaded=True) for name in metadata["methods"]}, metadata


def instruction_set() -> list[str]:
    """The name of the architecture, and those flags of the processor for which compilers generate instructions."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    flags = re.search(r"^(?:flags|features)\s*:(.*)", text, re.MULTILINE | re.IGNORECASE)
    known = {flag for flag in flags[1].split() if flag.startswith(INSTRUCTION_SETS)} if flags else set()
    return [platform.machine(), *sorted(known)]


# ------------------------------------------------------------------------------------------------ ONNX


def write_onnx(network: Emulator, metadata: dict[str, Any], file: Path) -> dict[str, Method]:
    """Write one graph with the outputs `y` (B, O) and `jacobian` (B, O, I), and load it."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"the package {error.name} is not installed: pip install 'accelerate-ensemble[export]'") from None
    arguments = arguments_of(network, EXAMPLE_BATCH, seed=0)["forward"]
    with quiet():
        program = torch.onnx.export(
            _Method(network, "forward", "jacobian"),
            arguments,
            dynamo=True,
            dynamic_shapes=(({0: torch.export.Dim("batch", min=1)},),),
            input_names=["x"],
            output_names=["y", "jacobian"],
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {METADATA: json.dumps(metadata)})
    onnx.checker.check_model(model)
    file.write_bytes(model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        reason = str(error).rpartition(" : ")[2]  # after the name and the code of the error
        raise UserError(
            f"ONNX Runtime cannot compute this network in {metadata['dtype']} ({reason}): choose dtype=float32, or the "
            "format .pt2"
        ) from None

    def method(name: str) -> Method:
        return lambda x: torch.from_numpy(np.asarray(session.run([name], {"x": x.numpy()})[0]))

    return {"forward": method("y"), "jacobian": method("jacobian")}


# ------------------------------------------------------------------------------------------------ TorchScript


class _Scripted(torch.nn.Module):
    """The methods of a traced network, with the interface of saber-pytorch's surface emulators: names and levels of inputs
    and outputs, and `jac_physical`."""

    input_names: list[str]
    input_levels: list[int]
    output_names: list[str]
    output_levels: list[int]

    def __init__(self, traced: Any, metadata: dict[str, Any]):
        super().__init__()
        self.network = traced
        self.input_names, self.output_names = list(metadata["inputs"]), list(metadata["outputs"])
        self.input_levels, self.output_levels = [0] * len(self.input_names), [0] * len(self.output_names)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)

    @torch.jit.export
    def jacobian(self, x: torch.Tensor) -> torch.Tensor:
        return self.network.jacobian(x)

    @torch.jit.export
    def tangent(self, x: torch.Tensor, dx: torch.Tensor) -> torch.Tensor:
        return self.network.tangent(x, dx)

    @torch.jit.export
    def adjoint(self, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return self.network.adjoint(x, dy)

    @torch.jit.export
    def jac_physical(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The Jacobians at inputs (B, I), with zeros for rows whose mask (B, 1) is not above 0.5: (B, O, I)."""
        return self.network.masked_jacobian(inputs, mask[:, 0] > 0.5)


def write_ts(network: Emulator, metadata: dict[str, Any], file: Path) -> dict[str, Method]:
    """Write a module with METHODS and `jac_physical`, and load it. The metadata are extra files inside the file."""
    arguments: dict[str, Any] = arguments_of(network, EXAMPLE_BATCH, seed=0)
    arguments["masked_jacobian"] = (*arguments["forward"], torch.ones(EXAMPLE_BATCH, dtype=torch.bool))
    with quiet():
        traced = torch.jit.trace_module(network, arguments)
        scripted = torch.jit.script(_Scripted(traced, metadata))
        torch.jit.save(scripted, str(file), _extra_files=texts_of(metadata))
        loaded = torch.jit.load(str(file))
    return {name: getattr(loaded, name) for name in METHODS}


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings of PyTorch and onnxscript about the deprecation of TorchScript and about internals; users cannot act on
    them."""
    level_of = {logger: logger.level for logger in map(logging.getLogger, ("torch.onnx", "onnxscript"))}
    for logger in level_of:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in level_of.items():
            logger.setLevel(level)


WRITERS: dict[str, Callable[..., dict[str, Method]]] = {".pt2": write_pt2, ".onnx": write_onnx, ".ts": write_ts}
FORMATS = {".pt2": "AOTInductor", ".onnx": "ONNX", ".ts": "TorchScript, which PyTorch has deprecated"}
