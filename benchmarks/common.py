"""What both benchmarks share: an experiment on random data, the machine's description, tables and dated results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from mpipfl import world
from mpipfl.comm import Comm
from mpipfl.config import Config, check
from mpipfl.data.partition import Partition
from mpipfl.data.samples import from_parts
from mpipfl.data.sizes import Sized
from mpipfl.models import Batched
from mpipfl.telemetry import Telemetry

from .workloads import CLASSES, Workload

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "numpy", "mpi4py", "mpipfl")
Row = dict[str, Any]
T = TypeVar("T")


def experiment(
    work: Workload, sizes: Sized | None = None, tested: float = 0, width: int | str = "auto", **settings: Any
) -> tuple[Config, world.Plan]:
    """A workload as mpipfl's configuration and plan, on random samples: as many in all whatever the sizes of its
    clients, and a share of them for testing besides; so many clients trained as one batch."""
    values: dict[str, Any] = {
        "name": work.name, "rounds": 1000, "algorithm": {"kind": "fedavg"}, "model": {"kind": work.model},
        "data": {"clients": work.clients}, "participation": {"fraction": work.drawn / work.clients},
        "train": {"batch": work.batch, "epochs": 1, "lr": work.lr, "momentum": work.momentum, "cohort": width},
    }  # fmt: skip
    config = check(values | settings, work.name)
    trained, held = sizes_of(work.clients, work.samples, sizes or Sized(), tested)
    ends = np.cumsum(trained + held)
    begins = np.concatenate([[0], ends[:-1]])
    bounds = np.stack([begins, begins + trained, begins + trained, ends], 1)
    x, y = work.data(int(ends[-1]))
    nothing = np.zeros(work.clients, dtype=np.int64)
    partition = Partition(np.arange(len(y)), bounds, nothing, nothing)
    samples = from_parts([x.numpy()], [y.numpy()], CLASSES)
    model = Batched(work.network(), work.shape)
    theta, costs = model.initial(), world.work_of(config, partition.n_train)
    return config, world.Plan(samples, partition, model, theta, costs, config.algorithm)


def sizes_of(clients: int, samples: int, sizes: Sized, tested: float) -> tuple[np.ndarray, np.ndarray]:
    """How many samples each client trains on, so many on average, and is tested on."""
    wished = sizes.targets(clients * samples, clients, 1, np.random.default_rng(0))
    trained = np.rint(wished).astype(np.int64)
    return trained, np.ceil(tested * trained).astype(np.int64)


def peak() -> float:
    """GFLOP/s of this core in a matrix product, the best of a few."""
    a, b, c = (torch.rand(1024, 1024) for _ in range(3))
    torch.mm(a, b, out=c)
    best = min(seconds(lambda: torch.mm(a, b, out=c), time.process_time) for _ in range(20))
    return 2 * 1024**3 / best / 1e9


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def apart(comm: Comm, work: Callable[[], T] | None) -> T | None:
    """What some ranks' work gives (None on those that have none), while the others sleep: waiting in MPI would take a
    core."""
    result = None if work is None else work()
    request = comm.mpi.Ibarrier()
    while not request.Test():
        time.sleep(0.005)
    return result


def phases(telemetry: Telemetry) -> np.ndarray:
    """Seconds of each phase until now."""
    with telemetry.phase("other"):
        return np.array(list(telemetry.seconds.values()))


def middle(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def spread(values: Sequence[float]) -> str:
    """How far the extremes lie from the median."""
    center = middle(values)
    return f"-{100 * (1 - min(values) / center):.0f} +{100 * (max(values) / center - 1):.0f} %"


def verdict(met: bool) -> str:
    return "met" if met else "NOT MET"


# ---------------------------------------------------------------------- results


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats: to see that it works, not to quote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the JSON; benchmarks/results/ by default")
    return parser


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: release(name) for name in PACKAGES},
        "load_average": os.getloadavg(),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def release(name: str) -> str:
    try:
        return version(name)
    except Exception:  # run from the source tree
        return "source"


def publish(name: str, tables: Mapping[str, Sequence[Row]], path: Path | None, more: Mapping[str, Any]) -> None:
    """The tables on the screen and, with date and machine, in a JSON file."""
    for title, rows in tables.items():
        show(title, rows)
    now = datetime.now().astimezone()
    path = path or RESULTS / f"{now:%Y-%m-%d-%H%M}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"benchmark": name, "date": now.isoformat(timespec="seconds"), "machine": machine(), **more}
    path.write_text(json.dumps(result | {"tables": tables}, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


def show(title: str, rows: Sequence[Row]) -> None:
    """One column for each row of the results, so that it fits a terminal."""
    table = Table(title=title, title_justify="left")
    heads, *lines = turned(rows)
    for head in heads:
        table.add_column(head, justify="right" if table.columns else "left")
    for line in lines:
        table.add_row(*line)
    Console(highlight=False, width=max(100, Console().width)).print(table)


def markdown(rows: Sequence[Row]) -> str:
    """The same for the README."""
    heads, *lines = turned(rows)
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines))


def turned(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each figure; the samples behind them stay in the JSON."""
    return [[name, *(text(row[name]) for row in rows)] for name in rows[0] if name != "samples"]


def text(value: object) -> str:
    """A figure with as many digits as mean something."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
