"""The clients' own state on this rank, and everybody's way into a checkpoint and out of it.

Only clients that have ever been in a round have a row; all others are as they were before training, which is kept once.
Rows are in memory, or in files without a name where they would take more of it than they may.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from .comm import Comm
from .errors import DataError

BLOCK = 64 << 20  # bytes that travel to rank 0 at once
AHEAD = 1.5  # how much more of a disk is taken than is needed now
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.10 does not name it


class States:
    """Rows of a method's client state, for the clients hosted here: a NamedTuple of tensors (hosted, *shape)."""

    def __init__(
        self, first: Any, hosted: np.ndarray, clients: int, device: torch.device, budget: float | None = None
    ) -> None:
        self.kind, self.hosted, self.clients, self.device, self.budget = type(first), hosted, clients, device, budget
        self.first = [field.to(device) for field in first]  # everybody's before training
        self.active = np.zeros(clients, dtype=bool)  # who has been in a round, wherever hosted
        self.row = np.full(clients, -1, dtype=np.int64)  # where its row is; -1: it is hosted elsewhere, or has none yet
        self.order = np.empty(0, dtype=np.int64)  # the rows' clients
        self.fields = [reserved((len(hosted), *field.shape), field) for field in self.first]
        self.files: list[IO[bytes]] = []  # of the fields, where they are not in memory
        self.held = 0  # rows that the files have room for

    def anew(self, hosted: np.ndarray) -> States:
        """The same before training, for other clients."""
        return States(self.kind(*self.first), hosted, self.clients, self.device, self.budget)

    def take(self, clients: np.ndarray) -> Any:
        """The rows of some hosted clients, as a NamedTuple."""
        rows, out = self.row[clients], []
        if np.array_equal(clients, self.order):
            return self.kind(*(field[: len(rows)].to(self.device) for field in self.fields))
        there, found = torch.from_numpy(rows >= 0), torch.from_numpy(rows[rows >= 0])
        for first, field in zip(self.first, self.fields, strict=True):
            value = field[found.to(field.device)].to(self.device)
            if len(value) < len(rows):
                known, value = value, first.repeat(len(rows), *[1] * first.dim())
                value[there.to(self.device)] = known
            out.append(value)
        return self.kind(*out)

    def put(self, clients: np.ndarray, new: Any, kept: Tensor) -> None:
        """Replace the rows of some hosted clients, where `kept` is true."""
        mask = kept.cpu().numpy()
        some = clients[mask]
        self.active[some] = True
        if not self.fields:
            return
        fresh = some[self.row[some] < 0]
        self.order = np.concatenate([self.order, fresh])
        self.row[fresh] = np.arange(len(self.order) - len(fresh), len(self.order))
        if not self._fits():
            self._to_files()
        elif len(some) == len(self.hosted) and np.array_equal(self.order, some):
            self._replace(new)
            return
        rows, chosen = torch.from_numpy(self.row[some]), torch.from_numpy(mask)
        for field, value in zip(self.fields, new, strict=True):
            field[rows.to(field.device)] = value[chosen.to(value.device)].to(field)

    def _replace(self, new: Any) -> None:
        """All rows at once, without a copy: but each field must have memory of its own, as it is written into later."""
        taken: set[int] = set()
        for i, value in enumerate(new):
            value = value.to(self.first[i]).contiguous()
            self.fields[i] = value.clone() if value.data_ptr() in taken else value
            taken.add(value.data_ptr())

    # ------------------------------------------------------------------ where there is too much for the memory

    def _fits(self) -> bool:
        return self.budget is None or len(self.order) * self.width <= self.budget

    def _to_files(self) -> None:
        """All rows in files, which are gone with this process. Their room is taken before it is used: the lack of it
        would be a bus error."""
        moves = not self.files
        if moves:
            self.files = [tempfile.TemporaryFile(prefix="mpipfl-") for _ in self.first]  # noqa: SIM115
        if len(self.order) > self.held:
            self.held = min(int(AHEAD * len(self.order)), len(self.hosted))
            for file, first in zip(self.files, self.first, strict=True):
                self._hold(file, self.held * first.numel() * first.element_size())
        if moves:
            for i, (file, field) in enumerate(zip(self.files, self.fields, strict=True)):
                self.fields[i] = mapped(file, field)
                self.fields[i][: len(self.order)] = field[: len(self.order)]

    def _hold(self, file: IO[bytes], size: int) -> None:
        try:
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise DataError(
                f"no room for {size / 1e6:,.0f} MB of clients' states in {tempfile.gettempdir()} ({error.strerror}). "
                f"Name another folder (TMPDIR), or take a greater states.megabytes"
            ) from error

    # ------------------------------------------------------------------ as bytes

    @property
    def width(self) -> int:
        """Bytes of a client's state."""
        return sum(field.numel() * field.element_size() for field in self.first)

    def pack(self, clients: np.ndarray) -> np.ndarray:
        """The rows of some hosted clients as bytes (m, width)."""
        return packed(self.take(clients), len(clients))

    def unpack(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """Replace the rows of some hosted clients by these bytes (m, width)."""
        start, new = 0, []
        for field in self.first:
            size = field.numel() * field.element_size()
            part = rows[:, start : start + size].flatten().view(torch.empty(0, dtype=field.dtype).numpy().dtype)
            new.append(torch.from_numpy(part.reshape(len(rows), *field.shape)).to(self.device))
            start += size
        self.put(clients, new, torch.ones(len(clients), dtype=torch.bool))

    # ------------------------------------------------------------------ checkpoints

    def blocks(self, comm: Comm, field: int) -> Iterator[tuple[int, np.ndarray]]:
        """A field's rows of all active clients in client order as (place of the first, rows), on rank 0; every rank
        must iterate to the end."""
        ids, first = np.flatnonzero(self.active), self.first[field]
        step = max(1, BLOCK // max(1, first.numel() * first.element_size()))
        for start in range(0, len(ids), step):
            some = ids[start : start + step]
            mine = some[self.row[some] >= 0]
            where = comm.gather(mine)
            value = self.fields[field]
            rows = comm.gather(value[torch.from_numpy(self.row[mine]).to(value.device)].detach().cpu().numpy())
            if where is not None and rows is not None:
                block = np.empty((len(some), *first.shape), rows[0].dtype)
                for clients, part in zip(where, rows, strict=True):
                    block[np.searchsorted(some, clients)] = part
                yield start, block


def reserved(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Room for a tensor, whose memory is taken page by page when it is written to; on a GPU at once."""
    size = int(np.prod(shape)) * like.element_size()
    if like.is_cuda or not size:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)


def mapped(file: IO[bytes], like: Tensor) -> Tensor:
    """A file as a tensor of this shape and type; it may have gaps behind the rows that are in use."""
    size = like.numel() * like.element_size()
    if not size:
        return like
    file.truncate(size)
    return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=like.dtype).view(like.shape)


def packed(rows: Any, count: int) -> np.ndarray:
    """A NamedTuple's rows as bytes (count, width)."""
    parts = [field.detach().cpu().contiguous().view(count, field.shape[1:].numel()).numpy() for field in rows]
    return np.concatenate(
        [np.empty((count, 0), np.uint8), *(part.view(np.uint8) for part in parts if part.shape[1])], 1
    )
