"""Which rank hosts which client, balanced by expected work.

A client that keeps state lives on one rank for the whole run; clients without state are placed anew each round, among
the sampled ones only (every rank of a node sees all data, so nothing has to move).
"""

from __future__ import annotations

import heapq

import numpy as np


def place(work: np.ndarray, ranks: list[int], stay: np.ndarray | None = None) -> np.ndarray:
    """The host of each client: the heaviest first, each to the rank with least work so far. Those that have one of the
    ranks in `stay` (-1: none) stay there."""
    host = np.full(len(work), -1, dtype=np.int64) if stay is None else stay.copy()
    loads = [(float(work[host == rank].sum()), int((host == rank).sum()), rank) for rank in ranks]
    heapq.heapify(loads)  # work, clients, rank: ties go to the rank with fewer clients
    for client in np.argsort(-work, kind="stable"):
        if host[client] < 0:
            load, count, rank = heapq.heappop(loads)
            host[client] = rank
            heapq.heappush(loads, (load + float(work[client]), count + 1, rank))
    return host


def keepers(nodes: np.ndarray) -> np.ndarray:
    """Who keeps a copy of each rank's clients, by the node of each rank: every rank for one other, on another node as
    far as there are enough of them."""
    order = np.argsort(nodes, kind="stable")
    largest = int(np.unique(nodes, return_counts=True)[1].max())
    keeper = np.empty_like(order)
    keeper[order] = np.roll(order, -(largest if largest < len(nodes) else 1))
    return keeper
