"""Client state as bytes, and the copies that other ranks keep of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from mpipfl.comm import Comm
from mpipfl.hosting import Hosting
from mpipfl.states import States

CLIENTS = 11


class Client(NamedTuple):
    seen: Tensor  # one byte: what follows has no even place in a row
    theta: Tensor
    sigma2: Tensor
    nothing: Tensor


FIRST = Client(torch.tensor(False), torch.zeros(3), torch.tensor(0.5, dtype=torch.float64), torch.zeros(2, 0))


def rows_of(clients: np.ndarray, round: int) -> Client:
    """What the clients' state is after a round."""
    number = torch.from_numpy(clients).double() + 100 * round
    theta = (number[:, None] + torch.arange(3) / 8).float()
    return Client(number % 2 == 0, theta, number / 3, torch.zeros(len(clients), 2, 0))


@pytest.mark.parametrize("hosted", [[3, 4, 9], [7], []])
def test_rows_survive_as_bytes(hosted: list[int]) -> None:
    clients = np.array(hosted, dtype=np.int64)
    states, other = (States(FIRST, clients, CLIENTS, torch.device("cpu")) for _ in range(2))
    states.put(clients, rows_of(clients, 1), torch.ones(len(clients), dtype=torch.bool))
    packed = states.pack(clients)
    assert packed.shape == (len(clients), states.width) and states.width == 1 + 12 + 8
    other.unpack(clients, packed)
    for one, two in zip(states.take(clients), other.take(clients), strict=True):
        assert one.dtype == two.dtype and torch.equal(one, two)


@pytest.mark.mpi
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_dead_ranks_clients_have_their_last_state(dead: int, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """After rounds of some clients, one of which was left out, the rows of a host that is taken for dead come from its
    keeper; without copies they are gone."""
    hosting = Hosting(np.arange(1.0, CLIENTS + 1), comm, torch.device("cpu"), copies=True)
    hosting.begin(FIRST)()
    last = np.zeros(CLIENTS, dtype=np.int64)
    for round in (1, 2, 3):
        clients = np.flatnonzero(np.arange(CLIENTS) % 3 != round % 3)
        mine = clients[hosting.home[clients] == comm.rank]
        hosting.change(clients, hosting.home[clients], clients[:1], rows_of(mine, round))()
        last[clients[1:]] = round
    dead %= comm.size
    monkeypatch.setattr(comm, "rank_of", lambda names: np.where(names == dead, -1, names))
    commit, whole = hosting.rehost()
    assert whole is (comm.size > 1 or False)
    if not whole:
        return  # nobody else is there to have a copy
    commit()
    for round in range(4):
        clients = hosting.hosted[last[hosting.hosted] == round]
        expected = rows_of(clients, round) if round else States(FIRST, clients, CLIENTS, hosting.device).take(clients)
        assert all(map(torch.equal, hosting.states.take(clients), expected))
    bare = Hosting(np.ones(CLIENTS), comm, torch.device("cpu"), copies=False)
    bare.begin(FIRST)()
    assert bare.rehost()[1]  # no client has been in a round: all are as before training
    everyone = np.arange(CLIENTS)
    mine = np.flatnonzero(bare.home == comm.rank)
    bare.change(everyone, bare.home, everyone[:0], rows_of(mine, 1))()
    assert bare.rehost()[1] is (dead not in comm.workers)
