"""What a method is: its parameters, its state on the server and at the clients, and a round as a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor

from ..section import Count, Section

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..data.federated import Data
    from ..federation import Federation


BLOCK = 1 << 14  # columns


class Nothing(NamedTuple):
    """The state of a side that keeps none."""


class Facts(NamedTuple):
    """What a method may know before the first round."""

    clients: int  # M
    groups: int  # true groups of the data's shift
    samples: Tensor  # n_k, each client's training samples (M), float64
    start: Callable[[int], Tensor]  # initial weights (d) by number; number 0 is the run's own
    divide: Callable[[Tensor], tuple[Tensor, Tensor]]  # a vector's base and head, the last linear layer


class Models(NamedTuple):
    """What is evaluated, kept apart: the global models and the personal ones, (d) or one per client (m, d).

    `personal` None means the method makes no personal models: its clients use the global one.
    """

    globally: Tensor | None
    personal: Tensor | None


class Past(NamedTuple):
    """What newcomers may know of the finished run that they come to."""

    servers: Iterable[tuple[int, Any]]  # rounds whose server's state was kept, with it; the last round is the last
    clients: Iterable[Any]  # the clients' last states, one after the other


class Traffic(NamedTuple):
    """What a round of the method costs on a network between real clients, counted in models."""

    streams: float = 1  # that the server sends, each to everybody who wants it
    uplinks: float = 1  # that a client sends


class WarmStart(Section):
    """Where a method's initial model comes from"""

    rounds: Count | None = Field(None, description="so many rounds of FedAvg before round 1")
    run: Path | None = Field(None, description="the global model of this run's newest checkpoint")

    @model_validator(mode="after")
    def _one_way(self) -> WarmStart:
        if (self.rounds is None) == (self.run is None):
            raise ValueError("give rounds or run, one of them")
        return self


class Algorithm(Section):
    """A federated method. All its state is in two NamedTuples of tensors; nothing hides in `self`."""

    kind: str
    warm_start: WarmStart | None = Field(None, description="a trained model to begin with: {rounds: N} or {run: PATH}")

    learns_globally: ClassVar[bool] = True
    learns_personally: ClassVar[bool] = False
    needs_head: ClassVar[bool] = False  # a last linear layer

    def fits(self, data: Data) -> None:
        """Raises ValueError with the key's path where a parameter makes no sense with the data."""

    def fits_run(self, clients: int, rounds: int) -> None:
        """The same for so many clients that learn together in so many rounds; newcomers do not."""

    def server(self, theta: Tensor, facts: Facts) -> Any:
        """The server's state before the first round, from the network's initial weights theta (d)."""
        raise TypeError(f"{type(self).__name__} must say what its server keeps")

    def client(self, theta: Tensor, facts: Facts) -> Any:
        """One client's state before the first round: a NamedTuple of tensors without the client axis."""
        return Nothing()

    def round(self, server: Any, clients: Any, cohort: Cohort, fl: Federation) -> tuple[Any, Any]:
        """One round: the new server's state and the new rows of the round's clients hosted here."""
        raise TypeError(f"{type(self).__name__} must say what a round is")

    @property
    def prepares_after(self) -> int | None:
        """The round after which `prepare` runs once (0: before the first); None for never."""
        return None

    def prepare(self, server: Any, clients: Any, cohort: Cohort, fl: Federation) -> tuple[Any, Any]:
        """A special round of all clients, without training."""
        return server, clients

    @property
    def closing_rounds(self) -> int:
        """Rounds of all clients after those of the configuration."""
        return 0

    def arrive(self, server: Any, clients: Any, past: Past, cohort: Cohort, fl: Federation) -> tuple[Any, Any]:
        """What newcomers of a finished run begin with: `server` is as the run left it, `clients` are before training.
        Without a say of the method's own they begin as all clients did."""
        return server, clients

    def newcomer(self, server: Any, clients: Any, cohort: Cohort, fl: Federation) -> Any:
        """A round of newcomers: their new rows. Each trains by itself, the server's state stays as it is.

        A method whose clients keep nothing has nothing to do here: what `models` says is what a newcomer gets. One
        whose clients keep something must say how a newcomer comes by it, or it cannot have any."""
        return clients

    def findings(self, server: Any, clients: Any) -> dict[str, Tensor]:
        """What of the clients' last states goes into history.h5: a number or short row for each."""
        return {}

    def models(self, server: Any, clients: Any, cohort: Cohort) -> Models:
        """The models to evaluate for the cohort's clients."""
        raise TypeError(f"{type(self).__name__} must say which models it makes")

    def traffic(self, server: Any, active: int) -> Traffic:
        """What the round of so many active clients cost that made this server."""
        return Traffic()

    def remarks(self, series: dict[str, np.ndarray]) -> list[str]:
        """What a user should know at the end of a run, from the series the method recorded."""
        return []


def col(x: Tensor) -> Tensor:
    """A number per client as a column, to go with rows of vectors."""
    return x[:, None]


def blocks(x: Tensor) -> Iterator[slice]:
    """Some columns of x (m, d) at a time: what is made of them stays in cache, where a temporary as long as all models
    would be new memory from the system, page by page, for each operation."""
    yield from (slice(start, start + BLOCK) for start in range(0, x.shape[1], BLOCK))


F = TypeVar("F", bound=Callable[..., Any])


def columnwise(f: F) -> F:
    """Says of a server's step f(server, Σ) that it goes column by column, with the same small numbers everywhere: for
    long vectors all ranks share it, and each sees only some columns (see `slices`)."""
    f.columnwise = True  # type: ignore[attr-defined]
    return f
