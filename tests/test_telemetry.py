"""Where the time goes: phases do not overlap, and nothing is lost between them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpipfl.comm import Comm
from mpipfl.telemetry import PHASES, Telemetry


@pytest.fixture
def clock() -> list[float]:
    """A clock that stands still unless it is set."""
    return [100.0]


def spent(telemetry: Telemetry) -> dict[str, float]:
    return {name: seconds for name, seconds in telemetry.seconds.items() if seconds}


def test_a_phase_inside_takes_its_time_out(clock: list[float]) -> None:
    telemetry = Telemetry(lambda: clock[0])
    clock[0] += 1
    with telemetry.phase("train"):
        clock[0] += 2
        with telemetry.phase("reduce"):
            clock[0] += 4
            with telemetry.phase("train"):
                clock[0] += 8
        clock[0] += 16
        with telemetry.phase("reduce"):
            clock[0] += 32
    clock[0] += 64
    with telemetry.phase("evaluate"):
        pass
    assert spent(telemetry) == {"other": 1 + 64, "train": 2 + 8 + 16, "reduce": 4 + 32}


def test_a_phase_ends_when_something_is_raised(clock: list[float]) -> None:
    telemetry = Telemetry(lambda: clock[0])
    with pytest.raises(KeyError), telemetry.phase("checkpoint"):
        clock[0] += 1
        raise KeyError
    clock[0] += 2
    with telemetry.phase("train"):
        clock[0] += 4
    assert spent(telemetry) == {"checkpoint": 1, "other": 2, "train": 4}


def test_phases_add_up_to_all_the_time(clock: list[float]) -> None:
    telemetry, begin = Telemetry(lambda: clock[0]), clock[0]
    for i, name in enumerate(itertools.islice(itertools.cycle(PHASES), 50)):
        with telemetry.phase(name):
            clock[0] += i
        clock[0] += 0.5
    with telemetry.phase("train"):
        pass  # closes the accounts
    assert sum(telemetry.seconds.values()) == pytest.approx(clock[0] - begin)


def test_memory_is_this_processs() -> None:
    """More than Python alone, less than the machine; and it never falls."""
    telemetry = Telemetry()
    before = telemetry.peak_memory()
    block = np.ones(20_000_000)  # 160 MB
    assert 20 < before < 1e6
    del block
    assert telemetry.peak_memory() >= before


@pytest.mark.mpi
def test_summary_over_ranks(comm: Comm, clock: list[float]) -> None:
    telemetry = Telemetry(lambda: clock[0])
    with telemetry.phase("train"):
        clock[0] += 10.0 * (comm.rank + 1)
    clock[0] += 1  # after the last phase: counts too
    telemetry.samples, telemetry.steps = 100 + comm.rank, 10
    before = np.zeros((comm.size, 1), dtype=np.int64)
    before[comm.rank] = comm.bytes
    comm.allreduce(before)
    counted = comm.bytes
    summary = telemetry.summary(comm)
    if not comm.is_server:
        assert summary is None
        return
    assert summary is not None
    phases = summary["phases_seconds"]
    assert list(phases) == list(PHASES)
    assert phases["train"] == {"min": 10.0, "mean": 5.0 * (comm.size + 1), "max": 10.0 * comm.size}
    assert phases["other"] == {"min": 1.0, "mean": 1.0, "max": 1.0}
    assert phases["evaluate"] == {"min": 0.0, "mean": 0.0, "max": 0.0}
    assert summary["samples"] == 100 * comm.size + comm.size * (comm.size - 1) // 2
    assert summary["client_steps"] == 10 * comm.size
    assert summary["bytes_per_rank"] == [int(b) + 8 * comm.size for b in before[:, 0]]
    assert summary["bytes_per_rank"][0] == counted
    assert len(summary["peak_memory_mb"]) == comm.size
    assert min(summary["peak_memory_mb"]) > 20
