"""synthetic(alpha, beta): clients of logistic regression whose models and inputs differ as much as one likes.

    y        = argmax softmax(W_k x + b_k)
    W_k, b_k = sqrt(s) W_0, b_0 + sqrt(1 - s) N(u_k, 1)    client k's model: s of its variance is shared by all clients
    u_k      ~ N(0, alpha),  W_0, b_0 ~ N(0, 1)
    x        ~ N(v_k, Σ),   Σ = diag(j^-1.2)               its inputs, j = 1 ... features
    v_k      ~ N(B_k, 1),   B_k ~ N(0, beta)

The paper's data has s = 0 (its IID data s = 1, B_k = v_k = 0). alpha and beta are variances, as the paper writes them;
its program takes them as standard deviations. Two things to know: u_k is added to every class's logit alike, so alpha
moves the clients' models but no label; and with s = 0 the models have nothing in common, so that a global model can
only tell clients apart by their inputs, and with very many clients is no better than chance.

A client's samples depend on (seed, client) alone, so they are made when they are wanted and forgotten again: there may
be millions of clients. The paper's sizes are `sizes: log_normal, least: 50, mean: 4, sigma: 2`, without `most`.

Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020
(section 5.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from mpipfl.data.keyed import generator
from mpipfl.data.samples import MadeSamples
from mpipfl.section import Count, NonNegative, Number, Positive, Section


class Synthetic(Section):
    """synthetic(alpha, beta): logistic regression, a model per client; samples are made when they are needed."""

    kind: Literal["synthetic"] = "synthetic"
    alpha: NonNegative = Field(default=1.0, description="How much the clients' models differ, a variance.")
    beta: NonNegative = Field(default=1.0, description="How much the clients' inputs differ, a variance.")
    shared: Annotated[float, Number, Field(ge=0, le=1)] = Field(
        default=0.0, description="Share of the models' variance that all clients have in common; the paper's is 0."
    )
    features: Count = Field(default=60, description="Numbers in a sample.")
    classes: Count = Field(default=10, description="Classes.")
    sizes: Literal["equal", "log_normal", "power_law"] = Field(
        default="equal",
        description="Samples of a client: least; least + exp(mean + sigma * normal); or least * uniform^(-1/exponent).",
    )
    least: Count = Field(default=50, description="Fewest samples of a client.")
    most: Count = Field(default=1000, description="Most samples of a client.")
    mean: float = Field(default=4.0, allow_inf_nan=False, description="log_normal: of the exponent.")
    sigma: NonNegative = Field(default=2.0, description="log_normal: standard deviation of the exponent.")
    exponent: Positive = Field(default=1.5, description="power_law: so fast do large clients become rare.")

    @model_validator(mode="after")
    def _in_order(self) -> Synthetic:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, more than most, {self.most}")
        return self

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> SyntheticSamples:
        return SyntheticSamples(
            classes=self.classes, shape=(self.features,), dtype=np.dtype(np.float32),
            sizes=self.totals(seed, clients), section=self, seed=seed,
        )  # fmt: skip

    def totals(self, seed: int, clients: int) -> np.ndarray:
        """(M,) samples of each client: the k-th draw is client k's, however many there are."""
        draw = generator(seed, "synthetic: sizes")
        with np.errstate(over="ignore"):
            if self.sizes == "log_normal":
                wished = self.least + np.exp(self.mean + self.sigma * draw.standard_normal(clients))
            elif self.sizes == "power_law":
                wished = self.least * (1 - draw.random(clients)) ** (-1 / self.exponent)
            else:
                wished = np.full(clients, float(self.least))
        return np.minimum(wished, self.most).astype(np.int64)


class SyntheticSamples(MadeSamples):
    """Every client's own model, inputs and labels."""

    def __init__(self, section: Synthetic, seed: int, **fields: object) -> None:
        super().__init__(**fields)  # type: ignore[arg-type]
        self.section, self.seed = section, seed
        self.common = generator(seed, "synthetic: common").standard_normal((section.features + 1, section.classes))

    def make(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        section, number = self.section, self.first_client + client
        draw = generator(self.seed, "synthetic", number)
        u, centre = np.sqrt([section.alpha, section.beta]) * draw.standard_normal(2)
        own = u + draw.standard_normal((section.features + 1, section.classes))
        model = np.sqrt(section.shared) * self.common + np.sqrt(1 - section.shared) * own  # the last row is b_k
        v = centre + draw.standard_normal(section.features)
        x = draw.standard_normal((int(self.sizes[client]), section.features), np.float32)
        x *= np.arange(1, section.features + 1, dtype=np.float32) ** -0.6  # the root of Σ
        x += v.astype(np.float32)
        return x, (x.astype(np.float64) @ model[:-1] + model[-1]).argmax(1)
