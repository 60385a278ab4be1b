"""Exported files: their outputs, their metadata, and exports that are refused."""

import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_networks
import torch

from ensemble.errors import Failure, UserError
from ensemble.recipes.emulator import formats
from ensemble.recipes.emulator.formats import METHODS
from ensemble.recipes.emulator.networks import Emulator

BATCH = 5
"""Another size than that of the example with which files are written."""


def expected(network: Emulator, dtype: torch.dtype) -> dict[str, tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Arguments and results of each method."""
    network = network.to(dtype).requires_grad_(False)
    arguments = formats.arguments_of(network, BATCH, seed=11)
    return {name: (arguments[name], getattr(network, name)(*arguments[name])) for name in METHODS}


@pytest.mark.parametrize("name", small_networks.NAMES)
def test_every_method_can_be_exported_with_a_free_batch(name: str) -> None:
    """The file would accept only one batch size, or a method would need automatic differentiation."""
    network = small_networks.network(name).double().requires_grad_(False)
    for method, (arguments, result) in expected(network, torch.float64).items():
        exported = formats.exported_program(network, method).module()
        torch.testing.assert_close(exported(*arguments), result, rtol=1e-12, atol=1e-13)
        assert exported(*(argument[:1] for argument in arguments)).shape[0] == 1


@pytest.mark.parametrize("name", small_networks.NAMES)
def test_torchscript(name: str, tmp_path: Path) -> None:
    """saber-pytorch could not load the file, or would get normalised units."""
    network = small_networks.network(name)
    manifest = small_networks.manifest(network)
    report = formats.export(network, manifest, tmp_path / "m.ts", "float64")
    assert report["difference"] <= 1e-12
    extra = dict.fromkeys((formats.METADATA, "inputs", "dtype"), "")
    with formats.quiet():
        loaded = torch.jit.load(str(tmp_path / "m.ts"), _extra_files=extra)
    for method, (arguments, result) in expected(network, torch.float64).items():
        torch.testing.assert_close(getattr(loaded, method)(*arguments), result, rtol=1e-12, atol=1e-13)
    metadata = json.loads(extra[formats.METADATA])
    assert metadata["fingerprint"] == "f00d"
    assert metadata["units"] == {"in0": "degC"}
    assert metadata["normalisation"]["input_mean"] == network.input_mean.tolist()
    assert metadata["residual"] == (name != "mlp")  # the statistics of outputs are then those of outputs - inputs
    assert (extra["dtype"], extra["inputs"]) == (b"float64", " ".join(metadata["inputs"]).encode())
    assert loaded.input_names == manifest["emulator"]["inputs"]
    assert loaded.output_levels == [0] * network.num_outputs
    x, mask = expected(network, torch.float64)["forward"][0][0], torch.tensor([[1.0], [0.0], [1.0], [1.0], [0.0]])
    jacobian = loaded.jac_physical(x.where(mask > 0, torch.nan), mask)
    torch.testing.assert_close(jacobian, network.jacobian(x) * mask[:, :, None], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["mlp", "bilinear"])
def test_onnx(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime would give other values, or only batches of one size, or a user would see warnings of its optimizer."""
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = small_networks.network(name)
    manifest = small_networks.manifest(network)
    formats.export(network, manifest, tmp_path / "m.onnx")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    results = expected(network, torch.float32)
    y, jacobian = session.run(["y", "jacobian"], {"x": results["forward"][0][0].numpy()})
    np.testing.assert_allclose(y, results["forward"][1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jacobian, results["jacobian"][1], rtol=1e-4, atol=1e-5)
    properties = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "m.onnx")).metadata_props}
    outputs = [f"out{number}" for number in range(network.num_outputs)]
    assert json.loads(properties[formats.METADATA])["outputs"] == manifest["emulator"]["outputs"] == outputs
    if name == "mlp":
        with pytest.raises(UserError, match=r"in float64 \(Could not find an implementation for .*\): choose dtype=float32"):
            formats.export(network, manifest, tmp_path / "m64.onnx", "float64")


def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong file would be used."""

    def wrong(network: Emulator, metadata: dict[str, Any], file: Path) -> dict[str, formats.Method]:
        methods = formats.write_ts(network, metadata, file)
        return {**methods, "adjoint": lambda x, dy: 1.0001 * methods["adjoint"](x, dy)}

    monkeypatch.setitem(formats.WRITERS, ".ts", wrong)
    network = small_networks.network("mlp")
    with pytest.raises(Failure, match=r"m\.ts differs from the network by 1\.0e-04"):
        formats.export(network, small_networks.manifest(network), tmp_path / "m.ts")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file of the user would be lost; another suffix would give a file that nothing reads."""
    network = small_networks.network("mlp")
    manifest = small_networks.manifest(network)
    with pytest.raises(UserError, match=r"one of \.pt2, \.onnx, \.ts"):
        formats.export(network, manifest, tmp_path / "m.pth")
    with pytest.raises(UserError, match="dtype=float16 is not float32 or float64"):
        formats.export(network, manifest, tmp_path / "m.ts", "float16")
    (tmp_path / "m.ts").write_text("mine")
    with pytest.raises(UserError, match="this project did not write it, so the exported model does not replace it"):
        formats.export(network, manifest, tmp_path / "m.ts")
    assert (tmp_path / "m.ts").read_text() == "mine"


def test_an_older_export_is_replaced(tmp_path: Path) -> None:
    """The mark of this project would be missing in the file, and a second export would be refused."""
    network = small_networks.network("mlp")
    for _ in range(2):
        formats.export(network, small_networks.manifest(network), tmp_path / "m.ts")
    assert zipfile.is_zipfile(tmp_path / "m.ts")
