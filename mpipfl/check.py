"""Is a job as it should be, before it is trusted with days of work? `python -m mpipfl.run --check [CONFIG]`.

Started exactly as the run will be. It prints the MPI in use, each rank's node, cores, threads and device, moves some
buffers and times them, writes to the run's folder, and names the usual mistakes: WRONG is what no run can go on with
(exit code 2), WARNING what costs speed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from . import world
from .comm import Comm
from .config import Config
from .errors import ConfigError

SIZES = (8, 1 << 20, 1 << 24)  # bytes of the buffers that are moved
REPEATS = 5
# Variables by which launchers tell a rank of how many it is, and which; the first that is set counts
LAUNCHERS = {
    "mpirun of Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "mpiexec of MPICH": ("PMI_SIZE", "PMI_RANK"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
}
PATIENCE = 10.0  # seconds for a file to be seen on other nodes


class Rank(NamedTuple):
    """One rank, as the others see it."""

    host: str
    works: bool  # hosts clients
    cores: frozenset[int]  # that it may use
    threads: int
    device: str  # cpu, or a GPU that no two names stand for
    promised: bool  # whether Slurm gave its node GPUs

    def row(self) -> np.ndarray:
        """Its fields as bytes of one length, to be sent."""
        cores = ",".join(map(str, sorted(self.cores)))
        text = "\n".join(
            [self.host, str(int(self.works)), cores, str(self.threads), self.device, str(int(self.promised))]
        ).encode()
        return np.frombuffer(text.ljust(16384, b"\0"), dtype=np.uint8)[None]

    @classmethod
    def of(cls, row: np.ndarray) -> Rank:
        host, works, cores, threads, device, promised = row.tobytes().rstrip(b"\0").decode().split("\n")
        return cls(
            host, works == "1", frozenset(map(int, cores.split(","))), int(threads), device, promised == "1"
        )  # fmt: skip


def check(config: Config | None, comm: Comm) -> int:
    """Look at everything and print it on rank 0; the exit code. Every rank must call."""
    wrong, warnings = [*launched_wrongly(comm.size, os.environ), *built_otherwise(comm)], []
    everywhere = [Rank.of(row) for rows in comm.allgather(this_rank(config, comm).row()[:, None]) for row in rows]
    warnings += findings(everywhere)
    lines = [f"mpi       {comm.library()}; mpi4py was built for {comm.built_for()}", *table(everywhere)]
    device = torch.device(everywhere[comm.rank].device.split(" ")[0])
    for size in SIZES:
        seconds, right = moved(comm, size, device)
        lines.append(f"{amount(size):>8}  " + ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in seconds.items()))
        if not right:
            wrong.append(f"{amount(size)} did not arrive as they were sent; try another MPI, or fewer of its settings")
    folder = Path.cwd() if config is None else config.output
    unseen = not_shared(folder, comm)
    wrong += unseen
    lines.append(f"folder    {folder} is {'NOT ' if unseen else ''}seen by all ranks")
    lines += [f"WARNING: {warning}" for warning in warnings] + [f"WRONG: {mistake}" for mistake in wrong]
    if comm.is_server and speaks(os.environ):
        print("\n".join(lines if wrong or warnings else [*lines, "nothing is wrong"]), flush=True)
    return ConfigError.code if wrong else 0


def this_rank(config: Config | None, comm: Comm) -> Rank:
    host = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    cores = os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
    promised = os.environ.get("SLURM_GPUS_ON_NODE") or os.environ.get("SLURM_STEP_GPUS")
    device = world.device(config or Config(algorithm={"kind": "fedavg"}), comm)  # type: ignore[arg-type]
    name = str(device)
    if device.type == "cuda":
        name += f" {torch.cuda.get_device_properties(device).uuid}"
    return Rank(host, comm.rank in comm.workers, frozenset(cores), torch.get_num_threads(), name, bool(promised))


def table(ranks: Sequence[Rank]) -> list[str]:
    lines = [f"{len(ranks)} rank(s) on {len({rank.host for rank in ranks})} node(s)",
             "rank  node              cores  threads  device"]  # fmt: skip
    for number, rank in enumerate(ranks):
        what = rank.device if rank.works else "server"
        lines.append(f"{number:>4}  {rank.host:<16}  {len(rank.cores):>5}  {rank.threads:>7}  {what}")
    return lines


# ---------------------------------------------------------------------- the usual mistakes


def launched_wrongly(size: int, environ: Mapping[str, str]) -> list[str]:
    """Whether the launcher started more ranks than this MPI knows of: each then believes that it is rank 0."""
    for launcher, (count, _) in LAUNCHERS.items():
        if count in environ:
            started = int(environ[count])
            if size == 1 < started:
                return [
                    f"{launcher} started {started} processes, and each believes that it is rank 0 and alone: the "
                    f"launcher belongs to another MPI. Under srun take --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), "
                    f"see srun --mpi=list; else the mpirun beside this Python"
                ]
            break
    return []


def speaks(environ: Mapping[str, str]) -> bool:
    """Of many that believe to be rank 0, the first."""
    return next((int(environ[rank]) for _, rank in LAUNCHERS.values() if rank in environ), 0) == 0


def built_otherwise(comm: Comm) -> list[str]:
    """Whether the MPI that was loaded is not the one that mpi4py was built for."""
    built, loaded = comm.built_for(), comm.library()
    if family(built) == family(loaded):
        return []
    return [
        f"mpi4py was built for {built}, and {loaded} was loaded; pip install --no-binary mpi4py mpi4py builds it anew"
    ]


def family(library: str) -> str:
    """Open MPI and its descendants are one, MPICH and those that are binary compatible with it another."""
    return "Open MPI" if "Open MPI" in library else "MPICH"


def findings(ranks: Sequence[Rank]) -> list[str]:
    """What makes ranks slow: crowded cores and GPUs, and GPUs that nobody uses."""
    found = []
    for host in dict.fromkeys(rank.host for rank in ranks):
        here = [rank for rank in ranks if rank.host == host]
        cores = frozenset().union(*(rank.cores for rank in here))
        threads = sum(rank.threads for rank in here if rank.works)  # the server waits most of the time
        if threads > len(cores):
            found.append(
                f"{host}: {threads} threads of {len(here)} rank(s) on {len(cores)} core(s); start fewer ranks a node, "
                f"or ask for more cores (Slurm: --cpus-per-task, mpirun: --bind-to none)"
            )
        gpus = [rank.device for rank in here if rank.device.startswith("cuda")]
        for gpu in dict.fromkeys(gpus):
            if gpus.count(gpu) > 1:
                found.append(
                    f"{host}: {gpus.count(gpu)} ranks share {gpu}; start a rank for each GPU, one for the server"
                )
        if not gpus and any(rank.promised for rank in here):
            found.append(f"{host}: Slurm gave GPUs, PyTorch uses none: device=cpu, a build without CUDA, or no driver")
    return found


# ---------------------------------------------------------------------- what is tried


def moved(comm: Comm, size: int, device: torch.device) -> tuple[dict[str, float], bool]:
    """Median seconds of the collectives a round is made of, and whether what arrived is right."""
    elements = size // 8
    sent = torch.arange(elements, dtype=torch.float64, device=device)
    seconds: dict[str, list[float]] = {"broadcast": [], "reduce": [], "allreduce": []}
    right = True
    for _ in range(REPEATS):
        for name, times in seconds.items():
            buffer = sent.clone() if name != "broadcast" or comm.is_server else torch.zeros_like(sent)
            comm.barrier()
            start = time.perf_counter()
            getattr(comm, name)(buffer)
            times.append(time.perf_counter() - start)
            expected = sent if name == "broadcast" else sent * comm.size
            right &= bool((buffer == expected).all()) or (name == "reduce" and not comm.is_server)
    return {name: float(np.median(times)) for name, times in seconds.items()}, not comm.any(not right)


def not_shared(folder: Path, comm: Comm) -> list[str]:
    """Whether all ranks see what rank 0 writes into the folder that holds the run."""
    path = folder / f".check-{comm.text(f'{socket.gethostname()}-{os.getpid()}')}"
    made, was_there = True, folder.exists()
    if comm.is_server:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError:
            made = False
    failed = comm.any(not made)
    limit = time.monotonic() + PATIENCE
    while not failed and not path.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    unseen = np.array([not path.exists()], dtype=np.int64)
    comm.allreduce(unseen)
    if comm.is_server:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            if not was_there:
                folder.rmdir()
    if failed:
        return [f"rank 0 cannot write to {folder}; name another folder with output=..."]
    if unseen[0]:
        return [f"{unseen[0]} rank(s) do not see what rank 0 writes to {folder}; name a folder of a shared file system "
                f"with output=..."]  # fmt: skip
    return []


def amount(size: int) -> str:
    return f"{size} B" if size < 1 << 20 else f"{size >> 20} MB"
