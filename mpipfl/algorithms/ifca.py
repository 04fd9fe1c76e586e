"""IFCA: k models, and each client trains the one that fits its data best.

    c(i)    = argmin_j F_i(theta_j)                                 on all its training data, each round
    theta_i = SGD(theta_c(i), F_i)
    theta_j = Σ_{i: c(i) = j} n_i theta_i / Σ_{i: c(i) = j} n_i     (model averaging)

The averages are one product A Theta with a row per cluster; a cluster that nobody chose keeps its model. The k models
start from different seeded initial weights, the first from the run's own, so k = 1 is FedAvg. Clients keep nothing:
which model is theirs is decided anew whenever it is needed, on training data. The chosen model counts as the global one
of its client.

Reference: Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020
(algorithm 1, option II).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..section import Count
from .base import Algorithm, Facts, Models, Nothing, Traffic
from .oracle import Server, average

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..data.federated import Data
    from ..federation import Federation


class IFCA(Algorithm):
    """Clusters of clients: each trains the model with the least loss on its data"""

    kind: Literal["ifca"] = "ifca"
    k: Count = Field(2, description="number of models")
    weights: Literal["samples", "equal"] = Field("samples", description="what a client counts in its cluster's average")

    def fits(self, data: Data) -> None:
        if self.warm_start is not None and self.k > 1:
            raise ValueError("algorithm.warm_start: ifca begins with models that differ, not with one; leave it out")

    def server(self, theta: Tensor, facts: Facts) -> Server:
        return Server(torch.stack([facts.start(j).to(theta) for j in range(self.k)]))

    def round(self, server: Server, clients: Nothing, cohort: Cohort, fl: Federation) -> tuple[Server, Nothing]:
        chosen = self.choose(server, cohort)
        theta = cohort.descend(server.theta[chosen])
        n = cohort.counted(self.weights)
        member = torch.nn.functional.one_hot(chosen, self.k) * n[:, None]  # A: (m, k)
        fl.record(cluster=chosen)
        ones = torch.ones_like(n)
        return fl.aggregate(average, server, theta=(member, theta), n=(member, ones)), clients

    def choose(self, server: Server, cohort: Cohort) -> Tensor:
        """c(i), the model with the least training loss (m); the first of equals."""
        if self.k == 1:
            return torch.zeros(len(cohort), dtype=torch.int64, device=server.theta.device)
        return torch.stack([cohort.loss(theta) for theta in server.theta], 1).argmin(1)

    def models(self, server: Server, clients: Nothing, cohort: Cohort) -> Models:
        return Models(globally=server.theta[self.choose(server, cohort)], personal=None)

    def traffic(self, server: Server, active: int) -> Traffic:
        return Traffic(streams=self.k)
