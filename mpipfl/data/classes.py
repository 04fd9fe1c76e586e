"""The partitions where every client knows only some classes, or only some kinds of each class.

Who holds what is settled first; how many samples of each follows by fitting a table whose rows are the clients' sizes
and whose columns are the classes' sizes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from mpipfl.data.keyed import generator
from mpipfl.data.samples import Pool
from mpipfl.data.sizes import Sized
from mpipfl.data.table import balanced, fitted, grouped
from mpipfl.errors import DataError
from mpipfl.section import Count


class Classes(Sized):
    """Every client gets exactly k classes; all samples of a class are divided among the clients that hold it.

    With k: 4, counts: uneven it is the PersFL paper's split DS-1, with k: 2, sizes: log_normal, sigma: 2 its DS-3. A
    client gets no more of a class than there is: with few clients the greatest sizes of a law are cut by that.
    """

    kind: Literal["classes"] = "classes"
    k: Count = Field(default=2, description="Classes per client.")
    counts: Literal["even", "uneven"] = Field(
        default="even",
        description="How a client's samples are spread over its k classes; uneven: by a random draw, sizes stay.",
    )

    def divide(self, pool: Pool, clients: int, seed: int, floor: int) -> list[np.ndarray]:
        present, labels = np.unique(pool.labels, return_inverse=True)
        stock = np.bincount(labels, minlength=len(present))
        self._check(present, stock, clients, max(floor, self.k))
        draw = generator(seed, "partition: classes")
        held = balanced(clients, len(present), self.k, draw)
        targets = self.targets(len(labels), clients, max(floor, self.k), draw)
        if self.counts == "uneven":
            held = held * np.maximum(generator(seed, "partition: uneven").standard_exponential(held.shape), 1e-6)
        where = f"classes(k={self.k}, sizes={self.sizes})"
        counts = shared_out(held, targets, stock, floor, where, [f"class {name}" for name in present])
        return grouped(labels, counts, draw)

    def _check(self, present: np.ndarray, stock: np.ndarray, clients: int, floor: int) -> None:
        if self.k > len(present):
            raise DataError(
                f"classes(k={self.k}): the samples have only {len(present)} classes; k can be 1 to {len(present)}."
            )
        if clients * self.k < len(present):
            raise DataError(
                f"classes(k={self.k}): {clients} clients hold at most {clients * self.k} of {len(present)} classes. "
                f"Take at least {-(-len(present) // self.k)} clients, or k of at least {-(-len(present) // clients)}."
            )
        if stock.sum() < clients * floor:
            raise DataError(
                f"classes(k={self.k}): {stock.sum()} samples are too few for {clients} clients with at least {floor} "
                f"each. Take at most {stock.sum() // floor} clients, or more samples."
            )


class Superclasses(Sized):
    """Every client draws one subclass of each class and gets only its samples: the same task, other pictures.

    The labels are the classes (superclasses); the subclasses are the source's own (cifar100 with labels: coarse,
    sun397). Every subclass has as many holders as any other of its class, give or take one; where there are fewer
    clients than subclasses, those that nobody drew are not used. As with all partitions, a client's test samples are a
    part of its own: of exactly its subclasses.
    """

    kind: Literal["superclasses"] = "superclasses"

    def divide(self, pool: Pool, clients: int, seed: int, floor: int) -> list[np.ndarray]:
        if pool.subclasses is None:
            raise DataError(
                "data.partition=superclasses needs a source with subclasses: cifar100 with labels: coarse, or sun397."
            )
        present, first, subclass = np.unique(pool.subclasses, return_index=True, return_inverse=True)
        owner = pool.labels[first]  # each subclass's class
        draw = generator(seed, "partition: superclasses")
        held = np.zeros((clients, len(present)), bool)
        for label in np.unique(owner):
            members = np.flatnonzero(owner == label)
            held[:, members] = balanced(clients, len(members), 1, draw)
        stock = np.bincount(subclass, minlength=len(present)) * held.any(0)
        least = max(floor, int(held[0].sum()))
        if stock.sum() < clients * least:
            raise DataError(
                f"superclasses: {stock.sum()} samples are too few for {clients} clients with at least {least} each. "
                f"Take at most {stock.sum() // least} clients, or more samples."
            )
        targets = self.targets(int(stock.sum()), clients, least, draw)
        names = [f"subclass {name}" for name in present]
        return grouped(subclass, shared_out(held, targets, stock, floor, "superclasses", names), draw)


def shared_out(
    held: np.ndarray, targets: np.ndarray, stock: np.ndarray, floor: int, where: str, names: list[str]
) -> np.ndarray:
    """The fitted table; each client gets at least `floor` samples, or it is an error that starts with `where`."""
    holders = (held > 0).sum(0)
    if (scarce := np.flatnonzero(holders > stock)).size:
        rare = scarce[0]
        raise DataError(
            f"{where}: {names[rare]} has {stock[rare]} samples for the {holders[rare]} clients that should hold it. "
            f"Take fewer clients or more samples."
        )
    sizes = np.zeros(0, np.int64)
    for least in (1, -(-floor // int((held[0] > 0).sum()))):  # a tiny client gets more of each where there is enough
        if (holders * least <= stock).all():
            counts = fitted(held, targets, stock, least)
            sizes = counts.sum(1)
            if sizes.min() >= floor:
                return counts
    short = np.flatnonzero(sizes < floor)
    raise DataError(
        f"{where}: {len(short)} of {len(held)} clients get fewer than {floor} samples (client {short[0]}: "
        f"{sizes[short[0]]}), because their classes are rare. Take fewer clients or more samples."
    )
