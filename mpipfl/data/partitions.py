"""How samples are divided over clients: alike, by Dirichlet draws, by few classes each, or as their users made them.

A partition is its section of the configuration; `divide` returns one array of sample indices per client. Indices never
overlap, nothing is moved silently, and what cannot be done is an error that says what to change; no search is endless.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from mpipfl.data.classes import Classes, grouped
from mpipfl.data.keyed import generator
from mpipfl.errors import DataError
from mpipfl.section import Count, Positive, Section

REDRAWS = 100


class Iid(Section):
    """Every client gets the same mix and the same number of samples."""

    kind: Literal["iid"] = "iid"

    def divide(
        self, labels: np.ndarray, users: np.ndarray | None, clients: int, seed: int, floor: int
    ) -> list[np.ndarray]:
        checked_total(len(labels), clients, floor)
        return np.array_split(generator(seed, "partition: iid").permutation(len(labels)), clients)


class Dirichlet(Section):
    """Label skew by draws from a Dirichlet distribution; the smaller alpha, the less clients have in common."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Positive = Field(default=0.5, description="Concentration: 100 is nearly iid, 0.1 gives a few classes each.")
    by: Literal["class", "client"] = Field(
        default="class",
        description="class: each class is shared out by a draw over clients, so sizes differ too; client: each client "
        "draws its label distribution, and all get equally many samples (late clients take what the early ones left).",
    )

    def divide(
        self, labels: np.ndarray, users: np.ndarray | None, clients: int, seed: int, floor: int
    ) -> list[np.ndarray]:
        checked_total(len(labels), clients, floor)
        present, labels = np.unique(labels, return_inverse=True)
        stock = np.bincount(labels, minlength=len(present))
        draw = generator(seed, "partition: dirichlet")
        counts = (
            self._by_class(stock, clients, draw, floor) if self.by == "class" else self._by_client(stock, clients, draw)
        )
        return grouped(labels, counts, draw)

    def _by_class(self, stock: np.ndarray, clients: int, draw: np.random.Generator, floor: int) -> np.ndarray:
        """(clients, classes) counts, drawn again while a client has too few."""
        best: np.ndarray | None = None
        for _ in range(REDRAWS):
            shares = draw.dirichlet(np.full(clients, self.alpha), size=len(stock))  # (classes, clients)
            ends = np.rint(np.minimum(np.cumsum(shares, 1), 1) * stock[:, None]).astype(np.int64)
            ends[:, -1] = stock
            counts = np.diff(ends, axis=1, prepend=0).T
            sizes = counts.sum(1)
            if sizes.min() >= floor:
                return counts
            if best is None or (sizes < floor).sum() < (best < floor).sum():
                best = sizes
        assert best is not None
        short = np.flatnonzero(best < floor)
        raise DataError(
            f"dirichlet(alpha={self.alpha:g}, by=class): in the best of {REDRAWS} draws {len(short)} of {clients} "
            f"clients got fewer than {floor} samples (client {short[0]}: {best[short[0]]}). Take a greater alpha, "
            f"fewer clients or more samples, or by: client, which gives all clients equally many."
        )

    def _by_client(self, stock: np.ndarray, clients: int, draw: np.random.Generator) -> np.ndarray:
        """(clients, classes) counts; clients take their turns in random order until nothing is left."""
        left = stock.copy()
        quota = np.full(clients, stock.sum() // clients)
        quota[: stock.sum() % clients] += 1
        counts = np.zeros((clients, len(stock)), np.int64)
        taste = draw.dirichlet(np.full(len(stock), self.alpha), size=clients)
        for client in draw.permutation(clients):
            need = quota[client]
            while need:  # each pass either ends it or uses up a class
                wish = np.where(left > 0, taste[client], 0)
                if wish.sum() < 1e-12:
                    wish = left.astype(float)  # nothing this client likes is left
                taken = np.minimum(draw.multinomial(need, wish / wish.sum()), left)
                counts[client] += taken
                left -= taken
                need -= taken.sum()
        return counts


class Natural(Section):
    """Every user of the source is one client."""

    kind: Literal["natural"] = "natural"
    min_samples: Count = Field(
        default=1,
        description="When there are more users than clients, choose among those with at least so many samples.",
    )

    def divide(
        self, labels: np.ndarray, users: np.ndarray | None, clients: int, seed: int, floor: int
    ) -> list[np.ndarray]:
        able = enough(self.kind, users, clients, max(self.min_samples, floor))
        assert users is not None
        chosen = np.sort(generator(seed, "partition: natural").permutation(able)[:clients])
        sizes = np.bincount(users)
        order, ends = np.argsort(users, kind="stable"), np.cumsum(sizes)
        return [order[ends[user] - sizes[user] : ends[user]] for user in chosen]


class Pooled(Section):
    """Whole users are pooled into clients; each is in one part of its client's split only.

    Every client gets equally many users, give or take one, at least one for each part of the split. (With `natural` a
    client is one user, and learns for that user: its parts are the user's own samples.)
    """

    kind: Literal["pooled"] = "pooled"
    min_samples: Count = Field(default=1, description="Users with fewer samples are left out.")

    def divide(
        self, labels: np.ndarray, users: np.ndarray | None, clients: int, seed: int, floor: int
    ) -> list[np.ndarray]:
        able = enough(self.kind, users, clients * floor, self.min_samples)
        assert users is not None
        pools = np.array_split(generator(seed, "partition: pooled").permutation(able), clients)
        return [np.flatnonzero(np.isin(users, pool)) for pool in pools]


def enough(kind: str, users: np.ndarray | None, wanted: int, least: int) -> np.ndarray:
    """The users with so many samples at least; so many of them are needed."""
    if users is None:
        raise DataError(
            f"data.partition={kind} needs a source with users; this one has none. Take iid, dirichlet or classes."
        )
    sizes = np.bincount(users)
    able = np.flatnonzero(sizes >= least)
    if len(able) < wanted:
        raise DataError(
            f"data.partition={kind}: {len(able)} of {np.count_nonzero(sizes)} users have {least} samples or more, "
            f"and {wanted} are needed. Lower data.clients or min_samples, or take more samples."
        )
    return able


def checked_total(samples: int, clients: int, floor: int) -> None:
    """There must be enough samples for all."""
    if samples < clients * floor:
        raise DataError(
            f"{samples} samples are too few for {clients} clients with at least {floor} each (one for every part of "
            f"the split). Take at most {samples // floor} clients, or more samples."
        )


Division = Annotated[
    Iid | Dirichlet | Classes | Natural | Pooled,
    Field(discriminator="kind", description="How samples are divided over clients."),
]
