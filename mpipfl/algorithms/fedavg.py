"""FedAvg: clients train from the global model, the server averages what they return.

    theta_k = SGD(theta, F_k)                    for every client k of the round
    theta   = Σ_k n_k theta_k / Σ_k n_k          (`weights: samples`), or their plain mean (`equal`)

Everything is global: clients keep nothing, and use the global model.

Reference: McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017 (algorithm 1). There n in the denominator is the sum over the round's clients too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from .base import Algorithm, Facts, Models, Nothing, columnwise

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Server(NamedTuple):
    theta: Tensor  # θ, the global model (d)


class FedAvg(Algorithm):
    """The average of the clients' models, weighted by their samples"""

    kind: Literal["fedavg"] = "fedavg"
    weights: Literal["samples", "equal"] = Field("samples", description="what a client counts in the average")

    def server(self, theta: Tensor, facts: Facts) -> Server:
        return Server(theta)

    def round(self, server: Server, clients: Nothing, cohort: Cohort, fl: Federation) -> tuple[Server, Nothing]:
        theta = self.train(server, cohort)
        n = cohort.counted(self.weights)
        return fl.aggregate(average, server, theta=(n, theta), n=n), clients

    def train(self, server: Server, cohort: Cohort) -> Tensor:
        """Each client's local training from the global model."""
        return cohort.descend(server.theta)

    def models(self, server: Server, clients: Nothing, cohort: Cohort) -> Models:
        return Models(globally=server.theta, personal=None)


@columnwise
def average(server: Server, sums: Any) -> Server:
    """θ = Σ n_k θ_k / Σ n_k"""
    return Server(sums.theta / sums.n)
