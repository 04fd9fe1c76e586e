"""The partition where every client knows only k classes, with equal or unequal numbers of samples.

Who holds what is settled first; how many samples of each class follows by fitting a table whose rows are the clients'
sizes and whose columns are the classes' sizes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from mpipfl.data.keyed import generator
from mpipfl.errors import DataError
from mpipfl.section import Count, NonNegative, Section

FITTING_STEPS = 200


class Classes(Section):
    """Every client gets exactly k classes; all samples of a class are divided among the clients that hold it."""

    kind: Literal["classes"] = "classes"
    k: Count = Field(default=2, description="Classes per client.")
    sizes: Literal["equal", "power_law", "log_normal"] = Field(
        default="equal", description="How many samples clients get, as nearly as the classes allow."
    )
    exponent: NonNegative = Field(
        default=1.0, description="power_law: the r-th greatest client gets a share proportional to r^-exponent."
    )
    sigma: NonNegative = Field(default=1.0, description="log_normal: shares are proportional to exp(sigma * normal).")

    def divide(
        self, labels: np.ndarray, users: np.ndarray | None, clients: int, seed: int, floor: int
    ) -> list[np.ndarray]:
        present, labels = np.unique(labels, return_inverse=True)
        stock = np.bincount(labels, minlength=len(present))
        self._check(present, stock, clients, max(floor, self.k))
        draw = generator(seed, "partition: classes")
        held = self._held(len(present), clients, draw)
        targets = self._targets(len(labels), clients, max(floor, self.k), draw)
        if (scarce := np.flatnonzero(held.sum(0) > stock)).size:
            name = scarce[0]
            raise DataError(
                f"classes(k={self.k}): class {present[name]} has {stock[name]} samples for the "
                f"{held[:, name].sum()} clients that should hold it. Take fewer clients, a smaller k, or more samples."
            )
        counts = fitted(held, targets, stock)
        sizes = counts.sum(1)
        if (short := np.flatnonzero(sizes < floor)).size:
            raise DataError(
                f"classes(k={self.k}, sizes={self.sizes}): {len(short)} of {clients} clients get fewer than {floor} "
                f"samples (client {short[0]}: {sizes[short[0]]}), because their classes are rare. Take fewer clients, "
                f"a greater k or more samples."
            )
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

    def _held(self, classes: int, clients: int, draw: np.random.Generator) -> np.ndarray:
        """(clients, classes) bool: each client takes the k classes with the fewest holders, ties at random."""
        holders = np.zeros(classes)
        held = np.zeros((clients, classes), bool)
        for row in held:
            row[np.argsort(holders + draw.random(classes) / 2)[: self.k]] = True
            holders += row
        return held[draw.permutation(clients)]

    def _targets(self, samples: int, clients: int, floor: int, draw: np.random.Generator) -> np.ndarray:
        """(clients,) wished sizes: the least that a client needs, and a share of the rest."""
        if self.sizes == "power_law":
            shares = (1.0 + draw.permutation(clients)) ** -self.exponent
        elif self.sizes == "log_normal":
            exponents = self.sigma * draw.standard_normal(clients)
            shares = np.exp(exponents - exponents.max())
        else:
            shares = np.ones(clients)
        return np.asarray(floor + (samples - clients * floor) * shares / shares.sum())


def fitted(held: np.ndarray, targets: np.ndarray, stock: np.ndarray) -> np.ndarray:
    """(clients, classes) counts: at least one where held, columns sum to stock, rows near targets.

    Rows and columns are scaled in turn (iterative proportional fitting); the columns have the last word. Whole numbers
    come from rounding the running sum down each column, so no sample is lost.
    """
    spare = (stock - held.sum(0)).astype(float)
    wanted = np.maximum(targets - held.sum(1), 1e-9)
    table = held * wanted[:, None]
    for _ in range(FITTING_STEPS):
        table *= spare / np.maximum(table.sum(0), 1e-300)
        rows = table.sum(1)
        if np.allclose(rows, wanted, rtol=0, atol=0.01):
            break
        table *= (wanted / np.maximum(rows, 1e-300))[:, None]
    table = np.where(held, np.maximum(table, 1e-200), 0)  # no holder has shrunk to nothing
    table *= spare / np.maximum(table.sum(0), 1e-300)
    return held + rounded(table, spare)


def rounded(table: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Whole numbers near `table` with the given column sums; what is left of each column goes to the hungriest rows."""
    whole = np.floor(table).astype(np.int64)
    hunger = (table - whole).sum(1)
    for column in range(table.shape[1]):
        left = round(float(sums[column])) - int(whole[:, column].sum())
        open_rows = np.flatnonzero(table[:, column] > 0)
        if left > 0 and open_rows.size:
            chosen = open_rows[np.argsort(-hunger[open_rows], kind="stable")[:left]]
            whole[chosen, column] += 1
            hunger[chosen] -= 1
    return whole


def grouped(labels: np.ndarray, counts: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
    """Indices per client, `counts` (clients, classes) says how many of each class; which ones is random."""
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # class by class
    clients = np.tile(np.arange(len(counts)), counts.shape[1])
    owner = np.repeat(clients, counts.T.reshape(-1))
    order = order[np.argsort(owner, kind="stable")]
    return np.split(order, np.cumsum(counts.sum(1))[:-1])
