"""The partition with a minority: half of the clients know a few classes well, the others mostly something else."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from mpipfl.data.keyed import generator
from mpipfl.data.samples import Pool
from mpipfl.data.table import grouped
from mpipfl.errors import DataError
from mpipfl.section import Number, Section


class Minority(Section):
    """Half of the clients share the first half of the classes, the others have mostly one of the second half each.

    The PersFL paper's split DS-4. Clients 0, 1, ... of the first half hold k samples of each class in the first half
    of the classes; each of the others k / 2 of one of those and 2 k of one class in the second half, dealt out in turn.
    What nobody holds is not used.
    """

    kind: Literal["minority"] = "minority"
    k: Annotated[int, Number] = Field(
        default=68, ge=2, description="Samples of a class; the paper's are 68 on CIFAR-10, 196 on MNIST."
    )

    def divide(self, pool: Pool, clients: int, seed: int, floor: int) -> list[np.ndarray]:
        present, labels = np.unique(pool.labels, return_inverse=True)
        if clients < 2 or len(present) < 2:
            raise DataError(
                f"minority: {clients} client(s) and {len(present)} class(es) have no halves; take two or more of each."
            )
        draw = generator(seed, "partition: minority")
        counts = self._counts(clients, len(present), draw)
        stock = np.bincount(labels, minlength=len(present))
        if (scarce := np.flatnonzero(counts.sum(0) > stock)).size:
            rare = scarce[0]
            most = int((self.k * stock / np.maximum(counts.sum(0), 1)).min())
            raise DataError(
                f"minority(k={self.k}): class {present[rare]} has {stock[rare]} samples, and {clients} clients need "
                f"{counts[:, rare].sum()}. Take k of at most {most}, fewer clients or more samples."
            )
        return grouped(labels, counts, draw)

    def _counts(self, clients: int, classes: int, draw: np.random.Generator) -> np.ndarray:
        """(clients, classes): the majority first."""
        majority, first = (clients + 1) // 2, (classes + 1) // 2
        counts = np.zeros((clients, classes), np.int64)
        counts[:majority, :first] = self.k
        others = np.arange(majority, clients)
        common, own = draw.permutation(first), first + draw.permutation(classes - first)
        counts[others, common[np.arange(len(others)) % len(common)]] = self.k // 2
        counts[others, own[np.arange(len(others)) % len(own)]] = 2 * self.k
        return counts
