"""Ditto: a personal model held near the global one, which never hears of it.

    theta_k = SGD(theta, F_k),   theta = Σ_k n_k theta_k / Σ_k n_k            FedAvg, untouched
    v_k    <- v_k - eta (∇F_k(v_k) + lambda (v_k - theta))                    (1), by its own steps

The personal model is pulled towards the global model that the round began with. `lambda` = 0 is `local`. Global is
theta, personal are the v_k, which stay at their clients. A newcomer's v_k begins at theta, and goes on by (1).

Reference: Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021
(algorithm 1). Its default weights are the samples' (the global objective is the user's choice there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from ..section import Count, NonNegative
from .base import Facts, Models, Nothing, Past
from .fedavg import FedAvg, Server

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Client(NamedTuple):
    v: Tensor  # v_k, the personal model (d)


class Ditto(FedAvg):
    """FedAvg, and beside it personal models pulled towards the global one"""

    kind: Literal["ditto"] = "ditto"  # type: ignore[assignment]
    learns_personally: ClassVar[bool] = True
    lam: NonNegative = Field(0.1, alias="lambda", description="lambda, the pull; the paper tries 0.05, 0.1, 1, 2")
    personal_steps: Count | None = Field(None, description="steps of v_k in a round; as many as theta_k's without it")

    def client(self, theta: Tensor, facts: Facts) -> Client:
        return Client(theta)

    def round(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:  # type: ignore[override]
        v = self.personal(server, clients, cohort)
        server, _ = super().round(server, Nothing(), cohort, fl)
        return server, Client(v)

    def personal(self, server: Server, clients: Client, cohort: Cohort) -> Tensor:
        """v_k after its own steps (1)"""
        return cohort.descend(clients.v, pull=(self.lam, server.theta), steps=self.personal_steps)

    def arrive(
        self, server: Server, clients: Client, past: Past, cohort: Cohort, fl: Federation
    ) -> tuple[Server, Client]:
        return server, Client(server.theta.expand_as(clients.v))

    def newcomer(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        return Client(self.personal(server, clients, cohort))

    def models(self, server: Server, clients: Client, cohort: Cohort) -> Models:  # type: ignore[override]
        return Models(globally=server.theta, personal=clients.v)
