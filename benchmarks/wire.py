"""What moves between server and workers, against MPI's own calls on the same buffers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mpipfl.comm import MPI, Comm
from mpipfl.federation import Federation
from mpipfl.telemetry import Telemetry

from . import common
from .common import Row, middle

DIMENSIONS = (62_000, 1_000_000, 10_000_000)
CLIENTS = 10  # a worker's, in the sums


class Server(NamedTuple):
    theta: Tensor


def row(comm: Comm, d: int, repeats: int) -> Row:
    """A vector's way down and a sum's way up: bare MPI, mpipfl's moving part, and whole aggregates."""
    server, vector, wide = Server(torch.zeros(d)), torch.zeros(d), torch.zeros(d, dtype=torch.float64)
    plain = Federation(comm, Telemetry(), 1)

    def bare(up: Tensor) -> None:
        here = up.numpy()
        comm.mpi.Reduce(MPI.IN_PLACE if comm.is_server else here, here if comm.is_server else None, MPI.SUM, 0)
        comm.mpi.Bcast(vector.numpy(), 0)

    def moving(up: Tensor) -> None:
        comm.reduce(up)
        plain.publish(server)

    def mean(before: Server, sums: Any) -> Server:
        return Server(sums.theta / sums.n)

    def aggregate(kind: str, clients: int) -> Callable[[], object]:
        hosts = np.repeat(comm.workers, clients)
        fl = Federation(comm, Telemetry(), len(hosts), kind)
        fl.begin(1, np.arange(len(hosts)), hosts)
        theta = torch.rand(len(fl.clients), d)
        weight = torch.ones(len(fl.clients), dtype=torch.float64)
        return lambda: fl.aggregate(mean, server, theta=(weight, theta), n=weight)

    found = race(comm, repeats if d < 5_000_000 else max(3, repeats // 3), {
        "bare": lambda: bare(vector), "bare wide": lambda: bare(wide),
        "moving": lambda: moving(vector), "moving wide": lambda: moving(wide),
        "one fast": aggregate("fast", 1), "one exact": aggregate("exact", 1),
        "fast": aggregate("fast", CLIENTS), "exact": aggregate("exact", CLIENTS),
    })  # fmt: skip
    share, ratio = found["bare"] / found["moving"], found["exact"] / found["fast"]
    return {
        "numbers": f"{d:,}",
        "MPI": 8 * d / found["bare"] / 1e9,
        "mpipfl": 8 * d / found["moving"] / 1e9,
        "share": f"{100 * share:.0f} %",
        ">= 80 %": common.verdict(share >= 0.8),
        "MPI, exact": 12 * d / found["bare wide"] / 1e9,
        "mpipfl, exact": 12 * d / found["moving wide"] / 1e9,
        "share, exact": f"{100 * found['bare wide'] / found['moving wide']:.0f} %",
        "aggregate of 1: fast, exact (ms)": f"{1e3 * found['one fast']:.2f}, {1e3 * found['one exact']:.2f}",
        f"of {CLIENTS} (ms)": f"{1e3 * found['fast']:.2f}, {1e3 * found['exact']:.2f}",
        "exact / fast": ratio,
        "< 2": common.verdict(ratio < 2),
    }


def race(comm: Comm, repeats: int, runners: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Each one's median seconds, taken in turns; all ranks begin together."""
    found: dict[str, list[float]] = {name: [] for name in runners}
    for repeat in range(repeats + 1):
        for name, run in runners.items():
            comm.barrier()
            start = time.perf_counter()
            run()
            comm.barrier()
            if repeat:  # the first is a warm-up
                found[name].append(time.perf_counter() - start)
    return {name: middle(values) for name, values in found.items()}
