"""Per-FedAvg: a global model from which one gradient step makes a good personal one (MAML).

    w~      = w - alpha ∇f(w; D)
    w      <- w - beta (I - alpha ∇²f(w; D'')) ∇f(w~; D')          three independent mini-batches      (13)
    w_glob  = mean of the clients' w

`variant: first_order` leaves the Hessian out (FO); `hessian_free` takes its product with g = ∇f(w~; D') from two
gradients, (∇f(w + delta g; D'') - ∇f(w - delta g; D'')) / (2 delta) (HF), which is near the truth for smooth networks
(tanh) and not for ReLU ones, whatever delta: their gradients jump. Global is w, personal is w after
`adapt_steps` full gradient steps on the client's training data: w_k = w - alpha ∇F_k(w), as in the objective (2).

beta is `train.lr`; `train.momentum` is not used. Clients keep nothing.

Reference: Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020
(algorithm 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ..section import Count, Positive
from .base import Models, Nothing
from .fedavg import FedAvg, Server

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..minibatch import MiniBatch


class PerFedAvg(FedAvg):
    """A global start that one local gradient step makes personal (MAML)"""

    kind: Literal["perfedavg"] = "perfedavg"  # type: ignore[assignment]
    learns_personally: ClassVar[bool] = True
    weights: Literal["samples", "equal"] = Field("equal", description="what a client counts in the average")
    variant: Literal["first_order", "hessian_free"] = Field("first_order", description="how the Hessian is met")
    alpha: Positive = Field(0.01, description="learning rate of the personal step")
    delta: Positive = Field(0.001, description="distance of the two gradients of hessian_free")
    adapt_steps: Count = Field(1, description="personal steps from the global model when it is evaluated")

    def train(self, server: Server, cohort: Cohort) -> Tensor:
        alpha, beta, delta = self.alpha, cohort.train.lr, self.delta

        def first_order(w: Tensor, d: MiniBatch, d1: MiniBatch) -> tuple[Tensor]:
            return (w - beta * d1.grad(w - alpha * d.grad(w)),)

        def hessian_free(w: Tensor, d: MiniBatch, d1: MiniBatch, d2: MiniBatch) -> tuple[Tensor]:
            g = d1.grad(w - alpha * d.grad(w))
            hessian_g = (d2.grad(w + delta * g) - d2.grad(w - delta * g)) / (2 * delta)
            return (w - beta * (g - alpha * hessian_g),)  # (13)

        if self.variant == "first_order":
            return cohort.iterate(first_order, (server.theta,), batches=2)[0]
        return cohort.iterate(hessian_free, (server.theta,), batches=3)[0]

    def models(self, server: Server, clients: Nothing, cohort: Cohort) -> Models:
        personal = server.theta
        for _ in range(self.adapt_steps):
            personal = personal - self.alpha * cohort.grad(personal)  # (2)
        return Models(globally=server.theta, personal=personal)
