"""The loop a researcher writes by hand, the measure of the engine: one model copy, DataLoader and optimizer a client.

As a program it is that loop in a process of its own, with the allocator as the system sets it: it names a workload,
measures one pass for every line that it reads, and says the seconds.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from .workloads import WORKLOADS, Workload


def train(network: nn.Module, x: Tensor, y: Tensor, batch: int, lr: float, momentum: float) -> nn.Module:
    """One client's epoch from a copy of the network."""
    model = copy.deepcopy(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
    return model


def round(network: nn.Module, clients: list[tuple[Tensor, Tensor]], work: Workload) -> None:
    """Every client's epoch, and their average as the new network."""
    total = [torch.zeros_like(parameter) for parameter in network.parameters()]
    for x, y in clients:
        model = train(network, x, y, work.batch, work.lr, work.momentum)
        for mine, parameter in zip(total, model.parameters(), strict=True):
            mine += parameter.detach() / len(clients)
    with torch.no_grad():
        for parameter, mean in zip(network.parameters(), total, strict=True):
            parameter.copy_(mean)


def passes(work: Workload, clock: Callable[[], float]) -> Callable[[], float]:
    """A function that trains `work.drawn` clients and gives the seconds that took."""
    network = work.network()
    x, y = work.data()
    clients = list(zip(x.split(work.samples), y.split(work.samples), strict=True))[: work.drawn]
    round(network, clients[:2], work)

    def measure() -> float:
        start = clock()
        round(network, clients, work)
        return clock() - start

    return measure


@contextmanager
def untuned(work: Workload, clock: str) -> Iterator[Callable[[], float]]:
    """The same function, at work in a process whose allocator nobody has tuned."""
    command = [sys.executable, "-m", "benchmarks.loop", work.name, clock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        send, receive = child.stdin, child.stdout
        receive.readline()  # it is ready

        def measure() -> float:
            send.write("go\n")
            send.flush()
            return float(receive.readline())

        try:
            yield measure
        finally:
            send.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure = passes(WORKLOADS[sys.argv[1]], getattr(time, sys.argv[2]))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(measure(), flush=True)
