"""The ways vectors take between ranks where they are not summed: by columns, by columns and back, and one by one.

No rank ever holds all vectors: what is in work at a time is a block of coordinates of all clients, or a few models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from .comm import Comm

AREA = 1 << 18  # numbers in a block of coordinates: it stays in a core's cache, also in float64
MODELS = 64 << 20  # bytes of whole models that a rank sends at once, at most and to all


class Routes:
    """Who hosts which of n clients, and how their vectors get elsewhere. A rank's rows are its clients in order."""

    def __init__(self, comm: Comm, hosts: np.ndarray) -> None:
        self.comm = comm
        by_host = np.argsort(hosts, kind="stable")
        self.rows = np.split(by_host, np.searchsorted(hosts[by_host], np.arange(1, comm.size)))
        self.order = np.argsort(by_host)
        self.width = max(64, AREA // max(1, len(hosts)))  # of a block; it must not depend on the number of ranks

    def in_order(self, parts: list[np.ndarray]) -> np.ndarray:
        """The ranks' rows as one array in client order."""
        return np.concatenate(parts)[self.order]

    def count(self, dimension: int) -> int:
        """How many blocks there are."""
        return -(-dimension // self.width)

    def _turns(self, dimension: int) -> Iterator[list[slice]]:
        """The blocks that are in work at the same time, one on each rank (the last ones may be empty)."""
        for start in range(0, dimension, self.width * self.comm.size):
            edges = [min(start + self.width * r, dimension) for r in range(self.comm.size + 1)]
            yield [slice(a, b) for a, b in itertools.pairwise(edges)]

    def _gather(self, theta: Tensor, blocks: list[slice]) -> Tensor:
        """This rank's block of every client (n, width), from everybody's rows."""
        width = blocks[self.comm.rank].stop - blocks[self.comm.rank].start
        parts = self.comm.exchange([theta[:, block] for block in blocks], [len(rows) * width for rows in self.rows])
        return torch.cat(parts).view(len(self.order), width)[torch.from_numpy(self.order)]

    def columns(self, theta: Tensor) -> Iterator[Tensor]:
        """Blocks of coordinates of all clients (n, width); every block is on one rank."""
        for blocks in self._turns(theta.shape[1]):
            block = self._gather(theta, blocks)
            if block.shape[1]:
                yield block

    def through(self, f: Callable[[Tensor], Tensor], theta: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """f applied to blocks of coordinates of all clients, and the result's rows back at their hosts."""
        for blocks in self._turns(theta.shape[1]):
            block = self._gather(theta, blocks)
            new = f(block).to(theta.dtype)
            mine = len(self.rows[self.comm.rank])
            sizes = [mine * (b.stop - b.start) for b in blocks]
            parts = self.comm.exchange([new[torch.from_numpy(rows)] for rows in self.rows], sizes)
            for b, part in zip(blocks, parts, strict=True):
                yield b, part.view(mine, b.stop - b.start)

    def models(self, theta: Tensor, wanted: np.ndarray) -> Iterator[tuple[int, Tensor]]:
        """The wanted clients' vectors one by one, wherever they come from: (place in client order, vector (d))."""
        wishes = np.stack(self.comm.allgather(wanted[None].astype(np.uint8)))[:, 0].astype(bool)  # (ranks, n)
        me, n, d = self.comm.rank, len(self.order), theta.shape[1]
        step = max(1, MODELS // max(1, 4 * d * self.comm.size))
        place = {int(client): row for row, client in enumerate(self.rows[me])}
        for first in range(0, n, step):
            some = np.arange(first, min(first + step, n))
            send = [[place[j] for j in some.tolist() if j in place and wish[j]] for wish in wishes]
            come = [[j for j in rows.tolist() if first <= j < first + step and wanted[j]] for rows in self.rows]
            parts = self.comm.exchange([theta[rows] for rows in send], [len(rows) * d for rows in come])
            for rows, part in zip(come, parts, strict=True):
                yield from zip(rows, part.view(len(rows), d), strict=True)
