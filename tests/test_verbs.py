"""Gather, gram, mix, cross and spread against plain arithmetic over all clients, and the routes that vectors take for
them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from mpipfl import exchange
from mpipfl.comm import Comm
from mpipfl.exchange import Routes
from mpipfl.federation import Diverged, Federation, without
from mpipfl.telemetry import Telemetry, peak_resident

pytestmark = pytest.mark.mpi

Place = Callable[[int, int], np.ndarray]
NAN = float("nan")
PLACES: dict[str, Place] = {  # each client's rank, by how many there are of both
    "in turn": lambda n, ranks: np.arange(n) % ranks,
    "all on the last": lambda n, ranks: np.full(n, ranks - 1),
    "all on the server": lambda n, ranks: np.zeros(n, dtype=np.int64),
    "one here, the rest there": lambda n, ranks: np.where(np.arange(n) == 1, 0, ranks - 1),
    "at random": lambda n, ranks: np.random.default_rng(ranks).integers(0, ranks, n),
}


class Case(NamedTuple):
    """What all clients hold, known to every rank, and where they are."""

    theta: Tensor  # (clients, d)
    reports: Tensor  # (clients), bool
    place: Place

    @property
    def heard(self) -> Tensor:
        return self.reports.nonzero()[:, 0]

    def here(self, comm: Comm) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.place(len(self.theta), comm.size) == comm.rank))

    def start(self, comm: Comm, **policy: str) -> Federation:
        n = len(self.theta)
        fl = Federation(comm, Telemetry(), 5 * n, **policy)
        fl.begin(2, 3 * np.arange(n) + 1, self.place(n, comm.size), self.reports.numpy())  # numbers, not places
        return fl

    def ask(self, verb: str, comm: Comm, weight: Tensor | None = None, **policy: str) -> Tensor:
        """What a verb gives; it leaves the clients' vectors as they were."""
        here, fl = self.here(comm), self.start(comm, **policy)
        mine = self.theta[here]
        if verb == "gram":
            got = fl.gram(mine)
        elif verb == "cross":
            got = fl.cross(lambda model, rows: judged(model, here[rows]), mine)
        else:
            rows = torch.full((len(self.theta), len(self.heard)), NAN, dtype=torch.float64)
            rows[self.heard] = anything(len(self.heard)) if weight is None else weight
            got = fl.mix(rows[here], mine)
        assert bits(mine) == bits(self.theta[here])
        return got

    def mixed(self, weight: Tensor) -> Tensor:
        """What mix is to give for all clients, float64."""
        out = self.theta.double()
        out[self.heard] = weight @ out[self.heard]
        return out


def case_of(place: str, clients: int, dimension: int, silent: tuple[int, ...] = ()) -> Case:
    theta = torch.randn(clients, dimension, generator=torch.Generator().manual_seed(clients))
    theta *= 10 ** torch.linspace(-3, 2, clients)[:, None]
    return Case(theta, torch.tensor([k not in silent for k in range(clients)]), PLACES[place])


def anything(n: int) -> Tensor:
    """Weights of either sign."""
    return torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


def judged(model: Tensor, clients: Tensor, pair: bool = False) -> Tensor:
    """L_ij = (i + 1) theta_j[7 i], or that and its negative."""
    value = (clients + 1) * model[7 * clients % len(model)]
    return torch.stack([value, -value], 1) if pair else value


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


CASES = [
    case_of("in turn", 7, 1003),
    case_of("in turn", 11, 23, silent=(0, 4, 10)),
    case_of("all on the last", 7, 1003, silent=(1,)),
    case_of("all on the server", 11, 200, silent=(5,)),
    case_of("one here, the rest there", 7, 1, silent=(1,)),
    case_of("one here, the rest there", 11, 1003),
    case_of("at random", 11, 1003, silent=(2, 3)),
    case_of("at random", 3, 200),
    case_of("at random", 11, 5003, silent=(5,)),
]
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
every_verb = pytest.mark.parametrize("verb", ["gram", "mix", "cross"])


@pytest.fixture(params=CASES, ids=lambda case: "x".join(map(str, case.theta.shape)))
def case(request: pytest.FixtureRequest, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> Case:
    """In several blocks, or in one that is not full; models travel two at a time."""
    monkeypatch.setattr(exchange, "AREA", request.param.theta.shape[1])
    monkeypatch.setattr(exchange, "MODELS", 8 * request.param.theta.shape[1] * comm.size)
    return request.param


@pytest.fixture
def received(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers came to this rank in each exchange."""
    seen, real = list[int](), comm.exchange
    monkeypatch.setattr(comm, "exchange", lambda parts, sizes: seen.append(sum(sizes)) or real(parts, sizes))
    return seen


# ---------------------------------------------------------------------- all is well


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float64, ()), (torch.int64, (2, 3)), (torch.bool, (1,))])
def test_gather_is_in_client_order(dtype: torch.dtype, shape: tuple[int, ...], case: Case, comm: Comm) -> None:
    value = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (len(case.theta), *shape))).to(dtype)
    got = case.start(comm).gather(value[case.here(comm)])
    assert got.dtype == dtype
    assert torch.equal(got, value[case.heard])


@pytest.mark.parametrize("reduce", ["exact", "fast"])
def test_gram_is_the_dense_product(reduce: str, case: Case, comm: Comm) -> None:
    got, theta = case.ask("gram", comm, reduce=reduce), case.theta[case.heard].double()
    assert got.dtype == torch.float64
    assert torch.equal(got, got.T)
    assert float((got - theta @ theta.T).abs().max()) <= 1e-10 * float(theta.square().sum(1).max())


def test_gram_is_exact_for_each_pair(comm: Comm) -> None:
    """A client whose update is a million times longer does not blur the others' products."""
    theta = torch.randn(5, 2000, generator=torch.Generator().manual_seed(3))
    theta[3] *= 1e6
    hosts = np.arange(5) % comm.size
    fl = Federation(comm, Telemetry(), 5)
    fl.begin(1, np.arange(5), hosts)
    expected = theta.double() @ theta.double().T
    norm = expected.diagonal().sqrt()
    assert float(((fl.gram(theta[hosts == comm.rank]) - expected).abs() / (norm[:, None] * norm)).max()) < 1e-10


def test_weights_of_both_signs_lose_only_what_was_left_out() -> None:
    weight = torch.tensor([[1.0, -1, 0, 0], [0, 0, 0, 2], [1, 1, 0, 2], [0, 1, 0, 0]], dtype=torch.float64)
    found = without(weight, torch.tensor([False, False, False, True]))
    assert found.tolist() == [[1, -1, 0, 0], [0, 1, 0, 0], [2, 2, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("matrix", ["identity", "permutation", "mean", "any", "any in float64"])
def test_mix_is_the_dense_product(matrix: str, case: Case, comm: Comm) -> None:
    """Rows that are only moved keep their bits, and those of clients that do not report stay as they are."""
    if matrix == "any in float64":
        case = case._replace(theta=case.theta.double())
    n, here = len(case.heard), case.here(comm)
    eye, shuffled = torch.eye(n, dtype=torch.float64), np.random.default_rng(1).permutation(n)
    weight = {"identity": eye, "permutation": eye[shuffled], "mean": eye * 0 + 1 / n}.get(matrix, anything(n))
    got, expected = case.ask("mix", comm, weight), case.mixed(weight)[here]
    moved = ~case.reports[here] | (matrix in ("identity", "permutation"))
    scale = case._replace(theta=case.theta.abs()).mixed(weight.abs())[here]
    near = torch.finfo(got.dtype).eps / 2 * expected.abs() + 1e-13 * scale  # one rounding, of a sum made in float64
    assert got.dtype == case.theta.dtype
    assert ((got - expected).abs() <= near).all()
    assert torch.equal(got.double()[moved], expected[moved])


@pytest.mark.parametrize(("some", "pair"), [(False, False), (True, False), (True, True)])
def test_cross_is_a_double_loop(some: bool, pair: bool, case: Case, comm: Comm) -> None:
    """f sees each wanted model once, with the rows that want it, and gives a number or a row for each of these."""
    here, models = case.here(comm), case.theta[case.heard]
    wanted = wishes(case)[here] if some else torch.ones(len(here), len(models), dtype=torch.bool)
    calls: list[tuple[bytes, list[int]]] = []

    def f(model: Tensor, rows: Tensor) -> Tensor:
        calls.append((bits(model), here[rows].tolist()))
        return judged(model, here[rows], pair)

    shape = (2,) if pair else ()
    got = case.start(comm).cross(f, case.theta[here], wanted if some else None, shape)
    asked = [j for j in range(len(models)) if wanted[:, j].any()]
    assert sorted(calls) == sorted((bits(models[j]), here[wanted[:, j]].tolist()) for j in asked)
    expected = torch.full((*wanted.shape, *shape), NAN, dtype=torch.float64)
    for i, j in wanted.nonzero().tolist():
        expected[i, j] = judged(models[j], here[i : i + 1], pair)[0]
    assert got.shape == expected.shape
    assert torch.equal(got.nan_to_num(-1e9), expected.nan_to_num(-1e9))


def wishes(case: Case) -> Tensor:
    """(clients, n): a third of all, but nobody wants the second and the first client wants none."""
    wanted = torch.from_numpy(np.random.default_rng(2).random((len(case.theta), len(case.heard))) < 1 / 3)
    wanted[:, 1] = wanted[0] = False
    return wanted


def test_models_that_nobody_wants_do_not_travel(case: Case, comm: Comm) -> None:
    """The bytes that leave a rank are those of its models, once for each other rank that wants them."""
    here, hosts, wanted = case.here(comm), case.place(len(case.theta), comm.size), wishes(case)
    sent, due = [], []
    for ask in (torch.zeros_like(wanted), wanted, torch.ones_like(wanted)):
        before = comm.bytes
        case.start(comm).cross(lambda model, rows: judged(model, here[rows]), case.theta[here], ask[here])
        sent.append(comm.bytes - before)
        mine = [j for j, host in enumerate(hosts[case.reports.numpy()]) if host == comm.rank]
        others = [torch.from_numpy(hosts == rank) for rank in range(comm.size) if rank != comm.rank]
        due.append(4 * case.theta.shape[1] * sum(int(ask[rank][:, mine].any(0).sum()) for rank in others))
    assert [n - sent[0] for n in sent] == due


@every_verb
def test_the_bits_are_those_of_one_rank(verb: str, case: Case, comm: Comm, alone: Comm) -> None:
    rows = slice(None) if verb == "gram" else case.here(comm)
    assert bits(case.ask(verb, comm)) == bits(case.ask(verb, alone)[rows])


# ---------------------------------------------------------------------- who is silent, or not finite


def poisoned(case: Case, clients: Any) -> Case:
    theta = case.theta.clone()
    theta[clients, -1] = NAN
    return case._replace(theta=theta)


@every_verb
def test_stop_names_the_client(verb: str, case: Case, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "barrier", functools.partial(pytest.fail, "waits for the server to end the job"))
    bad = int(case.heard[-2])
    with pytest.raises(Diverged if comm.is_server else pytest.fail.Exception) as raised:
        poisoned(case, [bad]).ask(verb, comm)
    assert not comm.is_server or f"client {3 * bad + 1} diverged" in str(raised.value)


@every_verb
def test_who_does_not_report_may_hold_anything(verb: str, case: Case, comm: Comm) -> None:
    bad = poisoned(case, ~case.reports)
    got, expected = bad.ask(verb, comm), case.ask(verb, comm)
    if verb == "mix":
        expected[~case.reports[case.here(comm)], -1] = NAN  # as it was
    assert bits(got) == bits(expected)


def test_gram_and_cross_of_a_client_left_out_are_zero(case: Case, comm: Comm, alone: Comm) -> None:
    """And those of the others are what they are."""
    bad, here, theta = poisoned(case, case.heard[-1:]), case.here(comm), case.theta[case.heard[:-1]].double()
    gram, cross = (bad.ask(verb, comm, nonfinite="skip") for verb in ("gram", "cross"))
    assert not (gram[-1].any() or gram[:, -1].any() or cross[:, -1].any())
    assert float((gram[:-1, :-1] - theta @ theta.T).abs().max()) <= 1e-10 * float(theta.square().sum(1).max())
    assert bits(gram) == bits(bad.ask("gram", alone, nonfinite="skip"))
    assert bits(cross[:, :-1]) == bits(case.ask("cross", alone)[here, :-1])


def test_mix_without_a_client_keeps_the_sums_of_rows(case: Case, comm: Comm, alone: Comm) -> None:
    here, eye = case.here(comm), torch.eye(len(case.heard), dtype=torch.float64)
    weight = anything(len(case.heard)).abs()
    weight[0, -1] = 0  # loses nothing
    weight[1] = eye[-1]  # loses all: stays as it is
    kept = weight.index_fill(1, torch.tensor(len(eye) - 1), 0)
    kept *= (weight.sum(1) / kept.sum(1))[:, None]
    kept[1] = eye[1]
    bad = poisoned(case, case.heard[-1:])
    got = bad.ask("mix", comm, weight, nonfinite="skip")
    truth = case._replace(theta=case.theta.index_fill(0, case.heard[-1:], 0))
    scale = truth._replace(theta=truth.theta.abs()).mixed(kept)[here]
    assert got.isfinite().all()
    assert ((got - truth.mixed(kept)[here]).abs() <= 1e-7 * scale).all()
    assert bits(got) == bits(bad.ask("mix", alone, weight, nonfinite="skip")[here])


@places
@pytest.mark.parametrize("clients", [0, 7])
def test_nobody_reports(clients: int, place: Place, comm: Comm) -> None:
    case = Case(torch.ones(clients, 23), torch.zeros(clients, dtype=torch.bool), place)
    here = case.here(comm)
    assert case.start(comm).gather(case.theta[here]).shape == (0, 23)
    assert case.ask("gram", comm).shape == (0, 0)
    assert case.ask("cross", comm).shape == (len(here), 0)
    assert bits(case.ask("mix", comm)) == bits(case.theta[here])


# ---------------------------------------------------------------------- tasks wherever there is room


class Work:
    """A value and a vector for every client (by its number), task and vector; counts how often it is asked."""

    def __init__(self, kind: str = "all differ") -> None:
        self.kind, self.calls = kind, list[tuple[list[int], list[int]]]()

    def value(self, client: int, task: int, theta: Tensor) -> float:
        if self.kind == "ties":
            return float((client + task) % 2)
        if self.kind == "nothing" or (self.kind == "some" and (client + task) % 3):
            return NAN
        return float(theta[0].double()) + (7 * client + 5 * task) % 11

    @staticmethod
    def vector(client: int, task: int, theta: Tensor) -> Tensor:
        return (task + 1) * theta - client

    def __call__(self, clients: np.ndarray, tasks: np.ndarray, theta: Tensor) -> tuple[Tensor, Tensor]:
        assert len(clients) == len(tasks) == len(theta) > 0
        self.calls.append((clients.tolist(), tasks.tolist()))
        rows = list(zip(clients.tolist(), tasks.tolist(), theta, strict=True))
        values = torch.tensor([self.value(*row) for row in rows], dtype=torch.float64)
        return values, torch.stack([self.vector(*row) for row in rows])


@pytest.mark.parametrize("kind", ["all differ", "ties", "some", "nothing"])
@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_spread_is_a_double_loop(tasks: int, kind: str, case: Case, comm: Comm) -> None:
    """All values at home, and of each client the vector of the greatest, the first of equals; NaN is never best."""
    mine, work = case.theta[case.here(comm)], Work(kind)
    values, best, vectors = case.start(comm).spread(work, mine, tasks)
    assert bits(mine) == bits(case.theta[case.here(comm)])
    here = [k for k in case.here(comm).tolist() if case.reports[k]]
    assert (values.shape, best.shape, vectors.shape) == ((len(here), tasks), (len(here),), (len(here), mine.shape[1]))
    assert (values.dtype, vectors.dtype) == (torch.float64, case.theta.dtype)
    for row, k in enumerate(here):
        expected = [work.value(3 * k + 1, t, case.theta[k]) for t in range(tasks)]
        assert [NAN if v != v else v for v in values[row].tolist()] == pytest.approx(expected, abs=0, nan_ok=True)
        top = max((v for v in expected if v == v), default=NAN)
        first = expected.index(top) if top == top else 0
        assert int(best[row]) == first
        assert bits(vectors[row]) == bits(work.vector(3 * k + 1, first, case.theta[k]))


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_spread_keeps_all_workers_busy(tasks: int, case: Case, comm: Comm, received: list[int]) -> None:
    """Wherever the clients are hosted: one call each, the same number of tasks but one, no task twice. What travels is
    the vector of each client that is worked on, and each client's best one."""
    work, fl = Work(), case.start(comm)
    fl.spread(work, case.theta[case.here(comm)], tasks)
    done = [pair for clients, these in work.calls for pair in zip(clients, these, strict=True)]
    loads = np.concatenate(comm.allgather(np.array([len(done)])))
    assert loads.sum() == len(case.heard) * tasks
    assert np.ptp(loads[comm.workers]) <= 1
    assert loads[comm.workers].sum() == loads.sum()
    assert len(work.calls) == (loads[comm.rank] > 0)
    everything = np.concatenate(comm.allgather(np.array(done, dtype=np.int64).reshape(-1, 2)))
    assert sorted(map(tuple, everything.tolist())) == [
        (3 * k + 1, t) for k in case.heard.tolist() for t in range(tasks)
    ]
    mine = int(case.reports[case.here(comm)].sum())
    assert sum(received) == case.theta.shape[1] * (len({client for client, _ in done}) + mine)


@places
@pytest.mark.parametrize(("clients", "tasks"), [(0, 3), (1, 1), (1, 2), (1, 7), (2, 1)])
def test_spread_with_fewer_items_than_ranks(clients: int, tasks: int, place: Place, comm: Comm) -> None:
    case = Case(torch.arange(1.0, 1 + 5 * clients).view(clients, 5), torch.ones(clients, dtype=torch.bool), place)
    here, work = case.here(comm), Work()
    values, best, vectors = case.start(comm).spread(work, case.theta[here], tasks)
    assert (values.shape, vectors.shape) == ((len(here), tasks), (len(here), 5))
    loads = np.concatenate(comm.allgather(np.array([sum(len(who) for who, _ in work.calls)])))
    assert loads.sum() == clients * tasks
    assert np.ptp(loads[comm.workers]) <= 1
    assert loads[comm.workers].sum() == loads.sum()
    for row, k in enumerate(here.tolist()):
        expected = [work.value(3 * k + 1, t, case.theta[k]) for t in range(tasks)]
        assert values[row].tolist() == expected
        assert int(best[row]) == int(np.argmax(expected))
        assert torch.equal(vectors[row], work.vector(3 * k + 1, int(best[row]), case.theta[k]))


def test_spread_stops_or_does_without_who_is_not_finite(
    case: Case, comm: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is left out works with zeros; the others do not notice, nor does anybody of who does not report."""
    here = case.here(comm)
    heard = [k for k in here.tolist() if case.reports[k]]
    whole = case.start(comm).spread(Work(), case.theta[here], 3)
    bad = poisoned(poisoned(case, ~case.reports), case.heard[-1:])
    fl = bad.start(comm, nonfinite="skip")
    skipped = fl.spread(Work(), bad.theta[here], 3)
    assert fl.named == [3 * int(case.heard[-1]) + 1]
    rows = [row for row, k in enumerate(heard) if k != case.heard[-1]]
    assert all(bits(one[rows]) == bits(other[rows]) for one, other in zip(skipped, whole, strict=True))
    monkeypatch.setattr(comm, "barrier", functools.partial(pytest.fail, "waits for the server to end the job"))
    with pytest.raises(Diverged if comm.is_server else pytest.fail.Exception):
        bad.start(comm).spread(Work(), bad.theta[here], 3)


# ---------------------------------------------------------------------- routes and memory


@places
@pytest.mark.parametrize("dimension", [1, 64, 1003])
def test_columns_meet_on_one_rank(
    dimension: int, place: Place, comm: Comm, alone: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks that do not depend on the number of ranks, and from there back home."""
    monkeypatch.setattr(exchange, "AREA", 11 * 70)
    theta = (torch.arange(11)[:, None] * 10_000 + torch.arange(dimension)).float()  # each says where it is from
    mine, routes = torch.from_numpy(place(11, comm.size) == comm.rank), Routes(comm, place(11, comm.size))
    blocks = list(routes.columns(theta[mine]))
    starts = np.array([int(block[0, 0]) for block in blocks], dtype=np.int64)
    assert all(torch.equal(block, theta[:, start : start + 70]) for start, block in zip(starts, blocks, strict=True))
    assert np.sort(np.concatenate(comm.allgather(starts))).tolist() == list(range(0, dimension, 70))
    assert routes.count(dimension) == len(list(Routes(alone, place(11, 1)).columns(theta))) == -(-dimension // 70)
    back = list(routes.through(lambda block: block.flip(0), theta[mine]))
    assert torch.equal(torch.cat([rows for _, rows in back], 1), theta.flip(0)[mine])
    assert [i for columns, _ in back for i in range(dimension)[columns]] == list(range(dimension))


@places
def test_models_come_one_by_one(place: Place, comm: Comm, received: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, the wanted ones, and no more of them at a time than there is room for."""
    monkeypatch.setattr(exchange, "MODELS", 3 * 4 * 23)
    theta, hosts = CASES[1].theta, place(11, comm.size)
    wanted = np.arange(11) % (comm.rank + 2) == 0
    got = list(Routes(comm, hosts).models(theta[torch.from_numpy(hosts == comm.rank)], wanted))
    assert sorted(j for j, _ in got) == np.flatnonzero(wanted).tolist()
    assert all(torch.equal(model, theta[j]) for j, model in got)
    assert sum(received) == 23 * len(got)
    assert max(received) <= 3 * 23


def test_no_rank_receives_all_models(case: Case, comm: Comm, received: list[int]) -> None:
    """A block of all clients or two models at a time; back from mixing, the own rows of one block per rank."""
    n, d, mine = len(case.heard), case.theta.shape[1], int(case.reports[case.here(comm)].sum())
    width = min(d, max(64, exchange.AREA // n))
    for verb, most in (("gram", n * width), ("mix", width * max(n, mine * comm.size)), ("cross", 2 * d)):
        received.clear()
        case.ask(verb, comm)
        assert max(received) <= most, verb


def grown(verb: Callable[[], Tensor]) -> float:
    """By how many MB this process was at most larger during a call than before it."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the high-water mark so far
    before = psutil.Process().memory_info().rss
    verb()
    return (peak_resident() - before) / 1e6


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the high-water mark cannot be reset")
def test_memory_is_that_of_the_own_clients(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to them is small for gram and cross, and for mix the result and what it is put together from."""
    monkeypatch.setattr(exchange, "AREA", 1 << 15)
    monkeypatch.setattr(exchange, "MODELS", 1 << 18)
    n, d = 96, 100_000
    fl = Case(torch.zeros(n, 0), torch.ones(n, dtype=torch.bool), PLACES["in turn"]).start(comm)
    theta = torch.zeros(len(fl.clients), d).add_(torch.arange(float(d)))
    weight = torch.full((len(theta), n), 1 / n, dtype=torch.float64)
    assert grown(lambda: fl.gram(theta)) <= 13
    assert grown(lambda: fl.mix(weight, theta)) <= 2 * 4e-6 * theta.numel() + 13
    assert grown(lambda: fl.cross(lambda model, rows: model[0].expand(len(rows)), theta)) <= 13
