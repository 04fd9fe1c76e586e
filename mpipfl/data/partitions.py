"""How samples are divided over clients: alike, by Dirichlet draws, by few classes each, or as their users made them.

The PersFL paper's splits are here by these names: DS-1 `classes` (k: 4, counts: uneven), DS-2 `dirichlet` (alpha: 0.9,
least: 1), DS-3 `classes` (k: 2, sizes: log_normal, sigma: 2), DS-4 `minority`; its shares are data.split with
validation: 0.2 and test: 0.2.

A partition is its section of the configuration; `divide` returns one array of sample indices per client. Indices never
overlap, nothing is moved silently, and what cannot be done is an error that says what to change; no search is endless.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from mpipfl.data.classes import Classes, Superclasses
from mpipfl.data.keyed import generator
from mpipfl.data.minority import Minority
from mpipfl.data.samples import Pool
from mpipfl.data.sizes import Sized
from mpipfl.data.table import grouped, rounded
from mpipfl.errors import DataError
from mpipfl.section import Count, Number, Positive, Section

REDRAWS = 100


class Iid(Sized):
    """Every client gets the same mix, and the same number of samples unless `sizes` says otherwise."""

    kind: Literal["iid"] = "iid"

    def divide(self, pool: Pool, clients: int, seed: int, floor: int) -> list[np.ndarray]:
        count = len(pool.labels)
        checked_total(count, clients, floor)
        targets = self.targets(count, clients, floor, generator(seed, "partition: iid sizes"))
        ends = np.cumsum(rounded(targets[:, None], np.array([count])))
        return np.split(generator(seed, "partition: iid").permutation(count), ends[:-1])


class Dirichlet(Section):
    """Label skew by draws from a Dirichlet distribution; the smaller alpha, the less clients have in common."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Positive = Field(default=0.5, description="Concentration: 100 is nearly iid, 0.1 gives a few classes each.")
    by: Literal["class", "client"] = Field(
        default="class",
        description="class: each class is shared out by a draw over clients, so sizes differ too; client: each client "
        "draws its label distribution, and all get equally many samples (late clients take what the early ones left).",
    )
    least: Annotated[int, Number] = Field(
        default=0,
        ge=0,
        description="by class: every client first gets so many samples of every class.",
    )

    @model_validator(mode="after")
    def _least_of_a_class(self) -> Dirichlet:
        if self.least and self.by == "client":
            raise ValueError(f"least={self.least} goes with by: class only; leave it out, or take by: class")
        return self

    def divide(self, pool: Pool, clients: int, seed: int, floor: int) -> list[np.ndarray]:
        checked_total(len(pool.labels), clients, floor)
        present, labels = np.unique(pool.labels, return_inverse=True)
        stock = np.bincount(labels, minlength=len(present))
        rare = int(stock.argmin())
        if stock[rare] < clients * self.least:
            raise DataError(
                f"dirichlet(least={self.least}): class {present[rare]} has {stock[rare]} samples, too few for "
                f"{clients} clients. Take least of at most {stock[rare] // clients}, fewer clients or more samples."
            )
        draw = generator(seed, "partition: dirichlet")
        counts = (
            self._by_class(stock, clients, draw, floor) if self.by == "class" else self._by_client(stock, clients, draw)
        )
        return grouped(labels, counts, draw)

    def _by_class(self, stock: np.ndarray, clients: int, draw: np.random.Generator, floor: int) -> np.ndarray:
        """(clients, classes) counts, drawn again while a client has too few."""
        best: np.ndarray | None = None
        stock = stock - self.least * clients
        for _ in range(REDRAWS):
            shares = draw.dirichlet(np.full(clients, self.alpha), size=len(stock))  # (classes, clients)
            ends = np.rint(np.minimum(np.cumsum(shares, 1), 1) * stock[:, None]).astype(np.int64)
            ends[:, -1] = stock
            counts = self.least + np.diff(ends, axis=1, prepend=0).T
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

    def divide(self, pool: Pool, clients: int, seed: int, floor: int) -> list[np.ndarray]:
        users, able = enough(self.kind, pool.users, clients, max(self.min_samples, floor))
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

    def divide(self, pool: Pool, clients: int, seed: int, floor: int) -> list[np.ndarray]:
        users, able = enough(self.kind, pool.users, clients * floor, self.min_samples)
        groups = np.array_split(generator(seed, "partition: pooled").permutation(able), clients)
        return [np.flatnonzero(np.isin(users, group)) for group in groups]


def enough(kind: str, users: np.ndarray | None, wanted: int, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Each sample's user, and the users with so many samples at least; so many of them are needed."""
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
    return users, able


def checked_total(samples: int, clients: int, floor: int) -> None:
    """There must be enough samples for all."""
    if samples < clients * floor:
        raise DataError(
            f"{samples} samples are too few for {clients} clients with at least {floor} each (one for every part of "
            f"the split). Take at most {samples // floor} clients, or more samples."
        )


Division = Annotated[
    Iid | Dirichlet | Classes | Superclasses | Minority | Natural | Pooled,
    Field(discriminator="kind", description="How samples are divided over clients."),
]
