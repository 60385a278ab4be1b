"""`Accelerator` for annotations: accelerate imports PyTorch, which must come after the settings of OpenMP (launch.py)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator as Accelerator
else:
    Accelerator = Any
