"""The verbs, against dense arithmetic over all clients, for any placement: none here, all there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from mpipfl import slices
from mpipfl.algorithms.base import columnwise
from mpipfl.comm import Comm
from mpipfl.federation import Diverged, Federation
from mpipfl.telemetry import Telemetry

pytestmark = pytest.mark.mpi

CLIENTS, DIMENSION = 11, 23


class Server(NamedTuple):
    theta: Tensor  # float32
    sigma2: Tensor  # float64, one number
    count: Tensor  # int64
    rows: Tensor  # float32, three rows
    on: Tensor  # bool


def server() -> Server:
    return Server(
        torch.zeros(DIMENSION),
        torch.zeros((), dtype=torch.float64),
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(3, DIMENSION),
        torch.zeros(2, dtype=torch.bool),
    )


class All(NamedTuple):
    """What all clients hold, known to every rank: the dense truth."""

    theta: Tensor
    sigma2: Tensor
    weight: Tensor
    mixing: Tensor

    def of(self, clients: np.ndarray) -> All:
        return All(*(field[torch.from_numpy(clients)] for field in self))


@pytest.fixture
def everyone() -> All:
    random = torch.Generator().manual_seed(0)
    return All(
        torch.randn(CLIENTS, DIMENSION, generator=random) * 10 ** torch.linspace(-6, 6, CLIENTS)[:, None],
        torch.rand(CLIENTS, dtype=torch.float64, generator=random),
        torch.rand(CLIENTS, dtype=torch.float64, generator=random) * 100,
        torch.rand(CLIENTS, 3, dtype=torch.float64, generator=random),
    )


PLACEMENTS: dict[str, Callable[[int], np.ndarray]] = {
    "in turn": lambda ranks: np.arange(CLIENTS) % ranks,
    "all on the last": lambda ranks: np.full(CLIENTS, ranks - 1),
    "all on the server": lambda ranks: np.zeros(CLIENTS, dtype=np.int64),
    "one here, the rest there": lambda ranks: np.where(np.arange(CLIENTS) == 4, 0, ranks - 1),
    "at random": lambda ranks: np.random.default_rng(ranks).integers(0, ranks, CLIENTS),
}


@pytest.fixture(params=PLACEMENTS)
def hosts(request: pytest.FixtureRequest, comm: Comm) -> np.ndarray:
    """Each client's rank."""
    return PLACEMENTS[request.param](comm.size)


@pytest.fixture
def here(hosts: np.ndarray, comm: Comm) -> np.ndarray:
    """The clients this rank hosts."""
    return np.flatnonzero(hosts == comm.rank)


def federation(comm: Comm, hosts: np.ndarray, **policy: str) -> Federation:
    fl = Federation(comm, Telemetry(), CLIENTS, **policy)
    fl.begin(3, np.arange(len(hosts)), hosts)
    return fl


def alone_with_all(alone: Comm, **policy: str) -> Federation:
    return federation(alone, np.zeros(CLIENTS, dtype=np.int64), **policy)


@columnwise
def everything(old: Server, sums: Any) -> Server:
    return Server(sums.theta, sums.sigma2, sums.count, sums.rows, sums.on > 2)


@pytest.fixture(params=[0, 1, 9], ids=["whole", "slices of one", "slices"])
def slicing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's step on rank 0, or in slices on all ranks, of which the last may have none."""
    if request.param:
        for name, value in (("LONG", DIMENSION), ("WORK", 1), ("LEAST", request.param)):
            monkeypatch.setattr(slices, name, value)


def aggregate(fl: Federation, mine: All) -> Server:
    ones = torch.ones(len(mine.theta), dtype=torch.int64)
    return fl.aggregate(
        everything,
        server(),
        theta=(mine.weight, mine.theta),
        sigma2=mine.sigma2,
        count=ones[:, None],
        rows=(mine.mixing, mine.theta),
        on=torch.tensor([0, 1]).expand(len(ones), 2),
    )


@pytest.mark.parametrize("reduce", ["exact", "fast"])
@pytest.mark.usefixtures("slicing")
def test_aggregate_is_the_dense_sum(
    reduce: str, hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All
) -> None:
    """Vectors, scalars and rows of weights in one packed buffer; every field in its own type and shape."""
    new = aggregate(federation(comm, hosts, reduce=reduce), everyone.of(here))
    theta, weight, mixing = (v.double().numpy() for v in (everyone.theta, everyone.weight, everyone.mixing))
    scale = np.abs(weight[:, None] * theta).sum(0)
    near = 3e-7 if reduce == "exact" else 2e-6  # one rounding to float32, or one for each term
    assert [f.dtype for f in new] == [f.dtype for f in server()]
    assert [f.shape for f in new] == [f.shape for f in server()]
    assert (np.abs(new.theta.numpy() - weight @ theta) <= near * scale).all()
    assert (np.abs(new.rows.numpy() - mixing.T @ theta) <= near * (mixing.T @ np.abs(theta))).all()
    assert float(new.sigma2) == pytest.approx(float(everyone.sigma2.sum()), rel=1e-12 if reduce == "exact" else 1e-6)
    assert new.count.tolist() == [CLIENTS]
    assert new.on.tolist() == [False, True]


@pytest.mark.usefixtures("slicing")
def test_the_bits_are_those_of_one_rank(
    hosts: np.ndarray, here: np.ndarray, comm: Comm, alone: Comm, everyone: All
) -> None:
    together = aggregate(federation(comm, hosts), everyone.of(here))
    single = aggregate(alone_with_all(alone), everyone)
    for name, a, b in zip(Server._fields, together, single, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes(), name


def test_aggregate_leaves_what_it_is_given(hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All) -> None:
    """A float64 contribution, summed with several rows of weights, is still itself afterwards."""
    mine = everyone.of(here)
    value, before = mine.theta.double(), mine.theta.double()
    fl = federation(comm, hosts)
    fl.aggregate(lambda old, sums: old._replace(rows=sums.rows), server(), rows=(mine.mixing, value))
    fl.share(mine.sigma2)
    assert torch.equal(value, before)
    assert torch.equal(mine.sigma2, everyone.of(here).sigma2)


def test_rows_of_weights_for_a_float64_value(hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All) -> None:
    """Every row from the value itself, not from what the row before left of it."""
    mine = everyone.of(here)
    sums: list[Tensor] = []
    federation(comm, hosts).aggregate(
        lambda old, s: sums.append(s.rows) or old, server(), rows=(mine.mixing, mine.theta.double())
    )
    for rows in sums:
        expected = everyone.mixing.T @ everyone.theta.double()
        assert torch.allclose(rows, expected, rtol=1e-9, atol=1e-9 * float(everyone.theta.abs().max()))


def test_only_the_servers_f_runs(hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All) -> None:
    calls: list[int] = []

    def f(old: Server, sums: Any) -> Server:
        calls.append(comm.rank)
        return old._replace(theta=torch.full((DIMENSION,), float(comm.rank + 7)))

    new = federation(comm, hosts).aggregate(f, server(), theta=everyone.of(here).theta)
    assert calls == ([0] if comm.is_server else [])
    assert new.theta.tolist() == [7.0] * DIMENSION


def test_weights_of_zero_count_nothing(hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All) -> None:
    """The mean over a few clients, by weights of zero for the rest."""
    mine, chosen = everyone.of(here), torch.from_numpy(np.isin(here, [2, 5])).double()
    new = federation(comm, hosts).aggregate(
        lambda old, s: old._replace(theta=s.theta / s.n), server(), theta=(chosen, mine.theta), n=chosen
    )
    assert torch.allclose(new.theta, everyone.theta[[2, 5]].double().mean(0).float(), rtol=1e-6)


@pytest.mark.parametrize("reduce", ["exact", "fast"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_share_is_the_sum_on_every_rank(
    shape: tuple[int, ...], reduce: str, hosts: np.ndarray, here: np.ndarray, comm: Comm, alone: Comm
) -> None:
    value = torch.rand(CLIENTS, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got = federation(comm, hosts, reduce=reduce).share(value[torch.from_numpy(here)])
    assert got.shape == shape
    assert torch.allclose(got, value.sum(0), rtol=1e-12)
    if reduce == "exact":
        assert got.numpy().tobytes() == alone_with_all(alone).share(value).numpy().tobytes()


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_gather_is_in_client_order(shape: tuple[int, ...], hosts: np.ndarray, here: np.ndarray, comm: Comm) -> None:
    """On every rank, and of the clients that report."""
    value = torch.from_numpy(np.random.default_rng(0).random((CLIENTS, *shape)))
    fl = federation(comm, hosts)
    assert torch.equal(fl.gather(value[here]), value)
    reports = np.arange(CLIENTS) % 3 != 1
    fl.begin(4, np.arange(CLIENTS), hosts, reports)
    assert torch.equal(fl.gather(value[here]), value[torch.from_numpy(reports)])


def test_table_has_a_row_for_every_client(hosts: np.ndarray, here: np.ndarray, comm: Comm) -> None:
    value = torch.from_numpy(np.random.default_rng(0).random((CLIENTS, 2)))
    fl = Federation(comm, Telemetry(), CLIENTS + 2)
    fl.begin(1, np.arange(CLIENTS), hosts)
    got = fl.table(value[here])
    assert np.array_equal(got[:CLIENTS], value.numpy())
    assert np.isnan(got[CLIENTS:]).all()  # not in the round


def test_publish_carries_every_type(comm: Comm) -> None:
    def state(rank: int) -> Server:
        return Server(
            torch.arange(DIMENSION) + rank / 3,
            torch.tensor(1 / 3 + rank, dtype=torch.float64),
            torch.tensor([2**40 + rank]),
            torch.arange(3.0 * DIMENSION).view(DIMENSION, 3).T + rank,  # strided
            torch.tensor([rank > 0, True]),
        )

    got = federation(comm, np.zeros(0, dtype=np.int64)).publish(state(comm.rank))
    for field, expected in zip(got, state(0), strict=True):
        assert field.dtype == expected.dtype
        assert torch.equal(field, expected)


def test_publish_of_nothing(comm: Comm) -> None:
    class Nothing(NamedTuple):
        pass

    class Empty(NamedTuple):
        none: Tensor
        one: Tensor

    fl = federation(comm, np.zeros(0, dtype=np.int64))
    assert fl.publish(Nothing()) == ()
    single = torch.tensor(float(comm.rank)).expand(1)  # stride 0
    assert [float(f) for f in fl.publish(Empty(single, single))] == [0, 0]
    for none in (torch.zeros(0, 3), torch.zeros(0, 3).as_strided((0, 3), (0, 0))):
        got = fl.publish(Empty(none, torch.tensor(float(comm.rank))))
        assert got.none.shape == (0, 3)
        assert float(got.one) == 0


# ---------------------------------------------------------------------- what is not finite


class Waiting(Exception):
    """A rank waits for the server to end the job."""


def poisoned(everyone: All, clients: list[int], value: float) -> All:
    theta = everyone.theta.clone()
    theta[clients, 5] = value
    return everyone._replace(theta=theta)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_stop_names_the_clients(
    value: float, hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 names those of all ranks; the others wait to be ended."""

    def wait() -> None:
        raise Waiting

    monkeypatch.setattr(comm, "barrier", wait)
    bad = poisoned(everyone, [9, 2], value)
    with pytest.raises(Diverged if comm.is_server else Waiting) as raised:
        aggregate(federation(comm, hosts), bad.of(here))
    if comm.is_server:
        assert "client 2, 9 diverged" in str(raised.value)
        assert raised.value.code == 4


@pytest.mark.usefixtures("slicing")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_skip_leaves_them_out_everywhere(
    value: float, hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All
) -> None:
    """As if they had not been drawn, in this sum, in the other fields, and in what is shared later."""
    bad, good = [2, 9], np.setdiff1d(np.arange(CLIENTS), [2, 9])
    fl = federation(comm, hosts, nonfinite="skip")
    mine = poisoned(everyone, bad, value).of(here)
    new, rest = aggregate(fl, mine), everyone.of(good)
    later = fl.share(mine.sigma2)
    assert torch.allclose(new.theta.double(), rest.weight @ rest.theta.double(), rtol=1e-5, atol=1e-2)
    assert torch.isfinite(new.theta).all()
    assert new.count.tolist() == [len(good)]
    assert float(new.sigma2) == pytest.approx(float(rest.sigma2.sum()), rel=1e-12)
    assert float(later) == pytest.approx(float(rest.sigma2.sum()), rel=1e-12)
    assert here[fl.left_out.numpy()].tolist() == [k for k in here if k in bad]
    assert fl.kept == len(good)
    assert fl.named == bad


def test_a_skipped_round_has_the_bits_of_one_rank(
    hosts: np.ndarray, here: np.ndarray, comm: Comm, alone: Comm, everyone: All
) -> None:
    bad = poisoned(everyone, [2, 9], float("nan"))
    together = aggregate(federation(comm, hosts, nonfinite="skip"), bad.of(here))
    single = aggregate(alone_with_all(alone, nonfinite="skip"), bad)
    assert all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(together, single, strict=True))


def test_all_left_out_leaves_the_server_as_it_was(
    hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All
) -> None:
    fl = federation(comm, hosts, nonfinite="skip")
    before = server()._replace(theta=torch.arange(float(DIMENSION)))
    mine = poisoned(everyone, list(range(CLIENTS)), float("nan")).of(here)
    calls: list[Any] = []
    new = fl.aggregate(lambda old, sums: calls.append(sums) or old, before, theta=mine.theta)
    assert calls == []
    assert fl.kept == 0
    assert all(torch.equal(a, b) for a, b in zip(new, before, strict=True))


def test_a_new_round_forgives(hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All) -> None:
    fl = federation(comm, hosts, nonfinite="skip")
    aggregate(fl, poisoned(everyone, [0], float("nan")).of(here))
    fl.begin(4, np.arange(CLIENTS), hosts)
    assert not fl.left_out.any()
    assert aggregate(fl, everyone.of(here)).count.tolist() == [CLIENTS]


class Kept(NamedTuple):
    """A client's own state, of every kind a method may keep."""

    theta: Tensor  # (m, d)
    sigma2: Tensor  # (m), one number each
    seen: Tensor  # (m), bool
    rounds: Tensor  # (m), int64


@pytest.mark.parametrize("field", ["theta", "sigma2"])
def test_clients_states_are_checked_too(
    field: str, hosts: np.ndarray, here: np.ndarray, comm: Comm, everyone: All
) -> None:
    mine = everyone.of(here)
    rows = Kept(mine.theta, mine.sigma2, mine.sigma2 > 0.5, torch.arange(len(here)))
    fl = federation(comm, hosts, nonfinite="skip")
    fl.check(rows)
    assert fl.kept == CLIENTS
    value = getattr(rows, field).clone()
    value[torch.from_numpy(here == 6)] = float("nan")
    fl.check(rows._replace(**{field: value}))
    assert fl.left_out.tolist() == [k == 6 for k in here]
    assert fl.kept == CLIENTS - 1


def test_stateless_clients_need_no_check(hosts: np.ndarray, here: np.ndarray, comm: Comm) -> None:
    federation(comm, hosts).check(())
