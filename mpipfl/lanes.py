"""Clients with different numbers of steps in the lanes of one matrix: when one is done, the next takes its lane.

A lane is a row of the matrix. Clients are seated with most steps first, each in the lane that is free first, so that
the last ones to finish finish together, as far as the longest allows. Lanes are numbered by their length, the longest
first: those at work are always the first rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .descent import Step

WAVE = 1 << 22  # samples whose places are worked out in advance


class Seats(NamedTuple):
    """Clients that take lanes, or leave them."""

    lanes: np.ndarray  # rising
    rows: np.ndarray  # of the cohort


class Leg(NamedTuple):
    """One step of the matrix."""

    begun: Seats | None  # who takes a lane before it
    rows: np.ndarray  # the cohort's row in each lane at work, two at least: a lonely client is its own company
    number: np.ndarray  # which of its own steps this is for each of them
    steps: tuple[Step, ...]  # a batch of each plan
    ended: Seats | None  # who leaves after it


class Lanes:
    """Who is in which lane from when to when."""

    def __init__(self, rows: np.ndarray, steps: np.ndarray, width: int) -> None:
        """The rows, with so many steps each (falling, none zero), in at most so many lanes. Half of these will do if
        the others fill them while the longest is at work: a wider matrix would be done no earlier, and leave it
        alone."""
        self.rows, self.steps = rows, steps
        lane, self.begin = np.empty_like(rows), np.empty_like(rows)
        needed = max(2, width // 2, -(-int(steps.sum()) // int(steps[0])))
        free = [(0, lane) for lane in range(min(width, needed, len(rows)))]  # since when, which: a heap
        for client, wanted in enumerate(steps.tolist()):
            self.begin[client], lane[client] = since, which = free[0]
            heapq.heapreplace(free, (since + wanted, which))
        order = sorted(free, key=lambda end: (-end[0], end[1]))
        self.length = np.array([length for length, _ in order])
        number = np.empty_like(self.length)
        number[[which for _, which in order]] = np.arange(len(order))
        self.lane = number[lane]

    def spread(self, index: np.ndarray, clients: np.ndarray, out: np.ndarray) -> None:
        """Write what these of the clients need in each of their steps (n, steps, ...) where it belongs in the time of
        the lanes (lanes, steps, ...)."""
        for client, values in zip(clients.tolist(), index, strict=True):
            begin, steps = self.begin[client], self.steps[client]
            out[self.lane[client], begin : begin + steps] = values[:steps]

    def legs(self, *feeds: Iterator[Step]) -> Iterator[Leg]:
        """The steps of the matrix, with the batches for each."""
        begins, ends = self.seats(self.begin), self.seats(self.begin + self.steps)
        row, since = np.empty_like(self.length), np.empty_like(self.length)
        for now, steps in enumerate(zip(*feeds, strict=False)):
            begun = begins.get(now)
            if begun is not None:
                row[begun.lanes], since[begun.lanes] = begun.rows, now
            active = steps[0].active
            rows, number = row[:active].copy(), now - since[:active]
            if active == 1:
                rows, number = rows.repeat(2), number.repeat(2)
            yield Leg(begun, rows, number, steps, ends.get(now + 1))

    def seats(self, times: np.ndarray) -> dict[int, Seats]:
        """Who has each of these times."""
        order = np.lexsort((self.lane, times))
        values, first = np.unique(times[order], return_index=True)
        parts = (np.split(what[order], first[1:]) for what in (self.lane, self.rows))
        return dict(zip(values.tolist(), map(Seats, *parts), strict=True))


def waves(steps: Sequence[int] | np.ndarray, width: int, batch: int) -> Iterator[slice]:
    """Clients (with falling numbers of steps) that are seated at once: a lane's worth at least, and no more than
    WAVE samples."""
    ends = np.cumsum(steps) * batch
    first = 0
    while first < len(steps):
        before = ends[first - 1] if first else 0
        last = max(first + width, int(np.searchsorted(ends, before + WAVE, side="right")))
        yield slice(first, last)
        first = last
