"""FedProx: FedAvg with clients held near the global model.

    theta_k = SGD(theta, F_k + mu/2 |theta_k - theta|^2)          (2)

The gradient of the pull is mu (theta_k - theta); mu = 0 is FedAvg. Everything is global. The paper's inexact solutions
(variable local work) are `train.steps` or `train.epochs` here.

Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field
from torch import Tensor

from ..section import NonNegative
from .fedavg import FedAvg, Server

if TYPE_CHECKING:
    from ..cohort import Cohort


class FedProx(FedAvg):
    """FedAvg with a proximal pull towards the global model"""

    kind: Literal["fedprox"] = "fedprox"  # type: ignore[assignment]
    mu: NonNegative = Field(0.01, description="strength of the pull; the paper tries 0.001, 0.01, 0.1, 1")

    def train(self, server: Server, cohort: Cohort) -> Tensor:
        return cohort.descend(server.theta, pull=(self.mu, server.theta))
