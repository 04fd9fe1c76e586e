"""The clients' rows: taken, put back, and on their way to rank 0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from mpipfl import states as module
from mpipfl.comm import Comm
from mpipfl.placement import place
from mpipfl.states import States

CLIENTS = 13


class Client(NamedTuple):
    theta: Tensor
    sigma2: Tensor
    seen: Tensor


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


FIRST = Client(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(0.5, dtype=torch.float64), torch.tensor(False))


def hosted_by(comm: Comm) -> np.ndarray:
    return np.flatnonzero(place(np.arange(1, CLIENTS + 1), comm.workers) == comm.rank)


def states(hosted: np.ndarray) -> States:
    return States(FIRST, hosted, CLIENTS, torch.device("cpu"))


def test_everybody_starts_alike() -> None:
    rows = states(np.array([2, 5])).take(np.array([2, 5]))
    assert isinstance(rows, Client)
    assert rows.theta.tolist() == [[1.0, 2.0, 3.0]] * 2
    assert rows.sigma2.tolist() == [0.5, 0.5]
    assert rows.seen.dtype == torch.bool


@pytest.mark.parametrize("clients", [[4, 7, 11], [7], [4, 11], []])
def test_put_changes_the_kept_rows_only(clients: list[int]) -> None:
    mine, some = states(np.array([4, 7, 11])), np.array(clients, dtype=np.int64)
    kept = torch.arange(len(some)) != 0
    new = mine.take(some)._replace(sigma2=torch.from_numpy(some).double())
    mine.put(some, new, kept)
    expected = [float(k) if k in clients[1:] else 0.5 for k in (4, 7, 11)]
    assert mine.take(np.array([4, 7, 11])).sigma2.tolist() == expected


def test_put_keeps_the_fields_types() -> None:
    mine = states(np.array([0, 1]))
    rows = mine.take(np.array([0, 1]))
    mine.put(np.array([0, 1]), rows._replace(theta=rows.theta.double()), torch.ones(2, dtype=torch.bool))
    assert mine.take(np.array([0])).theta.dtype == torch.float32


@pytest.mark.mpi
@pytest.mark.parametrize("size", [1, 40, 64 << 20])
@pytest.mark.parametrize("field", range(3))
def test_blocks_bring_all_rows_in_order(field: int, size: int, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many small blocks too, and from ranks that host nobody, such as the server."""
    monkeypatch.setattr(module, "BLOCK", size)
    hosted = hosted_by(comm)
    mine = states(hosted)
    ids = torch.from_numpy(hosted)
    rows = Client(ids[:, None] + FIRST.theta, ids.double(), ids % 3 == 0)
    mine.put(hosted, rows, torch.ones(len(hosted), dtype=torch.bool))
    blocks = list(mine.blocks(comm, field))
    comm.barrier()
    if not comm.is_server:
        assert blocks == []
        return
    assert [first for first, _ in blocks] == np.cumsum([0, *(len(rows) for _, rows in blocks[:-1])]).tolist()
    k = np.arange(CLIENTS)
    expected = [k[:, None] + FIRST.theta.numpy(), k.astype(float), k % 3 == 0][field]
    assert np.array_equal(np.concatenate([rows for _, rows in blocks]), expected)
    assert len(blocks) == (CLIENTS if size == 1 else 1 if size > 40 else -(-CLIENTS // [3, 5, 40][field]))


def test_fields_have_memory_of_their_own() -> None:
    """A method may return one vector for all rows, or one matrix for two fields; later rows are written singly."""
    states = States(Pair(torch.zeros(3), torch.zeros(3)), np.arange(4), 4, torch.device("cpu"))
    every, one = np.arange(4), np.array([2])
    for first in (torch.ones(3).expand(4, 3), torch.ones(4, 3)):
        states.put(every, Pair(first, first), torch.ones(4, dtype=torch.bool))
        states.put(one, Pair(torch.full((1, 3), 5.0), torch.full((1, 3), 7.0)), torch.ones(1, dtype=torch.bool))
        a, b = states.take(every)
        assert a[:, 0].tolist() == [1, 1, 5, 1]
        assert b[:, 0].tolist() == [1, 1, 7, 1]


def test_a_single_row_is_a_copy_too() -> None:
    """Where a rank hosts one client, and a method begins two fields with one vector."""
    theta = torch.zeros(3)
    states = States(Pair(theta, theta), np.array([2]), 4, torch.device("cpu"))
    states.fields[0][0] = 1
    states.fields[1][0] = 2
    assert [field.tolist() for field in states.take(np.array([2]))] == [[[1, 1, 1]], [[2, 2, 2]]]
    assert theta.tolist() == [0, 0, 0]
