"""How many samples each client gets, where a partition leaves that open: equally many, or by one of three laws."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from mpipfl.section import NonNegative, Section


class Sized(Section):
    """What the partitions have in common that know how large a client should be."""

    sizes: Literal["equal", "power_law", "log_normal", "slicing"] = Field(
        default="equal",
        description="How many samples clients get, as nearly as the classes allow; slicing cuts the data at sorted "
        "uniform positions. All samples are used.",
    )
    exponent: NonNegative = Field(
        default=1.0, description="power_law: the r-th greatest client gets a share proportional to r^-exponent."
    )
    sigma: NonNegative = Field(default=1.0, description="log_normal: shares are proportional to exp(sigma * normal).")

    def targets(self, samples: int, clients: int, floor: int, draw: np.random.Generator) -> np.ndarray:
        """(clients,) wished sizes, not yet whole: the least that a client needs, and a share of the rest."""
        if self.sizes == "power_law":
            shares = (1.0 + draw.permutation(clients)) ** -self.exponent
        elif self.sizes == "log_normal":
            exponents = self.sigma * draw.standard_normal(clients)
            shares = np.exp(exponents - exponents.max())
        elif self.sizes == "slicing":
            shares = np.diff(np.sort(draw.random(clients - 1)), prepend=0, append=1)
        else:
            shares = np.ones(clients)
        return np.asarray(floor + (samples - clients * floor) * shares / shares.sum())
