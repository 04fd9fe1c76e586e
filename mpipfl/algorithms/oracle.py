"""Oracle: one FedAvg per true group of clients, known from the data's shift.

    theta_k = SGD(theta_g(k), F_k)
    theta_g = Σ_{k in g} n_k theta_k / Σ_{k in g} n_k

The aggregation is one product A Theta with a row per group. A group without a client in the round keeps its model. The
group's model counts as the global one of its clients. What clustering methods can hope for; with one group, FedAvg.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from .base import Algorithm, Facts, Models, Nothing, Traffic, columnwise

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Server(NamedTuple):
    theta: Tensor  # θ_g, one row per group (groups, d)


class Oracle(Algorithm):
    """One FedAvg per true group of the data's shift"""

    kind: Literal["oracle"] = "oracle"

    def server(self, theta: Tensor, facts: Facts) -> Server:
        return Server(theta.repeat(facts.groups, 1))

    def round(self, server: Server, clients: Nothing, cohort: Cohort, fl: Federation) -> tuple[Server, Nothing]:
        theta = cohort.descend(server.theta[cohort.group])
        member = torch.nn.functional.one_hot(cohort.group, len(server.theta))  # A: (m, groups)
        n = cohort.n_train
        return fl.aggregate(average, server, theta=(member * n[:, None], theta), n=(member, n)), clients

    def models(self, server: Server, clients: Nothing, cohort: Cohort) -> Models:
        return Models(globally=server.theta[cohort.group], personal=None)

    def traffic(self, server: Server, active: int) -> Traffic:
        return Traffic(streams=min(len(server.theta), active))


@columnwise
def average(server: Server, sums: Any) -> Server:
    """θ_g = Σ_{k in g} n_k θ_k / Σ_{k in g} n_k, or as before where the sum is empty"""
    n = sums.n[:, None]
    return Server(torch.where(n > 0, sums.theta / n, server.theta))
