"""The clients' own state on this rank, and everybody's way into a checkpoint and out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .comm import Comm

BLOCK = 64 << 20  # bytes that travel to rank 0 at once


class States:
    """Rows of a method's client state, for the clients hosted here: a NamedTuple of tensors (hosted, *shape)."""

    def __init__(self, first: Any, hosted: np.ndarray, clients: int, device: torch.device) -> None:
        self.kind, self.hosted, self.clients = type(first), hosted, clients
        self.row = np.full(clients, -1, dtype=np.int64)
        self.row[hosted] = np.arange(len(hosted))
        self.fields = [field.to(device).repeat(len(hosted), *[1] * field.dim()) for field in first]  # always copies

    def take(self, clients: np.ndarray) -> Any:
        """The rows of some hosted clients, as a NamedTuple."""
        if len(clients) == len(self.hosted):
            return self.kind(*self.fields)
        rows = torch.from_numpy(self.row[clients])
        return self.kind(*(field[rows.to(field.device)] for field in self.fields))

    def put(self, clients: np.ndarray, new: Any, kept: Tensor) -> None:
        """Replace the rows of some hosted clients, where `kept` is true."""
        if not self.fields:
            return
        rows = torch.from_numpy(self.row[clients])[kept]
        taken: set[int] = set()  # a field is written into later on, so it must have memory of its own
        for i, (field, value) in enumerate(zip(self.fields, new, strict=True)):
            value = value.to(field.dtype).contiguous()
            if len(rows) == len(self.hosted) == len(clients):
                self.fields[i] = value.clone() if value.data_ptr() in taken else value
                taken.add(value.data_ptr())
            else:
                field[rows.to(field.device)] = value[kept.to(field.device)]

    # ------------------------------------------------------------------ as bytes

    @property
    def width(self) -> int:
        """Bytes of a client's state."""
        return sum(field.shape[1:].numel() * field.element_size() for field in self.fields)

    def pack(self, clients: np.ndarray) -> np.ndarray:
        """The rows of some hosted clients as bytes (m, width)."""
        return packed(self.take(clients), len(clients))

    def unpack(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """Replace the rows of some hosted clients by these bytes (m, width)."""
        start, new = 0, []
        for field in self.fields:
            size = field.shape[1:].numel() * field.element_size()
            part = rows[:, start : start + size].flatten().view(torch.empty(0, dtype=field.dtype).numpy().dtype)
            new.append(torch.from_numpy(part.reshape(len(rows), *field.shape[1:])).to(field.device))
            start += size
        self.put(clients, new, torch.ones(len(clients), dtype=torch.bool))

    # ------------------------------------------------------------------ checkpoints

    def blocks(self, comm: Comm, field: int) -> Iterator[tuple[int, np.ndarray]]:
        """A field's rows in client order as (first client, rows), on rank 0; every rank must iterate to the end."""
        value = self.fields[field]
        step = max(1, BLOCK // max(1, value.shape[1:].numel() * value.element_size()))  # alike where none is hosted
        for first in range(0, self.clients, step):
            mine = np.flatnonzero((self.hosted >= first) & (self.hosted < first + step))
            ids = comm.gather(self.hosted[mine])
            rows = comm.gather(value[torch.from_numpy(mine).to(value.device)].detach().cpu().numpy())
            if ids is not None and rows is not None:
                block = np.empty((sum(map(len, ids)), *rows[0].shape[1:]), rows[0].dtype)
                for places, some in zip(ids, rows, strict=True):
                    block[places - first] = some
                yield first, block


def packed(rows: Any, count: int) -> np.ndarray:
    """A NamedTuple's rows as bytes (count, width)."""
    parts = [field.detach().cpu().contiguous().view(count, field.shape[1:].numel()).numpy() for field in rows]
    return np.concatenate(
        [np.empty((count, 0), np.uint8), *(part.view(np.uint8) for part in parts if part.shape[1])], 1
    )
