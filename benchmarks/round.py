"""Whole federated rounds, the wire and the start: `mpirun -np 3 python -m benchmarks.round [--quick] [-o FILE]`.

`python -m benchmarks.round -n 3` starts the ranks itself. FedAvg's rounds are timed without evaluation and checkpoints;
between them, in the same job, rank 0 runs the loop one writes by hand (one process, DataLoader, a round with its
average) while the other ranks sleep.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpipfl import launch, process
from mpipfl.comm import Comm
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder
from mpipfl.telemetry import PHASES

from . import common, loop, startup, wire
from .common import Row, apart, middle, phases
from .workloads import MIXED, ROUNDS, Workload


def main() -> int:
    parser = common.options(__doc__)
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="start N ranks on this machine with mpirun")
    options = parser.parse_args()
    if options.ranks is not None:
        return launch.ranks(options.ranks, ["-m", "benchmarks.round", *launch.without_ranks(sys.argv[1:])])
    comm = Comm()
    process.tune(1)
    try:
        measure(comm, options.quick, options.output)
        return 0
    except Exception:
        traceback.print_exc()
        comm.abort(1)


def measure(comm: Comm, quick: bool, output: Path | None) -> None:
    tables: dict[str, list[Row]] = {
        f"whole rounds on {comm.size} rank(s), client-steps a second": [
            rounds(comm, work, 3 if quick else 9) for work in ROUNDS
        ],
        "a broadcast and a reduction, GB/s": [wire.row(comm, d, 5 if quick else 20) for d in wire.DIMENSIONS],
        "a model of its own for every client": [mixing(comm, MIXED, 3 if quick else 9)],
        "start-up on glyphs": [alone(comm, lambda: startup.row(comm.size, 1 if quick else 3))],
    }
    if comm.is_server:
        common.publish("round", tables, output, {"ranks": comm.size, "mpi": comm.library()})


def alone(comm: Comm, work: Callable[[], Any]) -> Any:
    """Rank 0's result of some work, None elsewhere."""
    return apart(comm, work if comm.is_server else None)


# ---------------------------------------------------------------------- whole rounds


def rounds(comm: Comm, work: Workload, repeats: int) -> Row:
    """One workload's line: mpipfl and the loop in turns."""
    config, plan = common.experiment(work)
    experiment = Experiment(config, plan, comm, RunFolder(Path(tempfile.gettempdir())), Reporter(False, 1, work.name))
    many = 1 if work.model == "lenet5" else 5  # rounds at a time

    def go() -> float:
        comm.barrier()
        start = time.perf_counter()
        for _ in range(many):
            experiment.step("train", experiment.train)
        comm.barrier()
        return time.perf_counter() - start

    go()
    mine, tuned, raw, idle = [], [], [], []
    by_hand = alone(comm, lambda: loop.passes(work, time.perf_counter))
    with loop.untuned(work, "perf_counter") if comm.is_server else contextlib.nullcontext(float) as untuned:
        for _ in range(repeats):
            comm.barrier()
            before = phases(experiment.telemetry)
            mine.append(many * work.steps / go())
            idle.append(not_training(comm, phases(experiment.telemetry) - before))
            tuned.append(alone(comm, lambda: work.steps / by_hand()))
            raw.append(alone(comm, lambda: work.steps / untuned()))
    if not comm.is_server:
        return {}
    return line(work, experiment.width, mine, tuned, raw, np.array(idle))


def line(work: Workload, width: int, mine: list[float], tuned: list[float], raw: list[float], idle: np.ndarray) -> Row:
    """The figures beside those of the frameworks, as shares of the same loop."""
    ratios = [m / r for m, r in zip(mine, raw, strict=True)]
    goal = common.verdict(middle(ratios) >= work.goal)
    calm = "" if work.name != "lenet" else common.verdict(middle(list(idle.max(1))) < 0.10)
    return {
        "workload": work.name,
        "mpipfl": middle(mine),
        "loop": middle(raw),
        "loop, tuned": middle(tuned),
        "times the loop": middle(ratios),
        "spread": common.spread(ratios),
        "times the tuned loop": middle(mine) / middle(tuned),
        "needed": f"{work.needed:.2f} ({work.framework})",
        "goal": work.goal,
        "verdict": goal,
        "not training: mean": f"{100 * middle(list(idle.mean(1))):.1f} %",
        "max": f"{100 * middle(list(idle.max(1))):.1f} %",
        "< 10 %": calm,
        "samples": {"mpipfl": mine, "loop": raw, "loop, tuned": tuned, "not training": idle.tolist()},
    }


def mixing(comm: Comm, work: Workload, repeats: int) -> Row:
    """What `mix` takes of a round of user-centric federated learning, all ranks beginning it together."""
    config, plan = common.experiment(work, algorithm={"kind": "ucfl"})
    experiment = Experiment(config, plan, comm, RunFolder(Path(tempfile.gettempdir())), Reporter(False, 1, work.name))
    weight = torch.rand(work.clients, work.clients, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight /= weight.sum(1, keepdim=True)
    nothing = experiment.server.row[:0]
    experiment.server = experiment.server._replace(weight=weight, row=nothing, theta=experiment.server.theta[:0])

    def whole() -> None:
        experiment.step("train", experiment.train)

    def mix() -> None:
        here = experiment.fl.clients
        experiment.fl.mix(weight[here], experiment.hosting.states.take(here).theta)

    found = wire.race(comm, repeats, {"round": whole, "mix": mix})
    share = found["mix"] / found["round"]
    return {
        "workload": work.name,
        "clients": work.clients,
        "numbers": f"{plan.model.dimension:,}",
        "client-steps": work.steps,
        "a round (s)": found["round"],
        "mix (ms)": 1e3 * found["mix"],
        "share": f"{100 * share:.1f} %",
        "< 5 %": common.verdict(share < 0.05),
    }


def not_training(comm: Comm, spent: np.ndarray) -> np.ndarray:
    """The share of its time that each worker did not train, on rank 0."""
    rows = comm.gather((1 - spent[[PHASES.index("train")]] / spent.sum())[None])
    return np.concatenate(rows)[comm.workers, 0] if rows else np.zeros(1)


if __name__ == "__main__":
    sys.exit(main())
