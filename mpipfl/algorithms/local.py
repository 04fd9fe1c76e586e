"""Local: every client trains alone, round after round; nothing travels.

    theta_k = SGD(theta_k, F_k)

Everything is personal; there is no global model. The floor under every personalized method. A newcomer does the same,
from the initial model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from torch import Tensor

from .base import Algorithm, Facts, Models, Nothing, Traffic

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Client(NamedTuple):
    theta: Tensor  # θ_k, the client's own model (d)


class Local(Algorithm):
    """Every client trains alone: no communication, no global model"""

    kind: Literal["local"] = "local"
    learns_globally: ClassVar[bool] = False
    learns_personally: ClassVar[bool] = True

    def server(self, theta: Tensor, facts: Facts) -> Nothing:
        return Nothing()

    def client(self, theta: Tensor, facts: Facts) -> Client:
        return Client(theta)

    def round(self, server: Nothing, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Nothing, Client]:
        return server, self.newcomer(server, clients, cohort, fl)

    def newcomer(self, server: Nothing, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        return Client(cohort.descend(clients.theta))

    def models(self, server: Nothing, clients: Client, cohort: Cohort) -> Models:
        return Models(globally=None, personal=clients.theta)

    def traffic(self, server: Nothing, active: int) -> Traffic:
        return Traffic(streams=0, uplinks=0)
