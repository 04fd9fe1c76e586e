"""Who hosts which client, and who has a client's state when its host has died.

Where ranks can outlive others, each keeps a copy of the state of another one's clients in its memory, as bytes, on
another node where there is one; every round that is committed brings it up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .comm import Comm
from .placement import keepers, place
from .states import BLOCK, States, packed

Commit = Callable[[], object]
Rows = Callable[[np.ndarray], np.ndarray]  # clients -> their state, a row of bytes each


class Hosting:
    """Every client's host, the state of those hosted here, and the copies kept here."""

    def __init__(self, work: np.ndarray, comm: Comm, device: torch.device, copies: bool) -> None:
        self.work, self.comm, self.device, self.copies = work, comm, device, copies
        self.everyone = np.arange(len(work))
        self._settle(place(work, comm.workers))

    def _settle(self, home: np.ndarray) -> None:
        """These hosts, with all ranks that are there now."""
        self.home = home  # each client's rank
        self.hosted = np.flatnonzero(home == self.comm.rank)
        self.keeper = keepers(self.comm.nodes)  # who keeps a copy of each rank's clients
        self.names = self.comm.names.copy()  # of the ranks that are there now: names last, ranks do not

    def begin(self, first: Any) -> Commit:
        """Every client in this state; every rank must call."""
        commit = self.restore(States(first, self.hosted, len(self.work), self.device))

        def commit_first() -> None:
            self.first = first
            commit()

        return commit_first

    def blank(self) -> States:
        """Room for the states of the clients hosted here: as they are before training."""
        return States(self.first, self.hosted, len(self.work), self.device)

    def restore(self, states: States) -> Commit:
        """These states of the clients hosted here, and copies of them elsewhere; every rank must call."""
        copy = self._copies(states, self.home)

        def commit() -> None:
            self.states, self.copy = states, copy

        return commit

    def change(self, clients: np.ndarray, hosts: np.ndarray, left_out: np.ndarray, new: Any) -> Commit:
        """A round's new rows, of its clients hosted here, except for those left out; every rank must call, with all
        clients of the round."""
        kept = ~np.isin(clients, left_out)
        here = hosts == self.comm.rank
        mine, mask = clients[here], torch.from_numpy(kept[here])
        come: list[tuple[np.ndarray, np.ndarray]] = []
        if self.copy is not None:
            rows = packed([field[mask.to(field.device)] for field in new], int(mask.sum()))
            fresh = Copy(clients[here & kept], rows)
            some, source = clients[kept], hosts[kept]
            come = list(self._carry(some, source, self.keeper[source], fresh.take, self.states.width))

        def commit() -> None:
            self.states.put(mine, new, mask)
            for ids, rows in come:
                self.copy.put(ids, rows)  # type: ignore[union-attr]

        return commit

    # ------------------------------------------------------------------ when ranks have died

    def rehost(self) -> tuple[Commit, bool]:
        """The dead ranks' clients, and those of a worker that is now the server, at the workers that are left, with
        their state; whether it was to be had, else it is the one before training. Every rank that is left must call."""
        comm = self.comm
        host, keeper = (comm.rank_of(self.names[ranks])[self.home] for ranks in (..., self.keeper))
        source = np.where(host >= 0, host, -1 if self.copy is None else keeper)
        width = self.states.width
        whole = bool((source >= 0).all()) or not width
        home = place(self.work, comm.workers, np.where(np.isin(host, comm.workers), host, -1))
        states = States(self.first, np.flatnonzero(home == comm.rank), len(self.work), self.device)
        if whole and width:
            for clients, rows in self._carry(self.everyone, source, home, self._find, width):
                states.unpack(clients, rows)
        copied = self._copies(states, home)

        def commit() -> None:
            self._settle(home)
            self.states, self.copy = states, copied

        return commit, whole

    def _find(self, clients: np.ndarray) -> np.ndarray:
        """The state of clients, be they hosted or kept as a copy here."""
        rows = np.empty((len(clients), self.states.width), np.uint8)
        own = self.states.row[clients] >= 0
        rows[own] = self.states.pack(clients[own])
        if self.copy is not None:
            rows[~own] = self.copy.take(clients[~own])
        return rows

    # ------------------------------------------------------------------ copies

    def _copies(self, states: States, home: np.ndarray) -> Copy | None:
        """The copies to be kept here, if clients are hosted like this; None where no rank keeps any."""
        if not (self.copies and self.comm.size > 1 and states.width):
            return None
        keeper = keepers(self.comm.nodes)[home]
        mine = np.flatnonzero(keeper == self.comm.rank)
        copy = Copy(mine, np.empty((len(mine), states.width), np.uint8))
        for clients, rows in self._carry(self.everyone, home, keeper, states.pack, states.width):
            copy.put(clients, rows)
        return copy

    def _carry(
        self, clients: np.ndarray, source: np.ndarray, target: np.ndarray, take: Rows, width: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Clients' rows of bytes from rank to rank; (clients, rows) that arrive here. Every rank must iterate."""
        me = self.comm.rank
        step = max(1, BLOCK // width)
        for first in range(0, len(clients), step):
            block = slice(first, first + step)
            some, leave, arrive = clients[block], source[block], target[block]
            send = [torch.from_numpy(take(some[(leave == me) & (arrive == r)])) for r in range(self.comm.size)]
            come = [some[(leave == r) & (arrive == me)] for r in range(self.comm.size)]
            parts = self.comm.exchange(send, [len(ids) * width for ids in come])
            for ids, part in zip(come, parts, strict=True):
                if len(ids):
                    yield ids, part.view(len(ids), width).numpy()


class Copy:
    """Some clients' rows of bytes."""

    def __init__(self, clients: np.ndarray, rows: np.ndarray) -> None:
        self.clients, self.rows = clients, rows  # sorted

    def take(self, clients: np.ndarray) -> np.ndarray:
        return self.rows[np.searchsorted(self.clients, clients)]

    def put(self, clients: np.ndarray, rows: np.ndarray) -> None:
        self.rows[np.searchsorted(self.clients, clients)] = rows
