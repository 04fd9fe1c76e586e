"""FedPer: a shared base under personal heads, trained jointly.

    (b_k, h_k) = SGD((b, h_k), F_k)
    b          = Σ_k n_k b_k / Σ_k n_k

The head is the last linear layer; it never leaves its client. Everything is personal: base and own head. A network that
is all head (logistic regression) makes this `local`. A newcomer trains a new head on the base as it is.

Reference: Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019 (algorithms 1
and 2, with one personal layer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from .base import Algorithm, Facts, Models, columnwise

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Server(NamedTuple):
    base: Tensor  # b, everything before the last linear layer


class Client(NamedTuple):
    head: Tensor  # h_k, the last linear layer


class FedPer(Algorithm):
    """A shared base under personal heads, trained jointly"""

    kind: Literal["fedper"] = "fedper"
    learns_globally: ClassVar[bool] = False
    learns_personally: ClassVar[bool] = True
    weights: Literal["samples", "equal"] = Field("samples", description="what a client counts in the average")

    def server(self, theta: Tensor, facts: Facts) -> Server:
        return Server(facts.divide(theta)[0])

    def client(self, theta: Tensor, facts: Facts) -> Client:
        return Client(facts.divide(theta)[1])

    def round(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:
        theta = self.train(cohort.unite(server.base, clients.head), cohort)
        base, head = cohort.divide(theta)
        n = cohort.counted(self.weights)
        return fl.aggregate(average, server, base=(n, base), n=n), Client(head)

    def train(self, theta: Tensor, cohort: Cohort) -> Tensor:
        """Each client's local training of base and head."""
        return cohort.descend(theta)

    def newcomer(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        theta = self.train_head(cohort.unite(server.base, clients.head), cohort)
        return Client(cohort.divide(theta)[1])

    def train_head(self, theta: Tensor, cohort: Cohort) -> Tensor:
        """The head alone, under which the base stays."""
        return cohort.descend(theta, only="head")

    def models(self, server: Server, clients: Client, cohort: Cohort) -> Models:
        return Models(globally=None, personal=cohort.unite(server.base, clients.head))


@columnwise
def average(server: Server, sums: Any) -> Server:
    """b = Σ n_k b_k / Σ n_k"""
    return Server(sums.base / sums.n)
