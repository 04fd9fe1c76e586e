"""SCAFFOLD: control variates take the drift out of local steps.

    y_i   <- y_i - eta_l (g_i(y_i) - c_i + c)                       K_i local steps from y_i = x            (3)
    c_i+   = c_i - c + (x - y_i) / (K_i eta_l)                      option II, K_i the client's own steps   (4)
    x     <- x + eta_g mean_{i in S} (y_i - x)                                                              (5)
    c     <- c + |S|/N mean_{i in S} (c_i+ - c_i)

Everything is global; a client keeps its control variate. With all c = 0 and one local step this is FedAvg. Local steps
are plain SGD as in the paper, because (4) reads the mean gradient off the way from x to y_i: `train.momentum` is not
used. With `participation.train: all`, clients that do not report keep their variates. A newcomer uses the global model;
a variate would be of use only in rounds with the others.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, ICML 2020 (algorithm 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ..section import Positive
from .base import Algorithm, Facts, Models, Traffic, col, columnwise

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Server(NamedTuple):
    theta: Tensor  # x, the global model (d)
    c: Tensor  # the server's control variate (d)


class Client(NamedTuple):
    c: Tensor  # c_i, the client's control variate (d)


class Scaffold(Algorithm):
    """FedAvg with control variates against client drift"""

    kind: Literal["scaffold"] = "scaffold"
    server_lr: Positive = Field(1.0, description="eta_g, the server's step along the mean update")
    weights: Literal["samples", "equal"] = Field("equal", description="what a client counts in the mean update (5)")

    def server(self, theta: Tensor, facts: Facts) -> Server:
        return Server(theta, torch.zeros_like(theta))

    def client(self, theta: Tensor, facts: Facts) -> Client:
        return Client(torch.zeros_like(theta))

    def round(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:
        x, c, eta = server.theta, server.c, cohort.train.lr
        y = cohort.descend(x, drift=c - clients.c, momentum=0.0)  # (3)
        steps = torch.from_numpy(cohort.steps_for()).to(x)
        moved = clients.c - c + (x - y) / col(steps * eta)  # (4)
        moved = fl.where_reporting(moved, clients.c)

        @columnwise
        def update(old: Server, sums: Any) -> Server:  # (5)
            mean = sums.y / sums.n
            return Server(old.theta + self.server_lr * (mean - old.theta), old.c + sums.c / fl.population)

        n = cohort.counted(self.weights)
        return fl.aggregate(update, server, y=(n, y), n=n, c=moved - clients.c), Client(moved)

    def newcomer(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        return clients

    def models(self, server: Server, clients: Client, cohort: Cohort) -> Models:
        return Models(globally=server.theta, personal=None)

    def traffic(self, server: Server, active: int) -> Traffic:
        return Traffic(streams=2, uplinks=2)  # models and control variates
