"""IFCA, CFL and FedFOMO against their papers: reductions, plain loops, quadratics by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mpipfl import world
from mpipfl.algorithms import CFL, FedFOMO
from mpipfl.algorithms.cfl import bipartition, similarity
from mpipfl.cohort import Cohort
from mpipfl.comm import Comm

from .plain import Plain, Quadratic, Result, agrees, mean, near
from .suite import config, content, differing, train, without_costs

Bench = Callable[..., Quadratic]
both = pytest.mark.parametrize("fraction", [1.0, 0.6])


@pytest.fixture
def quadratic(alone: Comm, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return partial(Quadratic, alone, monkeypatch)


def saved(folder: Path, round: int) -> dict[str, np.ndarray]:
    return content(folder / f"run/checkpoints/round_{round:05}.h5")


# ---------------------------------------------------------------------- IFCA


def ifca(plain: Plain, models: list[Tensor], samples: bool, chosen: list[np.ndarray]) -> Result:
    """Algorithm 1, option II. `chosen` is filled with each round's clusters."""

    def choose(i: int) -> int:
        return int(np.argmin([float(plain.loss(theta, plain.data(i))) for theta in models]))

    for round, who in plain.rounds():
        cluster, trained = np.full(plain.clients, np.nan), {}
        for i in who:
            cluster[i] = choose(i)
            trained[i] = plain.sgd(models[int(cluster[i])], plain.batches(i, round))
        chosen.append(cluster)
        members = [[i for i in who if cluster[i] == j] for j in range(len(models))]
        models = [
            mean([trained[i] for i in mine], [plain.n[i] for i in mine] if samples else None) if mine else theta
            for mine, theta in zip(members, models, strict=True)
        ]
    return Result({"server/theta": torch.stack(models)}, [models[choose(i)] for i in range(plain.clients)], None)


@pytest.mark.parametrize(("samples", "fraction"), [(True, 0.6), (False, 1.0)])
def test_ifca_is_algorithm_1(samples: bool, fraction: float, alone: Comm, tmp_path: Path) -> None:
    """With clusters that nobody chooses, in one round or ever."""
    how = {"kind": "ifca", "k": 4, "weights": "samples" if samples else "equal"}
    settings = config({"algorithm": how, "participation.fraction": fraction}, tmp_path, rounds=4)
    facts = world.facts(settings, world.plan(settings))
    chosen: list[np.ndarray] = []
    got = agrees(
        settings, alone, lambda plain: ifca(plain, [facts.start(j) for j in range(4)], samples, chosen), tolerance=2e-5
    )
    assert np.array_equal(got["history/ifca/cluster"], np.array(chosen), equal_nan=True)
    empty = [(r, j) for r, cluster in enumerate(chosen, 1) for j in range(4) if not (cluster == j).any()]
    assert empty
    assert len(empty) < 4 * 3
    for r, j in empty:
        before, after = (saved(tmp_path, at)["server/theta"][j] for at in (r - 1, r))
        assert before.tobytes() == after.tobytes()


def test_ifcas_models_start_apart(alone: Comm, tmp_path: Path) -> None:
    """The first from the run's own weights, as fedavg's; another seed gives others."""
    settings = [config({"algorithm": {"kind": "ifca", "k": 3}}, tmp_path / str(s), rounds=1, seed=s) for s in (0, 1)]
    theta = [(train(s, alone), saved(s.output, 0)["server/theta"])[1] for s in settings]
    assert len({row.tobytes() for start in theta for row in start}) == 6
    train(config({"algorithm": "fedavg"}, tmp_path / "fedavg", rounds=1), alone)
    assert theta[0][0].tobytes() == saved(tmp_path / "fedavg", 0)["server/theta"].tobytes()


def test_ifca_with_one_model_is_fedavg(alone: Comm, tmp_path: Path) -> None:
    ifca, fedavg = (
        train(config({"algorithm": {"kind": kind} | more}, tmp_path / kind), alone)
        for kind, more in (("ifca", {"k": 1}), ("fedavg", {}))
    )
    assert ifca["server/theta"].shape == (1, *fedavg["server/theta"].shape)
    ifca["server/theta"] = ifca["server/theta"][0]
    cluster = ifca.pop("history/ifca/cluster")
    assert set(cluster[~np.isnan(cluster)]) == {0}
    del ifca["history/ifca/round"]
    assert differing(ifca, fedavg) == []


# ---------------------------------------------------------------------- CFL


def crossing(alike: np.ndarray, part: list[int]) -> float:
    """The greatest similarity between a part and the rest."""
    rest = [i for i in range(len(alike)) if i not in part]
    return float(alike[np.ix_(part, rest)].max())


def best_parts(alike: np.ndarray) -> tuple[list[int], float]:
    """Of all bipartitions the one with the least greatest similarity across: the part without the first, and that."""
    n = len(alike)
    parts = [list(p) for size in range(1, n) for p in itertools.combinations(range(1, n), size)]
    best = min(parts, key=lambda part: crossing(alike, part))
    return best, crossing(alike, best)


@pytest.mark.parametrize("n", range(2, 9))
def test_bipartition_is_the_best_of_all(n: int) -> None:
    random = np.random.default_rng(n)
    for _ in range(20):
        alike = random.uniform(-1, 1, (n, n))
        alike = (alike + alike.T) / 2
        np.fill_diagonal(alike, 1)
        apart, least = bipartition(torch.from_numpy(alike))
        part = torch.nonzero(apart)[:, 0].tolist()
        assert part == best_parts(alike)[0]
        assert least == pytest.approx(best_parts(alike)[1], abs=1e-15)


@pytest.mark.parametrize("n", range(2, 8))
def test_bipartition_with_ties(n: int) -> None:
    """Any of the best will do, as long as neither part is empty."""
    random = np.random.default_rng(n)
    for _ in range(20):
        alike = random.integers(-1, 2, (n, n)).astype(float)
        alike = np.tril(alike) + np.tril(alike, -1).T
        apart, least = bipartition(torch.from_numpy(alike))
        part = torch.nonzero(apart)[:, 0].tolist()
        assert 0 < len(part) < n
        assert 0 not in part
        assert crossing(alike, part) == least == best_parts(alike)[1]


def test_similarity_is_the_cosine() -> None:
    theta = torch.randn(5, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta[3] = 0
    expected = torch.nn.functional.cosine_similarity(theta[:, None], theta[None], dim=2)
    assert near(similarity(theta @ theta.T), expected, 1e-12)


def cfl(plain: Plain, how: dict[str, Any], clusters: list[np.ndarray]) -> Result:
    """Algorithm 3. `clusters` is filled with everybody's cluster after each round."""
    models, cluster, peak = [plain.start], np.zeros(plain.clients, dtype=int), 0.0
    most = min(how.get("clusters", 10), plain.clients)
    for round, who in plain.rounds():
        update = {
            i: plain.sgd(models[cluster[i]], plain.batches(i, round)).double() - models[cluster[i]].double()
            for i in who
        }

        def together(mine: list[int], update: dict[int, Tensor] = update) -> Tensor:
            return mean([update[i] for i in mine], [plain.n[i] for i in mine])

        groups = {c: mine for c in range(len(models)) if (mine := [i for i in who if cluster[i] == c])}
        for c, mine in groups.items():
            stationary, longest = float(together(mine).norm()), max(float(update[i].norm()) for i in mine)
            peak = max(peak, stationary)
            unit = peak if how.get("relative") else 1.0
            enough = round > how.get("warm_up", 0) and len(mine) > 1 and len(models) < most
            if enough and stationary < how["eps1"] * unit and longest > how["eps2"] * unit:
                alike = np.array(
                    [[float(update[i] @ update[j] / update[i].norm() / update[j].norm()) for j in mine] for i in mine]
                )
                part, least = best_parts(alike)
                if np.sqrt((1 - least) / 2) > how.get("gamma_max", 0.0):
                    cluster[[mine[i] for i in part]] = len(models)
                    models.append(models[c])
        for c in range(len(models)):
            if mine := [i for i in who if cluster[i] == c]:
                models[c] = models[c] + together(mine)
        clusters.append(cluster.copy())
    models += [plain.start] * (most - len(models))
    state = {"server/theta": torch.stack(models)}
    return Result(state, [models[c] for c in cluster], None)


ANY = {"eps1": 100.0, "eps2": 0.0}
CUTS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {  # settings, and how many clusters there are in the end
    "never": ({"eps1": 0.0, "eps2": 0.0}, (1, 1)),
    "always": (ANY, (7, 6)),
    "late": (ANY | {"warm_up": 2}, (5, 4)),
    "few": (ANY | {"clusters": 3}, (3, 3)),
    "unlike": (ANY | {"gamma_max": 0.7}, (3, 5)),
    "relative": ({"eps1": 0.9, "eps2": 1.1, "relative": True}, (4, 2)),
}


@both
@pytest.mark.parametrize("name", CUTS)
def test_cfl_is_algorithm_3(name: str, fraction: float, alone: Comm, tmp_path: Path) -> None:
    how, counts = CUTS[name]
    changes = {"algorithm": {"kind": "cfl"} | how, "participation.fraction": fraction, "evaluate.every": 1}
    settings = config(changes, tmp_path, rounds=5)
    clusters: list[np.ndarray] = []
    got = agrees(settings, alone, lambda plain: cfl(plain, how, clusters))
    sent = [1, 1, *(cluster.max() + 1 for cluster in clusters[:-1])]  # in rounds 0 and 1 ... 5: before they split
    assert got["history/streams"].tolist() == np.minimum(sent, settings.participation.expected(7)).tolist()
    assert np.array_equal(got["history/cfl/cluster"], np.array(clusters))
    assert np.array_equal(got["server/cluster"], clusters[-1])
    assert got["server/clusters"] == clusters[-1].max() + 1 == counts[fraction < 1]


def test_cfl_that_never_splits_is_fedavg(alone: Comm, tmp_path: Path) -> None:
    cfl, fedavg = (
        train(config({"algorithm": {"kind": kind} | more}, tmp_path / kind), alone)
        for kind, more in (("cfl", {"eps1": 0}), ("fedavg", {}))
    )
    assert near(cfl["server/theta"][0], fedavg["server/theta"], 1e-6)
    for name in (name for name in fedavg if name.startswith("history/")):
        assert near(cfl[name], fedavg[name], 1e-5), name


OPPOSITE = [[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]
ACROSS = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("z", "x", "how", "splits"),
    [  # one step of 1/2 from 0.2: updates of 0.6 to the left and 0.4 to the right, 0.1 on average
        (OPPOSITE, 0.2, {"eps1": 0.11, "eps2": 0.59}, True),
        (OPPOSITE, 0.2, {"eps1": 0.09, "eps2": 0.59}, False),
        (OPPOSITE, 0.2, {"eps1": 0.11, "eps2": 0.61}, False),
        (OPPOSITE, 0.2, {"eps1": 0.11, "eps2": 0.59, "gamma_max": 0.999}, True),  # cosine -1: sqrt((1 + 1) / 2)
        (OPPOSITE, 0.2, {"eps1": 0.11, "eps2": 0.59, "gamma_max": 1.001}, False),
        (OPPOSITE, 0.2, {"eps1": 0.11, "eps2": 0.59, "clusters": 1}, False),
        (OPPOSITE, 0.2, {"eps1": 0.11, "eps2": 0.59, "warm_up": 1}, False),
        (OPPOSITE, 0.0, {"eps1": 0.1, "eps2": 0.49}, True),  # from 0: 0.5 and 0 exactly
        (OPPOSITE, 0.0, {"eps1": 0.1, "eps2": 0.5}, False),
        (OPPOSITE, 0.0, {"eps1": 0.0, "eps2": 0.49}, False),
        (OPPOSITE, 0.0, {"eps1": 0.1, "eps2": 0.49, "gamma_max": 1.0}, False),
        (ACROSS, 0.0, {"eps1": 1.0, "eps2": 0.1, "gamma_max": 0.70}, True),  # cosine 0: sqrt(1 / 2)
        (ACROSS, 0.0, {"eps1": 1.0, "eps2": 0.1, "gamma_max": 0.71}, False),
    ],
)
def test_cfls_thresholds(z: list[list[float]], x: float, how: dict[str, Any], splits: bool, quadratic: Bench) -> None:
    theta = torch.tensor([x, 0.0])
    bench = quadratic([1.0] * 4, z, steps=1, lr=0.5)
    server, _ = bench.run(CFL.model_validate(how), theta)
    assert server.cluster.tolist() == ([0, 1, 0, 1] if splits else [0, 0, 0, 0])
    parts = [bench.z[:1], bench.z[1:2]] if splits else [bench.z]
    for c, part in enumerate(parts):  # each part goes on by its own mean update
        assert near(server.theta[c], theta + (part.mean(0) - theta) / 2)


@pytest.mark.parametrize(("relative", "when"), [(False, 4), (True, 3)])
def test_cfls_relative_thresholds(relative: bool, when: int, quadratic: Bench) -> None:
    """From 3.2 the mean updates are 1.6, 0.8, 0.4, 0.2: below 0.3 in round 4, below 0.3 of the greatest in round 3.
    Each part then finds its own minimum."""
    bench = quadratic([1.0] * 4, OPPOSITE, steps=1, lr=0.5)
    method = CFL.model_validate({"eps1": 0.3, "eps2": 0.35, "relative": relative})
    for rounds in range(1, 5):
        server, _ = bench.run(method, torch.tensor([3.2, 0.0]), rounds)
        assert int(server.clusters) == (1 if rounds < when else 2)
        assert float(server.peak) == pytest.approx(1.6)
    server, _ = bench.run(method, torch.tensor([3.2, 0.0]), 30)
    assert near(server.theta[server.cluster], bench.z)


def test_cfl_finds_the_groups(alone: Comm, tmp_path: Path) -> None:
    """Two groups of clients with other names for the classes: one cut, between them, and models better than one."""
    changes: dict[str, Any] = {
        "data": {
            "source": {"classes": 4}, "samples": 1600, "clients": 8, "partition": {"kind": "iid"},
            "shift": {"kind": "permute_labels", "groups": 2},
        },
        "model": "logistic",
        "train": {"batch": 20, "lr": 0.1, "momentum": 0.0, "epochs": 2},
        "participation.fraction": 1.0,
        "rounds": 6,
    }  # fmt: skip
    how = {"kind": "cfl", "eps1": 0.3, "eps2": 0.8, "relative": True}
    settings = config(changes | {"algorithm": how}, tmp_path / "cfl")
    got, one = train(settings, alone), train(config(changes | {"algorithm": "fedavg"}, tmp_path / "one"), alone)
    group = world.plan(settings).partition.group
    assert group.tolist() == [0] * 4 + [1] * 4
    assert {tuple(cluster) for cluster in got["history/cfl/cluster"]} == {(0,) * 8, tuple(group)}
    assert np.array_equal(got["server/cluster"], group)
    accuracy, fedavgs = (run["history/global/accuracy"][-1].mean() for run in (got, one))
    assert accuracy > fedavgs + 0.1


# ---------------------------------------------------------------------- FedFOMO


def fedfomo(plain: Plain, series: dict[str, list[np.ndarray]]) -> Result:
    """Every client receives all models of the round. `series` is filled with what the history shows."""
    theta = [plain.start] * plain.clients
    affinity = torch.zeros(plain.clients, plain.clients, dtype=torch.float64)
    for round, who in plain.rounds():
        new, rows = list(theta), {name: np.full(plain.clients, np.nan) for name in series}
        for i in who:
            data = plain.data(i, "validation")
            own = float(plain.loss(theta[i], data))
            weight = {}
            for j in who:
                far = float((theta[j] - theta[i]).double().norm())
                if j != i and far > 0:
                    weight[j] = max((own - float(plain.loss(theta[j], data))) / far, 0.0)
            total, start = sum(weight.values()), theta[i].double()
            for j, w in weight.items():
                affinity[i, j] += w
                if w > 0:
                    start = start + w / total * (theta[j].double() - theta[i].double())
            new[i] = plain.sgd(start.float(), plain.batches(i, round))
            values = (len(who) - 1, total, sum(w > 0 for w in weight.values()))
            for name, value in zip(series, values, strict=True):
                rows[name][i] = value
        theta = new
        for name, row in rows.items():
            series[name].append(row)
    return Result({"clients/theta": torch.stack(theta), "clients/affinity": affinity}, None, theta)


@both
def test_fedfomo_is_its_algorithm(fraction: float, alone: Comm, tmp_path: Path) -> None:
    settings = config({"algorithm": "fedfomo", "participation.fraction": fraction}, tmp_path, rounds=5)
    series: dict[str, list[np.ndarray]] = {"received": [], "weight": [], "helpers": []}
    got = agrees(settings, alone, lambda plain: fedfomo(plain, series), tolerance=2e-5)
    for name, rows in series.items():
        assert np.allclose(got[f"history/fedfomo/{name}"], np.array(rows), rtol=0, atol=1e-5, equal_nan=True), name
    assert np.nanmax(series["helpers"]) > 1


def test_fedfomo_begins_as_local(alone: Comm, tmp_path: Path) -> None:
    """In the first round all models are the same, and nobody's is better."""
    fomo, local = (
        train(config({"algorithm": kind}, tmp_path / kind, rounds=1), alone) for kind in ("fedfomo", "local")
    )
    assert not fomo.pop("clients/affinity").any()
    assert np.nansum(fomo["history/fedfomo/weight"]) == np.nansum(fomo["history/fedfomo/helpers"]) == 0
    fomo = {n: value for n, value in without_costs(fomo).items() if not n.startswith("history/fedfomo/")}
    assert differing(fomo, without_costs(local)) == []


@pytest.mark.parametrize(("models", "fraction", "received"), [(2, 1.0, 2), (2, 0.6, 2), (6, 1.0, 6), (5, 0.4, 2)])
def test_a_client_receives_so_many_models(
    models: int, fraction: float, received: int, alone: Comm, tmp_path: Path
) -> None:
    """M of others, or all there are; the affinities grow by the weights of these and of no others, with epsilon = 0
    those that were greatest."""
    how = {"kind": "fedfomo", "models": models, "epsilon": 0}
    settings = config({"algorithm": how, "participation.fraction": fraction}, tmp_path, rounds=6)
    got, plain = train(settings, alone), Plain(settings, alone)
    before, greedy = np.zeros((plain.clients, plain.clients)), 0
    for round, who in plain.rounds():
        after = saved(tmp_path, round)["clients/affinity"]
        grown = after - before
        seen, weight, helpers = (got[f"history/fedfomo/{n}"][round - 1] for n in ("received", "weight", "helpers"))
        for i in range(plain.clients):
            if i not in who:
                assert np.isnan((seen[i], weight[i], helpers[i])).all()
                assert not grown[i].any()
                continue
            assert seen[i] == received
            assert grown[i, i] == 0
            helping = np.flatnonzero(grown[i])
            assert helpers[i] == len(helping) <= received
            assert set(helping) <= set(who)
            assert weight[i] == pytest.approx(grown[i].sum(), abs=1e-12)
            known = before[i, who]
            if (known > 0).sum() >= received:
                greedy += 1
                assert set(helping) <= set(np.array(who)[np.argsort(-known)[:received]])
        before = after
    assert greedy or (models, fraction) != (2, 1.0)


class Draws:
    """Whom clients ask, round after round."""

    def __init__(self, bench: Quadratic, models: int, epsilon: float) -> None:
        self.bench, self.clients = bench, bench.clients
        self.method = FedFOMO.model_validate({"models": models, "epsilon": epsilon})
        self.own = torch.eye(self.clients, dtype=torch.bool)

    def __call__(self, affinity: Tensor, round: int = 1) -> Tensor:
        cohort: Cohort = self.bench.cohort(np.arange(self.clients), round)
        return self.method.ask(affinity, self.own, cohort)


AFFINITY = torch.rand(10, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def ten(quadratic: Bench) -> Quadratic:
    return quadratic([1.0] * 10, [[0.0]] * 10)


def greatest(affinity: Tensor, count: int) -> Tensor:
    place = (affinity - 10 * torch.eye(len(affinity))).argsort(1, descending=True)[:, :count]
    return torch.zeros_like(affinity, dtype=torch.bool).scatter(1, place, True)


@pytest.mark.parametrize("models", [1, 3, 9])
def test_without_luck_the_greatest_affinities(models: int, ten: Quadratic) -> None:
    assert torch.equal(Draws(ten, models, 0.0)(AFFINITY), greatest(AFFINITY, models))


def frequencies(draws: Draws, affinity: Tensor, rounds: int = 300) -> Tensor:
    """How often each client asks each other one; always as many as it should."""
    total = torch.zeros_like(affinity)
    for round in range(rounds):
        asked = draws(affinity, round)
        assert asked.sum(1).tolist() == [draws.method.models_received] * len(asked)
        assert not (asked & draws.own).any()
        total += asked
    return total / rounds


@pytest.mark.parametrize("affinity", [torch.zeros_like(AFFINITY), AFFINITY], ids=["equal", "known"])
def test_with_luck_alone_everybody_equally(affinity: Tensor, ten: Quadratic) -> None:
    """As also where all affinities are equal, whatever epsilon is. Four standard deviations of a third."""
    for epsilon in (0.0, 0.5, 1.0) if not affinity.any() else (1.0,):
        often = frequencies(Draws(ten, 3, epsilon), affinity)[~torch.eye(10, dtype=torch.bool)]
        assert float((often - 1 / 3).abs().max()) < 4 * (2 / 9 / 300) ** 0.5


def test_each_client_has_luck_of_its_own(ten: Quadratic) -> None:
    """Another choice for each client, and another one in each round."""
    for epsilon in (0.0, 1.0):
        draws = Draws(ten, 3, epsilon)
        first, second = (draws(torch.zeros_like(AFFINITY), round) for round in (1, 2))
        assert len(torch.unique(first, dim=0)) > 7
        assert int((first != second).any(1).sum()) > 7


def test_some_luck(ten: Quadratic) -> None:
    """With epsilon = 0.3, choices are the greatest in 7 of 10 cases, and by luck in some of the others."""
    often = frequencies(Draws(ten, 3, 0.3), AFFINITY)
    best = greatest(AFFINITY, 3)
    assert 0.7 < float(often[best].mean()) < 0.8
    assert float(often[greatest(AFFINITY, 1)].min()) > 0.9
    rest = often[~best & ~torch.eye(10, dtype=torch.bool)]
    assert float(rest.min()) > 0.05
