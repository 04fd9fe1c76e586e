"""Who hosts which client, and who has a client's state when its host has died.

Where ranks can outlive others, each keeps a copy of the state of another one's clients in its memory, as bytes, on
another node where there is one; every round that is committed brings it up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from .comm import Comm
from .placement import keepers, place
from .states import BLOCK, States, packed

Commit = Callable[[], object]
Rows = Callable[[np.ndarray], np.ndarray]  # clients -> their state, a row of bytes each


class Packed(NamedTuple):
    """A client's state as bytes."""

    row: torch.Tensor


class Hosting:
    """Every client's host, the state of those hosted here, and the copies kept here."""

    def __init__(
        self, work: np.ndarray, comm: Comm, device: torch.device, copies: bool, budget: float | None = None
    ) -> None:
        self.work, self.comm, self.device, self.copies, self.budget = work, comm, device, copies, budget
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
        return self.restore(States(first, self.hosted, len(self.work), self.device, self.budget))

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
            fresh, rows = mine[kept[here]], packed([field[mask.to(field.device)] for field in new], int(mask.sum()))
            some, source = clients[kept], hosts[kept]
            come = list(
                self._carry(
                    some, source, self.keeper[source], lambda ids: rows[np.searchsorted(fresh, ids)], self.states.width
                )
            )

        def commit() -> None:
            self.states.active[clients[kept]] = True
            self.states.put(mine, new, mask)
            for ids, rows in come:
                self.copy.unpack(ids, rows)  # type: ignore[union-attr]

        return commit

    # ------------------------------------------------------------------ when ranks have died

    def rehost(self) -> tuple[Commit, bool]:
        """The dead ranks' clients, and those of a worker that is now the server, at the workers that are left, with
        their state; whether it was to be had, else it is the one before training. Every rank that is left must call."""
        comm = self.comm
        host, keeper = (comm.rank_of(self.names[ranks])[self.home] for ranks in (..., self.keeper))
        source = np.where(host >= 0, host, -1 if self.copy is None else keeper)
        width, active = self.states.width, np.flatnonzero(self.states.active)
        whole = bool((source[active] >= 0).all()) or not width
        home = place(self.work, comm.workers, np.where(np.isin(host, comm.workers), host, -1))
        states = self.states.anew(np.flatnonzero(home == comm.rank))
        if whole:
            states.active[active] = True
        if whole and width:
            for clients, rows in self._carry(active, source[active], home[active], self._find, width):
                states.unpack(clients, rows)
        copied = self._copies(states, home)

        def commit() -> None:
            self._settle(home)
            self.states, self.copy = states, copied

        return commit, whole

    def _find(self, clients: np.ndarray) -> np.ndarray:
        """The state of active clients, be they hosted or kept as a copy here."""
        rows = np.empty((len(clients), self.states.width), np.uint8)
        own = self.states.row[clients] >= 0
        rows[own] = self.states.pack(clients[own])
        if self.copy is not None:
            rows[~own] = self.copy.pack(clients[~own])
        return rows

    # ------------------------------------------------------------------ copies

    def _copies(self, states: States, home: np.ndarray) -> States | None:
        """The copies to be kept here, if clients are hosted like this; None where no rank keeps any."""
        if not (self.copies and self.comm.size > 1 and states.width):
            return None
        keeper = keepers(self.comm.nodes)[home]
        first = Packed(torch.zeros(states.width, dtype=torch.uint8))  # of no use: only what was active is asked for
        mine = np.flatnonzero(keeper == self.comm.rank)
        copy = States(first, mine, states.clients, torch.device("cpu"), self.budget)
        active = np.flatnonzero(states.active)
        for clients, rows in self._carry(active, home[active], keeper[active], states.pack, states.width):
            copy.unpack(clients, rows)
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
