"""MPI for the rest of the program: buffers in, buffers out. No other file imports mpi4py, and nothing is ever pickled.

A `Comm` moves contiguous numpy arrays and torch tensors in uppercase collectives, in slices below MPI's count limit,
and counts the bytes. Tensors on a GPU go directly when the MPI library is known to take them, else through pinned host
memory. It also knows the node: who shares it, memory they can share, and which GPU is whose.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import mpi4py
import numpy as np
import torch

SURVIVES = os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112  # `mpirun --with-ft ulfm`

mpi4py.rc.thread_level = "funneled"
mpi4py.rc.finalize = not SURVIVES  # it would wait for the dead
from mpi4py import MPI  # noqa: E402

from .errors import ConfigError, DataError  # noqa: E402
from .pulse import ALL, Pulse  # noqa: E402

Buffer = np.ndarray | torch.Tensor
Lost = MPI.Exception  # what a call raises when a rank has died, on some ranks or on all
LINGER = 1.0  # seconds
HOST = 64  # bytes of a host's name
NAP = 0.001  # seconds that a rank sleeps at most before it looks again
MEETING = 1 << 14  # a message's tag
SLICE = 1 << 28  # elements per MPI call: counts are 32-bit integers in MPI 3, whatever the element
MEMORY = ("/dev/shm", tempfile.gettempdir())


def cuda_aware(environ: Mapping[str, str]) -> bool:
    """Whether the MPI library was told to take GPU memory (it cannot be asked portably), by its switches or ours."""
    switches = {"MPIPFL_CUDA_AWARE", "MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA", "OMPI_MCA_opal_cuda_support"}
    return any(environ.get(name, "").lower() in {"1", "true", "yes"} for name in switches)


def choose_device(wanted: str, worker: int | None, gpus: int) -> str:
    """One GPU per worker by its place on the node; the server (worker None) and machines without GPUs use the CPU."""
    if wanted == "cpu" or worker is None:
        return "cpu"
    if gpus == 0 and wanted == "cuda":
        raise ConfigError("device: 'cuda' was asked for, but PyTorch sees no GPU here; device=auto takes what there is")
    if gpus == 0:
        return "cpu"
    return f"cuda:{worker % gpus}"


def memory_file(size: int) -> tuple[int, bytes]:
    """An open file of that size in the node's memory and its path, empty where there is no room."""
    for folder in MEMORY:
        try:
            handle, path = tempfile.mkstemp(prefix="mpipfl-", dir=folder)
        except OSError:
            continue
        try:
            os.posix_fallocate(handle, 0, size)  # takes the room now: later the lack of it would be a bus error
            return handle, path.encode()
        except OSError:
            os.close(handle)
            os.unlink(path)
    return -1, b""


def as_mpi(buffer: torch.Tensor) -> Any:
    """A contiguous tensor in a form that mpi4py takes."""
    return buffer if buffer.is_cuda else buffer.numpy()


CODE = 8  # where in the votes a rank that ends the job writes its exit code, inverted: the votes are joined by "and"


class Comm:
    """The ranks of one job."""

    def __init__(self, mpi: MPI.Intracomm | None = None, direct: bool | None = None) -> None:
        self.pulse = Pulse(self._look)
        self.direct = cuda_aware(os.environ) if direct is None else direct
        self.mpi: MPI.Comm = MPI.COMM_WORLD if mpi is None else mpi
        self.rank, self.size = self.mpi.Get_rank(), self.mpi.Get_size()
        self.bytes = 0  # moved
        self.crowded = False
        self.survives = SURVIVES and self.size > 1
        self.names = np.arange(self.size)  # what the ranks are called, also when others have died
        node = self.mpi.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        lowest = np.array([self.rank], dtype=np.int64)
        node.Bcast(lowest, root=0)
        node.Free()
        self.nodes = np.concatenate(self.allgather(lowest))  # each rank's node, by its lowest rank
        host = np.zeros((1, HOST), dtype=np.uint8)
        own = platform.node().encode()[:HOST]
        host[0, : len(own)] = np.frombuffer(own, dtype=np.uint8)
        self.hosts = [bytes(row).rstrip(b"\0").decode() for row in np.concatenate(self.allgather(host))]  # by name
        self.crowded = self.any(self.local_size > (os.cpu_count() or 1))  # somewhere ranks share cores
        self.bytes = 0

    @property
    def is_server(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> int:
        """The rank it was at the start: what people are told."""
        return int(self.names[self.rank])

    @property
    def node_ranks(self) -> np.ndarray:
        """The ranks that share this one's node."""
        return np.flatnonzero(self.nodes == self.nodes[self.rank])

    @property
    def local_rank(self) -> int:
        return int(np.searchsorted(self.node_ranks, self.rank))

    @property
    def local_size(self) -> int:
        return len(self.node_ranks)

    @property
    def workers(self) -> list[int]:
        """The ranks that host clients: all but the server, or the server itself when it is alone."""
        return list(range(1, self.size)) or [0]

    # ------------------------------------------------------------------ collectives

    def broadcast(self, buffer: Buffer) -> None:
        """Rank 0's buffer, in place, on every rank."""
        self._each(buffer, lambda part: self.mpi.Bcast(part, root=0))

    def reduce(self, buffer: Buffer) -> None:
        """The sum over ranks, in place, on rank 0; what the other ranks' buffers hold then is undefined."""
        self.meet()
        if self.is_server:
            self._each(buffer, lambda part: self.mpi.Reduce(MPI.IN_PLACE, part, op=MPI.SUM, root=0))
        else:
            self._each(buffer, lambda part: self.mpi.Reduce(part, None, op=MPI.SUM, root=0))

    def allreduce(self, buffer: Buffer, op: str = "sum") -> None:
        """The sum (or `max`) over ranks, in place, on every rank."""
        self.meet()
        operation = {"sum": MPI.SUM, "max": MPI.MAX}[op]
        self._each(buffer, lambda part: self.mpi.Allreduce(MPI.IN_PLACE, part, op=operation))

    def reduce_scatter(self, buffer: torch.Tensor) -> torch.Tensor:
        """Of a buffer with a part for each rank (ranks, ...), the sum over ranks of this one's part."""
        whole = self._where_mpi_reads(buffer)
        out = torch.empty(whole.shape[1:], dtype=whole.dtype, device=whole.device)
        self._wait(self.mpi.Reduce_scatter_block, as_mpi(whole), as_mpi(out), op=MPI.SUM)
        self.bytes += buffer.numel() * buffer.element_size()
        return out.to(buffer.device)

    def allgather_parts(self, buffer: torch.Tensor) -> None:
        """A buffer with a part of each rank (ranks, ...), of which everyone has filled in its own, in place."""
        whole = self._where_mpi_reads(buffer)
        self._wait(self.mpi.Allgather, MPI.IN_PLACE, as_mpi(whole))
        self.bytes += buffer.numel() * buffer.element_size()
        if whole is not buffer:
            buffer.copy_(whole)

    def _where_mpi_reads(self, buffer: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor that MPI can read now: itself, or a GPU's on the host where the library needs that."""
        if buffer.is_cuda and self.direct:
            torch.cuda.synchronize(buffer.device)
        return buffer.cpu() if buffer.is_cuda and not self.direct else buffer

    def gather(self, rows: np.ndarray) -> list[np.ndarray] | None:
        """Every rank's rows (any number of them, alike in shape and type) as a list on rank 0, None elsewhere."""
        rows = np.ascontiguousarray(rows)
        counts = np.zeros(self.size, dtype=np.int64)
        counts[self.rank] = len(rows)
        self.allreduce(counts)
        self.bytes += rows.nbytes
        width = int(np.prod(rows.shape[1:]))
        if not self.is_server:
            for start in range(0, rows.size, SLICE):
                self._wait(self.mpi.Send, rows.reshape(-1)[start : start + SLICE], dest=0, tag=start // SLICE)
            return None
        gathered = [rows]
        for rank in range(1, self.size):
            flat = np.empty(int(counts[rank]) * width, dtype=rows.dtype)
            for start in range(0, flat.size, SLICE):
                self._wait(self.mpi.Recv, flat[start : start + SLICE], source=rank, tag=start // SLICE)
            gathered.append(flat.reshape(int(counts[rank]), *rows.shape[1:]))
        return gathered

    def allgather(self, rows: np.ndarray) -> list[np.ndarray]:
        """Every rank's rows (any number of them, alike in shape and type; few bytes each) as a list on every rank."""
        rows = np.ascontiguousarray(rows)
        counts = np.zeros(self.size, dtype=np.int64)
        counts[self.rank] = len(rows)
        self.allreduce(counts)
        everywhere = np.empty((int(counts.sum()), *rows.shape[1:]), dtype=rows.dtype)
        width = int(np.prod(rows.shape[1:]))
        self._wait(self.mpi.Allgatherv, rows.reshape(-1), [everywhere.reshape(-1), (counts * width).tolist()])
        self.bytes += rows.nbytes
        return np.split(everywhere, np.cumsum(counts)[:-1])

    def exchange(self, parts: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        """Part r goes to rank r; what the ranks sent here, `sizes` elements each, comes back as flat tensors."""
        device = parts[0].device
        out = self._where_mpi_reads(torch.cat([part.detach().reshape(-1) for part in parts]))
        into = torch.empty(sum(sizes), dtype=out.dtype, device=out.device)
        self._wait(self.mpi.Alltoallv, [as_mpi(out), [part.numel() for part in parts]], [as_mpi(into), sizes])
        self.bytes += (out.numel() - parts[self.rank].numel()) * out.element_size()
        return list(into.to(device).split(sizes))

    def barrier(self) -> None:
        self._wait(self.mpi.Barrier)

    def meet(self) -> None:
        """Where ranks share cores, wait asleep until all are here: in its collectives MPI looks for messages all the
        time, which takes the time of those that are at work. Elsewhere this does nothing."""
        if self.crowded and self.size > 1:
            self._wait(self._meet)

    def _meet(self) -> None:
        nothing = np.empty(0, dtype=np.uint8)
        others = range(1, self.size) if self.is_server else [0]
        if not self.is_server:
            self.mpi.Send(nothing, dest=0, tag=MEETING)
        for rank in others:
            begin = time.monotonic()
            while not self.mpi.Iprobe(source=rank, tag=MEETING):
                time.sleep(min(NAP, (time.monotonic() - begin) / 20))
            self.mpi.Recv(nothing, source=rank, tag=MEETING)
        for rank in others if self.is_server else ():
            self.mpi.Send(nothing, dest=rank, tag=MEETING)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        flags = np.array([flag], dtype=np.int32)
        self.allreduce(flags, "max")
        return bool(flags[0])

    def text(self, value: str | None) -> str:
        """Rank 0's text on every rank."""
        data = np.frombuffer((value or "").encode(), dtype=np.uint8).copy()
        length = np.array([data.size], dtype=np.int64)
        self.broadcast(length)
        if not self.is_server:
            data = np.empty(int(length[0]), dtype=np.uint8)
        self.broadcast(data)
        return bytes(data).decode()

    def _each(self, buffer: Buffer, call: Callable[[Any], Any]) -> None:
        """One MPI call per slice of a contiguous buffer; a GPU's goes through the host where the library needs that."""
        if isinstance(buffer, torch.Tensor):
            if buffer.dtype in (torch.bfloat16, torch.float16):
                raise ValueError(f"{buffer.dtype} does not travel: MPI has no sum for it")
            contiguous, itemsize = buffer.is_contiguous(), buffer.element_size()
        else:
            contiguous, itemsize = buffer.flags.c_contiguous, buffer.itemsize
        if not contiguous:
            raise ValueError("an MPI buffer must be contiguous")  # a strided tensor would arrive in the wrong order
        if isinstance(buffer, torch.Tensor) and buffer.is_cuda and not self.direct:
            host = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True).copy_(buffer)
            self._each(host, call)
            buffer.copy_(host)
            return
        if isinstance(buffer, torch.Tensor) and buffer.is_cuda:
            torch.cuda.synchronize(buffer.device)
        flat: Any = buffer.detach().reshape(-1) if isinstance(buffer, torch.Tensor) else buffer.reshape(-1)
        for start in range(0, len(flat), SLICE):
            part = flat[start : start + SLICE]
            self._wait(call, part.numpy() if isinstance(part, torch.Tensor) and not part.is_cuda else part)
        self.bytes += len(flat) * itemsize

    def _wait(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """An MPI call. It may wait for other ranks: then they are the ones to look at, not this one."""
        self.pulse.waiting = True
        try:
            return call(*arguments, **options)
        finally:
            self.pulse.moves += 1
            self.pulse.waiting = False

    # ------------------------------------------------------------------ when ranks die

    def agree(self, votes: int = ALL) -> int:
        """The votes that all ranks gave, the same on every rank. Raises Lost (on every rank) where one has died. Where
        a rank ends the job, this is where the others hear of it and leave, too."""
        if not self.survives:
            given = np.array([votes], dtype=np.int64)
            self._wait(self.mpi.Allreduce, MPI.IN_PLACE, given, op=MPI.BAND)
            return int(given[0])
        together, code = self._poll(votes, 0)
        if code:
            self.leave(code, LINGER)
        return together

    def _poll(self, votes: int, code: int) -> tuple[int, int]:
        """All ranks' votes and their exit codes: joined by "and", which makes an "or" of what is inverted."""
        together = int(self._wait(self.mpi.Agree, votes | ~ALL & ~(code << CODE)))
        return together & ALL, ~(together | ALL) >> CODE

    def revoke(self) -> None:
        """Every rank's call, the present one or the next, is to raise Lost."""
        if not self.mpi.Is_revoked():
            self.mpi.Revoke()

    def shrink(self) -> list[int]:
        """Go on without the ranks that have died: the names of those. The others keep their order."""
        smaller = self._wait(self.mpi.Shrink)
        kept = np.array(MPI.Group.Translate_ranks(smaller.Get_group(), None, self.mpi.Get_group()))
        dead = np.delete(self.names, kept).tolist()
        self.mpi, self.rank, self.size = smaller, smaller.Get_rank(), smaller.Get_size()
        self.names, self.nodes = self.names[kept], self.nodes[kept]
        return dead

    def rank_of(self, names: np.ndarray) -> np.ndarray:
        """The present ranks by their names; -1 for one that has died."""
        ranks = np.full(len(self.hosts), -1)
        ranks[self.names] = np.arange(self.size)
        return ranks[names]

    def _look(self) -> None:
        """Raises Lost if it is known by now that a rank has died."""
        if self.survives:
            self.mpi.Iprobe()

    # ------------------------------------------------------------------ the node

    def worker_on_node(self) -> int | None:
        """This rank's place among its node's workers; None on a server that hosts no clients."""
        workers = [rank for rank in self.node_ranks.tolist() if rank in self.workers]
        return workers.index(self.rank) if self.rank in workers else None

    def shared(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A zeroed array that all ranks of the node see; every rank of the job must ask for it.

        It is a file in memory that has no name any more once all have opened it, so a job that
        dies leaves nothing behind (MPI's own shared windows would do, but some builds print errors for them).
        """
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.local_size == 1 or size == 0:
            return np.zeros(shape, dtype=dtype)
        name = np.zeros(512, dtype=np.uint8)
        handle = -1
        first, *others = self.node_ranks.tolist()
        if self.rank == first:
            handle, path = memory_file(size)
            name[: len(path)] = np.frombuffer(path, dtype=np.uint8)
            for rank in others:
                self._wait(self.mpi.Send, name, dest=rank)
        else:
            self._wait(self.mpi.Recv, name, source=first)
        path = bytes(name).rstrip(b"\0")
        if not path:
            raise DataError(f"no room for the {size / 1e6:,.0f} MB of data in {' or '.join(MEMORY)} of this node")
        if self.rank != first:
            handle = os.open(path, os.O_RDWR)
        memory = mmap.mmap(handle, size)
        os.close(handle)
        for rank in others if self.rank == first else []:
            self._wait(self.mpi.Recv, name, source=rank)  # it has opened the file
        if self.rank == first:
            os.unlink(path)
        else:
            self._wait(self.mpi.Send, name, dest=first)
        return np.ndarray(shape, dtype=dtype, buffer=memory)

    # ------------------------------------------------------------------ the end

    def finish(self, code: int) -> int:
        """Leave together, with this exit code."""
        if self.survives:
            with contextlib.suppress(Lost):
                self.barrier()
            self.leave(code)
        return code

    def abort(self, code: int) -> NoReturn:
        """End every rank now: a rank that raised must not leave the others waiting in a collective."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.survives:
            self.leave(self.part(code)[0], LINGER)
        if self.size > 1:
            time.sleep(0.5)  # mpirun may drop what it has not passed on when it begins to end the job
            self.mpi.Abort(code)
        os._exit(code)

    def part(self, code: int) -> tuple[int, list[int]]:
        """The end of a job that survives deaths, where MPI's Abort ends only the rank that calls it: all ranks hear of
        it, and of the exit code of the one that has a cause (0: none); and who has died, by name."""
        dead: list[int] = []
        while True:
            try:
                self.revoke()
                return self._poll(0, code)[1] or code, dead
            except Lost:
                found = self.shrink()
                dead = dead or found  # who is missed later has left before this rank

    def leave(self, code: int, linger: float = 0.0) -> NoReturn:
        """The end of this rank where others may have died: MPI's own end would wait for them. Others that are still in
        the call by which they hear of the end must not take this one for a death: it lingers, and passes on messages.
        The exit code is the server's alone: where several ranks have one, Open MPI 5's mpirun is now and then stuck in
        a lock of its own, and never ends.
        """
        until = time.monotonic() + linger
        while time.monotonic() < until:
            MPI.COMM_SELF.Iprobe()
            time.sleep(0.01)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if self.is_server else 0)

    def library(self) -> str:
        """The MPI library in use, in a few words."""
        return " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\x00").split())

    def built_for(self) -> str:
        """The MPI that mpi4py was compiled with."""
        name, version = MPI.get_vendor()
        return f"{name} {'.'.join(map(str, version))}"
