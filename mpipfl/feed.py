"""The batches of a cohort's clients, step after step: all samples of a part once (`sweep`), or random mini-batches for
training, in lanes (`relay`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from . import schedule
from .descent import Step
from .lanes import Lanes, Leg, waves

if TYPE_CHECKING:
    from .cohort import Cohort

SWEEP = 128  # samples at a time where a whole part of the data is gone through
AHEAD = 1 << 20  # numbers laid out in advance for the coming steps

Plan = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]  # rows -> samples, how many, their weight
Sweep = Callable[[np.ndarray, Iterator[Step]], None]  # (rows, their steps)
Relay = Callable[[Iterator[Leg]], None]


def sweep(cohort: Cohort, run: Sweep, part: str, chosen: Sequence[np.ndarray] | None = None) -> None:
    """Once through a part of every client's data, or the chosen places of it, each sample with weight one: in
    bites of SWEEP, or for clients with less in a single one that is not much too large."""
    start, samples = cohort.store.part(part, cohort.clients)
    if chosen is not None:
        samples = np.array([len(places) for places in chosen], dtype=np.int64)
    sizes = bites(samples, 8, max(1, min(SWEEP, cohort.store.longest(part))))

    def plan(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        size = int(sizes[rows[0]])
        count = np.clip(samples[rows, None] - np.arange(-(-samples[rows].max() // size)) * size, 0, size)
        index = np.arange(count.shape[1] * size).reshape(1, -1, size) + np.zeros((len(rows), 1, 1), dtype=np.int64)
        if chosen is not None:
            index = padded([chosen[row] for row in rows], index.shape[1] * size).reshape(index.shape)
        index[np.arange(size) >= count[..., None]] = 0
        return index + start[rows, None, None], count, np.ones(count.shape)

    for size in np.unique(sizes):
        among = np.flatnonzero(sizes == size)
        steps = -(-samples[among] // size)
        order = np.argsort(-steps, kind="stable")
        for first in range(0, len(order), cohort.width):
            some = order[first : first + cohort.width]
            rows = among[some]
            with _named(cohort, rows):
                run(rows, _steps(cohort, steps[some], *plan(rows)))


def relay(cohort: Cohort, run: Relay, steps: np.ndarray, batch: int | None, streams: Sequence[str]) -> None:
    """Train all clients with steps to make, in as many lanes as the matrix is wide, on mini-batches of each stream."""
    sizes = _sizes(cohort, batch)
    plans = [_batches(cohort, steps, stream, sizes) for stream in streams]
    for size in np.unique(sizes):
        among = np.flatnonzero((sizes == size) & (steps > 0))
        order = among[np.argsort(-steps[among], kind="stable")]
        width = min(cohort.width, max(2, cohort.width * cohort.train.batch // int(size)))  # as much data at a time
        for wave in waves(steps[order], width, int(size)):
            rows = order[wave]
            lanes = Lanes(rows, steps[rows], width)
            laid = (_laid_out(lanes, plan, cohort.width) for plan in plans)
            with _named(cohort, rows):
                run(lanes.legs(*(_steps(cohort, lanes.length, *values) for values in laid)))


def _sizes(cohort: Cohort, batch: int | None) -> np.ndarray:
    """To how many samples each client's mini-batches are filled up: to all of a batch, but where that is a large
    one (all samples of the largest client, say) not to far more than the client has."""
    samples = cohort.store.part("train", cohort.clients)[1]
    return bites(samples, SWEEP, min(batch or cohort.train.batch, cohort.store.longest("train")))


def _batches(cohort: Cohort, steps: np.ndarray, stream: str, sizes: np.ndarray) -> Plan:
    """The random mini-batches of training, for rows of one size of batch."""
    start, samples = cohort.store.part("train", cohort.clients)

    def plan(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        index, count = schedule.batches(
            cohort.seed, stream, cohort.round, cohort.clients[rows], samples[rows], steps[rows], int(sizes[rows[0]])
        )
        cohort.tally.steps += int(steps[rows].sum())
        cohort.tally.samples += int(count.sum())
        total = 1.0 if cohort.train.loss == "mean" else samples[rows, None]
        return index + start[rows, None, None], count, total / np.maximum(count, 1)

    return plan


def _laid_out(lanes: Lanes, plan: Plan, width: int) -> tuple[np.ndarray, ...]:
    """What a plan says of the clients (n, steps, ...), in the time of the lanes (lanes, steps, ...)."""
    out: list[np.ndarray] = []
    for first in range(0, len(lanes.rows), width):  # alike, as they are sorted: little is filled up
        clients = np.arange(first, min(first + width, len(lanes.rows)))
        values = plan(lanes.rows[clients])
        if not out:
            shape = len(lanes.length), int(lanes.length[0])
            out = [np.zeros((*shape, *value.shape[2:]), value.dtype) for value in values]
        for value, whole in zip(values, out, strict=True):
            lanes.spread(value, clients, whole)
    return tuple(out)


@contextlib.contextmanager
def _named(cohort: Cohort, rows: np.ndarray) -> Iterator[None]:
    """An error says whose it may be: they are named in the one message."""
    try:
        yield
    except Exception as error:
        error.clients = cohort.clients[rows].tolist()  # type: ignore[attr-defined]
        raise


def _steps(
    cohort: Cohort, steps: np.ndarray, index: np.ndarray, count: np.ndarray, weight: np.ndarray
) -> Iterator[Step]:
    """The batches of every step, laid out a few steps ahead; `steps` falls, so the active rows are the first."""
    numbers = index.shape[2] * max(1, int(np.prod(cohort.model.shape)))
    weights = np.where(np.arange(index.shape[2]) < count[..., None], weight[..., None], 0.0).astype(np.float32)
    begin = 0
    while begin < (steps[0] if len(steps) else 0):
        active = int(np.searchsorted(-steps, -begin, side="left"))  # rows with steps > begin
        end = min(int(steps[active - 1]), begin + max(1, AHEAD // (active * numbers)))
        rows = np.resize(np.arange(active), max(2, active))
        chosen = torch.from_numpy(np.ascontiguousarray(index[rows, begin:end].swapaxes(0, 1)))  # (S, rows, B)
        where = chosen.flatten().to(cohort.device)
        x = cohort.model.arrange(cohort.store.inputs(where).view(*chosen.shape, *cohort.model.shape))
        y = cohort.store.y.index_select(0, where).view(chosen.shape)
        heard = None if cohort.store.said is None else cohort.store.said[where].unflatten(0, chosen.shape)
        w = torch.from_numpy(np.ascontiguousarray(weights[rows, begin:end].swapaxes(0, 1))).to(cohort.device)
        for s in range(end - begin):
            if not cohort.beat():
                return
            yield Step(active, x[s], y[s], w[s], None if heard is None else heard[s])
        begin = end


def bites(samples: np.ndarray, least: int, most: int) -> np.ndarray:
    """How many samples at a time are taken of a client with so many: the power of two that holds them all, from the
    least to the most. By the client alone, as the last bits may depend on it."""
    power = 1 << np.ceil(np.log2(np.maximum(samples, least))).astype(np.int64)
    return np.minimum(power, most)


def padded(rows: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Arrays of places as one matrix, filled up with zeros."""
    out = np.zeros((len(rows), width), dtype=np.int64)
    for row, places in zip(out, rows, strict=True):
        row[: len(places)] = places
    return out
