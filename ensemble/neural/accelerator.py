"""The class `Accelerator`, for annotations only: its import loads PyTorch, before which launch.py must set up OpenMP."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator as Accelerator
else:
    Accelerator = Any
