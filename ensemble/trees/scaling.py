"""The scale on which trees learn a regression target: float32, less its mean, by its standard deviation.

Both libraries store targets and leaves as float32, which has 7 digits. Of 1700000000000 + i they would see one value. The
mean and the deviation are those of the training rows, in float64; they stand in the member's summary.json, and predictions
are brought back with them in float64.
"""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling:
    """`value = center + scale * learned`; the identity for every objective but regression."""

    center: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, target: np.ndarray) -> "Scaling":
        """Of the targets that are learned, (num_rows,), finite."""
        if not target.size:
            return cls()
        unit = float(np.abs(target).max(initial=0.0)) or 1.0  # so that no square overflows
        center = float(np.mean(target / unit) * unit)
        scale = float(np.sqrt(np.mean(((target - center) / unit) ** 2)) * unit)
        return cls(center=center, scale=scale if scale > 0 else 1.0)

    @classmethod
    def in_summary(cls, summary: dict[str, Any]) -> "Scaling":
        """That of a member with this summary.json; members of older versions have none."""
        return cls(**summary.get("scaling", {}))

    @classmethod
    def all_in_summary(cls, summary: dict[str, Any], number: int) -> "list[Scaling]":
        """Those of the models of a member, of which there are `number`."""
        several = summary.get("scalings")
        return [cls(**of) for of in several] if several else [cls.in_summary(summary)] * number

    @property
    def is_identity(self) -> bool:
        return (self.center, self.scale) == (0.0, 1.0)

    def learned(self, target: np.ndarray) -> np.ndarray:
        """What the libraries learn, float32."""
        return ((target.astype(np.float64) - self.center) / self.scale).astype(np.float32)

    def value(self, learned: np.ndarray) -> np.ndarray:
        """Predictions in the target's unit, float64."""
        learned = learned.astype(np.float64)
        return learned if self.is_identity else self.center + self.scale * learned

    def parts(self, contributions: np.ndarray) -> np.ndarray:
        """Contributions in the target's unit, (num_rows, F + 1); the last column is what is there without any feature."""
        if self.is_identity:
            return contributions
        parts = contributions.astype(np.float64) * self.scale
        parts[:, -1] += self.center
        return parts
