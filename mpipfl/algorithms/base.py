"""What a method is: its parameters, its state on the server and at the clients, and a round as a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from ..section import Section

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Nothing(NamedTuple):
    """The state of a side that keeps none."""


class Facts(NamedTuple):
    """What a method may know before the first round."""

    clients: int  # M
    groups: int  # true groups of the data's shift


class Models(NamedTuple):
    """What is evaluated, kept apart: the global models and the personal ones, (d) or one per client (m, d).

    `personal` None means the method makes no personal models: its clients use the global one.
    """

    globally: Tensor | None
    personal: Tensor | None


class Algorithm(Section):
    """A federated method. All its state is in two NamedTuples of tensors; nothing hides in `self`."""

    kind: str

    learns_globally: ClassVar[bool] = True
    learns_personally: ClassVar[bool] = False

    def server(self, theta: Tensor, facts: Facts) -> Any:
        """The server's state before the first round, from the network's initial weights theta (d)."""
        raise TypeError(f"{type(self).__name__} must say what its server keeps")

    def client(self, theta: Tensor, facts: Facts) -> Any:
        """One client's state before the first round: a NamedTuple of tensors without the client axis."""
        return Nothing()

    def round(self, server: Any, clients: Any, cohort: Cohort, fl: Federation) -> tuple[Any, Any]:
        """One round: the new server's state and the new rows of the round's clients hosted here."""
        raise TypeError(f"{type(self).__name__} must say what a round is")

    def models(self, server: Any, clients: Any, cohort: Cohort) -> Models:
        """The models to evaluate for the cohort's clients."""
        raise TypeError(f"{type(self).__name__} must say which models it makes")
