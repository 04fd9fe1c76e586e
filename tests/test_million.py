"""Very many clients: whose samples are made when they are needed, of whom few are evaluated, and who cost next to
nothing as long as they are not drawn."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from mpipfl import newcomers, schedule, world
from mpipfl.cohort import Cohort
from mpipfl.comm import MPI, Comm
from mpipfl.config import Config
from mpipfl.data.federated import made
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.report.page import page
from mpipfl.run import main
from mpipfl.runfolder import RunFolder
from mpipfl.store import Store

from .conftest import PROJECT
from .folders import compared
from .suite import METHODS, config, differing, rewound, train

RANKS = MPI.COMM_WORLD.Get_size()
CPU = torch.device("cpu")
MANY: dict[str, Any] = {
    "data": {
        "source": {"kind": "synthetic", "shared": 0.8, "sizes": "power_law", "least": 10, "features": 12},
        "samples": None,
        "clients": 20_000,
        "partition": {"kind": "natural"},
        "shift": {"kind": "none"},
    },
    "model": {"kind": "logistic"},
    "participation.fraction": 0.001,
    "evaluate.clients": 60,
}


def prepared(settings: Config, comm: Comm) -> Experiment:
    """An experiment that is set up."""
    plan = world.plan(settings)
    folder = RunFolder(settings.folder)
    folder.describe(settings, plan.partition)
    return Experiment(settings, plan, comm, folder, Reporter(False, settings.all_rounds, settings.name))


# ---------------------------------------------------------------------- samples when they are needed


def test_samples_made_when_needed_are_those_made_all_at_once(alone: Comm, tmp_path: Path) -> None:
    """Any clients, in any order and twice, to the bit: batches, gradients, scores and labels."""
    plan = world.plan(config(MANY, tmp_path, algorithm=METHODS["fedavg"], data__clients=30))
    whole = Store(
        *map(torch.from_numpy, made(plan.samples, plan.partition, np.arange(30))),  # type: ignore[arg-type]
        plan.partition.bounds, plan.partition.group,
    )  # fmt: skip
    lazy = world.store(plan, alone, CPU)
    assert not len(lazy.x) and lazy.longest("train") == whole.longest("train")
    some = np.array([17, 3, 29, 3])
    results = []
    for store in (whole, lazy):
        settings = config(MANY, tmp_path, algorithm=METHODS["fedavg"]).train
        cohort = Cohort(some[:2], store, plan.model, settings, 0, 1, 3).at(some)
        theta = cohort.descend(plan.theta)
        results.append(
            [theta, cohort.grad(theta), *cohort.evaluate(theta), cohort.labels("validation"), cohort.n_train]
        )
    for one, other in zip(*results, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.mpi
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_the_same_bits_on_all_ranks(method: str, comm: Comm, alone: Comm, together_path: Path) -> None:
    """Also where client states are in files; and killed after a round and resumed elsewhere. The folder stays small."""
    many = MANY | {"algorithm": METHODS[method], "rounds": 2, "evaluate.every": 1}
    settings = config(many, together_path / "together")
    together = train(settings, comm)
    if comm.is_server:
        again = config(many, together_path / "alone", states__megabytes=0.002)
        assert differing(together, train(again, alone)) == []
        assert differing(together, train(rewound(settings, together_path / "killed", 1), alone, resume=True)) == []
        assert np.isfinite(together["history/global/accuracy"]).all()
        assert together["history/global/accuracy"].shape == (3, 60)
        files = [path.stat().st_size for path in settings.folder.rglob("*") if path.is_file()]
        assert sum(files) < 20 * 20_000


def test_a_client_that_is_never_drawn_costs_little(alone: Comm, tmp_path: Path) -> None:
    """The memory of a run's set-up and first rounds grows by a few numbers a client; a sample would be 48 bytes, and
    there are dozens."""

    def run(clients: int) -> None:
        settings = config(
            MANY, tmp_path / str(clients), algorithm=METHODS["fedavg"], data__clients=clients, rounds=1,
            participation__fraction=10 / clients, evaluate__clients=5,
        )  # fmt: skip
        assert prepared(settings, alone).run(None) == 0

    def peak(clients: int) -> int:
        tracemalloc.start()
        try:
            run(clients)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    run(100)  # what is imported on the way does not count
    assert (peak(110_000) - peak(10_000)) / 100_000 < 250


# ---------------------------------------------------------------------- some are evaluated


@pytest.mark.parametrize(("clients", "count"), [(1000, 10), (10, 10), (10, 30), (1, 1)])
def test_a_sample_of_clients(clients: int, count: int) -> None:
    chosen = schedule.sample(3, "evaluated", clients, count)
    assert len(chosen) == min(count, clients) and (np.diff(chosen) > 0).all()
    assert chosen[0] >= 0 and chosen[-1] < clients
    assert np.array_equal(chosen, schedule.sample(3, "evaluated", clients, count))
    if count < clients:
        assert not np.array_equal(chosen, schedule.sample(4, "evaluated", clients, count))


@pytest.mark.mpi
@pytest.mark.skipif(RANKS == 5, reason="at fewer ranks is enough")
@pytest.mark.parametrize("method", ["fedavg", "pfedvem"])
def test_the_histories_are_of_the_evaluated_clients(method: str, comm: Comm, together_path: Path) -> None:
    """Their rows, what the method recorded included, are those of an evaluation of everybody; nothing else differs."""
    changes = {"algorithm": METHODS[method]}
    everybody = train(config(changes, together_path / "all"), comm)
    some = train(config(changes, together_path / "some", evaluate__clients=3), comm)
    if not comm.is_server:
        return
    with h5py.File(together_path / "some/run/history.h5") as file:
        chosen = file["clients"][...]
        assert len(chosen) == 3 == len(file["n_train"])
    for name, values in everybody.items():
        found = some[name]
        if found.shape != values.shape:
            assert name.startswith("history/")
            values = np.take(values, chosen, 0 if values.shape[0] == 7 else 1)
        assert found.tobytes() == values.tobytes(), name
    assert some["history/global/accuracy"].shape[1] == 3


def test_a_report_names_the_evaluated_clients(alone: Comm, tmp_path: Path) -> None:
    settings = config(MANY, tmp_path, algorithm=METHODS["fedavg"], evaluate__clients=5, rounds=1)
    assert prepared(settings, alone).run(None) == 0
    comparison = compared(settings.folder)
    (run,) = comparison.runs
    chosen = schedule.sample(0, "evaluated", 20_000, 5)
    assert np.array_equal(run.clients, chosen)
    text = page(comparison)
    assert all(str(client) in text for client in chosen)
    assert main(["--verify", str(settings.folder)]) == 0


# ---------------------------------------------------------------------- and what else there is


def test_newcomers_are_the_clients_behind_the_last_one(alone: Comm, tmp_path: Path) -> None:
    settings = config(MANY, tmp_path, algorithm=METHODS["fedavg"], rounds=1)
    train(settings, alone)
    plan = world.plan(newcomers.settings(settings.folder, ["data.clients=4"]))
    later = settings.data.source.open(tmp_path, 0, 20_004)
    assert plan.partition.clients == 4
    for k in range(4):
        assert all(map(np.array_equal, plan.samples.make(k), later.make(20_000 + k)))  # type: ignore[union-attr]


def test_a_plan_of_a_million_clients(capsys: pytest.CaptureFixture[str]) -> None:
    """`--dry-run` of the shipped configuration; a checkpoint has the states of those that are drawn at least once."""
    assert main([str(PROJECT / "configs/million.yaml"), "--dry-run", "algorithm=scaffold", "rounds=20"]) == 0
    said = capsys.readouterr().out
    model, drawn = 4 * 610, 1e6 * (1 - 0.999**20)
    assert "1000000 clients" in said and f"checkpoint {(2 * model + drawn * model) / 1e6:.1f} MB" in said


@pytest.mark.parametrize("value", ["0", "-3", "many", "true"])
@pytest.mark.parametrize("key", ["evaluate.clients", "states.megabytes"])
def test_how_many_are_evaluated_and_kept_are_numbers(key: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(PROJECT / "configs/million.yaml"), f"{key}={value}", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert f"{key}: " in error and error.count("\n") == 1
