"""Messages between two ranks, as `benchmarks.model` counts them: calls, messages, bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mpipfl.comm import MPI, Comm
from mpipfl.federation import Federation
from mpipfl.telemetry import Telemetry

from .model_messages import Units
from .model_units import OTHERS, fit

SIZES = (8, 1 << 16, 1 << 20, 1 << 23, 1 << 26)  # bytes of messages
LARGE = 1 << 20
OFTEN = 10  # bare messages between two looks at the clock


class Server(NamedTuple):
    theta: Tensor


def messages(comm: Comm, repeats: int) -> Units:
    """A broadcast, a sum and a vote between two ranks, by the clock and in CPU seconds of both: what a call takes on
    each rank, its message, and the bytes of that."""
    fl = Federation(comm, Telemetry(), 1)
    few, many = np.zeros(1), [np.zeros(size // 8) for size in SIZES]
    kinds: dict[str, tuple[Callable[[], object], list[Callable[[], object]]]] = {
        "broadcast": (
            partial(comm.mpi.Bcast, few),
            [partial(fl.publish, Server(torch.from_numpy(buffer))) for buffer in many],
        ),
        "reduce": (
            partial(comm.mpi.Reduce, MPI.IN_PLACE if comm.is_server else few, few if comm.is_server else None),
            [partial(comm.reduce, buffer) for buffer in many],
        ),
        "vote": (partial(comm.mpi.Allreduce, MPI.IN_PLACE, few), [comm.agree]),
    }
    units: Units = {}
    for kind, (bare, calls) in kinds.items():
        took = [np.divide(exchanged(comm, partial(often, bare), 5 * repeats), OFTEN)]
        took += [
            exchanged(comm, call, (5 if size < LARGE else 1) * repeats)
            for call, size in zip(calls, SIZES, strict=False)
        ]
        for name, callers, seconds in ((kind, 1.0, 0), (f"{kind}, work", 2.0, 1)):
            counts = [{"message": 1.0}] + [
                {"message": 1.0, "call": callers, "byte": float(size if len(calls) > 1 else 0)}
                for size, _ in zip(SIZES, calls, strict=False)
            ]
            units[name] = fit(counts, [each[seconds] for each in took])
    return units


def often(call: Callable[[], object]) -> None:
    for _ in range(OFTEN):
        call()


def exchanged(comm: Comm, call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The least seconds of a message until all have it, and the least CPU time of all ranks together: where others are
    at work on the machine, the latter is the better bound of the former."""
    turns = []
    for _ in range(repeats + 1):
        OTHERS.fill(0)
        comm.barrier()
        began, worked = time.perf_counter(), time.process_time()
        call()
        spent, took = np.array([time.process_time() - worked]), np.array([time.perf_counter() - began])
        comm.allreduce(spent)
        comm.allreduce(took, "max")
        turns.append((float(took[0]), float(spent[0])))
    clock, work = np.min(turns[1:], 0).tolist()
    return min(clock, work), work
