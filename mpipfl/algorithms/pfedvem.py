"""pFedVEM: Gaussian heads around a latent global head, and each client counts by its confidence in it.

The base theta is shared; the weights of the head (the last linear layer, d numbers) are on client j Gaussian, q_j =
N(mu_j, diag(sigma_j²)) with sigma_j = softplus(pi_j), under the prior N(w, rho_j² I). When theta and w arrive, client j

    takes         tau_j = 1 / rho_j² = d / (Tr Sigma_j + |mu_j - w|²), its confidence                         (8)
    trains q_j    R epochs on  Σ_n mean_k -log p(y_n | x_n, theta, w_jk) + KL(q_j || N(w, rho_j² I)),        (10)
                  w_jk = mu_j + sigma_j ε_k,  k = 1 .. K, with reparametrised gradients                     (11)
    trains theta  by SGD on the mean loss under heads drawn from q_j, with the settings of `train`

and the server takes, over the clients that report,

    w = Σ tau_j mu_j / Σ tau_j      (9)           theta = Σ n_j theta_j / Σ n_j

    KL = Σ log(rho / sigma) + (sigma² + (mu - w)²) / (2 rho²) - 1/2

Personal are mu_j and the theta it was trained on, the one that came; global are the new theta and w; both are tested by
their means. (On the new theta, an average of whoever reports, heads of the old one lose up to five points; there they
are trained again before anything else.) In a client's first round rho_j² is
`rho2`. A newcomer trains a head of its own under the prior N(w, rho_j² I), from mu_j = w, on the base as it is. sigma
and rho² are kept above 1e-6 and 1e-8 (`guarded` counts the coordinates at that bound). The gradient of (10) grows with
n_j, Adam (`head_optimizer`) does not mind; its moments are zero at the start of each round. The paper's stragglers are
`participation: {probability: 0.1, train: all}`.

`confidence` says what the server weighs by: `both` terms of (8), the `uncertainty` Tr Sigma_j, the `deviation`
|mu_j - w|² alone, or `none`. With the likelihood summed over a client's samples, much data can take mu_j far from w, so
that large clients count least: history.h5 holds tau, trace, deviation and the weight in (9).

Reference: Zhu, Ma, Blaschko: Confidence-aware Personalized Federated Learning via Variational Expectation Maximization,
CVPR 2023 (algorithm 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..descent import adam
from ..elementwise import sigmoid, softplus, softplus_inverse
from ..section import Count, Positive
from .base import Algorithm, Facts, Models, Past, col, columnwise
from .uncertainty import squared

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation
    from ..minibatch import MiniBatch

LEAST_SIGMA, LEAST_RHO2 = 1e-6, 1e-8
ALIKE = 0.05  # relative spread of confidences below which they decide nothing


class Shared(NamedTuple):
    theta: Tensor  # θ, the base
    w: Tensor  # the latent global head (d)


class Server(NamedTuple):
    theta: Tensor
    w: Tensor
    known: Tensor  # θ as the heads know it, before the round's average


class Client(NamedTuple):
    mu: Tensor  # (d)
    pi: Tensor  # (d), sigma = softplus(pi)
    seen: Tensor  # whether it has trained


class PFedVEM(Algorithm):
    """Gaussian heads around a global one, weighed by confidence"""

    kind: Literal["pfedvem"] = "pfedvem"
    learns_personally: ClassVar[bool] = True
    needs_head: ClassVar[bool] = True
    draws: Count = Field(5, description="K, Monte-Carlo draws of the head in a step")
    rho2: Positive = Field(0.1, description="first rho_j², the prior's variance; the paper tries 1, 0.1, 0.01")
    sigma: Positive = Field(0.05, description="first sigma_j")
    heads: Literal["network", "zero"] = Field("network", description="where heads start: the network's, or zero")
    head_epochs: Count = Field(10, description="R, passes over the data for the head")
    head_batch: Count | None = Field(None, description="samples in a step of the head; all of them without it")
    head_lr: Positive = Field(0.01, description="learning rate of the head")
    head_optimizer: Literal["adam", "sgd"] = Field("adam", description="for the head")
    confidence: Literal["both", "uncertainty", "deviation", "none"] = Field("both", description="what (9) weighs by")

    def server(self, theta: Tensor, facts: Facts) -> Server:
        base, head = facts.divide(theta)
        return Server(base, head if self.heads == "network" else torch.zeros_like(head), base)

    def client(self, theta: Tensor, facts: Facts) -> Client:
        head = self.server(theta, facts).w
        return Client(head, torch.full_like(head, softplus_inverse(self.sigma)), torch.zeros((), dtype=torch.bool))

    def round(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:
        d = server.w.numel()
        trace = squared(deviations(clients.pi))
        deviation = squared(clients.mu - server.w)
        rho2 = self.prior(server, clients)
        tau = 1 / rho2
        mu, pi = self.train_head(server, clients, rho2, cohort)
        theta = self.train_base(server.theta, mu, pi, cohort)

        doubt = {"both": rho2, "uncertainty": trace / d, "deviation": deviation / d, "none": torch.ones_like(tau)}
        weight = 1 / doubt[self.confidence].clamp(min=LEAST_RHO2)
        n = cohort.n_train
        guarded = (softplus(pi) <= LEAST_SIGMA).sum(1)
        fl.record(tau=tau, trace=trace, deviation=deviation, weight=weight, guarded=guarded)
        new = Client(mu, pi, torch.ones_like(clients.seen))
        shared = Shared(server.theta, server.w)
        shared = fl.aggregate(average, shared, theta=(n, theta), n=n, w=(weight, mu), tau=weight)
        return Server(*shared, known=server.theta), new

    def prior(self, server: Server, clients: Client) -> Tensor:
        """rho_j² (8)"""
        found = (squared(deviations(clients.pi)) + squared(clients.mu - server.w)) / server.w.numel()
        return torch.where(clients.seen, found, self.rho2).clamp(min=LEAST_RHO2)

    def arrive(
        self, server: Server, clients: Client, past: Past, cohort: Cohort, fl: Federation
    ) -> tuple[Server, Client]:
        return server._replace(known=server.theta), clients._replace(mu=server.w.expand_as(clients.mu))

    def newcomer(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        mu, pi = self.train_head(server, clients, self.prior(server, clients), cohort)
        return Client(mu, pi, torch.ones_like(clients.seen))

    def train_head(self, server: Server, clients: Client, rho2: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """q_j by (10), the base as it came"""
        seen, base = cohort.through(server.theta)

        def local(mu: Tensor, pi: Tensor, *more: Any) -> tuple[Tensor, ...]:
            *moments, n, rho2, batch = more
            sigma, noise = deviations(pi), batch.normal(mu, "head noise", draws=self.draws)
            noise = noise.view(len(mu), self.draws, -1)
            heads = mu.unsqueeze(1) + sigma.unsqueeze(1) * noise
            _, g = batch.grad_of_heads(base.expand(len(mu), -1), heads)  # (K draws of each row)
            by_mu = n * g.mean(1) + (mu - server.w) / rho2  # (11)
            by_sigma = n * (g * noise).mean(1) + sigma / rho2 - 1 / sigma
            slopes = (by_mu, by_sigma * sigmoid(pi))
            if not moments:
                return mu - self.head_lr * slopes[0], pi - self.head_lr * slopes[1], n, rho2
            mu, m_mu, s_mu = adam(batch.number, mu, slopes[0], self.head_lr, moments[0], moments[1])
            pi, m_pi, s_pi = adam(batch.number, pi, slopes[1], self.head_lr, moments[2], moments[3])
            return mu, pi, m_mu, s_mu, m_pi, s_pi, n, rho2

        scale = cohort.n_train if cohort.train.loss == "mean" else torch.ones_like(cohort.n_train)  # else it is a sum
        moments = [torch.zeros_like(server.w)] * (4 if self.head_optimizer == "adam" else 0)
        mu, pi, *_ = seen.iterate(
            local, (clients.mu, clients.pi, *moments, col(scale).float(), col(rho2).float()),
            epochs=self.head_epochs, batch=self.head_batch or cohort.largest, stream="head batches",
        )  # fmt: skip
        return mu, pi

    def train_base(self, theta: Tensor, mu: Tensor, pi: Tensor, cohort: Cohort) -> Tensor:
        """The base by SGD under heads drawn from q_j"""
        lr, momentum = cohort.train.lr, cohort.train.momentum
        if not len(theta):
            return theta.expand(len(cohort), -1)  # the network is all head

        def local(theta: Tensor, velocity: Tensor, mu: Tensor, sigma: Tensor, batch: MiniBatch) -> tuple[Tensor, ...]:
            noise = batch.normal(mu, "base noise", draws=self.draws).view(len(mu), self.draws, -1)
            by_base, _ = batch.grad_of_heads(theta, mu.unsqueeze(1) + sigma.unsqueeze(1) * noise, of_base=True)
            velocity = momentum * velocity + by_base
            return theta - lr * velocity, velocity, mu, sigma

        return cohort.iterate(local, (theta, torch.zeros_like(theta), mu, deviations(pi)))[0]

    def models(self, server: Server, clients: Client, cohort: Cohort) -> Models:
        return Models(globally=cohort.unite(server.theta, server.w), personal=cohort.unite(server.known, clients.mu))

    def remarks(self, series: dict[str, np.ndarray]) -> list[str]:
        """Confidences that decide nothing."""
        if self.confidence == "none" or "weight" not in series:
            return []
        weight = series["weight"][-1][~np.isnan(series["weight"][-1])]
        if len(weight) < 2 or weight.std() >= ALIKE * weight.mean():
            return []
        return [
            f"pfedvem: in the last round the clients' confidences differ by {100 * weight.std() / weight.mean():.1f} % "
            f"only; weighing by them is an equal average"
        ]


def deviations(pi: Tensor) -> Tensor:
    """sigma_j, bounded below"""
    return softplus(pi).clamp(min=LEAST_SIGMA)


@columnwise
def average(shared: Shared, sums: Any) -> Shared:
    """θ = Σ n_j θ_j / Σ n_j, and w by (9)"""
    return Shared(sums.theta / sums.n, sums.w / sums.tau)
