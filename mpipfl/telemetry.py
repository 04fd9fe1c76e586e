"""Where time, memory and bytes go on this rank, and how the ranks compare.

Phases do not overlap: a phase inside another one takes its time out of it. Waiting for other ranks counts as the phase
of the collective that waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psutil

from .comm import Comm

PHASES = ("broadcast", "train", "reduce", "server", "evaluate", "checkpoint", "other")


class Telemetry:
    """Seconds per phase, by this clock, samples trained, and peak memory of one rank."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.samples, self.steps = 0, 0
        self._open: list[str] = ["other"]
        self._since = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = self.clock()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def peak_memory(self) -> float:
        """This rank's greatest resident memory so far, in MB."""
        memory = psutil.Process().memory_info()
        return float(getattr(memory, "peak_wset", 0) or peak_resident() or memory.rss) / 1e6

    def summary(self, comm: Comm) -> dict[str, object] | None:
        """The ranks' figures side by side, on rank 0."""
        self._turn()
        mine = np.array([[*self.seconds.values(), self.peak_memory(), comm.bytes, self.samples, self.steps]])
        rows = comm.gather(mine)
        if rows is None:
            return None
        table = np.concatenate(rows)
        phases = {
            name: {"min": float(column.min()), "mean": float(column.mean()), "max": float(column.max())}
            for name, column in zip(PHASES, table[:, : len(PHASES)].T, strict=True)
        }
        memory, moved, samples, steps = table[:, len(PHASES) :].T
        return {
            "phases_seconds": phases,
            "peak_memory_mb": [round(float(m), 1) for m in memory],
            "bytes_per_rank": [int(b) for b in moved],
            "samples": int(samples.sum()),
            "client_steps": int(steps.sum()),
        }


def peak_resident() -> int:
    """The kernel's high-water mark in bytes; 0 where it is not told."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):
        return 0
