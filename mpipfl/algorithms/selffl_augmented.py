"""Augmented Self-FL: uncertainties are read off models that were trained on, not off those that stop early.

As Self-FL, but after its l steps to theta_m, the personal model, each client trains on to theta_{m,t}, near
convergence, and start (21), average (23) and uncertainties (20), (22) speak of the theta_{m,t}. It stops where
`stretch` more steps lower its training loss by less than `tolerance` of it, or after `longest` steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ..section import Count, Number
from .base import Facts, Traffic
from .selffl import SelfFL
from .uncertainty import observe

if TYPE_CHECKING:
    from ..cohort import Cohort


class Client(NamedTuple):
    theta: Tensor  # θ_m, the personal model (d)
    mean: Tensor  # of the θ_{m,t} over the client's active rounds (d), float64
    sigma2: Tensor  # σ_m², their variance summed over coordinates, one number, float64
    seen: Tensor  # active rounds, one number
    full: Tensor  # θ_{m,t}, trained on (d)


class SelfFLAugmented(SelfFL):
    """Self-FL whose uncertainties come from models trained on to convergence"""

    kind: Literal["selffl_augmented"] = "selffl_augmented"  # type: ignore[assignment]
    stretch: Count = Field(20, description="steps between two looks at the training loss")
    tolerance: Annotated[float, Number, Field(ge=0, lt=1)] = Field(0.01, description="relative fall that is too little")
    longest: Count = Field(200, description="most steps beyond l")

    def client(self, theta: Tensor, facts: Facts) -> Any:
        return Client(*super().client(theta, facts), theta)

    def latest(self, clients: Any) -> Tensor:
        return clients.full  # type: ignore[no-any-return]

    def keep(self, clients: Any, theta: Tensor, cohort: Cohort) -> tuple[Any, Tensor]:
        full = self.train_on(theta, cohort)
        return Client(theta, *observe(clients.mean, clients.sigma2, clients.seen, full), full), full

    def train_on(self, theta: Tensor, cohort: Cohort) -> Tensor:
        """theta_{m,t}"""
        loss = cohort.loss(theta)
        going = torch.ones_like(loss, dtype=torch.bool)
        for done in range(0, self.longest, self.stretch):
            steps = going * min(self.stretch, self.longest - done)
            theta = cohort.descend(theta, steps=steps.cpu().numpy(), stream=f"trained on {done}")
            before, loss = loss, cohort.loss(theta)
            going &= loss < (1 - self.tolerance) * before
            if not going.any():
                break
        return theta

    def traffic(self, server: Any, active: int) -> Traffic:
        return Traffic(streams=2, uplinks=2)  # of both models of a client
