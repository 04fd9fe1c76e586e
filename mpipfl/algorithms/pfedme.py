"""pFedMe: personal models as the solutions of a proximal problem around a local copy of the global model.

    theta_i(w_i) = argmin_theta f_i(theta; batch) + lambda/2 |theta - w_i|^2       K gradient steps on one batch  (7)
    w_i         <- w_i - eta lambda (w_i - theta_i(w_i))                           R times, each on a new batch   (8)
    w           <- (1 - beta) w + beta mean_{i in S} w_i

Personal are the theta_i (never the w_i, which some implementations report), global is the server's w. The inner steps
go on from the last theta_i of the round; the first starts at w. R is `train.steps` or `train.epochs`, eta `train.lr`;
`train.momentum` is not used. A newcomer has the theta_i of w_i = w: (7) on one batch after the other, and w stays.

Reference: T Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020 (algorithm 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from ..section import Count, NonNegative, Positive
from .base import Algorithm, Facts, Models, Past, columnwise

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation
    from ..minibatch import MiniBatch


class Server(NamedTuple):
    w: Tensor  # the global model (d)


class Client(NamedTuple):
    theta: Tensor  # theta_i, the personal model (d)


class PFedMe(Algorithm):
    """Personal models by Moreau envelopes around the global one"""

    kind: Literal["pfedme"] = "pfedme"
    learns_personally: ClassVar[bool] = True
    lam: NonNegative = Field(15.0, alias="lambda", description="lambda, how near personal models stay")
    inner_steps: Count = Field(5, description="K, gradient steps for theta_i on one batch")
    personal_lr: Positive = Field(0.09, description="learning rate of those steps")
    beta: Positive = Field(1.0, description="how far the server goes to the clients' mean")
    weights: Literal["samples", "equal"] = Field("equal", description="what a client counts in that mean")

    def server(self, theta: Tensor, facts: Facts) -> Server:
        return Server(theta)

    def client(self, theta: Tensor, facts: Facts) -> Client:
        return Client(theta)

    def round(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:
        eta = cohort.train.lr

        def local(theta: Tensor, w: Tensor, batch: MiniBatch) -> tuple[Tensor, Tensor]:
            theta = self.solve(theta, w, batch)
            return theta, w - eta * self.lam * (w - theta)  # (8)

        theta, w = cohort.iterate(local, (server.w, server.w))
        n = cohort.counted(self.weights)
        return fl.aggregate(self.average, server, w=(n, w), n=n), Client(theta)

    def solve(self, theta: Tensor, w: Tensor, batch: MiniBatch) -> Tensor:
        """theta_i(w) (7)"""
        return batch.descend(theta, steps=self.inner_steps, lr=self.personal_lr, pull=(self.lam, w))

    def arrive(
        self, server: Server, clients: Client, past: Past, cohort: Cohort, fl: Federation
    ) -> tuple[Server, Client]:
        return server, Client(server.w.expand_as(clients.theta))

    def newcomer(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        def local(theta: Tensor, batch: MiniBatch) -> tuple[Tensor]:
            return (self.solve(theta, server.w.expand_as(theta), batch),)

        return Client(*cohort.iterate(local, (clients.theta,)))

    @columnwise
    def average(self, server: Server, sums: Any) -> Server:
        return Server((1 - self.beta) * server.w + self.beta * (sums.w / sums.n))

    def models(self, server: Server, clients: Client, cohort: Cohort) -> Models:
        return Models(globally=server.w, personal=clients.theta)
