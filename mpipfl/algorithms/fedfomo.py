"""FedFOMO: each client mixes in the others' models that do well on its own validation data.

    w_ij    = max( (L_i(theta_i) - L_i(theta_j)) / |theta_j - theta_i|, 0 )     on validation data             (3)
    theta_i = theta_i + Σ_j w_ij (theta_j - theta_i) / Σ_j w_ij                 where some w_ij > 0            (4)
    theta_i = SGD(theta_i, F_i)

The theta_j are those of the round's other clients, as their last local training left them. Client i receives `models`
of them: those with the greatest affinity P_i = Σ over rounds of w_i, where each choice is a random one with probability
`epsilon`. How many each client received is in history.h5 (`received`), as are the sum of its weights and the
number of models that helped.

Everything is personal; the server only passes models on. In the first round all models are equal and all weights zero.
As soon as another model helps, the weights of (4) are all of others: a client's own model is in them through training.

Reference: Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization,
ICLR 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ..section import Count, Number
from .base import Algorithm, Facts, Models, Nothing, Traffic, col

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..data.federated import Data
    from ..federation import Federation

TOGETHER = 1 << 16  # numbers of models in work at once


class Client(NamedTuple):
    theta: Tensor  # θ_i, the client's own model (d)
    affinity: Tensor  # P_i, for every client (M)


class FedFOMO(Algorithm):
    """Own model plus the others' that do well on own validation data"""

    kind: Literal["fedfomo"] = "fedfomo"
    learns_globally: ClassVar[bool] = False
    learns_personally: ClassVar[bool] = True
    models_received: Literal["all"] | Count = Field("all", alias="models", description="M, models a client receives")
    epsilon: Annotated[float, Number, Field(ge=0, le=1)] = Field(0.3, description="how often a choice is random")

    def fits(self, data: Data) -> None:
        if data.split.validation == 0:
            raise ValueError("data.split.validation: 0 leaves fedfomo nothing to judge models by; try 0.1")

    def fits_run(self, clients: int, rounds: int) -> None:
        if self.models_received != "all" and self.models_received > clients - 1:
            raise ValueError(
                f"algorithm.models: {self.models_received} models are more than the {clients - 1} other clients have; "
                f"take at most {clients - 1}, or all"
            )

    def server(self, theta: Tensor, facts: Facts) -> Nothing:
        return Nothing()

    def client(self, theta: Tensor, facts: Facts) -> Client:
        return Client(theta, torch.zeros(facts.clients, dtype=torch.float64, device=theta.device))

    def round(self, server: Nothing, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Nothing, Client]:
        own = torch.from_numpy(fl.everyone == cohort.clients[:, None]).to(clients.affinity.device)  # (m, n)
        asked = self.ask(clients.affinity[:, fl.everyone], own, cohort)
        asked = fl.where_reporting(asked, torch.zeros_like(asked))
        theta, loss = clients.theta, cohort.loss(clients.theta, "validation")

        def gain(other: Tensor, rows: Tensor) -> Tensor:
            far = distance(theta, rows, other)
            better = (loss[rows] - cohort.of(rows).loss(other, "validation")) / far
            return torch.where(far > 0, better.clamp(min=0), 0.0)  # (3)

        w = fl.cross(gain, theta, asked).nan_to_num(0.0)
        total = w.sum(1, keepdim=True)
        share = torch.where(total > 0, w / total, own.double())  # (4): θ_i itself where nobody is better
        start = fl.mix(share, theta)
        affinity = clients.affinity.clone()
        affinity[:, fl.everyone] += w
        fl.record(received=asked.sum(1), weight=total[:, 0], helpers=(w > 0).sum(1))
        return server, Client(cohort.descend(start), affinity)

    def ask(self, affinity: Tensor, own: Tensor, cohort: Cohort) -> Tensor:
        """Which models each client receives (m, n): the greatest affinities, some choices at random."""
        others = ~own
        if self.models_received == "all":
            return others
        luck = cohort.uniform(own.shape[1], "whom to ask").to(affinity)
        known = torch.where(own, -torch.inf, affinity + 1e-12 * luck)  # equal affinities: by luck
        count = self.models_received
        random = (cohort.uniform(count, "explore").to(affinity) < self.epsilon).sum(1)
        place = known.argsort(1, descending=True).argsort(1)  # 0 for the greatest
        asked = place < col(count - random)
        rest = torch.where(asked | own, -torch.inf, luck).argsort(1, descending=True).argsort(1)
        return (asked | (rest < col(random))) & others

    def models(self, server: Nothing, clients: Client, cohort: Cohort) -> Models:
        return Models(globally=None, personal=clients.theta)

    def traffic(self, server: Nothing, active: int) -> Traffic:
        return Traffic(streams=active, uplinks=1)  # every model goes to somebody


def distance(theta: Tensor, rows: Tensor, other: Tensor) -> Tensor:
    """|other - theta_i| for some rows (r) of theta, float64: a few of them at a time, so that what is made of them
    stays in cache."""
    few = max(1, TOGETHER // theta.shape[1])
    return torch.cat([(other - theta[some]).double().square().sum(1) for some in rows.split(few)]).sqrt()
