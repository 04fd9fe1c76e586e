"""`run --check`: what it sees of the ranks, and the mistakes it names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mpipfl import check
from mpipfl.check import Rank
from mpipfl.comm import Comm
from mpipfl.run import main

from .suite import config

WORKER = Rank("n1", True, frozenset({0, 1}), 1, "cpu", False)
SERVER = WORKER._replace(works=False)


@pytest.mark.mpi
def test_all_is_well(comm: Comm, together_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Buffers arrive as they were sent, the folder is seen, and nothing stays in it."""
    assert check.check(config({"algorithm": "fedavg"}, together_path / "runs"), comm) == 0
    said = capsys.readouterr().out
    if comm.is_server:
        assert comm.library() in said and f"{comm.size} rank(s) on 1 node(s)" in said
        assert said.count(" ms, allreduce ") == len(check.SIZES)
        assert f"{together_path}/runs is seen by all ranks" in said
    comm.barrier()
    assert not (together_path / "runs").exists()
    assert comm.is_server or said == ""


@pytest.mark.mpi
def test_what_arrives_is_compared(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(buffer: torch.Tensor) -> None:
        Comm.broadcast(comm, buffer)
        if comm.rank == comm.size - 1:
            buffer[-1] += 1

    assert check.moved(comm, 8000, torch.device("cpu"))[1]
    monkeypatch.setattr(comm, "broadcast", spoiled)
    assert not check.moved(comm, 8000, torch.device("cpu"))[1]


@pytest.mark.mpi
def test_a_folder_that_not_all_see(comm: Comm, together_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PATIENCE", 0.3)
    mine = together_path / ("runs" if comm.is_server else f"another node's {comm.rank}")
    wrong = check.not_shared(mine, comm)
    if comm.size == 1:
        assert wrong == []
    else:
        assert f"{comm.size - 1} rank(s) do not see what rank 0 writes" in wrong[0]
    assert "rank 0 cannot write to /proc/none" in check.not_shared(Path("/proc/none"), comm)[0]


def test_a_rank_travels_whole() -> None:
    rank = Rank("node-7", True, frozenset(range(0, 256, 3)), 4, "cuda:1 GPU-uuid", True)
    assert Rank.of(np.array(rank.row())) == rank


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([SERVER, WORKER, WORKER], None),
        ([SERVER, WORKER, WORKER, WORKER], "n1: 3 threads of 4 rank(s) on 2 core(s)"),
        ([SERVER, WORKER._replace(threads=3)], "n1: 3 threads of 2 rank(s) on 2 core(s)"),
        ([WORKER, WORKER._replace(host="n2"), WORKER._replace(host="n3")], None),
        ([SERVER._replace(cores=frozenset({5})), *[WORKER._replace(cores=frozenset({5}))] * 2], "2 threads"),
        ([SERVER, *[WORKER._replace(device="cuda:0 a")] * 2], "n1: 2 ranks share cuda:0 a"),
        ([WORKER._replace(device="cuda:0 a"), WORKER._replace(device="cuda:0 b")], None),
        ([WORKER._replace(device="cuda:0 a"), WORKER._replace(device="cuda:0 a", host="n2")], None),
        ([SERVER, WORKER._replace(promised=True)], "n1: Slurm gave GPUs, PyTorch uses none"),
        ([SERVER._replace(promised=True), WORKER._replace(promised=True, device="cuda:0 a")], None),
    ],
)
def test_what_makes_ranks_slow(ranks: list[Rank], said: str | None) -> None:
    found = check.findings(ranks)
    assert found == [] if said is None else len(found) == 1 and said in found[0]


@pytest.mark.parametrize(
    ("size", "environ", "launcher"),
    [
        (1, {}, None),
        (1, {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (3, {"SLURM_STEP_NUM_TASKS": "3"}, None),
        (1, {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"}, "srun"),
        (1, {"PMI_SIZE": "4"}, "mpiexec of MPICH"),
        (1, {"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun of Open MPI"),
        (1, {"OMPI_COMM_WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "3"}, None),  # mpirun -n 1 in a job
    ],
)
def test_every_rank_believes_to_be_the_first(size: int, environ: dict[str, str], launcher: str | None) -> None:
    wrong = check.launched_wrongly(size, environ)
    assert wrong == [] if launcher is None else wrong[0].startswith(f"{launcher} started ")


def test_a_wrong_launcher_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Three processes, each alone: only the first speaks, all end with the code of a mistake."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    for process in ("0", "1", "2"):
        monkeypatch.setenv("SLURM_PROCID", process)
        assert main(["--check"]) == 2
    assert capsys.readouterr().out.count("WRONG: srun started 3 processes") == 1


@pytest.mark.parametrize(
    ("built", "loaded", "right"),
    [("Open MPI 5.0.11", "Open MPI v4.1.4", True), ("MPICH 5.0.2", "Intel(R) MPI Library 2021", True),
     ("Open MPI 5.0.11", "MPICH Version: 5.0.2", False), ("MPICH 4.1.0", "Open MPI v5.0.11", False)],
)  # fmt: skip
def test_another_mpi_than_mpi4py_was_built_for(
    built: str, loaded: str, right: bool, alone: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "built_for", lambda: built)
    monkeypatch.setattr(alone, "library", lambda: loaded)
    wrong = check.built_otherwise(alone)
    assert wrong == [] if right else built in wrong[0] and loaded in wrong[0]
