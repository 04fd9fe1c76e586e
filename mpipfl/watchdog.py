"""Finds ranks that are alive and do nothing: stopped, or stuck in a device or a file system.

Every rank has a thread that shows a sign of life to the others of its node, in memory they share, and looks at theirs;
a process that is stopped shows none. It also looks at its own main thread, which must do something, a mini-batch or a
message, unless it waits for other ranks. Who fails is named and killed: a dead rank is all the rest has to know of.
Every node watches one other node, in a ring; nobody can kill what stands still there, so the job is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .beacons import Beacons
from .comm import Comm
from .progress import Reporter

WORDS = 64  # bytes that say what a rank is doing
FAR = 1 << 32


class Seen(NamedTuple):
    """A sign of life and when it was new."""

    sign: int
    since: float


class Watchdog:
    """The watch over one node's ranks; every rank of the job must make one. Without `seconds` it does nothing."""

    def __init__(self, comm: Comm, report: Reporter, seconds: float, folder: Path) -> None:
        self.comm, self.report, self.seconds = comm, report, seconds
        self.beacons, self.node = Beacons(folder), int(comm.nodes[comm.rank])
        self.interval = min(1.0, seconds / 10)
        self.names = comm.names[comm.node_ranks]
        self.me = comm.local_rank
        self.signs = comm.shared((len(self.names), 2), np.int64)  # a count that goes up, and the process
        self.phases = comm.shared((len(self.names), WORDS), np.uint8)
        self.seen: dict[int, Seen] = {}  # by place here; the own main thread is -1, another node FAR + its number
        self.around = 0.0  # when to look at other nodes again
        watched = seconds > 0 and len(np.unique(comm.nodes)) > 1 and self.beacons.light(self.node)
        self.begun = self.beacons.seen(self.node) if watched else None
        self._end = threading.Event()

    def __enter__(self) -> None:
        if self.seconds:
            self.signs[self.me, 1] = os.getpid()
            if self.begun is not None:
                self.beacons.light(self.node)  # all ranks of the job have begun by now: later than any of them
            threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self.begun is not None:
            self.beacons.put_out(self.node)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._end.wait(self.interval):
            now = time.monotonic()
            if now - before > 5 * self.interval + 1:
                self.seen.clear()  # this process was stopped, and maybe the others with it
            before = now
            self.look(now)

    def look(self, now: float) -> None:
        """Show a sign of life, and end whoever has shown none for too long."""
        self.signs[self.me, 0] += 1
        phase = self.comm.pulse.phase.encode()[:WORDS]
        self.phases[self.me] = np.frombuffer(phase.ljust(WORDS), np.uint8)
        waiting = self.comm.pulse.waiting  # asked before: when it ends, there is a move first
        idle = self._since(-1, self.comm.pulse.moves, now)
        if idle >= self.seconds and not waiting:
            self._kill(self.me, f"its main thread has done nothing for {idle:.0f} s")
        silent = {place: self._since(place, int(self.signs[place, 0]), now) for place in self._others()}
        found = [place for place, since in silent.items() if since >= self.seconds]
        if min([self.me, *(place for place in silent if place not in found)]) == self.me:  # one is enough
            for place in found:
                self._kill(place, f"it has shown no sign of life for {silent[place]:.0f} s")
            if now >= self.around:
                self.around = now + self.seconds / 20
                self.look_around(now)

    def look_around(self, now: float) -> None:
        """For this node: show that it is there, and end the job if the next node has not for too long."""
        nodes = np.unique(self.comm.nodes)
        following = int(nodes[(np.searchsorted(nodes, self.node) + 1) % len(nodes)])
        if following == self.node or self.begun is None:
            return
        shown, sign, key = self.beacons.light(self.node), self.beacons.seen(following), FAR + following
        if not shown or sign is None or sign < self.begun:  # the file system fails; the file is an earlier job's
            self.seen.pop(key, None)
        elif (since := self._since(key, sign, now)) >= self.seconds:
            self._give_up(following, since)

    def _others(self) -> list[int]:
        """The places on this node of the other ranks that are there."""
        there = np.isin(self.names, self.comm.names) & (self.signs[:, 1] > 0)
        return [int(place) for place in np.flatnonzero(there) if place != self.me]

    def _since(self, place: int, sign: int, now: float) -> float:
        """For how long a sign of life has been the same."""
        last = self.seen.get(place)
        if last is None or last.sign != sign:
            self.seen[place] = last = Seen(sign, now)
        return now - last.since

    def _kill(self, place: int, what: str) -> None:
        """Say it and do it."""
        process = int(self.signs[place, 1])
        self.seen.pop(place, None)  # not again at once
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return  # it has died
        name, phase = int(self.names[place]), bytes(self.phases[place]).decode().strip()
        self._say(f"rank {name} on {self.comm.hosts[name]} is stuck in {phase}: {what}; it counts as dead")
        os.kill(process, signal.SIGKILL)
        if not self.comm.survives:
            time.sleep(3)  # mpirun ends the job by now
            os._exit(1)

    def _give_up(self, node: int, since: float) -> None:
        """End the job: nothing on this node can end what stands still on another one."""
        names = self.comm.names[self.comm.nodes == node].tolist()
        what = f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(map(str, names))} on {self.comm.hosts[node]}"
        self._say(f"{what}: no sign of life from this node for {since:.0f} s; the job ends, --resume goes on")
        if self.comm.survives:
            os.kill(os.getppid(), signal.SIGTERM)  # the launcher's daemon: the others would take this rank's death
        os.kill(os.getpid(), signal.SIGKILL)

    def _say(self, text: str) -> None:
        print(f"mpipfl: {text}", file=sys.stderr, flush=True)
        if self.report.log:
            with contextlib.suppress(OSError), open(self.report.log, "a", encoding="utf-8") as log:
                log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")
