"""Which rank hosts which client, balanced by expected work.

A client that keeps state lives on one rank for the whole run; clients without state are placed anew each round, among
the sampled ones only (every rank of a node sees all data, so nothing has to move).
"""

from __future__ import annotations

import numpy as np


def place(work: np.ndarray, ranks: list[int], stay: np.ndarray | None = None) -> np.ndarray:
    """The host of each client: the heaviest first, each to the rank with least work so far, or of equally loaded ones
    to the one with fewer clients. Those that have one of the ranks in `stay` (-1: none) stay there.

    Clients of equal work are placed at once: a rank that has L can take them at L, L + work, L + 2 work ..., and they
    take the least of all ranks' numbers.
    """
    host = np.full(len(work), -1, dtype=np.int64) if stay is None else stay.copy()
    there = host >= 0
    loads = np.bincount(host[there], work[there], max(ranks) + 1)[ranks].astype(np.float64)
    counts = np.bincount(host[there], minlength=max(ranks) + 1)[ranks]
    places = np.arange(len(ranks))
    order = np.argsort(-work, kind="stable")
    order = order[host[order] < 0]
    for alike in np.split(order, np.flatnonzero(np.diff(work[order])) + 1) if len(order) else ():
        each = float(work[alike[0]])
        room = rooms(loads, counts, each, len(alike))
        rank = np.repeat(places, room)
        turn = np.arange(len(rank)) - np.repeat(np.cumsum(room) - room, room)
        first = np.lexsort((rank, counts[rank] + turn, loads[rank] + turn * each))[: len(alike)]
        host[alike] = np.asarray(ranks)[rank[first]]
        taken = np.bincount(rank[first], minlength=len(ranks))
        loads, counts = loads + taken * each, counts + taken
    return host


def rooms(loads: np.ndarray, counts: np.ndarray, each: float, clients: int) -> np.ndarray:
    """No fewer clients of equal work than each rank will get: were all loads levelled, none would be above their mean.
    Clients without work are counted instead, and go to the ranks with least work."""
    if not each:
        each, loads = 1.0, np.where(loads > loads.min(), np.inf, counts)
    there = np.isfinite(loads)
    level = (loads[there].sum() + clients * each) / np.count_nonzero(there)
    room = np.where(there, np.floor(np.maximum(level - loads, 0) / each) + 2, 0)
    return np.minimum(room, clients).astype(np.int64)


def keepers(nodes: np.ndarray) -> np.ndarray:
    """Who keeps a copy of each rank's clients, by the node of each rank: every rank for one other, on another node as
    far as there are enough of them."""
    order = np.argsort(nodes, kind="stable")
    largest = int(np.unique(nodes, return_counts=True)[1].max())
    keeper = np.empty_like(order)
    keeper[order] = np.roll(order, -(largest if largest < len(nodes) else 1))
    return keeper
