"""SCAFFOLD against the paper: reductions, plain loops, quadratics by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mpipfl.algorithms import FedAvg, Scaffold
from mpipfl.comm import Comm

from .plain import Plain, Quadratic, Result, agrees, mean, near
from .suite import config, content, train

Bench = Callable[..., Quadratic]


@pytest.fixture
def quadratic(alone: Comm, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return partial(Quadratic, alone, monkeypatch)


def scaffold(plain: Plain, eta_g: float = 1.0, samples: bool = False) -> Result:
    """Algorithm 1, option II."""
    x, eta = plain.start, plain.train.lr
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(plain.clients)]
    for round, who in plain.rounds():
        delta_y, delta_c = [], []
        for i in who:
            y, batches = x.clone(), plain.batches(i, round)
            for batch in batches:
                y = y - eta * (plain.grad(y, batch) - own[i] + c)
            new = own[i] - c + (x - y) / (len(batches) * eta)
            delta_y.append(y - x)
            delta_c.append(new - own[i])
            own[i] = new
        x = x + eta_g * mean(delta_y, [plain.n[i] for i in who] if samples else None)
        c = c + len(who) / plain.clients * mean(delta_c)
    state = {"server/theta": x, "server/c": c, "clients/c": torch.stack(own)}
    return Result(state, [x] * plain.clients, None)


@pytest.mark.parametrize(("samples", "fraction"), [(False, 0.6), (True, 1.0)])
def test_scaffold_is_algorithm_1(samples: bool, fraction: float, alone: Comm, tmp_path: Path) -> None:
    """Three rounds, clients with 2 to 10 steps, and a momentum in the configuration that plays no part."""
    how = {"kind": "scaffold", "server_lr": 0.7, "weights": "samples" if samples else "equal"}
    settings = config({"algorithm": how, "participation.fraction": fraction}, tmp_path, rounds=3)
    assert settings.train.momentum > 0
    agrees(settings, alone, lambda plain: scaffold(plain, 0.7, samples), tolerance=3e-5)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_one_step_of_a_first_round_is_fedavg(weights: str, alone: Comm, tmp_path: Path) -> None:
    one = {"train.steps": 1, "train.momentum": 0.0, "rounds": 1}
    runs = [
        train(config(one | {"algorithm": {"kind": kind, "weights": weights}}, tmp_path / kind), alone)["server/theta"]
        for kind in ("fedavg", "scaffold")
    ]
    assert near(runs[0], runs[1], 1e-6)
    assert not near(runs[0], content(tmp_path / "fedavg/run/checkpoints/round_00000.h5")["server/theta"], 1e-3)


def test_variates_come_in_from_the_second_round(alone: Comm, tmp_path: Path) -> None:
    one: dict[str, Any] = {"train.momentum": 0.0, "participation.fraction": 1.0, "rounds": 2}
    runs = [
        train(config(one | {"algorithm": {"kind": kind, "weights": "equal"}}, tmp_path / kind), alone)["server/theta"]
        for kind in ("fedavg", "scaffold")
    ]
    assert not near(runs[0], runs[1], 1e-3)


def test_stragglers_keep_their_variates(alone: Comm, tmp_path: Path) -> None:
    """With `train: all`, those that do not report change nothing: the run is the one without them."""
    runs = [
        train(
            config({"algorithm": "scaffold", "participation": {"fraction": 0.4, "train": who}}, tmp_path / who), alone
        )
        for who in ("sampled", "all")
    ]
    for name in ("server/theta", "server/c", "clients/c"):
        assert near(runs[0][name], runs[1][name], 0), name


A, Z = [1.0, 0.5, 2.0, 0.2], [[1.0, -2.0], [3.0, 0.5], [-1.0, 1.0], [8.0, -5.0]]
SAMPLES = [5, 8, 20, 3]  # of batches of four, twice: 4, 4, 10 and 2 steps


@pytest.mark.parametrize(("fraction", "rounds"), [(1.0, 60), (0.5, 160)])
def test_the_minimum_of_all_clients_losses(fraction: float, rounds: int, quadratic: Bench) -> None:
    """SCAFFOLD finds it, with different curvatures, minima and numbers of steps; FedAvg's drift takes it elsewhere."""
    bench = quadratic(A, Z, SAMPLES, epochs=2)
    a, z = bench.a[:, None], bench.z
    minimum = (a * z).sum(0) / a.sum()
    server, clients = bench.run(Scaffold(), torch.zeros(2), rounds=rounds, fraction=fraction)
    assert near(server.theta, minimum, 1e-4)
    assert near(server.c, 0, 1e-4)
    assert near(clients.c, a * (minimum - z), 1e-4)  # each client's gradient there


def test_fedavgs_drift(quadratic: Bench) -> None:
    """Its fixed point has client k count 1 - (1 - eta a_k)^K_k instead of a_k."""
    bench = quadratic(A, Z, SAMPLES, epochs=2)
    a, z = bench.a[:, None], bench.z
    weight = 1 - (1 - 0.1 * a) ** torch.tensor([4, 4, 10, 2])[:, None]
    theta = bench.run(FedAvg(weights="equal"), torch.zeros(2), rounds=60)[0].theta
    assert near(theta, (weight * z).sum(0) / weight.sum(), 1e-4)
    assert not near(theta, (a * z).sum(0) / a.sum(), 0.3)


def test_two_rounds_by_hand(quadratic: Bench) -> None:
    """a = 1 for both, z = 0 and 4, two steps of 1/2 from 0.

    Round 1: y = 0 and 3; c_i = (0 - y) / (2/2) = 0 and -3; x = c = the means, 3/2 and -3/2.
    Round 2: client 1's steps have the gradient y - 0 - 0 - 3/2, so y = 3/2 stays; client 2's y - 4 + 3 - 3/2, so
    y = 2, then 9/4. c_i = 0 + 3/2 + 0 and -3 + 3/2 - 3/4."""
    bench = quadratic([1.0, 1.0], [[0.0], [4.0]], steps=2, lr=0.5)
    server, clients = bench.run(Scaffold(), torch.zeros(1), rounds=1)
    assert near(clients.c, [[0], [-3]], 1e-6)
    assert near((server.theta, server.c), [[1.5], [-1.5]], 1e-6)
    server, clients = bench.run(Scaffold(), torch.zeros(1), rounds=2)
    assert near(clients.c, [[1.5], [-2.25]], 1e-6)
    assert near((server.theta, server.c), [[1.875], [-0.375]], 1e-6)
