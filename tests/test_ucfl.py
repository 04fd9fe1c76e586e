"""User-centric federated learning against plain numpy: gradients by autograd one client at a time, double loops,
k-means and silhouettes computed here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor, nn

from mpipfl import world
from mpipfl.algorithms import UCFL, Facts, streams
from mpipfl.algorithms.ucfl import Client, Server
from mpipfl.cohort import Cohort
from mpipfl.comm import MPI, Comm
from mpipfl.config import Config, Train
from mpipfl.errors import ConfigError
from mpipfl.federation import Federation
from mpipfl.models import Batched
from mpipfl.progress import Reporter
from mpipfl.store import Store
from mpipfl.telemetry import Telemetry

from .plain import Batch, Plain, Result, agrees, mean
from .suite import config, content, differing, rewound, train

SMOOTH = {"model": "tests.plain:Smooth"}
CLIENTS = 7  # of the small experiment


# ---------------------------------------------------------------------- the equations, in numpy


def distances(g: np.ndarray) -> np.ndarray:
    return np.array([[((a - b) ** 2).sum() for b in g] for a in g])


def mixing(delta: np.ndarray, sigma2: np.ndarray, n: np.ndarray) -> np.ndarray:
    """(9)"""
    w = np.zeros_like(delta)
    for i in range(len(n)):
        for j in range(len(n)):
            w[i, j] = n[j] * np.exp(-delta[i, j] / (2 * np.sqrt(sigma2[i]) * np.sqrt(sigma2[j])))
    return w / w.sum(1, keepdims=True)


def silhouette(rows: np.ndarray, label: np.ndarray) -> float:
    """The mean over points of (b - a) / max(a, b); 0 for a point that is alone."""
    far = np.sqrt(distances(rows))
    scores = []
    for i, own in enumerate(label):
        mine = (label == own) & (np.arange(len(label)) != i)
        if not mine.any():
            scores.append(0.0)
            continue
        a, b = far[i, mine].mean(), min(far[i, label == c].mean() for c in set(label.tolist()) - {own})
        scores.append((b - a) / max(a, b))
    return float(np.mean(scores))


def clustered(rows: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """K-means, clusters numbered as they appear."""
    if k == len(rows):
        return np.arange(k)
    found = KMeans(k, n_init=10, random_state=seed).fit_predict(rows).tolist()
    names = list(dict.fromkeys(found))
    return np.array([names.index(c) for c in found])


def scores_of(rows: np.ndarray) -> np.ndarray:
    """The silhouette score for k = 1 .. m: none for one, 0 for m."""
    m = len(rows)
    return np.array([np.nan, *(silhouette(rows, clustered(rows, k)) for k in range(2, m)), 0.0])


def stream_rows(w: np.ndarray, label: np.ndarray, n: np.ndarray, by: str) -> np.ndarray:
    """(11), or each cluster's FedAvg."""
    rows = []
    for c in range(label.max() + 1):
        own = [w[i] for i in range(len(w)) if label[i] == c]
        rows.append(sum(own) / len(own) if by == "centroid" else np.where(label == c, n, 0.0) / n[label == c].sum())
    return np.array(rows)


# ---------------------------------------------------------------------- an experiment's weights, client by client


class Weights:
    """What the special round of a run should find at theta. Which samples make up a part comes from the program
    (tests/test_cohort.py looks at them); parts with a size are drawn each by itself."""

    def __init__(
        self, plain: Plain, settings: Config, theta: Tensor, counts: np.ndarray, size: np.ndarray | None = None
    ) -> None:
        self.n = np.array(plain.n)
        self.g = np.stack([plain.grad(theta, plain.data(i)).double().numpy() for i in range(plain.clients)])
        self.delta = distances(self.g)
        self.sigma2, self.sizes = np.zeros(plain.clients), [[] for _ in self.n]
        made = world.plan(settings)
        cohort = Cohort(np.arange(plain.clients), plain.store, made.model, settings.train, settings.seed, 0, 3)
        for part in cohort.parts(counts, size):
            for i, places in enumerate(part):
                if len(places):
                    x, y = plain.data(i)
                    g = plain.grad(theta, (x[places], y[places])).double().numpy()
                    self.sigma2[i] += ((g - self.g[i]) ** 2).sum() / counts[i]  # (10)
                    self.sizes[i].append(len(places))
        self.w = mixing(self.delta, self.sigma2, self.n)


# and how many parts n samples make, of which size if each is drawn by itself
VARIANCES: dict[str, tuple[dict[str, Any], Callable[[int], int], Callable[[int], int] | None]] = {
    "third": ({"part": "1/3"}, lambda n: 3, None),
    "quarter": ({"part": 0.25}, lambda n: 4, None),
    "size": ({"part": 6}, lambda n: max(1, round(n / 6)), None),
    "number": ({"parts": 5}, lambda n: 5, None),
    "one each": ({"parts": 1000}, lambda n: int(n), None),
    "independent": ({"parts": 4, "draws": "independent"}, lambda n: 4, lambda n: round(n / 4)),
    "independent size": ({"part": 7, "draws": "independent"}, lambda n: max(1, round(n / 7)), lambda n: min(n, 7)),
    "independent share": ({"part": 0.3, "draws": "independent"}, lambda n: 3, lambda n: round(0.3 * n)),
}


@pytest.mark.parametrize("name", VARIANCES)
def test_the_weights_are_equations_9_and_10(name: str, alone: Comm, tmp_path: Path) -> None:
    """And all that history.h5 says about them."""
    variance, parts, drawn = VARIANCES[name]
    changes = {"algorithm": {"kind": "ucfl", "variance": variance}, "rounds": 1, "checkpoint.every": 0}
    settings = config(SMOOTH | changes, tmp_path)
    train(settings, alone)
    plain, got = Plain(settings, alone), content(settings.folder / "history.h5")
    size = None if drawn is None else np.array([drawn(n) for n in plain.n])
    expected = Weights(plain, settings, plain.start, np.array([parts(n) for n in plain.n]), size)
    assert len(set(plain.n)) > 3
    for i, sizes in enumerate(expected.sizes):
        assert len(sizes) == parts(plain.n[i])
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == plain.n[i] if drawn is None else set(sizes) == {drawn(plain.n[i])}
    assert got["ucfl/samples"].tolist() == plain.n
    assert got["ucfl/delta"] == pytest.approx(expected.delta, rel=1e-4, abs=1e-9)
    assert got["ucfl/sigma2"] == pytest.approx(expected.sigma2, rel=1e-4)
    assert got["ucfl/W"] == pytest.approx(expected.w, abs=1e-5)
    assert got["ucfl/W"].sum(1) == pytest.approx(np.ones(CLIENTS), abs=1e-14)
    assert got["ucfl/cluster"].tolist() == list(range(CLIENTS))
    spread = [np.exp(-sum(w * np.log(w) for w in row)) for row in expected.w]
    assert got["ucfl/collaborators"] == pytest.approx(spread, rel=1e-4)
    assert 1.1 < np.mean(spread) < CLIENTS - 0.1  # so neither the identity nor all alike
    assert got["ucfl/silhouette"] == pytest.approx(scores_of(got["ucfl/W"]), abs=1e-9, nan_ok=True)


# ---------------------------------------------------------------------- clients made up here


class Bench:
    """Clients with any data, and what the method makes of them without files."""

    def __init__(self, comm: Comm, data: list[Batch], **how: Any) -> None:
        n = np.array([len(y) for _, y in data])
        ends = np.cumsum(n)
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        self.model = Batched(self.network, (4,))
        self.data, self.n, self.theta = data, n.astype(np.float64), self.model.initial()
        bounds = np.column_stack([ends - n, ends, ends, ends])
        x, y = (torch.cat(all_) for all_ in zip(*data, strict=True))
        self.store = Store(x, y, bounds, np.zeros(len(n), dtype=np.int64))
        self.train = Train(**{"lr": 0.1, "batch": 4} | how)
        self.fl = Federation(comm, Telemetry(), len(n))

    def prepare(self, **how: Any) -> Server:
        """The server's state after the special round; `told` is what it says."""
        method, everyone = UCFL.model_validate(how), np.arange(len(self.n))
        facts = Facts(len(self.n), 1, torch.from_numpy(self.n), lambda _: self.theta, self.model.divide)
        self.fl.begin(0, everyone, np.zeros_like(everyone))
        cohort = Cohort(everyone, self.store, self.model, self.train, seed=0, round=0, width=3)
        client = method.client(self.theta, facts)
        clients = type(client)(*(field.repeat(len(self.n), 1) for field in client))
        server, clients = method.prepare(method.server(self.theta, facts), clients, cohort, self.fl)
        self.told = {name: value.numpy() for name, value in self.fl.told.items()}
        assert (clients.theta == self.theta).all()
        return server  # type: ignore[no-any-return]

    def gradient(self, batch: Batch) -> np.ndarray:
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        grads = torch.autograd.grad(loss, list(self.network.parameters()))
        return torch.cat([g.flatten() for g in grads]).double().numpy()


def samples(count: int, seed: int, names: tuple[int, ...] = (0, 1, 2)) -> Batch:
    """Samples in three classes, which a client may call by other names."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    x = 0.5 * torch.randn(count, 4, generator=random) + 2 * F.one_hot(y, 4)
    return x, torch.tensor(names)[y]


def repeated(batch: Batch, times: int) -> Batch:
    return batch[0].repeat(times, 1), batch[1].repeat(times)


NAMES = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


@pytest.fixture
def bench(alone: Comm) -> Callable[..., Bench]:
    return partial(Bench, alone)


def test_equal_clients_have_fedavgs_weights(bench: Callable[..., Bench]) -> None:
    """Also where one has the same data several times."""
    clients = bench([repeated(samples(30, 0), times) for times in (1, 4, 2, 1, 3)])
    got = clients.prepare(variance={"parts": 5}).weight.numpy()
    assert np.abs(got - clients.n / clients.n.sum()).max() < 1e-12
    assert clients.told["collaborators"] == pytest.approx(
        np.exp(-sum(p * np.log(p) for p in clients.n / clients.n.sum()))
    )


def test_far_apart_groups_have_a_block_diagonal_w(bench: Callable[..., Bench]) -> None:
    clients = bench([samples(300 + 30 * i, i, NAMES[i % 3]) for i in range(9)])
    got = clients.prepare(variance={"parts": 2}).weight.numpy()
    same = np.equal.outer(np.arange(9) % 3, np.arange(9) % 3)
    assert got[~same].max() < 1e-12
    assert got[same].min() > 0.05


def test_of_several_parts_the_best_silhouette_is_taken(bench: Callable[..., Bench]) -> None:
    """Whichever comes first."""
    clients = bench([samples(30 + i, i, NAMES[i % 2]) for i in range(5)])
    tried = {}
    for k in (1, 2, 4, 8, 16):
        clients.prepare(variance={"parts": k})
        tried[k] = clients.told
    best = {k: float(np.nanmax(found["silhouette"])) for k, found in tried.items()}
    assert len({round(b, 3) for b in best.values()}) == 5
    for choices in ((2, 4, 8, 16), (16, 8, 4, 2), (8, 2), (1, 16), (2, 1)):
        clients.prepare(variance={"parts": choices})
        wanted = tried[max(choices, key=lambda k: best[k])]
        assert all(clients.told[name].tobytes() == wanted[name].tobytes() for name in wanted)


def test_twice_the_data_counts_twice(bench: Callable[..., Bench]) -> None:
    """w_ij / w_ik, where only n_j changes."""
    random = np.random.default_rng(0)
    delta, sigma2 = distances(random.normal(size=(5, 3))), random.uniform(0.5, 2, 5)
    n = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    twice = np.where(np.arange(5) == 2, 2 * n, n)
    one, two = (streams.mixing(*map(torch.from_numpy, (delta, sigma2, s))).numpy() for s in (n, twice))
    assert two[:, 2] / two[:, 0] == pytest.approx(2 * one[:, 2] / one[:, 0], rel=1e-12)
    assert two[:, 3] / two[:, 0] == pytest.approx(one[:, 3] / one[:, 0], rel=1e-12)
    assert one == pytest.approx(mixing(delta, sigma2, n), rel=1e-12)


def test_weights_are_computed_in_the_log_domain() -> None:
    """Where exp overflows or vanishes they are still weights."""
    delta = torch.tensor([[0.0, 1e4, 1e9], [1e4, 0.0, 1.0], [1e9, 1.0, 0.0]], dtype=torch.float64)
    for sigma2 in (1e-6, 1.0, 1e300):
        got = streams.mixing(delta, torch.full((3,), sigma2, dtype=torch.float64), torch.tensor([1.0, 2, 1e9]).double())
        assert torch.isfinite(got).all()
        assert got.sum(1).numpy() == pytest.approx(np.ones(3))


def test_distances_do_not_lose_near_neighbours() -> None:
    random = np.random.default_rng(0)
    g = 1000 + random.normal(size=(4, 50)) * 0.1
    got = streams.distances(torch.from_numpy(g @ g.T)).numpy()
    assert got == pytest.approx(distances(g), rel=1e-5, abs=1e-8)
    assert (np.diag(got) == 0).all()
    assert (streams.distances(torch.tensor([[1.0, 1 + 1e-15], [1 + 1e-15, 1.0]]).double()) >= 0).all()


def test_no_variance_counts_as_a_millionth_of_the_median(bench: Callable[..., Bench]) -> None:
    """A client whose samples are all alike, and those with too few for a second part, be they the most."""
    x, y = samples(1, 9)
    few = [samples(5 + i % 2, 10 + i) for i in range(6)]
    clients = bench(
        [samples(24, 0), samples(30, 1), samples(36, 2), (x.repeat(20, 1), y.repeat(20)), samples(18, 3), *few]
    )
    got = clients.prepare(variance={"part": 8}).weight.numpy()
    sigma2 = clients.told["sigma2"]
    assert (sigma2[5:] == 0).all()
    assert 0 < sigma2[3] < 1e-9 * np.sort(sigma2)[7]
    g = np.stack([clients.gradient(batch) for batch in clients.data])
    median = np.sort(sigma2[sigma2 > 0])[(np.count_nonzero(sigma2) - 1) // 2]  # of an even number the lower one
    expected = mixing(distances(g), np.maximum(sigma2, 1e-6 * median), clients.n)
    assert got == pytest.approx(expected, abs=1e-6)
    assert (np.diag(got)[[3, 5, 6, 7, 8, 9, 10]] > 0.99).all()
    (said,) = UCFL().remarks(clients.told)
    assert "7 of 11 clients have no variance" in said and "they learn alone" in said
    clients.prepare(variance={"part": 8}, streams=3)
    (said,) = UCFL().remarks(clients.told)
    assert "7 of 11 clients have no variance" in said and "clusters of their rows mean nothing" in said
    clients.prepare(variance={"part": 8}, parallel=True)
    assert "they learn alone" in UCFL().remarks(clients.told)[0]


@pytest.mark.parametrize("streams", ["all", 2, "auto"])
def test_a_client_that_is_left_out_of_the_special_round(streams: Any, alone: Comm) -> None:
    """It is by itself; the others' weights are (9) among them."""
    clients = Bench(alone, [samples(24 + 3 * i, i, NAMES[i % 2]) for i in range(5)])
    clients.store.x[:24] = torch.nan  # of client 0
    clients.fl = Federation(alone, Telemetry(), 5, nonfinite="skip")
    server = clients.prepare(variance={"part": 8}, streams=streams)
    assert clients.fl.named == [0]
    w, sigma2 = server.weight.numpy(), clients.told["sigma2"]
    assert sigma2[0] == 0 and (sigma2[1:] > 0).all()
    assert w[0] == pytest.approx([1, 0, 0, 0, 0], abs=1e-12)
    g = np.stack([clients.gradient(batch) for batch in clients.data[1:]])
    assert w[1:, 1:] == pytest.approx(mixing(distances(g), sigma2[1:], clients.n[1:]), abs=1e-6)
    assert torch.isfinite(server.row).all()


@pytest.mark.parametrize("streams", ["all", 2, "auto"])
def test_everybody_is_left_out_of_the_special_round(streams: Any, alone: Comm) -> None:
    """Then it is FedAvg."""
    clients = Bench(alone, [samples(12 + i, i) for i in range(3)])
    clients.store.x[:] = torch.nan
    clients.fl = Federation(alone, Telemetry(), 3, nonfinite="skip")
    server = clients.prepare(variance={"parts": 2}, streams=streams)
    assert server.row.numpy() == pytest.approx(clients.n[None] / clients.n.sum(), abs=1e-15)
    assert server.cluster.tolist() == [0, 0, 0] and torch.equal(server.theta, clients.theta[None])


def test_where_the_floor_is() -> None:
    """Where distances are so small that it matters: between 1e-5 and 1e-7 of the median of what is not zero."""
    random = np.random.default_rng(0)
    delta, n = distances(0.02 * random.normal(size=(6, 3))), np.arange(1.0, 7.0)
    sigma2 = np.array([1.0, 2.0, 0.0, 1e-5, 1e-9, 3.0])
    got = streams.mixing(*map(torch.from_numpy, (delta, sigma2, n))).numpy()
    assert got == pytest.approx(mixing(delta, np.maximum(sigma2, 1e-6), n), rel=1e-9)
    for wrong in (1e-5, 1e-7):
        assert np.abs(got - mixing(delta, np.maximum(sigma2, wrong), n)).max() > 0.01


def test_one_part_has_no_variance(bench: Callable[..., Bench]) -> None:
    """W is the identity, and finite; equal gradients still share."""
    clients = bench([samples(12 + 3 * i, i) for i in range(4)])
    got = clients.prepare(variance={"parts": 1}).weight.numpy()
    assert (clients.told["sigma2"] == 0).all()
    assert got == pytest.approx(np.eye(4), abs=1e-12)
    zero = torch.zeros(3, dtype=torch.float64)
    delta = torch.tensor([[0.0, 0, 1e-30], [0, 0, 1e300], [1e-30, 1e300, 0]], dtype=torch.float64)
    got = streams.mixing(delta, zero, torch.tensor([1.0, 3, 1]).double()).numpy()
    assert got == pytest.approx(np.array([[0.25, 0.75, 0], [0.25, 0.75, 0], [0, 0, 1]]), abs=1e-12)


# ---------------------------------------------------------------------- streams


def planted(groups: list[int], off: float = 0.02, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    """Rows of weights with blocks."""
    label = np.repeat(np.arange(len(groups)), groups)
    w = np.where(np.equal.outer(label, label), 1.0, off) + noise * np.random.default_rng(seed).random((len(label),) * 2)
    return w / w.sum(1, keepdims=True)


@pytest.mark.parametrize("groups", [[4, 4], [3, 5, 4], [4, 3, 4, 3]], ids=str)
def test_auto_finds_the_planted_groups(groups: list[int]) -> None:
    w = planted(groups)
    shuffled = np.random.default_rng(1).permutation(len(w))
    found = streams.group(torch.from_numpy(w[shuffled][:, shuffled]), "auto", 0.0, 0).cluster.numpy()
    label = np.repeat(np.arange(len(groups)), groups)[shuffled]
    assert found.max() + 1 == len(groups)
    assert len({(a, b) for a, b in zip(found, label, strict=True)}) == len(groups)
    assert found[0] == 0  # numbered as they appear
    assert list(dict.fromkeys(found.tolist())) == list(range(len(groups)))


@pytest.mark.parametrize(("price", "wanted"), [(0.0, 4), (0.05, 4), (0.1, 2), (0.3, 2), (0.5, 1), (2.0, 1)])
def test_auto_maximises_equation_12(price: float, wanted: int) -> None:
    """Four groups in two pairs: at a price fewer streams, and one where none is worth it."""
    pairs = np.kron(np.eye(2), np.ones((8, 8)))
    w = planted([4, 4, 4, 4]) + 0.3 * pairs + 0.03 * np.random.default_rng(2).random((16, 16))
    w /= w.sum(1, keepdims=True)
    got = streams.group(torch.from_numpy(w), "auto", price, 0)
    scores = scores_of(w)
    assert got.silhouette.numpy() == pytest.approx(scores, abs=1e-9, nan_ok=True)
    worth = {k: scores[k - 1] - price * k for k in range(2, 17)}
    best = max(worth, key=lambda k: worth[k])
    expected = best if worth[best] > 0 else 1
    assert int(got.cluster.max()) + 1 == expected
    assert expected == wanted


def test_rows_all_alike_are_one_stream() -> None:
    """Without a word of warning from k-means."""
    w = torch.full((6, 6), 1 / 6, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for wanted in ("auto", 3):
            got = streams.group(w, wanted, 0.0, 0)
            assert got.cluster.tolist() == [0] * 6
            assert got.silhouette[1:].tolist() == [0.0] * 5


@pytest.mark.parametrize("m", [1, 2])
def test_one_client_and_two(m: int) -> None:
    w = torch.eye(m, dtype=torch.float64)
    assert streams.group(w, "all", 0.0, 0).cluster.tolist() == list(range(m))
    assert streams.group(w, "auto", 0.0, 0).cluster.tolist() == [0] * m
    assert streams.group(w, m, 0.0, 0).cluster.tolist() == list(range(m))
    assert torch.nan_to_num(streams.group(w, "all", 0.0, 0).silhouette, -9.0).tolist() == [-9.0, 0.0][:m]


# ---------------------------------------------------------------------- rounds


def ucfl(plain: Plain, settings: Config, seen: dict[str, np.ndarray]) -> Result:
    """The whole method, one client at a time. `seen` is filled with what the special round found."""
    how: Any = settings.algorithm
    models, label, row = [plain.start], np.zeros(plain.clients, dtype=int), np.array(plain.n)[None]
    theta: list[Tensor] | None = None
    for round, who in plain.rounds():
        if round == how.weights.at_round + 1:
            counts = np.full(plain.clients, how.variance.parts)
            found = Weights(plain, settings, models[0], counts)
            k = plain.clients if how.streams == "all" else how.streams
            label = clustered(found.w, k)
            row = stream_rows(found.w, label, found.n, how.stream_weights)
            models, theta = [models[0]] * k, None
            if k == plain.clients and not how.parallel:
                theta = [models[0]] * k
            seen |= {"W": found.w, "cluster": label, "row": row}
        if theta is not None:
            trained = {j: plain.sgd(theta[j], plain.batches(j, round)) for j in who}
            theta = [
                mean([trained[j] for j in who], [seen["W"][i, j] for j in who]) if i in who else theta[i]
                for i in range(plain.clients)
            ]
            continue
        new = []
        for s, old in enumerate(models):
            weight = [row[s, j] for j in who]
            stream = f"stream {s}" if how.parallel and len(models) > 1 else "batches"
            start = {j: models[s if how.parallel else label[j]] for j in who}
            trained = {j: plain.sgd(start[j], plain.batches(j, round, stream)) for j in who}
            new.append(mean([trained[j] for j in who], weight) if sum(weight) > 0 else old)
        models = new
    if theta is not None:
        return Result({"clients/theta": torch.stack(theta)}, None, theta)
    return Result({"server/theta": torch.stack(models)}, None, [models[c] for c in label])


RUNS: dict[str, tuple[dict[str, Any], float]] = {  # and which fraction of the clients is active
    "all": ({}, 1.0),
    "some": ({}, 0.45),
    "later": ({"weights": {"at_round": 2}}, 0.6),
    "one": ({"streams": 1}, 1.0),
    "three": ({"streams": 3}, 1.0),
    "three, some": ({"streams": 3}, 0.45),
    "group": ({"streams": 3, "stream_weights": "group", "weights": {"at_round": 1}}, 0.45),
    "parallel": ({"streams": 2, "parallel": True}, 0.45),
    "parallel group": ({"streams": 3, "parallel": True, "stream_weights": "group"}, 1.0),
    "parallel all": ({"parallel": True}, 0.6),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_plain_double_loop(name: str, alone: Comm, tmp_path: Path) -> None:
    """(8), (11) and (13) with momentum; personal figures are the mixtures', and there are no global ones."""
    more, fraction = RUNS[name]
    how = {"kind": "ucfl", "variance": {"parts": 2}} | more
    changes = SMOOTH | {"algorithm": how, "train.momentum": 0.9, "train.lr": 0.02, "checkpoint.every": 0}
    settings = config(
        changes, tmp_path, rounds=3 + more.get("weights", {"at_round": 0})["at_round"], participation__fraction=fraction
    )
    seen: dict[str, np.ndarray] = {}
    got = agrees(settings, alone, lambda plain: ucfl(plain, settings, seen))
    assert got["server/cluster"].tolist() == seen["cluster"].tolist()
    assert got["server/weight"] == pytest.approx(seen["W"], abs=1e-5)
    rows = [] if "streams" not in more and "parallel" not in more else seen["row"]
    assert got["server/row"] == pytest.approx(np.reshape(rows, (-1, CLIENTS)), abs=1e-5)
    assert got["history/ucfl/row"].tobytes() == got["server/row"].tobytes()
    for kind in ("accuracy", "loss", "validation_accuracy", "validation_loss"):
        assert np.isnan(got[f"history/global/{kind}"]).all()
        assert not np.isnan(got[f"history/personal/{kind}"]).any()


def test_nobody_of_a_stream_is_active(alone: Comm, tmp_path: Path) -> None:
    """Then it keeps its model, to the bit; clients that are not active keep theirs where each has its own."""
    how = {"kind": "ucfl", "streams": 4, "stream_weights": "group", "variance": {"parts": 2}}
    settings = config({"algorithm": how, "participation.fraction": 0.3, "rounds": 5}, tmp_path)
    train(settings, alone)
    kept = moved = 0
    for round, who in Plain(settings, alone).rounds():
        if round == 1:
            continue
        before, after = (content(settings.folder / f"checkpoints/round_{r:05}.h5") for r in (round - 1, round))
        busy = set(after["server/cluster"][who].tolist())
        for s in range(4):
            same = before["server/theta"][s].tobytes() == after["server/theta"][s].tobytes()
            assert same == (s not in busy)
            kept, moved = kept + same, moved + (not same)
    assert kept > 2
    assert moved > 2


def test_a_stream_of_strangers_alone_keeps_its_model(alone: Comm) -> None:
    """What is nearly no weight would make a model of rounding errors."""
    two = Bench(alone, [samples(12, i, NAMES[i // 2]) for i in range(4)])
    server = two.prepare(streams=2, variance={"parts": 2})
    for leak, keeps in ((1e-3, False), (1e-5, False), (1e-8, True), (1e-13, True), (1e-15, True), (1e-300, True)):
        row = torch.tensor([[0.5, 0.5, leak, 2 * leak], [0.0, leak, 0.4, 0.6]], dtype=torch.float64)
        state = server._replace(row=row, cluster=torch.tensor([0, 0, 1, 1]))
        active = np.array([2, 3])
        two.fl.begin(1, active, np.zeros(2, dtype=np.int64))
        cohort = Cohort(active, two.store, two.model, two.train, seed=0, round=1, width=2)
        new, _ = UCFL(streams=2).round(state, (), cohort, two.fl)  # type: ignore[arg-type]
        trained = cohort.descend(two.theta).double()
        first = two.theta if keeps else (trained[0] + 2 * trained[1]) / 3
        assert torch.allclose(new.theta[0], first.float(), atol=1e-6), leak
        assert torch.allclose(new.theta[1], (0.4 * trained[0] + 0.6 * trained[1]).float(), atol=1e-6)


def test_a_stream_whose_own_clients_are_left_out_keeps_its_model(alone: Comm) -> None:
    """They diverged: the strangers of the round do not make it theirs."""
    four = Bench(alone, [samples(12, i, NAMES[i // 2]) for i in range(4)])
    server = four.prepare(streams=2, variance={"parts": 2})
    row = torch.tensor([[0.5, 0.5, 1e-13, 2e-13], [0.0, 0.0, 0.4, 0.6]], dtype=torch.float64)
    state = server._replace(row=row, cluster=torch.tensor([0, 0, 1, 1]))
    four.store.x[:12] = torch.nan  # of client 0
    four.fl = Federation(alone, Telemetry(), 4, nonfinite="skip")
    active = np.array([0, 2, 3])
    four.fl.begin(1, active, np.zeros(3, dtype=np.int64))
    cohort = Cohort(active, four.store, four.model, four.train, seed=0, round=1, width=3)
    new, _ = UCFL(streams=2).round(state, (), cohort, four.fl)  # type: ignore[arg-type]
    assert four.fl.named == [0]
    assert torch.equal(new.theta[0], four.theta)
    assert not torch.equal(new.theta[1], four.theta) and torch.isfinite(new.theta).all()


def test_as_many_streams_as_clients_are_no_clusters(alone: Comm) -> None:
    """(11) with k = m is (8): by rows of W, and, with the rows kept as for fewer streams, by a round."""
    clients = Bench(alone, [samples(12 + i, i, NAMES[i % 2]) for i in range(5)], momentum=0.5)
    server = clients.prepare(variance={"parts": 2})
    everyone = np.arange(5)
    assert server.cluster.tolist() == everyone.tolist() and len(server.row) == 0
    row = streams.stream_rows(server.weight, server.cluster, torch.from_numpy(clients.n), "centroid")
    assert (row - server.weight).abs().max() < 1e-15
    cohort = Cohort(everyone, clients.store, clients.model, clients.train, seed=0, round=1, width=3)
    state = Client(clients.theta.repeat(5, 1))
    kept = server._replace(row=row, theta=clients.theta.repeat(5, 1))
    for _ in range(2):
        clients.fl.begin(1, everyone, np.zeros_like(everyone))
        _, state = UCFL().round(server, state, cohort, clients.fl)
        kept, _ = UCFL().round(kept, state, cohort, clients.fl)
        assert torch.allclose(kept.theta, state.theta, atol=1e-6)
        assert (state.theta[0] - state.theta[1]).abs().max() > 1e-3


def test_few_clusters_are_scored_where_their_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them for auto; every one is a sign of life, and asks whether to go on. None of very many clients."""
    monkeypatch.setattr(streams, "LOOKED", 5)
    w, beats = torch.from_numpy(planted([4, 4, 4])), []

    def beat() -> bool:
        beats.append(1)
        return len(beats) < 4

    for wanted, scored in (("all", [2, 3, 4, 5, 12]), (9, [2, 3, 4, 5, 9, 12]), ("auto", list(range(2, 13)))):
        got = streams.group(w, wanted, 0.0, 0).silhouette.numpy()
        assert (np.flatnonzero(~np.isnan(got)) + 1).tolist() == scored
    left = streams.group(w, "auto", 0.0, 0, beat).silhouette.numpy()
    assert (np.flatnonzero(~np.isnan(left)) + 1).tolist() == [2, 3, 12]
    assert len(beats) == 5  # before a clustering and before its score
    monkeypatch.setattr(streams, "FEW", 11)
    for wanted, scored in (("all", [12]), (9, [9, 12]), ("auto", list(range(2, 13)))):
        got = streams.group(w, wanted, 0.0, 0).silhouette.numpy()
        assert (np.flatnonzero(~np.isnan(got)) + 1).tolist() == scored


GROUPS: dict[str, Any] = {
    "data": {
        "source": {"classes": 8}, "samples": 1600, "clients": 8, "partition": {"kind": "iid"},
        "shift": {"kind": "permute_labels", "groups": 2},
    },
    "model": "logistic",
    "train": {"batch": 20, "lr": 0.1, "momentum": 0.0},
    "checkpoint.every": 0,
    "participation.fraction": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("streams", [2, "auto"])
def test_with_the_true_groups_it_is_the_oracle(streams: Any, alone: Comm, tmp_path: Path) -> None:
    how = {"kind": "ucfl", "streams": streams, "stream_weights": "group", "variance": {"parts": 30}}
    settings = config(GROUPS | {"algorithm": how}, tmp_path / "ucfl")
    got, oracle = train(settings, alone), train(config(GROUPS | {"algorithm": "oracle"}, tmp_path / "oracle"), alone)
    assert got["server/cluster"].tolist() == world.plan(settings).partition.group.tolist() == [0] * 4 + [1] * 4
    assert np.abs(got["server/theta"] - oracle["server/theta"]).max() < 1e-5
    assert got["history/personal/accuracy"] == pytest.approx(oracle["history/global/accuracy"])


def test_before_its_round_it_is_fedavg(alone: Comm, tmp_path: Path) -> None:
    """To the bit, and W is computed from that model."""
    how = {"kind": "ucfl", "variance": {"parts": 2}, "weights": {"at_round": 3}}
    settings = config(SMOOTH | {"algorithm": how}, tmp_path / "ucfl", rounds=5, evaluate__every=1)
    got = train(settings, alone)
    fedavg = train(config(SMOOTH | {"algorithm": "fedavg"}, tmp_path / "fedavg", rounds=5, evaluate__every=1), alone)
    for round in range(4):
        name = f"checkpoints/round_{round:05}.h5"
        ours, theirs = (content(tmp_path / kind / "run" / name) for kind in ("ucfl", "fedavg"))
        assert ours["server/theta"].shape == (1, *theirs["server/theta"].shape)
        assert ours["server/theta"].tobytes() == theirs["server/theta"].tobytes()
        assert "history/ucfl/W" not in ours
    accuracy, fedavgs = (run["history/personal/accuracy"] for run in (got, fedavg))
    assert accuracy[:4].tobytes() == fedavg["history/global/accuracy"][:4].tobytes() == fedavgs[:4].tobytes()
    plain = Plain(settings, alone)
    theta = torch.from_numpy(content(tmp_path / "fedavg/run/checkpoints/round_00003.h5")["server/theta"])
    expected = Weights(plain, settings, theta, np.full(CLIENTS, 2))
    assert got["history/ucfl/W"] == pytest.approx(expected.w, abs=1e-5)
    at_start = Weights(plain, settings, plain.start, np.full(CLIENTS, 2))
    assert np.abs(expected.w - at_start.w).max() > 0.01


@pytest.mark.parametrize("at_round", [0, 2])
def test_resumed_it_keeps_its_weights(
    at_round: int, alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before and from after the special round, which comes once."""
    how = {"algorithm": {"kind": "ucfl", "streams": 3, "weights": {"at_round": at_round}}}
    whole = train(config(how, tmp_path / "whole", rounds=4, evaluate__every=1), alone)
    first = train(config(how, tmp_path / "parts", rounds=at_round + 1, evaluate__every=1), alone)
    with monkeypatch.context() as patch:
        patch.setattr(UCFL, "prepare", None)
        resumed = train(config(how, tmp_path / "parts", rounds=4, evaluate__every=1), alone, resume=True)
    assert first["server/weight"].tobytes() == resumed["server/weight"].tobytes() == whole["server/weight"].tobytes()
    assert differing(whole, resumed) == []
    if at_round:
        settings = config(how, tmp_path / "whole", rounds=4, evaluate__every=1)
        assert differing(whole, train(rewound(settings, tmp_path / "early", at_round - 1), alone, resume=True)) == []


@pytest.mark.mpi
@pytest.mark.skipif(MPI.COMM_WORLD.Get_size() != 5, reason="once is enough: at five ranks")
def test_mixing_a_hundred_clients(
    comm: Comm, alone: Comm, together_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of them in a round; without the silhouettes of all numbers of clusters, which take their time."""
    everyone = streams.Grouping(torch.arange(100), torch.zeros(100, dtype=torch.float64))
    monkeypatch.setattr(streams, "group", lambda *_: everyone)
    changes = {
        "algorithm": "ucfl", "model": "logistic", "rounds": 2, "participation.fraction": 0.7,
        "data.clients": 100, "data.samples": 900, "data.partition": {"kind": "iid"},
    }  # fmt: skip
    together = train(config(changes, together_path / "together"), comm)
    if comm.is_server:
        assert differing(together, train(config(changes, together_path / "alone"), alone)) == []
        assert together["server/weight"].shape == (100, 100)


# ---------------------------------------------------------------------- what is said


ALIKE: dict[str, Any] = {"data.shift": {"kind": "none"}, "data.partition": {"kind": "iid"}}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (1, "nearly the identity, clients learn alone; take smaller parts"),
        (3, None),
        (1000, "nearly FedAvg's; take larger parts"),
    ],
)
def test_weights_that_say_nothing_are_remarked_upon(
    parts: int, said: str | None, alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(Reporter, "say", lambda self, text: lines.append(text))
    how = {"kind": "ucfl", "variance": {"parts": parts}}
    train(config({"algorithm": how, "rounds": 2} | (ALIKE if parts == 1000 else {}), tmp_path), alone)
    remarks = [line for line in lines if line.startswith("ucfl: ")]
    assert bool(remarks) == (said is not None)
    assert all(said is not None and said in line for line in remarks)


def test_remarks_hold_for_every_row() -> None:
    """One client that learns alone is none; FedAvg's own spread is less than the number of clients."""
    n = np.array([1.0, 1.0, 8.0])
    fedavgs = float(np.exp(-(n / 10 * np.log(n / 10)).sum()))

    def of(*found: float, rows: int = 0) -> list[str]:
        known = {"W": np.eye(3), "samples": n, "sigma2": np.ones(3), "row": np.ones((rows, 3))}
        return UCFL().remarks(known | {"collaborators": np.array(found)})

    assert len(of(1.0, 1.01, 1.04)) == len(of(0.96 * fedavgs, fedavgs, fedavgs)) == 1
    assert "clients learn alone" in of(1.0, 1.0, 1.0)[0] and "mean nothing" in of(1.0, 1.0, 1.0, rows=2)[0]
    assert of(1.0, 1.0, 1.06) == of(0.94 * fedavgs, fedavgs, fedavgs) == []
    assert UCFL().remarks({"W": np.ones((1, 1)), "collaborators": np.ones(1), "samples": np.ones(1)}) == []


def test_what_a_round_costs(alone: Comm) -> None:
    bench = Bench(alone, [samples(12, i, NAMES[i % 2]) for i in range(4)])
    for how, cost in (
        ({}, (4, 1)),
        ({"streams": 2}, (2, 1)),
        ({"streams": 1}, (1, 1)),
        ({"streams": 2, "parallel": True}, (2, 2)),
        ({"parallel": True}, (4, 4)),
    ):
        server = bench.prepare(variance={"parts": 2}, **how)
        assert tuple(UCFL.model_validate(how).traffic(server, 4)) == cost


@pytest.mark.parametrize(
    ("variance", "path", "said"),
    [
        *(({"part": value}, "variance.part", "is neither") for value in (0, -1, "a/b", "1/0", 1.5, "", float("nan"))),
        *(
            ({"part": value}, "variance.part", "is neither")
            for value in ("1e-400", 1e-10, 10**400, "1e99999999", 1_000_000_001)
        ),
        *(({"part": value}, "variance.part", "one sample or all of them") for value in (1.0, "1/1", "0.9" + 30 * "9")),
        ({"part": "2/3"}, "variance", "cannot be cut twice"),
        ({"part": True}, "variance.part", "not true or false"),
        ({"part": 100, "parts": 2}, "variance", "give part or parts"),
        ({}, "variance", "give part or parts"),
        ({"parts": []}, "variance", "name at least one"),
        ({"parts": 0}, "variance.parts", "greater than or equal to 1"),
        ({"parts": [2, 0]}, "variance.parts.1", "greater than or equal to 1"),
        ({"parts": 2, "draws": "lots"}, "variance.draws", "'partition' or 'independent'"),
    ],
    ids=str,
)
def test_wrong_parts(variance: dict[str, Any], path: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        config({"algorithm": {"kind": "ucfl", "variance": variance}}, tmp_path)
    assert f"algorithm.{path}: " in str(raised.value)
    assert said in str(raised.value)


def test_more_streams_than_clients(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.streams: 8 is more than data\.clients, 7"):
        config({"algorithm": {"kind": "ucfl", "streams": 8}}, tmp_path)
    config({"algorithm": {"kind": "ucfl", "streams": 7}}, tmp_path)


@pytest.mark.parametrize("streams", ["all", 7])
def test_a_group_for_each_client_is_refused(streams: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.stream_weights: with group .* clients learn alone"):
        config({"algorithm": {"kind": "ucfl", "streams": streams, "stream_weights": "group"}}, tmp_path)


def test_more_clients_than_have_a_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.clients: ucfl compares all pairs of clients, 10001 are more than"):
        config({"algorithm": "ucfl", "data.clients": 10001}, tmp_path)


@pytest.mark.parametrize("at_round", [4, 9])
def test_weights_after_the_last_round(at_round: int, tmp_path: Path) -> None:
    said = rf"algorithm\.weights\.at_round: {at_round} is not before the last of 4 rounds; take 3 or less"
    with pytest.raises(ConfigError, match=said):
        config({"algorithm": {"kind": "ucfl", "weights": {"at_round": at_round}}}, tmp_path)
