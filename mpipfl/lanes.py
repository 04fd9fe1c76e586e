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
        """The rows, with so many steps each (falling, none zero), in at most so many lanes, as many as cost least."""
        self.rows, self.steps = rows, steps
        self.begin, lane, ends = min((seated(steps, lanes) for lanes in numbers(steps, width)), key=cost)
        order = np.argsort(-ends, kind="stable")
        self.length = ends[order]
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
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


class Seating(NamedTuple):
    begin: np.ndarray  # of each client
    lane: np.ndarray
    ends: np.ndarray  # of each lane


def numbers(steps: np.ndarray, width: int) -> list[int]:
    """How many lanes may be best. Only where a client outlasts the others in as many as there can be, fewer may: the
    others keep it company for longer then, which costs nothing as long as they end no later."""
    most = min(width, len(steps))
    fewer = [2**power for power in range(most.bit_length() - 1, 0, -1) if 2**power < most]
    return [most, *fewer] if steps[0] * most > steps.sum() else [most]


def cost(seating: Seating) -> int:
    """What seatings differ by, in rows of a step: for the client that is left alone at the end a twin; steps of the
    matrix, each about as much as a row more, and moments at which somebody sits down, as much as two."""
    last, *others = sorted(seating.ends.tolist(), reverse=True)
    alone = last - (others[0] if others else 0)
    return int(alone + last + 2 * len(np.unique(seating.begin)))


def seated(steps: np.ndarray, lanes: int) -> Seating:
    """The longest first, each in the lane that is free first."""
    begin, lane = np.empty_like(steps), np.empty_like(steps)
    free = [(0, lane) for lane in range(lanes)]  # since when, which: a heap
    for client, wanted in enumerate(steps.tolist()):
        begin[client], lane[client] = since, which = free[0]
        heapq.heapreplace(free, (since + wanted, which))
    return Seating(begin, lane, np.array([end for end, _ in sorted(free, key=lambda one: one[1])]))


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
