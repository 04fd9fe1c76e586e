"""Steps that outlive a rank: done and committed by all, or undone and repeated by those that are left.

A step is a function of the run's state that changes nothing, and gives a function that does. After it every rank votes
(MPI's Agree, which works among the living whatever has happened before): if all are alive and done, all commit. Else
the dead are left behind, their clients go to others, and the step is done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import numpy as np

from .comm import Comm, Lost
from .hosting import Commit
from .progress import Reporter
from .pulse import ALL, FINE, GOES_ON, WHOLE, Skipped

T = TypeVar("T")
Rehost = Callable[[], tuple[Commit, bool]]  # whether no client's state is gone
ALARMS = 3  # failures in a row without a dead rank: then it is an error of another kind


class Gone(Exception):
    """The state of some clients died with all ranks that had it; raised on all ranks together."""


class Survival:
    """The steps of a run, and the deaths it has outlived."""

    def __init__(self, comm: Comm, report: Reporter, mode: str) -> None:
        self.comm, self.report = comm, report
        self.goes_on = comm.survives and mode == "auto"
        self.round = 0  # that a step is a part of
        self.deaths: list[dict[str, Any]] = []
        self.ending = False  # some rank wishes the end of the run
        self._steps = 0  # that were done
        self._votes = 0  # on the last one
        self._made: Callable[[], object] | None = None
        self._alarms = 0
        self._trouble: Lost | None = None

    def step(
        self, round: int, name: str, work: Callable[[], Commit], rehost: Callable[[], tuple[Commit, bool]]
    ) -> bool:
        """Do a step on all ranks that are left and commit it; whether nothing of it was skipped (else it counts for
        nothing). Raises Gone if too many have died."""
        self.round = round
        self.comm.pulse.phase = f"round {round} ({name})"
        number = self._steps + 1
        while self._steps < number:
            self._made, votes = self._attempt(work)
            if votes & FINE:
                self._commit(votes)
            else:
                self._recover(round, name, rehost)
        return bool(self._votes & WHOLE)

    def _commit(self, votes: int) -> None:
        self._steps, self._votes, self._alarms = self._steps + 1, votes, 0
        self.ending |= not votes & GOES_ON
        if votes & WHOLE and self._made is not None:
            self._made()

    def nothing(self) -> tuple[Commit, bool]:
        """What there is to rehost before clients have hosts."""
        return lambda: None, True

    def _attempt(self, work: Callable[[], T]) -> tuple[T | None, int]:
        """What some work gives, and everybody's votes on it: none where a rank has died."""
        made: T | None = None
        try:
            try:
                made, votes = work(), self.comm.pulse.votes
            except Skipped:
                votes = self.comm.pulse.votes & ~WHOLE
            except Lost as error:
                if not self.goes_on:
                    raise
                self.comm.revoke()
                self._trouble, votes = error, 0
            return made, self.comm.agree(votes)
        except Lost as error:
            if not self.goes_on:
                raise
            self._trouble = error
            return made, 0

    def _recover(self, round: int, name: str, rehost: Rehost) -> None:
        """Leave the dead behind, also those who die on the way."""
        begin, at, server = time.perf_counter(), datetime.now(), int(self.comm.names[0])
        dead: list[int] = []
        while True:
            self.comm.revoke()  # some may have heard of no death and gone on
            found = self.comm.shrink()
            dead += found
            self._alarms = 0 if found else self._alarms + 1
            if self._alarms == ALARMS:
                raise RuntimeError(f"MPI fails although no rank has died: {self._trouble}")
            made, votes = self._attempt(lambda: self._caught_up(rehost))
            if made is not None and votes & FINE:
                break
        commit, whole = made
        commit()
        self.report.speaks = self.comm.is_server
        seconds = time.perf_counter() - begin
        self._say(round, name, dead, server, seconds, whole)
        for rank in dead:
            self.deaths.append({
                "rank": rank, "host": self.comm.hosts[rank], "round": round, "step": name,
                "time": f"{at:%Y-%m-%d %H:%M:%S}", "recovery_seconds": seconds, "went_back": not whole,
            })  # fmt: skip
        if not whole:
            raise Gone

    def _caught_up(self, rehost: Rehost) -> tuple[Commit, bool]:
        """The new hosts, when all have done the same steps: some may have got everybody's votes on the last one, others
        instead the news of a death that came later."""
        furthest = np.array([self._steps * (ALL + 1) + self._votes])
        self.comm.allreduce(furthest, "max")
        steps, votes = divmod(int(furthest[0]), ALL + 1)
        if self._steps < steps:
            self._commit(votes)
        return rehost()

    def _say(self, round: int, name: str, dead: list[int], server: int, seconds: float, whole: bool) -> None:
        if not dead:
            return
        who = ", ".join(f"rank {rank} on {self.comm.hosts[rank]}" for rank in dead)
        text = f"{who} died in round {round} ({name}); the other {self.comm.size} go on after {seconds:.2f} s"
        if server in dead:
            text += f"; rank {self.comm.name} is the server now"
        if not whole:
            text += "; no rank is left that has the state of all clients, so the run goes back to its newest checkpoint"
        self.report.say(text)
