"""The change from the data's own units to the standardised values a model sees, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Units:
    """x_model = (x - mean) / std."""

    mean: float = 0.0
    std: float = 1.0

    def to_model(self, x: Tensor) -> Tensor:
        return (x - self.mean).div_(self.std)  # in place: of a large picture every copy counts

    def to_data(self, x: Any) -> Any:
        return x * self.std + self.mean

    def elbo_to_data(self, elbo: float, n_observed: float) -> float:
        """Densities of the data are those of the model divided by std, once for each observed value."""
        return elbo - n_observed * math.log(self.std)
