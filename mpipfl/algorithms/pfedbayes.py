"""pFedBayes: every weight is a Gaussian, and the global one is the prior of the personal ones.

Personal q_i = N(mu_i, sigma_i²) and global p = N(mu, s²), coordinate by coordinate, with sigma = softplus(rho). In each
local step, with theta = mu_i + sigma_i ε and ε ~ N(0, 1), one gradient step on a mini-batch for q_i and one for a local
copy p_i of p, both from the old values (algorithm 1):

    F_i(q_i, p_i) = mean -log p(y | x, theta) + (zeta / n_i) KL(q_i || p_i)                                 (10)
    KL(q || p)    = Σ log(s / sigma) + (sigma² + (mu_i - mu)²) / (2 s²) - 1/2
    q_i <- q_i - eta ∇_q F_i,         p_i <- p_i - eta_p ∇_p F_i
    p   <- (1 - beta) p + beta mean_i p_i                                on (mu, rho)

Both are reported by their means: personal mu_i, global mu. The personal distribution stays at its client from round to
round; a newcomer's begins at p, which stays its prior. Noise is keyed by (seed, round, client, step). eta is
`train.lr`; `train.momentum` is not used. The authors' code takes Adam for all four (`optimizer: adam`, with its moments
zero at the start of each round); the paper says gradient steps, the default.

Reference: Zhang, Li, Li, Guo, Shao: Personalized Federated Learning via Variational Bayesian Inference, ICML 2022.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ..descent import adam
from ..elementwise import sigmoid, softplus
from ..section import NonNegative, Number, Positive
from .base import Algorithm, Facts, Models, Past, Traffic, col, columnwise

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Gaussian(NamedTuple):
    """The server's state, and also a client's."""

    mu: Tensor  # (d)
    rho: Tensor  # (d), sigma = softplus(rho)


class PFedBayes(Algorithm):
    """Gaussian weights: personal ones with the global ones as prior"""

    kind: Literal["pfedbayes"] = "pfedbayes"
    learns_personally: ClassVar[bool] = True
    zeta: NonNegative = Field(10.0, description="weight of the divergence from the global distribution")
    rho: Annotated[float, Number, Field(ge=-30, le=30)] = Field(-2.5, description="softplus(rho) is the first sigma")
    global_lr: Positive | None = Field(None, description="eta_p, for the local copy of the prior; train.lr without it")
    beta: Positive = Field(1.0, description="how far the server goes to the clients' mean")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="for the local steps; the authors' code takes adam")

    def server(self, theta: Tensor, facts: Facts) -> Gaussian:
        return Gaussian(theta, torch.full_like(theta, self.rho))

    def client(self, theta: Tensor, facts: Facts) -> Gaussian:
        return Gaussian(theta, torch.full_like(theta, self.rho))

    def round(self, server: Gaussian, clients: Gaussian, cohort: Cohort, fl: Federation) -> tuple[Gaussian, Gaussian]:
        q, p = self.train(server, clients, cohort, self.global_lr or cohort.train.lr)
        return fl.aggregate(self.average, server, mu=p.mu, rho=p.rho, n=torch.ones_like(cohort.n_train)), q

    def train(self, server: Gaussian, clients: Gaussian, cohort: Cohort, global_lr: float) -> tuple[Gaussian, Gaussian]:
        """q_i and p_i after the local steps"""
        eta = cohort.train.lr
        rates = (eta, eta, global_lr, global_lr)
        weight = col(self.zeta / cohort.n_train).float()

        def local(mu: Tensor, rho: Tensor, mu_p: Tensor, rho_p: Tensor, *more: Any) -> tuple[Tensor, ...]:
            *moments, zeta, batch = more
            sigma, s, noise = softplus(rho), softplus(rho_p), batch.normal(mu)
            g = batch.grad(mu + sigma * noise)
            far = (mu - mu_p) / s
            slope = (  # ∂F/∂mu_i, and so on by the chain rule
                g + zeta * far / s,
                (g * noise + zeta * (sigma / s.square() - 1 / sigma)) * sigmoid(rho),
                -zeta * far / s,
                zeta * (1 - (sigma / s).square() - far.square()) / s * sigmoid(rho_p),
            )
            if not moments:
                return *map(descend, (mu, rho, mu_p, rho_p), slope, rates), zeta
            new = map(partial(adam, batch.number), (mu, rho, mu_p, rho_p), slope, rates, moments[:4], moments[4:])
            return *chain(*zip(*new, strict=True)), zeta

        moments = [torch.zeros_like(server.mu)] * (8 if self.optimizer == "adam" else 0)  # means, then squares
        mu, rho, mu_p, rho_p, *_ = cohort.iterate(local, (*clients, *server, *moments, weight))
        return Gaussian(mu, rho), Gaussian(mu_p, rho_p)

    def arrive(
        self, server: Gaussian, clients: Gaussian, past: Past, cohort: Cohort, fl: Federation
    ) -> tuple[Gaussian, Gaussian]:
        return server, Gaussian(server.mu.expand_as(clients.mu), server.rho.expand_as(clients.rho))

    def newcomer(self, server: Gaussian, clients: Gaussian, cohort: Cohort, fl: Federation) -> Gaussian:
        return self.train(server, clients, cohort, global_lr=0.0)[0]

    @columnwise
    def average(self, p: Gaussian, sums: Any) -> Gaussian:
        mean = Gaussian(sums.mu / sums.n, sums.rho / sums.n)
        return Gaussian(*((1 - self.beta) * old + self.beta * new for old, new in zip(p, mean, strict=True)))

    def models(self, server: Gaussian, clients: Gaussian, cohort: Cohort) -> Models:
        return Models(globally=server.mu, personal=clients.mu)

    def traffic(self, server: Gaussian, active: int) -> Traffic:
        return Traffic(streams=2, uplinks=2)  # means and deviations


def descend(x: Tensor, slope: Tensor, rate: float) -> Tensor:
    return x - rate * slope
