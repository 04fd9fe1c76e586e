"""FedRep: personal heads are fitted to the shared base first, then the base moves under them.

    h_k <- SGD over h only, `head_epochs` passes            from (b, h_k)
    b_k <- SGD over b only, `base_epochs` passes            under the new head
    b    = mean of the b_k

The head is the last linear layer; it never leaves its client. Everything is personal. A newcomer fits a new head to the
base as it is.

Reference: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021 (algorithm 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field
from torch import Tensor

from ..section import Count
from .fedper import FedPer

if TYPE_CHECKING:
    from ..cohort import Cohort


class FedRep(FedPer):
    """A shared base under personal heads, trained one after the other"""

    kind: Literal["fedrep"] = "fedrep"  # type: ignore[assignment]
    weights: Literal["samples", "equal"] = Field("equal", description="what a client counts in the average")
    head_epochs: Count = Field(10, description="passes over the data for the head")
    base_epochs: Count | None = Field(None, description="passes for the base; train.epochs or train.steps without it")

    def train(self, theta: Tensor, cohort: Cohort) -> Tensor:
        return cohort.descend(self.train_head(theta, cohort), only="base", epochs=self.base_epochs)

    def train_head(self, theta: Tensor, cohort: Cohort) -> Tensor:
        return cohort.descend(theta, only="head", epochs=self.head_epochs, stream="head batches")
