"""The two-level Gaussian, for which the best models are known in closed form.

    theta_m ~ N(theta_0, sigma_0^2)        each client's own parameter
    x_mi    ~ N(theta_m, v)                its N_m observations, N_m between `least` and `most`

With z_m the mean of client m's observations, sigma_m^2 = v / N_m and w_m = 1 / (sigma_0^2 + sigma_m^2):

    theta_G    = Σ w_m z_m / Σ w_m                                                            the best global model
    theta_FL_m = (z_m / sigma_m^2 + Σ_{k≠m} w_k z_k) / (1 / sigma_m^2 + Σ_{k≠m} w_k)          the best personal one
    GAIN_m     = sigma_m^2 (1 / sigma_m^2 + Σ_{k≠m} w_k)                     what the others' data is worth to client m

An observation has `copies` coordinates: so many independent repeats of the experiment, with the same N_m.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from mpipfl.data.keyed import generator
from mpipfl.data.samples import ArraySamples, Samples
from mpipfl.section import Count, NonNegative, Positive, Section


class Gaussian(Section):
    """Numbers around each client's own mean, which lie around a common one: the best models are known."""

    kind: Literal["gaussian"] = "gaussian"
    theta_0: float = Field(default=1.6, allow_inf_nan=False, description="The common mean.")
    sigma2_0: NonNegative = Field(default=0.001, description="Variance of the clients' means.")
    variance: Positive = Field(default=0.1, description="Variance of one observation, v.")
    least: Count = Field(default=10, description="Fewest observations of a client.")
    most: Count = Field(default=20, description="Most observations of a client.")
    means: bool = Field(
        default=False,
        description="Put its client's mean in place of each observation: gradients of summed losses stay the same, "
        "and any mini-batch has the full one's.",
    )
    copies: Count = Field(default=1, description="Independent repeats, as coordinates of an observation.")

    @model_validator(mode="after")
    def _in_order(self) -> Gaussian:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, more than most, {self.most}")
        return self

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        draw = generator(seed, "gaussian")
        counts = draw.integers(self.least, self.most, clients, endpoint=True)
        user = np.repeat(np.arange(clients), counts)
        own = self.theta_0 + np.sqrt(self.sigma2_0) * draw.standard_normal((clients, self.copies))
        x = (own[user] + np.sqrt(self.variance) * draw.standard_normal((len(user), self.copies))).astype(np.float32)
        means = np.stack([x[user == m].astype(np.float64).mean(0) for m in range(clients)])
        if self.means:
            x = means[user].astype(np.float32)
        return ArraySamples(
            labels=np.zeros(len(user), np.int64), classes=self.copies, shape=(self.copies,), dtype=x.dtype,
            users=user, parts=[x], best=best(means, self.sigma2_0, self.variance / counts),
        )  # fmt: skip


def best(z: np.ndarray, sigma2_0: float, sigma2: np.ndarray) -> dict[str, np.ndarray]:
    """The best global (M, d: the same row for all) and personal models (M, d), and the gain (M), from the means z."""
    w = 1 / (sigma2_0 + sigma2)
    others, own = w.sum() - w, 1 / sigma2
    common = (w[:, None] * z).sum(0)
    personal = (own[:, None] * z + common - w[:, None] * z) / (own + others)[:, None]
    return {"global": np.tile(common / w.sum(), (len(z), 1)), "personal": personal, "gain": sigma2 * (own + others)}
