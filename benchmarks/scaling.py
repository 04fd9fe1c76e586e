"""How rounds get faster with more workers: `mpirun -np N python -m benchmarks.scaling [options]`.

One job measures several worlds in turns: the server with 1, 2, 4 ... N - 1 workers, or with those of 1, 2, 4 ... nodes,
while the ranks outside sleep. A world's figures are medians over the repeats, after a warm-up. Strong scaling keeps the
clients, weak scaling the clients of a worker. `--report FILES -o scaling.html` (or .png) draws what was measured.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from mpipfl import process, world
from mpipfl.comm import Comm
from mpipfl.config import Config, load
from mpipfl.data.sizes import Sized
from mpipfl.errors import UserError
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder
from mpipfl.telemetry import PHASES

from . import common, wire
from .common import Row, apart, middle, phases
from .workloads import ROUNDS

WORKLOADS = {work.name: work for work in ROUNDS}
TESTED = 0.2  # test samples of a client, as a share of those it trains on


def main() -> int:
    parser = common.options(__doc__)
    parser.add_argument("--workload", default="lenet", metavar="NAME", help="lenet, logreg, mlp or a config.yaml")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--strong", action="store_true", help="the same clients for any number of workers (default)")
    kind.add_argument("--weak", action="store_true", help="a workload's clients for each worker")
    parser.add_argument("--sizes", choices=("equal", "power_law"), default="equal", help="of a workload's clients")
    parser.add_argument("--drawn", type=int, metavar="N", help="clients of a workload that train in a round")
    parser.add_argument("--workers", type=numbers, metavar="N,N...", help="the worlds, in place of 1, 2, 4 ...")
    parser.add_argument("--collectives", action="store_true", help="also broadcasts and reductions against bare MPI")
    parser.add_argument("--report", nargs="+", type=Path, metavar="FILE", help="draw results: -o says where to")
    options = parser.parse_args()
    if options.report:
        from .scaling_report import draw

        return draw(options.report, options.output or Path("scaling.html"))
    comm = Comm()
    process.tune(1)
    try:
        measure(comm, options)
        return 0
    except UserError as error:
        if comm.is_server:
            print(f"benchmarks.scaling: {error}", file=sys.stderr)
        return error.code
    except Exception:
        traceback.print_exc()
        comm.abort(1)


def numbers(text: str) -> list[int]:
    return sorted({int(word) for word in text.split(",")})


def measure(comm: Comm, options: argparse.Namespace) -> None:
    repeats = 3 if options.quick else 9
    wanted = options.workers or counts(comm)
    series: list[Series | None] = []
    for workers, plan in zip(wanted, experiments(options, wanted), strict=True):
        inside = part(comm, workers)
        series.append(apart(comm, None if inside is None else partial(Series, inside, *plan)))
    for repeat in range(repeats + 1):
        for one in series:
            apart(comm, None if one is None else partial(one.repeat, keep=repeat > 0))
    points = [apart(comm, None if one is None else one.point) for one in series]
    wires: list[list[Row] | None] = []
    for one in series if options.collectives else []:
        wires.append(apart(comm, None if one is None else partial(one.wire, repeats)))
    if comm.is_server:
        how = "weak" if options.weak else "strong"
        tables = {f"{how} scaling of {options.workload}": against_one([p for p in points if p is not None], how)}
        for rows in wires:
            tables[f"a broadcast and a reduction with {(rows or [])[0]['workers']} workers, GB/s"] = rows or []
        more = {"workload": options.workload, "scaling": how, "sizes": options.sizes, "mpi": comm.library()}
        common.publish("scaling", tables, options.output, more)


# ---------------------------------------------------------------------- worlds


def counts(comm: Comm) -> list[int]:
    """How many workers: 1, 2, 4 ... on one node, else those of 1, 2, 4 ... nodes, and all."""
    nodes = np.sort(comm.nodes)
    ends = np.flatnonzero(np.diff(nodes, append=-1)) + 1  # ranks on the first 1, 2 ... nodes
    most = max(1, comm.size - 1)
    steps = 1 << np.arange(32)
    found = ends[steps[steps <= len(ends)] - 1] - 1 if len(ends) > 1 else steps[steps <= most]
    return sorted({1, most, *(int(count) for count in found if count)})


def part(comm: Comm, workers: int) -> Comm | None:
    """The world of the server and so many workers, node after node; None on the ranks outside."""
    if not 1 <= workers <= max(1, comm.size - 1):
        raise UserError(f"--workers {workers}: {comm.size} ranks have 1 to {max(1, comm.size - 1)} workers")
    place = int(np.flatnonzero(np.argsort(comm.nodes, kind="stable") == comm.rank)[0])
    mpi: Any = comm.mpi.Split(int(place > workers), place)
    return Comm(mpi) if place <= workers else None


# ---------------------------------------------------------------------- figures


class Sample(NamedTuple):
    """One repeat: seconds of a round, an evaluation and a checkpoint, and (ranks, phases) those of the rounds."""

    round: float
    evaluation: float
    checkpoint: float
    phases: np.ndarray
    steps: int


class Series:
    """One world's experiment and what was measured of it."""

    def __init__(self, comm: Comm, config: Config, plan: world.Plan) -> None:
        before = resident()
        self.comm, self.samples = comm, list[Sample]()
        self.folder = Path(comm.text(tempfile.mkdtemp() if comm.is_server else None))
        self.experiment = Experiment(config, plan, comm, RunFolder(self.folder), Reporter(False, 1, config.name))
        self.many = 1 if plan.model.dimension > 20_000 else 5  # rounds at a time
        self.clients, self.dimension = plan.partition.clients, plan.model.dimension
        self.seconds(self.experiment.train, "train")
        self.memory = resident() - before

    def repeat(self, keep: bool) -> None:
        """Some rounds, an evaluation, a checkpoint."""
        telemetry, moved = self.experiment.telemetry, self.comm.bytes
        before, steps = phases(telemetry), telemetry.steps
        self.comm.barrier()
        took = sum(self.seconds(self.experiment.train, "train") for _ in range(self.many)) / self.many
        spent, self.bytes = (phases(telemetry) - before) / self.many, (self.comm.bytes - moved) / self.many
        others = [self.seconds(getattr(self.experiment, name), name) for name in ("evaluate", "save")]
        table = self.comm.gather(spent[None])
        work = np.array([telemetry.steps - steps])
        self.comm.allreduce(work)
        if keep and table is not None:
            self.samples.append(Sample(took, others[0], others[1], np.concatenate(table), int(work[0]) // self.many))

    def seconds(self, work: Callable[[], Any], name: str) -> float:
        began = time.perf_counter()
        self.experiment.step(name, work)
        self.comm.barrier()
        return time.perf_counter() - began

    def wire(self, repeats: int) -> list[Row]:
        return [{"workers": len(self.comm.workers)} | wire.row(self.comm, d, repeats) for d in wire.DIMENSIONS]

    def point(self) -> Row | None:
        """The world's figures, on its server."""
        facts = self.comm.gather(np.array([[self.memory / 1e6, self.bytes / 1e6]]))
        if facts is None:
            return None
        shutil.rmtree(self.folder, ignore_errors=True)
        took = [sample.round for sample in self.samples]
        spent = np.median([sample.phases for sample in self.samples], 0)  # (ranks, phases)
        workers = self.comm.workers
        train = spent[workers, PHASES.index("train")]
        memory, moved = np.concatenate(facts).T
        return {
            "workers": len(workers),
            "nodes": len(np.unique(self.comm.nodes)),
            "clients": self.clients,
            "numbers of a model": self.dimension,
            "a round (s)": middle(took),
            "spread": common.spread(took),
            "client-steps a second": middle([sample.steps / sample.round for sample in self.samples]),
            "training: mean (s)": float(train.mean()),
            "training: slowest (s)": float(train.max()),
            **{f"{name} (s)": float(spent[workers, PHASES.index(name)].mean()) for name in PHASES if name in ROUND},
            "server's work (s)": float(spent[0, PHASES.index("server")]),
            "an evaluation (s)": middle([sample.evaluation for sample in self.samples]),
            "a checkpoint (s)": middle([sample.checkpoint for sample in self.samples]),
            "moved a round, a worker (MB)": float(moved[workers].mean()),
            "memory: server (MB)": float(memory[0]),
            "memory: largest worker (MB)": float(memory[workers].max()),
            "samples": [sample._replace(phases=sample.phases.tolist())._asdict() for sample in self.samples],
        }


ROUND = ("broadcast", "reduce", "other")


def against_one(points: list[Row], how: str) -> list[Row]:
    """With how well each world uses its workers, against the first one. `Training alone` is by the slowest worker, as
    the others wait for it: what is lost there is imbalance, and cores that slow each other down."""
    first = points[0]
    for point in points:
        more = point["workers"] / first["workers"]
        rate = point["client-steps a second"] / first["client-steps a second"]
        work = point["clients"] / first["clients"]
        trained = work * first["training: slowest (s)"] / point["training: slowest (s)"]
        point |= {"efficiency": rate / more, "efficiency of training alone": trained / more}
    return points


def resident() -> float:
    return float(psutil.Process().memory_info().rss)


def experiments(options: argparse.Namespace, worlds: list[int]) -> list[tuple[Config, world.Plan]]:
    """What each world trains, by its workers."""
    name, more = options.workload, options.drawn or options.weak or options.sizes != "equal"
    if name not in WORKLOADS:
        if not Path(name).is_file():
            raise UserError(f"--workload {name}: no such file; take {', '.join(WORKLOADS)} or a configuration's path")
        if more:
            raise UserError("--weak, --sizes and --drawn are for workloads; a configuration has clients of its own")
        config = load(name, [])
        return [(config, world.plan(config))] * len(worlds)
    work = WORKLOADS[name]
    if options.drawn is not None:
        if not 1 <= options.drawn <= work.clients:
            raise UserError(f"--drawn {options.drawn}: {name} has {work.clients} clients")
        work = work._replace(drawn=options.drawn)
    times = worlds if options.weak else [1]
    works = [work._replace(clients=work.clients * many, drawn=work.drawn * many) for many in times]
    found = [common.experiment(work, sizes=Sized(sizes=options.sizes), tested=TESTED) for work in works]
    return found if options.weak else found * len(worlds)


if __name__ == "__main__":
    sys.exit(main())
