"""What workers have to do in a round, by the rules of mpipfl itself: who is drawn, who trains where, and how many steps
that makes when a worker trains `width` clients at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mpipfl import schedule
from mpipfl.cohort import steps_of
from mpipfl.data.sizes import Sized
from mpipfl.feed import SWEEP, bites
from mpipfl.lanes import Lanes
from mpipfl.placement import place

from .common import sizes_of

PLACED = 50_000  # clients that are placed one by one; more of them are level, but for the largest
DRAWS = range(1, 6)  # rounds whose clients are drawn, for the mean


class Network(NamedTuple):
    """A model and its seconds: of each client and cohort, of a cohort's steps as such, and of each row of a step; in
    evaluations, of each sample."""

    name: str
    dimension: int
    batch: int
    width: int  # rows of a cohort
    training: dict[str, float]  # by the names of Load
    sweep: dict[str, float]


class Task(NamedTuple):
    """What is trained: FedAvg, one epoch of SGD, or another method with so many models and so much state."""

    network: Network
    clients: int
    drawn: int
    samples: int  # that a client trains on, on average
    sizes: Sized = Sized()
    tested: float = 0.2  # test samples, as a share of those
    models: int = 1  # at the server (clusters, streams); a client adds to one
    state: int = 0  # vectors that every client keeps
    evaluate_every: int = 5  # 0: never
    checkpoint_every: int = 10
    rounds: int = 100


class Load(NamedTuple):
    """What each worker has to do (workers,)."""

    clients: np.ndarray
    cohorts: np.ndarray  # clients that begin together
    steps: np.ndarray  # of whole matrices
    rows: np.ndarray  # of all those steps; samples, in an evaluation

    def seconds(self, units: dict[str, float]) -> np.ndarray:
        """Σ counts * units (workers,)"""
        return np.asarray(sum(units[name] * count for name, count in self._asdict().items()))


class Clients(NamedTuple):
    """All clients' work."""

    steps: np.ndarray  # of training
    tested: np.ndarray  # samples
    drawn: list[np.ndarray]  # in some rounds


@lru_cache(maxsize=2)
def population(
    clients: int, drawn: int, samples: int, sizes: Sized, tested: float, batch: int, draws: range
) -> Clients:
    """The clients of a task, and of some of its rounds."""
    trained, held = sizes_of(clients, samples, sizes, tested)
    steps = steps_of(min(batch, int(trained.max())), 1, trained)
    rounds = draws if drawn < clients and sizes.sizes != "equal" else draws[:1]
    return Clients(steps, held, [schedule.participants(0, round, clients, drawn / clients) for round in rounds])


def loads(task: Task, workers: int, draws: range = DRAWS) -> tuple[list[Load], Load]:
    """The training of each of some rounds, and an evaluation of all clients."""
    everyone = population(
        task.clients, task.drawn, task.samples, task.sizes, task.tested, task.network.batch, draws
    )  # fmt: skip
    ranks, width = list(range(workers)), task.network.width
    home = place(everyone.steps, ranks) if task.clients <= PLACED else None
    training = []
    for drawn in everyone.drawn:
        steps = everyone.steps[drawn]
        if len(drawn) > PLACED:
            training.append(level(steps, workers, width))
        elif home is not None and (task.state or task.drawn == task.clients):
            training.append(trained(steps, home[drawn], workers, width))
        else:
            training.append(trained(steps, place(steps, ranks), workers, width))
    return training, swept(everyone.tested, home, workers, width)


def trained(steps: np.ndarray, hosts: np.ndarray, workers: int, width: int) -> Load:
    """What `Cohort` makes of training clients with so many steps each: in lanes, where the next takes a finished one's
    place. Those that begin together count as a cohort, and one that is left alone has a twin."""
    load = np.zeros((4, workers))
    order = np.lexsort((-steps, hosts))
    here, first = np.unique(hosts[order], return_index=True)
    for worker, own in zip(here.tolist(), np.split(steps[order], first[1:]), strict=True):
        lanes = Lanes(np.arange(len(own)), own, width)
        alone = lanes.length[0] - (lanes.length[1] if len(lanes.length) > 1 else 0)
        load[:, worker] = len(own), len(np.unique(lanes.begin)), lanes.length[0], own.sum() + alone
    return Load(*load)


def batched(turns: np.ndarray, hosts: np.ndarray, workers: int, width: int) -> Load:
    """What it makes of going through the samples of clients in so many turns each: those of a host in falling order,
    `width` at a time. A cohort goes on until its longest client is done, and one that is left alone has a twin."""
    order = np.lexsort((-turns, hosts))
    turns, hosts = turns[order], hosts[order]
    place_in = np.arange(len(turns)) - np.searchsorted(hosts, hosts)
    first, second = place_in % width == 0, place_in % width == 1
    longest = np.bincount(hosts[first], turns[first], workers)
    alone = longest - np.bincount(hosts[second], turns[second], workers)
    clients, cohorts = (np.bincount(some, minlength=workers) for some in (hosts, hosts[first]))
    return Load(clients, cohorts, longest, np.bincount(hosts, turns, workers) + alone)


def level(steps: np.ndarray, workers: int, width: int) -> Load:
    """The same for very many clients: all workers alike, but for the one that has the largest client, if that one alone
    is more than a fair share."""
    rows, largest = float(steps.sum()), float(steps.max())
    alone = largest * workers > rows and workers > 1
    share = 1 / (workers - alone)
    clients, rest = (len(steps) - alone) * share, (rows - largest * alone) * share
    load = np.full((4, workers), [[clients], [clients / width], [rest / width], [rest]])
    if alone:
        load[:, 0] = 1, 1, largest, 2 * largest
    return Load(*load)


def swept(samples: np.ndarray, home: np.ndarray | None, workers: int, width: int) -> Load:
    """An evaluation of clients with so many samples: in bites of about as many as each has."""
    size = bites(samples, 8, max(1, min(SWEEP, int(samples.max()))))
    turns = -(-samples // size)
    total = Load(*np.zeros((4, workers)))
    for bite in np.unique(size):
        some = size == bite
        one = level(turns[some], workers, width) if home is None else batched(turns[some], home[some], workers, width)
        total = Load(*(a + b for a, b in zip(total, one._replace(rows=bite * one.rows), strict=True)))
    return total
