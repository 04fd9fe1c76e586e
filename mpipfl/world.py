"""What a run works on: the divided data on every node, the network, and this rank's device."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from . import schedule
from .algorithms import Algorithm, Facts
from .cohort import Cohort, steps_of
from .comm import Comm, choose_device
from .config import Config
from .data.federated import divide, fill, made
from .data.partition import Partition
from .data.samples import MadeSamples, Samples
from .errors import ConfigError
from .evaluate import TOGETHER
from .feed import SWEEP
from .models import Batched, build
from .newcomers import Newcomers, Origin
from .slices import WORK
from .store import Store

WIDTHS = (2, 4, 8, 16, 32)
TRIALS = 3  # of each width
STEPS = 4  # of a trial: with fewer, what is done once for a cohort would speak for wide ones
WORTH = 0.97  # of a narrower cohort's time is what a wider one may take
TRIAL = 1.0  # seconds of trials after which no wider cohort is tried; what comes before them (imports) is not counted
CACHED = 1 << 23  # numbers of the rows of a cohort that is as wide as is fastest, about
KNOWN = 110  # bytes that every rank has of each client, be it ever drawn or not: its sizes, group, work and host


class Plan(NamedTuple):
    """Everything that can be known before memory is taken: the same on every rank."""

    samples: Samples
    partition: Partition
    model: Batched
    theta: torch.Tensor  # (d) the initial weights; what training begins with, where there is no warm start
    work: np.ndarray  # (M) training samples a round costs each client, with batches filled up
    method: Algorithm  # the configuration's, or what of it is for newcomers


def plan(config: Config) -> Plan:
    """Open the data, divide it, build the network. Raises the user's mistakes."""
    method: Algorithm = config.algorithm
    if config.newcomers is None:
        samples = config.data.open(config.seed)
        partition = divide(config.data, samples, config.seed)
        samples = samples.fitted(partition.training)
    else:
        origin = Origin(config.newcomers.run)
        origin.admit(config)
        samples, partition = origin.divide(config)
        method = Newcomers.of(config, origin)
    model = network(config, samples)
    if config.algorithm.needs_head and not model.head:
        raise ConfigError(
            f"algorithm.kind={config.algorithm.kind} needs a network with a linear layer, whose last one is its head; "
            f"model.kind={config.model.kind} has none that is trained: take another network, or a method without heads"
        )
    return Plan(samples, partition, model, model.initial(), work_of(config, partition.n_train), method)


def facts(config: Config, plan: Plan) -> Facts:
    """What a method may know before the first round."""

    def start(number: int) -> torch.Tensor:
        return network(config, plan.samples, number).initial() if number else plan.theta

    groups = int(plan.partition.group.max()) + 1
    samples = torch.from_numpy(plan.partition.n_train.astype(np.float64))
    return Facts(plan.partition.clients, groups, samples, start, plan.model.divide)


def network(config: Config, samples: Samples, number: int = 0) -> Batched:
    """The network with its initial weights; other numbers give other weights."""
    seed = config.seed if number == 0 else int(schedule.key(config.seed, "start", number))
    built = build(config.model, samples.shape, samples.classes, seed, samples.vocabulary)
    return Batched(built, samples.shape, getattr(torch, config.train.precision))


def work_of(config: Config, n_train: np.ndarray) -> np.ndarray:
    size = min(config.train.batch, int(n_train.max()))
    steps = config.train.steps
    return (steps_of(size, config.train.epochs, n_train) if steps is None else np.full(len(n_train), steps)) * size


def store(plan: Plan, comm: Comm, device: torch.device) -> Store:
    """All clients' samples, ready for the network, once per node: its ranks fill them in together. Those that clients
    make themselves are made when they are needed."""
    samples, partition = plan.samples, plan.partition
    if isinstance(samples, MadeSamples):
        nothing = torch.empty(0, *samples.shape, device=device), torch.empty(0, dtype=torch.int64, device=device)
        return Store(*nothing, partition.bounds, partition.group, make=partial(made, samples, partition))
    place, stored = partition.places
    x = comm.shared((len(stored), *samples.shape), np.float32)
    y = comm.shared((partition.samples,), np.int64)
    mine = np.array_split(np.arange(partition.clients), comm.local_size)[comm.local_rank]
    fill(samples, partition, mine, x, y)
    if len(mine) and samples.dtype == np.uint8:
        rows = x[slice(*np.searchsorted(stored, partition.bounds[[mine[0], mine[-1]], [0, 3]]))]
        mean, std = (
            np.reshape(np.asarray(v, np.float32), (-1, *[1] * (rows.ndim - 2))) for v in (samples.mean, samples.std)
        )
        rows *= (1 / (255 * std)).astype(np.float32)
        rows -= (mean / std).astype(np.float32)
    comm.barrier()
    shared = torch.from_numpy(place).to(device) if len(stored) < len(place) else None
    return Store(
        torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), partition.bounds, partition.group, shared
    )


def device(config: Config, comm: Comm) -> torch.device:
    """This rank's device."""
    gpus = torch.cuda.device_count() if config.device != "cpu" and torch.cuda.is_available() else 0
    return torch.device(choose_device(config.device, comm.worker_on_node(), gpus))


def width(config: Config, store: Store, model: Batched, theta: torch.Tensor) -> int:
    """How many clients to train as one batch: the fastest of a few, by short trials on this rank. Too few leave the
    processor waiting between operations, too many fall out of its cache; the results are the same bits. On a CPU what
    counts is its own time, and the best of several trials, as others may be at work on the machine."""
    if config.train.cohort != "auto":
        return int(config.train.cohort)
    clock = time.process_time if theta.device.type == "cpu" else time.perf_counter
    best, least, spent = WIDTHS[0], float("inf"), 0.0
    largest = np.argsort(-store.part("train", np.arange(len(store.bounds)))[1], kind="stable")[: WIDTHS[-1]]
    for candidate in (w for w in WIDTHS if w <= max(2, len(store.bounds))):
        clients = largest[:candidate]
        cohort = Cohort(clients, store, model, config.train, config.seed, 0, candidate)
        cohort.descend(theta, steps=1)  # warm-up: kernels are chosen, memory is taken
        seconds = []
        for _ in range(TRIALS):
            start = clock()
            cohort.descend(theta, steps=STEPS)
            seconds.append(clock() - start)
        each, spent = min(seconds) / len(clients), spent + sum(seconds)
        if each < WORTH * least:
            best, least = candidate, each
        if each > 1.1 * least or spent > TRIAL:
            break
    return best


def chance(config: Config) -> float:
    """How likely a client is to train in a round."""
    who = config.participation
    drawn = who.fraction if who.probability is None else who.probability
    return 1.0 if who.train == "all" else drawn


def ever_active(config: Config) -> float:
    """The expected share of the clients that will have been in a round at the end, and have a state of their own."""
    method = config.algorithm
    everybody = config.newcomers is not None or method.closing_rounds or method.prepares_after is not None
    return 1.0 if everybody else 1 - (1 - chance(config)) ** config.rounds


def memory(config: Config, plan: Plan, servers: float, own: int, clients_here: int, is_server: bool = False) -> float:
    """An estimate in MB of what a rank will take besides what it has now: the node's data, and vectors of the model's
    size, of which the server's state has so many and a client's (`benchmarks/README.md` compares it with what was
    measured). A rank holds the server's old and new state, and a copy to write; a worker one to evaluate, a result for
    each of its clients in a round and twice as many vectors as they have of their own, the states themselves, and in
    each row of a cohort at work weights, velocity, and of layers that are not linear gradients."""
    partition, model, d = plan.partition, plan.model, 4 * plan.model.dimension
    if is_server and clients_here == 0:
        return (0.75 + 2 * servers) * d / 1e6
    at_work = int(np.ceil(clients_here * chance(config)))
    sample = 4 * np.prod(plan.samples.shape)
    if partition.made:
        present = max(at_work, min(TOGETHER, clients_here))
        data = KNOWN * partition.clients + present * partition.samples / partition.clients * sample
    else:
        place, stored = partition.places
        data = len(stored) * sample + 8 * len(place)
    few = float(np.clip(2 ** np.floor(np.log2(CACHED / model.dimension)), 2, 16))
    rows = few if config.train.cohort == "auto" else max(2, int(config.train.cohort))
    dense = 1 - sum(part.stop - part.start for i, part in enumerate(model.layout) if i in model.products) / (d / 4)
    row = 1.2 + bool(config.train.momentum) + 1.8 * dense
    vectors = 3 + 2 * servers + at_work * (1 + 2 * own) + ever_active(config) * clients_here * own + rows * row
    every, largest = numbers_inside(model)
    longest = int((partition.bounds[:, 3] - partition.bounds[:, 2]).max())
    inside = max(2 * every * min(config.train.batch, int(partition.n_train.max())), 3 * largest * min(SWEEP, longest))
    return float(data + d * vectors + 4 * rows * inside + 8 * min(WORK, d / 4)) / 1e6


def numbers_inside(model: Batched) -> tuple[int, int]:
    """How many numbers the network makes of a sample, all layers together and the largest."""
    sizes = [int(np.prod(model.shape))]
    hooks = [
        module.register_forward_hook(lambda module, x, y: sizes.append(y.numel() if isinstance(y, torch.Tensor) else 0))
        for module in model.network.modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        model.network(torch.zeros(1, *model.shape))
    for hook in hooks:
        hook.remove()
    return sum(sizes), max(sizes)
