"""Scenarios of `benchmarks.model`: a task on more and more ranks of some hardware, as tables and curves."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from mpipfl.data.sizes import Sized
from mpipfl.errors import ConfigError

from . import common
from .common import Row
from .model import Node
from .model_calibrate import MODELS, TESTED
from .model_messages import Cost, Link, Machine
from .model_round import costs, seconds, server_memory
from .model_units import Calibration, read
from .model_workers import Network, Task
from .workloads import SHAPE, flops

RANKS = tuple(1 << power for power in range(3, 13))
WORTH = 0.5  # the efficiency from which on ranks are worth their price


class Point(NamedTuple):
    """A round on so many ranks."""

    ranks: int
    terms: dict[str, Cost]
    seconds: float
    efficiency: float  # one worker's seconds / (workers * seconds)
    losses: dict[str, float]  # seconds that a term takes beyond its fair share of what it takes with one worker

    @property
    def limit(self) -> str:
        """Where most is lost. Training loses when cohorts get small: their steps cost as much for fewer clients, and a
        client alone is trained with a twin."""
        worst = max(self.losses, key=self.losses.__getitem__)
        return "small cohorts" if worst == "training" else worst


class Scenario(NamedTuple):
    """A task on more and more ranks."""

    task: Task
    points: list[Point]
    memory: float  # bytes, of the server

    @property
    def fastest(self) -> Point:
        return min(self.points, key=lambda point: point.seconds)

    @property
    def worth(self) -> Point | None:
        """The most ranks that are used well."""
        return next((point for point in reversed(self.points) if point.efficiency >= WORTH), None)

    @property
    def limited(self) -> Point | None:
        """The fewest ranks that are not."""
        return next((point for point in self.points if point.efficiency < WORTH), None)


def ask(path: Path, options: argparse.Namespace) -> None:
    """The answer on the screen, and as a picture where one is wanted."""
    calibration = read(path)
    machine = on(options.node, calibration, options.whole)
    network = network_of(options.model, options.node, calibration)
    samples = options.samples or MODELS["mlp" if isinstance(options.model, int) else options.model].samples
    scenarios = []
    for clients in options.clients:
        if options.drawn is not None and options.drawn > clients and len(options.clients) == 1:
            raise ConfigError(f"--drawn {options.drawn}: there are {clients} clients; draw as many or fewer")
        task = Task(
            network, clients, min(clients, options.drawn or clients), samples, Sized(sizes=options.sizes), TESTED,
            options.models, options.state, options.evaluate_every, options.checkpoint_every, options.rounds,
        )  # fmt: skip
        scenarios.append(scenario(task, machine, options.ranks or RANKS))
    tables = {"seconds of a round, efficiency": [by_ranks(one) for one in scenarios],
              "in short": [summary(one) for one in scenarios]}  # fmt: skip
    for title, rows in tables.items():
        common.show(title, rows)
    if options.report is not None:
        from .model_report import draw

        draw(scenarios, tables, heading(options, network), options.report)


def heading(options: argparse.Namespace, network: Network) -> str:
    node: Node = options.node
    speed = "" if node.speed is None else f", {node.speed:,.3g} {'FLOP/s' if node.flops else 'client-steps/s'} a worker"
    return (
        f"{network.name} ({network.dimension:,} numbers), nodes of {node.gpus} workers, {node.net / 1e9:g} GB/s, "
        f"{1e6 * node.latency:g} µs{speed}"
    )


def on(node: Node, calibration: Calibration, whole: bool = False) -> Machine:
    return Machine(calibration.units, node.gpus, Link(node.latency, 1 / node.net), whole)


def network_of(model: str | int, node: Node, calibration: Calibration) -> Network:
    """A measured model, or one of so many parameters that is to the MLP as their numbers are; at a worker's speed,
    where that is given: then nothing is known but how long arithmetic takes, an evaluation's being a third."""
    if isinstance(model, str):
        network, operations = calibration.networks[model], flops(MODELS[model])
    else:
        mlp, operations = calibration.networks["mlp"], 6 * model
        more = model / mlp.dimension
        train, sweep = (
            units | {"clients": more * units["clients"], "rows": more * units["rows"]}
            for units in (mlp.training, mlp.sweep)
        )
        network = mlp._replace(name="a dense network", dimension=model, training=train, sweep=sweep)
    if node.speed is None:
        return network
    row = operations * network.batch / node.speed if node.flops else 1 / node.speed
    nothing = dict.fromkeys(network.training, 0.0)
    return network._replace(training=nothing | {"rows": row}, sweep=nothing | {"rows": row / network.batch / 3})


def scenario(task: Task, machine: Machine, ranks: tuple[int, ...] | list[int]) -> Scenario:
    alone = costs(task, machine, 2)
    points = []
    for count in ranks:
        terms, workers = costs(task, machine, count), max(1, count - 1)
        took = seconds(terms)
        losses = {term: cost.path - alone[term].path / workers for term, cost in terms.items()}
        points.append(Point(count, terms, took, seconds(alone) / (workers * took), losses))
    return Scenario(task, points, server_memory(task, machine))


def by_ranks(one: Scenario) -> Row:
    cells = {f"{p.ranks:,} ranks": f"{common.text(p.seconds)}, {100 * p.efficiency:.0f} %" for p in one.points}
    return who(one.task) | cells


def who(task: Task) -> Row:
    return {"clients": f"{task.clients:,}", "drawn": f"{task.drawn:,}"}


def summary(one: Scenario) -> Row:
    """What to make of it."""
    task, fastest, worth, limited = one.task, one.fastest, one.worth, one.limited
    data = task.clients * task.samples * (1 + task.tested) * 4 * SHAPE[1] * SHAPE[2]
    return {
        **who(task),
        "fastest on ranks": f"{fastest.ranks:,}",
        "a round there (s)": fastest.seconds,
        f"most ranks at {100 * WORTH:.0f} %": "none" if worth is None else f"{worth.ranks:,}",
        "limited first": "nothing here" if limited is None else f"{limited.ranks:,} ranks",
        "by": "" if limited is None else limited.limit,
        "server's memory (GB)": one.memory / 1e9,
        "data on each node (GB)": data / 1e9,
    }
