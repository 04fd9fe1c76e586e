"""How far this rank has come, whether it waits for others, and whether the run is to end.

The work itself keeps it up to date: a look at the clock for every mini-batch and every message.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

LOOK = 0.5  # seconds between looks whether the other ranks are still there
FINE, GOES_ON, WHOLE = 1, 2, 4  # votes on a step: its work is done, nobody wishes the end, nothing of it was skipped
ALL = FINE | GOES_ON | WHOLE


class Skipped(Exception):
    """A part of the work was skipped on some rank, so all of them leave it; raised on all together."""


class Pulse:
    """Of one rank's main thread; other threads may read it."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.look = look  # raises where a rank has died: what is in work is of no use any more
        self.moves = 0  # any change is a sign of life
        self.waiting = False  # for other ranks
        self.phase = "other"
        self.why: str | None = None  # the run is to end
        self.grace = math.inf  # seconds from a signal to the end
        self.round = self.saving = 0.0  # seconds that a round and a checkpoint are expected to take
        self.round_ends = math.inf  # when the round in work is expected to be done
        self.free()
        self._looked = 0.0

    def beat(self) -> bool:
        """A small piece of work lies ahead; whether to do it."""
        self.moves += 1
        now = time.monotonic()
        if now > self._looked + LOOK:
            self._looked = now
            self.look()
        return not self.skipping

    @property
    def skipping(self) -> bool:
        """Whether the work that lies ahead is not done any more."""
        return self.skip or time.monotonic() >= self.latest

    @property
    def latest(self) -> float:
        """When a checkpoint must be begun."""
        return self.deadline - 2 * self.saving

    @property
    def votes(self) -> int:
        """On a step that was just done. If anything of it was skipped, that is so still."""
        if self.why is None and time.monotonic() + self.round > self.latest:
            self.why = self.limit
        return FINE | (GOES_ON if self.why is None else 0) | (0 if self.skipping else WHOLE)

    def end_by(self, minutes: float) -> None:
        """The process is to live so long: a round that does not fit is not begun, one that takes longer is skipped."""
        self.limit, self.deadline = f"the limit of {minutes:g} minutes", time.monotonic() - age() + 60 * minutes

    def free(self) -> None:
        """No deadline holds any more: what is begun now is finished."""
        self.skip, self.deadline, self.limit = False, math.inf, ""

    @contextlib.contextmanager
    def heed_signals(self) -> Iterator[None]:
        """SIGTERM and SIGUSR1 ask for an end: after the round in work, or without it if grace is too short for it."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.why = "a signal"
            self.deadline = min(self.deadline, time.monotonic() + self.grace)
            self.skip = self.round_ends > self.latest < math.inf

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def age() -> float:
    """Seconds since this process began; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:
            began = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, AttributeError):
        return 0.0
