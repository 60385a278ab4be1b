"""The files of the project, and the libraries that take long to load, for tests of its layout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
HEAVY = {
    "accelerate", "datasets", "evaluate", "fastapi", "holidays", "huggingface_hub", "jinja2", "lightgbm", "matplotlib",
    "numba", "numpy", "omegaconf", "onnx", "onnxruntime", "pandas", "polars", "prometheus_client", "pyarrow", "pydantic",
    "netCDF4",
    "safetensors", "scipy", "sklearn", "tensorboard", "torch", "tqdm", "transformers", "uvicorn", "xarray", "xgboost",
}  # fmt: skip
