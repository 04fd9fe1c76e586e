"""The server's step on long vectors, on all ranks in slices or on rank 0 alone:
`mpirun -np N python -m benchmarks.aggregate [--numbers 25e6] [--clients 2] [-o FILE] CALIBRATION`.

One FedAvg reduction of so many numbers, with so many clients on each worker, in turns; the slices first, as a process's
peak of memory does not fall. With more ranks than cores only CPU seconds mean something: of all ranks together, beside
what the cost model of `benchmarks.model` predicts with a calibration of this machine.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from mpipfl import process, slices
from mpipfl.algorithms.fedavg import Server, average
from mpipfl.comm import Comm
from mpipfl.federation import Federation
from mpipfl.telemetry import Telemetry

from . import common
from .common import Row
from .model_messages import Machine
from .model_round import costs
from .model_units import Calibration, read
from .model_workers import Task

TERMS = ("own sums", "reduce", "server", "broadcast")
WAYS = {"in slices": slices.LONG, "on rank 0": sys.maxsize}  # the columns from which on there are slices


def main() -> int:
    parser = common.options(__doc__)
    parser.add_argument("calibration", type=Path, metavar="CALIBRATION")
    parser.add_argument("--numbers", type=float, default=25e6)
    parser.add_argument("--clients", type=int, default=2, help="of each worker")
    options = parser.parse_args()
    comm = Comm()
    process.tune(1)
    try:
        repeats = 2 if options.quick else 5
        rows = compared(comm, int(options.numbers), options.clients, repeats, read(options.calibration))
        if comm.is_server:
            title = (
                f"{int(options.numbers):,} numbers, {options.clients} clients on each of {len(comm.workers)} workers"
            )
            more = {"ranks": comm.size, "calibration": options.calibration.name, "mpi": comm.library()}
            common.publish("aggregate", {title: rows}, options.output, more)
        return 0
    except Exception:
        traceback.print_exc()
        comm.abort(1)


def compared(comm: Comm, numbers: int, clients: int, repeats: int, calibration: Calibration) -> list[Row]:
    hosts = np.repeat(comm.workers, clients)
    fl = Federation(comm, Telemetry(), len(hosts))
    here = int((hosts == comm.rank).sum())
    theta, weight = torch.rand(here, numbers), torch.ones(here, dtype=torch.float64)
    before = fl.telemetry.peak_memory()
    found: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    for way in [*["in slices"] * repeats, *[way for _ in range(repeats) for way in WAYS]]:
        slices.LONG = WAYS[way]
        fl.begin(1, np.arange(len(hosts)), hosts)
        comm.barrier()
        clock, work = time.perf_counter(), time.process_time()
        fl.aggregate(average, Server(torch.zeros(numbers)), theta=(weight, theta), n=weight)
        mine = [time.perf_counter() - clock, time.process_time() - work, fl.telemetry.peak_memory() - before]
        found[way].append(np.concatenate(comm.allgather(np.array([mine]))))
    network = calibration.networks["mlp"]._replace(dimension=numbers)
    task = Task(network, len(hosts), len(hosts), 1)
    rows = []
    for way, turns in found.items():
        spent = np.stack(turns)  # (turns, ranks, figures)
        terms = costs(task, Machine(calibration.units, whole=way == "on rank 0"), comm.size)
        predicted, took = sum(terms[term].total for term in TERMS), float(spent[..., 1].sum(1).min())
        rows.append({
            "the server's step": way,
            "seconds": float(spent[..., 0].max(1).min()),
            "CPU seconds, the busiest rank": float(spent[..., 1].max(1).min()),
            "of all ranks": took,
            "predicted": f"{predicted:.3g} ({100 * (predicted / took - 1):+.0f} %)",
            "memory that it takes, the most of a rank (MB)": float(spent[0, :, 2].max()),
            "samples": spent.round(4).tolist(),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
