"""Which rank hosts which client, balanced by expected work.

A client that keeps state lives on one rank for the whole run; clients without state are placed anew each round, among
the sampled ones only (every rank of a node sees all data, so nothing has to move).
"""

from __future__ import annotations

import heapq

import numpy as np


def place(work: np.ndarray, ranks: list[int]) -> np.ndarray:
    """The host of each client: the heaviest first, each to the rank with least work so far."""
    host = np.empty(len(work), dtype=np.int64)
    loads = [(0.0, 0, rank) for rank in ranks]  # work, clients, rank: ties go to the rank with fewer clients
    for client in np.argsort(-work, kind="stable"):
        load, count, rank = heapq.heappop(loads)
        host[client] = rank
        heapq.heappush(loads, (load + float(work[client]), count + 1, rank))
    return host
