"""The clients' rows: taken, put back, and on their way to rank 0."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from mpipfl import checkpoint
from mpipfl import states as module
from mpipfl.comm import Comm
from mpipfl.errors import DataError
from mpipfl.history import History
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
def test_blocks_bring_active_rows_in_order(field: int, size: int, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many small blocks too, and from ranks that host nobody, such as the server."""
    monkeypatch.setattr(module, "BLOCK", size)
    hosted = hosted_by(comm)
    mine = states(hosted)
    k = np.array([11, 0, 12, 2, 5, 3])  # in the order of their rounds
    for round in (k[:4], k[2:]):
        some = round[np.isin(round, hosted)]
        ids = torch.from_numpy(some)
        rows = Client(ids[:, None] + FIRST.theta, ids.double(), ids % 3 == 0)
        mine.put(some, rows, torch.ones(len(some), dtype=torch.bool))
        mine.active[round] = True
    blocks = list(mine.blocks(comm, field))
    comm.barrier()
    if not comm.is_server:
        assert blocks == []
        return
    assert [first for first, _ in blocks] == np.cumsum([0, *(len(rows) for _, rows in blocks[:-1])]).tolist()
    k.sort()
    expected = [k[:, None] + FIRST.theta.numpy(), k.astype(float), k % 3 == 0][field]
    assert np.array_equal(np.concatenate([rows for _, rows in blocks]), expected)
    assert len(blocks) == (len(k) if size == 1 else 1 if size > 40 else -(-len(k) // [3, 5, 40][field]))


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
    mine, me = States(Pair(theta, theta), np.array([2]), 4, torch.device("cpu")), np.array([2])
    mine.put(me, Pair(theta[None], theta[None]), torch.ones(1, dtype=torch.bool))
    mine.fields[0][0] = 1
    mine.fields[1][0] = 2
    assert [field.tolist() for field in mine.take(me)] == [[[1, 1, 1]], [[2, 2, 2]]]


# ---------------------------------------------------------------------- very many clients


@pytest.mark.parametrize("budget", [None, 0.0, 100.0])
def test_rows_are_the_same_in_memory_and_in_files(budget: float | None) -> None:
    """In rounds of random clients, against a plain dictionary; 100 bytes are room for four rows of 21."""
    draw, hosted = np.random.default_rng(0), np.arange(1, CLIENTS)
    mine = States(FIRST, hosted, CLIENTS, torch.device("cpu"), budget)
    known: dict[int, float] = {}
    for round in range(8):
        some = np.sort(draw.choice(hosted, draw.integers(0, 6), replace=False))
        kept = torch.from_numpy(draw.random(len(some)) < 0.8)
        number = torch.from_numpy(some + 100.0 * round)
        mine.put(some, Client(number[:, None].float() + torch.arange(3), number, number % 2 == 0), kept)
        known |= dict(zip(some[kept.numpy()].tolist(), number[kept].tolist(), strict=True))
        asked = np.sort(draw.choice(hosted, 7, replace=False))
        theta, sigma2, seen = mine.take(asked)
        for i, client in enumerate(asked.tolist()):
            n = known.get(client)
            assert sigma2[i] == (0.5 if n is None else n)
            assert theta[i].tolist() == ([1, 2, 3] if n is None else [n, n + 1, n + 2])
            assert bool(seen[i]) == (n is not None and n % 2 == 0)
    assert sorted(known) == np.flatnonzero(mine.active).tolist() and len(known) > 4
    assert bool(mine.files) == (budget is not None)


def test_clients_that_were_never_active_take_no_memory() -> None:
    """A million models of 40 kB would be 40 GB."""
    before = psutil.Process().memory_info().rss
    mine = States(Pair(torch.zeros(10_000), torch.zeros(())), np.arange(10**6), 10**6, torch.device("cpu"))
    some = np.array([5, 70_000, 999_999])
    mine.put(some, Pair(torch.ones(3, 10_000), torch.ones(3)), torch.ones(3, dtype=torch.bool))
    assert mine.take(np.array([5, 6])).first[:, -1].tolist() == [1, 0]
    assert psutil.Process().memory_info().rss - before < 60e6


def test_a_disk_without_room_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = States(FIRST, np.arange(3), 3, torch.device("cpu"), 10.0)
    with pytest.raises(DataError) as error:
        mine.put(np.array([1]), mine.take(np.array([1])), torch.ones(1, dtype=torch.bool))
    assert f"clients' states in {tmp_path} (No space left on device). Name another folder (TMPDIR)" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_older_versions_checkpoint_is_refused(alone: Comm, tmp_path: Path) -> None:
    """It had a row for every client, and did not say who had been in a round."""
    every = np.arange(CLIENTS)
    mine = states(every)
    checkpoint.write(
        tmp_path, 3, Pair(torch.zeros(2), torch.zeros(1)), mine, History(np.ones(1), np.ones(1)), "digest", alone
    )
    with h5py.File(checkpoint.path_of(tmp_path, 3), "r+") as file:
        del file["active"]
    with pytest.raises(checkpoint.CheckpointError, match=r"round_00003.h5 is an older version's; start the run anew"):
        checkpoint.read(tmp_path, 3, Pair(torch.zeros(2), torch.zeros(1)), states(every))
