"""The scale on which trees learn a regression target: standardised, as float32.

XGBoost and LightGBM store targets as float32, which has 7 digits: 1700000000000 + i would be one value for all small i.
Mean and standard deviation are those of the training rows, in float64. They are stored in the member's summary.json, and
predictions are scaled back with them in float64.
"""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling:
    """`value = center + scale * learned`; the identity for all objectives except regression."""

    center: float = 0.0
    scale: float = 1.0

    @classmethod
    def fit(cls, target: np.ndarray) -> "Scaling":
        """Mean and standard deviation of the learned targets, (num_rows,), finite."""
        if not target.size:
            return cls()
        unit = float(np.abs(target).max(initial=0.0)) or 1.0  # so that no square overflows
        center = float(np.mean(target / unit) * unit)
        scale = float(np.sqrt(np.mean(((target - center) / unit) ** 2)) * unit)
        return cls(center=center, scale=scale if scale > 0 else 1.0)

    @classmethod
    def all_from_summary(cls, summary: dict[str, Any], num_models: int) -> "list[Scaling]":
        """The scalings of the `num_models` models of a member. A summary may have one for all, or none: the identity."""
        scalings = summary.get("scalings")
        return [cls(**scaling) for scaling in scalings] if scalings else [cls(**summary.get("scaling", {}))] * num_models

    @property
    def is_identity(self) -> bool:
        return (self.center, self.scale) == (0.0, 1.0)

    def learned(self, target: np.ndarray) -> np.ndarray:
        """The target that the libraries learn, float32."""
        return ((target.astype(np.float64) - self.center) / self.scale).astype(np.float32)

    def value(self, learned: np.ndarray) -> np.ndarray:
        """Predictions in the target's unit, float64, from predictions of the learned target."""
        learned = learned.astype(np.float64)
        return learned if self.is_identity else self.center + self.scale * learned

    def parts(self, contributions: np.ndarray) -> np.ndarray:
        """Contributions in the target's unit, (num_rows, num_features + 1); the last column is the base value."""
        if self.is_identity:
            return contributions
        parts = contributions.astype(np.float64) * self.scale
        parts[:, -1] += self.center
        return parts
