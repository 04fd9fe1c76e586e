"""What a round costs: seconds by term, from what is trained and on what.

A term is counts of what has to be done times what one of them takes. The counts follow from the rules of mpipfl itself
(`model_workers`, `model_messages`); what one takes was measured (`model_calibrate`).
"""

from __future__ import annotations

import numpy as np

from mpipfl.config import Checkpoint
from mpipfl.slices import LONG, WORK, chunks

from .model_messages import Cost, Machine, collective, everywhere, in_parts, to_server, vote
from .model_workers import DRAWS, Task, loads

TERMS = (
    "training", "imbalance", "own sums", "evaluation",  # workers
    "choosing clients", "bookkeeping", "history",  # every rank
    "votes", "reduce", "broadcast",  # messages
    "server", "checkpoint",  # rank 0
)  # fmt: skip
COLUMNS = 14  # numbers of a client in each evaluation
HISTORY = 8 * COLUMNS  # bytes
CARRIED = 1e6 * Checkpoint().history_megabytes  # bytes of rows, until they are bound in a volume


def costs(task: Task, machine: Machine, ranks: int, draws: range = DRAWS) -> dict[str, Cost]:
    """A round's terms, with its share of evaluations and checkpoints."""
    found = (
        of_workers(task, machine, ranks, draws)
        | of_every_rank(task, machine, ranks)
        | of_messages(task, machine, ranks)
        | of_server(task, machine, ranks)
    )
    return {term: found[term] for term in TERMS}


def of_workers(task: Task, machine: Machine, ranks: int, draws: range) -> dict[str, Cost]:
    """What they do side by side: the mean of them, and how much longer the slowest takes. A server without clients goes
    through the same motions meanwhile."""
    training, evaluation = loads(task, max(1, ranks - 1), draws)
    d, network = task.network.dimension, task.network
    train = np.array([load.seconds(network.training) for load in training])  # (draws, workers)
    own = np.array(
        [machine.of("own sums", once=1, number=d * load.clients, vector=d * task.models) for load in training]
    )
    look = evaluation.seconds(network.sweep) + machine.of("evaluation", once=1, client=evaluation.clients)
    both = train + own
    idle = machine.of("own sums", once=1, vector=d * task.models), machine.of("evaluation", once=1)
    idle = idle if ranks > 1 else (0.0, 0.0)
    return {
        "training": Cost(float(train.mean()), float(train.sum(1).mean())),
        "imbalance": Cost(float((both.max(1) - both.mean(1)).mean()), 0.0),
        "own sums": Cost(float(own.mean()), float(own.sum(1).mean() + idle[0])),
        "evaluation": shared(Cost(float(look.max()), float(look.sum() + idle[1])), task.evaluate_every),
    }


def of_every_rank(task: Task, machine: Machine, ranks: int) -> dict[str, Cost]:
    """What each rank does for itself, however many there are; for the history every rank hears all clients' figures."""
    placed = 0 if task.state or task.drawn == task.clients else task.drawn
    choosing = machine.of("choosing clients", once=1, client=task.clients, drawn=task.drawn, placed=placed)
    keeping, other = machine.of("history", once=1, client=task.clients), machine.of("bookkeeping", once=1)
    counts, table = vote(machine, ranks), everywhere(machine, ranks, 8 * (COLUMNS + 1) * task.clients)
    history = Cost(counts.path + table.path + keeping, counts.total + table.total + ranks * keeping)
    return {
        "choosing clients": Cost(choosing, ranks * choosing),
        "bookkeeping": Cost(other, ranks * other),
        "history": shared(history, task.evaluate_every),
    }


def of_messages(task: Task, machine: Machine, ranks: int) -> dict[str, Cost]:
    """The sums' magnitudes, the sums (float64), the new models (float32), and the votes on steps. Long vectors take
    one vote more: the small sums, which all ranks need."""
    numbers, agreed, turns = task.network.dimension * task.models, vote(machine, ranks), slices_of(task, machine, ranks)
    steps = 1 + sum(1 / every for every in (task.evaluate_every, task.checkpoint_every) if every) + (turns > 0)
    votes = Cost((1 + steps) * agreed.path, (1 + steps) * agreed.total)
    if turns:
        sums = in_parts(machine, ranks, "reduce", 8 * numbers, turns)
        return {"votes": votes, "reduce": sums, "broadcast": in_parts(machine, ranks, "broadcast", 4 * numbers, turns)}
    sums = collective(machine, ranks, "reduce", 8 * (numbers + 1))
    return {"votes": votes, "reduce": sums, "broadcast": collective(machine, ranks, "broadcast", 4 * numbers)}


def slices_of(task: Task, machine: Machine, ranks: int) -> int:
    """In how many turns all ranks make the server's step; 0 where rank 0 makes it."""
    long = task.network.dimension >= LONG and not machine.whole
    return sum(1 for _ in chunks(task.network.dimension, ranks, task.models)) if long else 0


def of_server(task: Task, machine: Machine, ranks: int) -> dict[str, Cost]:
    """The server's step, and a checkpoint half way: the models, all clients' state, and the histories' rows."""
    numbers, state = task.network.dimension * task.models, task.network.dimension * task.state * task.clients
    turns = slices_of(task, machine, ranks)
    step = machine.of("server", once=max(1, turns), number=numbers / (ranks if turns else 1))
    counts = {"once": 1.0, "byte": 4.0 * (numbers + state), "past": rows_written(task)}
    written, come = machine.of("checkpoint", **counts), to_server(machine, ranks, 4.0 * state)
    saved = Cost(written + come.path, written + come.total) if state else Cost(written, written)
    return {"server": Cost(step, step * (ranks if turns else 1)), "checkpoint": shared(saved, task.checkpoint_every)}


def shared(cost: Cost, every: int) -> Cost:
    """What is done every so many rounds, or never (0), as a round's share."""
    return Cost(cost.path / every, cost.total / every) if every else Cost(0.0, 0.0)


def rows_at_end(task: Task) -> float:
    """Bytes of the histories' rows, those of round 0 too."""
    return HISTORY * task.clients * (1 + task.rounds / task.evaluate_every if task.evaluate_every else 1)


def rows_of_checkpoint(task: Task) -> float:
    """Bytes of the rows that come between two checkpoints."""
    return HISTORY * task.clients * task.checkpoint_every / task.evaluate_every if task.evaluate_every else 0.0


def rows_written(task: Task) -> float:
    """Bytes of rows that a checkpoint and history.h5 both have. Where there are many, these have what is not yet in a
    volume; every row is once in a volume and once, at the end, in history.h5."""
    every, new = rows_at_end(task), rows_of_checkpoint(task)
    if every <= CARRIED:
        return every / 2
    carried = CARRIED / 2 if new < CARRIED else 0.0
    return carried + (new + every * task.checkpoint_every / task.rounds) / 2


def seconds(found: dict[str, Cost]) -> float:
    """Of a round."""
    return sum(cost.path for cost in found.values())


def server_memory(task: Task, machine: Machine) -> float:
    """Bytes of rank 0's own memory at the end of a run: the program; what every rank knows of each client and sample
    (bounds, hosts, work and an evaluation's table; places in the source and in the store); the histories' rows that
    are in no volume, once more while they are written; and the models, as they were at the start, as they are, as they
    will be, and as a sum and its mean in float64 (of long vectors, of a chunk of columns)."""
    samples = task.clients * task.samples * (1 + task.tested)
    known = (160 + 3 * HISTORY) * task.clients + 32 * samples
    numbers = task.network.dimension * task.models
    wide = min(numbers, WORK) if slices_of(task, machine, 1) else numbers
    models = 4 * task.network.dimension + (4 + 4) * numbers + (8 + 8) * wide
    return (
        machine.units["memory"]["program"]
        + known
        + 2 * min(rows_at_end(task), CARRIED + rows_of_checkpoint(task))
        + models
    )
