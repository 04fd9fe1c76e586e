"""Ditto, pFedMe, Per-FedAvg, FedPer, FedRep and pFedBayes against their papers: reductions, plain loops, quadratics by
hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from mpipfl import descent, schedule
from mpipfl.algorithms import Ditto, PerFedAvg, PFedBayes, PFedMe
from mpipfl.cohort import Cohort
from mpipfl.comm import Comm

from .plain import Plain, Quadratic, Result, agrees, mean, near
from .suite import config, content, differing, train, without_costs

Bench = Callable[..., Quadratic]


@pytest.fixture
def quadratic(alone: Comm, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return partial(Quadratic, alone, monkeypatch)


def under(got: dict[str, np.ndarray], *prefixes: str) -> dict[str, np.ndarray]:
    """The part of a checkpoint with these names, by what comes after the prefix."""
    return {name.removeprefix(p): value for name, value in got.items() for p in prefixes if name.startswith(p)}


# ---------------------------------------------------------------------- Ditto


def ditto(plain: Plain, lam: float, steps: int | None) -> Result:
    """Algorithm 1, with FedAvg for the global problem."""
    theta, v = plain.start, [plain.start] * plain.clients
    for round, who in plain.rounds():
        models = []
        for k in who:
            anchor = theta
            models.append(plain.sgd(theta, plain.batches(k, round)))
            v[k] = plain.sgd(
                v[k],
                plain.batches(k, round, steps=steps),
                more=lambda v, anchor=anchor: lam / 2 * (v - anchor).square().sum(),  # type: ignore[misc]
            )
        theta = mean(models, [plain.n[k] for k in who])
    return Result({"server/theta": theta, "clients/v": torch.stack(v)}, [theta] * plain.clients, v)


@pytest.mark.parametrize(("steps", "fraction"), [(None, 1.0), (3, 0.6)])
def test_ditto_is_algorithm_1(steps: int | None, fraction: float, alone: Comm, tmp_path: Path) -> None:
    how = {"kind": "ditto", "lambda": 2.0, "personal_steps": steps}
    changes = {"algorithm": how, "participation.fraction": fraction, "train.weight_decay": 0.01}
    agrees(config(changes, tmp_path, rounds=3), alone, lambda plain: ditto(plain, 2.0, steps))


def test_ditto_without_a_pull_is_fedavg_and_local(alone: Comm, tmp_path: Path) -> None:
    """To the last bit: the global model and its history fedavg's, the personal ones and theirs local's."""
    got, fedavg, local = (
        train(config({"algorithm": {"kind": kind} | more}, tmp_path / kind), alone)
        for kind, more in (("ditto", {"lambda": 0}), ("fedavg", {}), ("local", {}))
    )
    common = ("server/", "history/global/")
    assert differing(under(got, *common), under(fedavg, *common)) == []
    got["clients/theta"] = got.pop("clients/v")
    common = ("clients/", "history/personal/")
    assert differing(under(got, *common), under(local, *common)) == []
    assert differing(under(got, "history/personal/"), under(got, "history/global/"))


def test_a_strong_pull_keeps_ditto_near_the_incoming_global_model(alone: Comm, tmp_path: Path) -> None:
    """lr lambda = 0.95: each step all but starts again from the global model that the round began with, so v stays
    about |grad| / lambda away from it, nearer than to the one that the round ends with."""
    changes = {"participation.fraction": 1.0, "train.momentum": 0.0, "train.lr": 0.01}
    settings = config(changes | {"algorithm": {"kind": "ditto", "lambda": 95}}, tmp_path)
    v = train(settings, alone)["clients/v"]
    _, before, after = (content(settings.folder / f"checkpoints/round_{r:05}.h5")["server/theta"] for r in (0, 3, 4))
    near_before, near_after = (np.linalg.norm(v - theta, axis=1) for theta in (before, after))
    assert (near_before < 0.9 * near_after).all()
    free = train(config(changes | {"algorithm": "local"}, tmp_path / "local"), alone)["clients/theta"]
    assert near_before.max() < 0.5 * np.linalg.norm(free - before, axis=1).min()


def test_dittos_personal_problem(quadratic: Bench) -> None:
    """v solves min F_k(v) + lambda/2 |v - theta|²: (a z + lambda theta) / (a + lambda), and the global model takes no
    notice: theta' = mean of z + (1 - eta a) (theta - z)."""
    a, z, theta = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, -1.0], [0.0, 4.0]]), torch.tensor([1.0, 1.0])
    bench = quadratic([1.0, 3.0], z.tolist(), steps=1, lr=0.1)
    method = Ditto.model_validate({"lambda": 0.5, "personal_steps": 200})
    server, clients = bench.run(method, theta)
    assert near(clients.v, (a * z + 0.5 * theta) / (a + 0.5))
    assert near(server.theta, (z + (1 - 0.1 * a) * (theta - z)).mean(0))


# ---------------------------------------------------------------------- pFedMe


def pfedme(plain: Plain, lam: float, inner: int, rate: float, beta: float, samples: bool) -> Result:
    """Algorithm 1; the inner problem goes on from its last solution."""
    w, personal = plain.start, [plain.start] * plain.clients
    for round, who in plain.rounds():
        models = []
        for i in who:
            own, theta = w, w
            for batch in plain.batches(i, round):
                for _ in range(inner):
                    theta = theta - rate * (plain.grad(theta, batch) + lam * (theta - own))
                own = own - plain.train.lr * lam * (own - theta)
            personal[i] = theta
            models.append(own)
        w = (1 - beta) * w + beta * mean(models, [plain.n[i] for i in who] if samples else None)
    return Result({"server/w": w, "clients/theta": torch.stack(personal)}, [w] * plain.clients, personal)


PFEDME = {"kind": "pfedme", "lambda": 3.0, "inner_steps": 3, "personal_lr": 0.06}


@pytest.mark.parametrize(("samples", "fraction"), [(False, 0.6), (True, 1.0)])
def test_pfedme_is_algorithm_1(samples: bool, fraction: float, alone: Comm, tmp_path: Path) -> None:
    """Also in the history: personal is theta. The configuration's momentum plays no part."""
    how = PFEDME | {"beta": 0.8, "weights": "samples" if samples else "equal"}
    changes = {"algorithm": how, "participation.fraction": fraction, "train.weight_decay": 0.01}
    settings = config(changes, tmp_path, rounds=3)
    assert settings.train.momentum > 0
    agrees(settings, alone, lambda plain: pfedme(plain, 3.0, 3, 0.06, 0.8, samples))


def test_what_pfedme_calls_personal(alone: Comm, tmp_path: Path) -> None:
    """The history's personal figures are those of clients/theta and not of w_i, which a round of one client shows:
    with beta = 1 its w_i is the server's w."""
    changes = {"data.clients": 1, "data.partition": "iid", "data.shift": "none", "train.lr": 0.02}
    settings = config(changes | {"algorithm": PFEDME}, tmp_path, rounds=2)
    got, plain = train(settings, alone), Plain(settings, alone)
    theta, w = torch.from_numpy(got["clients/theta"][0]), torch.from_numpy(got["server/w"])
    assert float((theta - w).norm()) > 0.1
    of_theta, of_w = plain.score(theta, 0, "test")[1], plain.score(w, 0, "test")[1]
    assert got["history/personal/loss"][-1, 0] == pytest.approx(of_theta, rel=1e-5)
    assert got["history/global/loss"][-1, 0] == pytest.approx(of_w, rel=1e-5)
    assert abs(of_theta - of_w) > 0.01


def test_half_of_beta_is_half_the_way(alone: Comm, tmp_path: Path) -> None:
    half, whole = (
        train(config({"algorithm": PFEDME | {"beta": beta}}, tmp_path / str(beta), rounds=1), alone)["server/w"]
        for beta in (0.5, 1.0)
    )
    start = content(tmp_path / "1.0/run/checkpoints/round_00000.h5")["server/w"]
    assert np.abs(whole - start).max() > 0.01
    assert near(half - start, (whole - start) / 2, 1e-6)


def test_pfedmes_inner_problem(quadratic: Bench) -> None:
    """Its solution is (a z + lambda w) / (a + lambda), so that each local step is w <- w - eta a lambda / (a + lambda)
    (w - z): a gradient step on the Moreau envelope."""
    a, z, w = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, -1.0], [0.0, 4.0]]), torch.tensor([1.0, 1.0])
    bench = quadratic([1.0, 3.0], z.tolist(), steps=3, lr=0.2)
    method = PFedMe.model_validate({"lambda": 2, "inner_steps": 100, "personal_lr": 0.15, "beta": 0.6})
    server, clients = bench.run(method, w)
    own = w.expand(2, 2)
    for _ in range(3):
        theta = (a * z + 2 * own) / (a + 2)
        own = own - 0.2 * 2 * (own - theta)
    assert near(clients.theta, theta)
    assert near(server.w, 0.4 * w + 0.6 * own.mean(0))
    assert near(own, z + (1 - 0.2 * 2 * a / (a + 2)) ** 3 * (w - z))


# ---------------------------------------------------------------------- Per-FedAvg


def perfedavg(plain: Plain, alpha: float, hessian: bool, adapt_steps: int) -> Result:
    """Algorithm 1, with the Hessian's product by differentiating twice."""
    w, beta = plain.start, plain.train.lr
    for round, who in plain.rounds():
        models = []
        for i in who:
            own = w
            streams = [plain.batches(i, round, stream) for stream in ("batches", "batches 1", "batches 2")]
            for d, d1, d2 in zip(*streams, strict=True):
                g = plain.grad(own - alpha * plain.grad(own, d), d1)
                if hessian:
                    _, product = torch.autograd.functional.vhp(partial(plain.f, batch=d2), own, g)
                    g = g - alpha * product
                own = own - beta * g
            models.append(own)
        w = mean(models)
    personal = []
    for i in range(plain.clients):
        own = w
        for _ in range(adapt_steps):
            own = own - alpha * plain.grad(own, plain.data(i))
        personal.append(own)
    return Result({"server/theta": w}, [w] * plain.clients, personal)


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("variant", ["first_order", "hessian_free"])
def test_perfedavg_is_algorithm_1(variant: str, fraction: float, alone: Comm, tmp_path: Path) -> None:
    """Also in the history: personal is w - alpha times the full training gradient, twice. The network is smooth: at
    ReLU's kinks the difference of two gradients is not the Hessian's product."""
    how = {"kind": "perfedavg", "variant": variant, "alpha": 0.03, "delta": 0.0001, "adapt_steps": 2}
    changes = {"algorithm": how, "participation.fraction": fraction, "model": {"kind": "tests.plain:Smooth"}}
    settings = config(changes, tmp_path, rounds=3)
    assert settings.train.momentum > 0
    agrees(settings, alone, lambda plain: perfedavg(plain, 0.03, variant == "hessian_free", 2), tolerance=2e-5)


@pytest.mark.parametrize("variant", ["first_order", "hessian_free"])
def test_perfedavgs_factor(variant: str, quadratic: Bench) -> None:
    """∇f(w~) = a (1 - alpha a) (w - z); the Hessian gives the same factor (1 - alpha a) once more, first order has it
    once. Personal is z + (1 - alpha a)^s (w - z)."""
    a, z, w = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, -1.0], [0.0, 4.0]]), torch.tensor([1.0, 1.0])
    bench = quadratic([1.0, 3.0], z.tolist(), steps=1, lr=0.1)
    method = PerFedAvg.model_validate({"variant": variant, "alpha": 0.25, "delta": 0.1, "adapt_steps": 3})
    server, clients = bench.run(method, w)
    power = 1 if variant == "first_order" else 2
    expected = (w - 0.1 * a * (1 - 0.25 * a) ** power * (w - z)).mean(0)
    assert near(server.theta, expected)
    models = method.models(server, clients, bench.cohort(np.arange(2), 1))
    assert models.personal is not None
    assert near(models.personal, z + (1 - 0.25 * a) ** 3 * (expected - z))
    assert models.globally is server.theta


def test_perfedavg_takes_three_different_batches(quadratic: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is the same for D, D' and D'' would make the meta-gradient biased."""
    bench, seen = quadratic([1.0], [[0.0]], samples=[64], steps=4), []
    bench.store = replace(bench.store, x=torch.arange(64.0)[:, None])  # a sample shows which one it is
    iterate = Cohort.iterate

    def spied(self: Cohort, step: Callable[..., Any], *args: Any, **how: Any) -> Any:
        def look(*state: Any) -> Any:
            seen.append([batch.data.x[0].flatten().tolist() for batch in state[1:]])
            return state[:1]

        return iterate(self, look, *args, **how)

    monkeypatch.setattr(Cohort, "iterate", spied)
    bench.run(PerFedAvg(variant="hessian_free"), torch.zeros(1))
    assert len(seen) == 4
    for batches in seen:
        assert len(batches) == 3
        assert len({tuple(sorted(batch)) for batch in batches}) == 3


# ---------------------------------------------------------------------- FedPer and FedRep


def divided(plain: Plain, head_epochs: int | None, base_epochs: int | None, samples: bool) -> Result:
    """A shared base under personal heads: trained jointly (FedPer), or the head first (FedRep)."""
    head = plain.head
    base, heads = plain.start[~head], [plain.start[head]] * plain.clients

    def unite(k: int) -> Tensor:
        theta = torch.empty_like(plain.start)
        theta[~head], theta[head] = base, heads[k]
        return theta

    for round, who in plain.rounds():
        bases = []
        for k in who:
            theta = unite(k)
            if head_epochs is None:
                theta = plain.sgd(theta, plain.batches(k, round))
            else:
                batches = plain.batches(k, round, "head batches", epochs=head_epochs)
                theta = plain.sgd(theta, batches, moving=head)
                theta = plain.sgd(theta, plain.batches(k, round, epochs=base_epochs), moving=~head)
            bases.append(theta[~head])
            heads[k] = theta[head]
        base = mean(bases, [plain.n[k] for k in who] if samples else None)
    state = {"server/base": base, "clients/head": torch.stack(heads)}
    return Result(state, None, [unite(k) for k in range(plain.clients)])


@pytest.mark.parametrize(("weights", "fraction"), [("samples", 0.6), ("equal", 1.0)])
def test_fedper_is_its_algorithm(weights: str, fraction: float, alone: Comm, tmp_path: Path) -> None:
    changes = {"algorithm": {"kind": "fedper", "weights": weights}, "participation.fraction": fraction}
    settings = config(changes, tmp_path, rounds=3)
    agrees(settings, alone, lambda plain: divided(plain, None, None, weights == "samples"), tolerance=2e-5)


@pytest.mark.parametrize(("base_epochs", "fraction"), [(None, 0.6), (2, 1.0)])
def test_fedrep_is_algorithm_1(base_epochs: int | None, fraction: float, alone: Comm, tmp_path: Path) -> None:
    changes = {
        "algorithm": {"kind": "fedrep", "head_epochs": 3, "base_epochs": base_epochs},
        "participation.fraction": fraction,
        "train.weight_decay": 0.01,
    }
    settings = config(changes, tmp_path, rounds=3)
    agrees(settings, alone, lambda plain: divided(plain, 3, base_epochs, samples=False), tolerance=2e-5)


def test_fedper_on_a_network_that_is_all_head_is_local(alone: Comm, tmp_path: Path) -> None:
    changes = {"model": "logistic", "train.weight_decay": 0.01}
    got, local = (train(config(changes | {"algorithm": k}, tmp_path / k), alone) for k in ("fedper", "local"))
    assert got.pop("server/base").shape == (0,)
    got["clients/theta"] = got.pop("clients/head")
    assert differing(without_costs(got), without_costs(local)) == []


def test_fedrep_on_a_network_that_is_all_head_is_local(alone: Comm, tmp_path: Path) -> None:
    """With as many epochs, and batches of all samples, as those for heads are others than those for all."""
    changes: dict[str, Any] = {"model": "logistic", "train.batch": 1000}
    fedrep = train(config(changes | {"algorithm": {"kind": "fedrep", "head_epochs": 4}}, tmp_path / "r"), alone)
    local = train(config(changes | {"algorithm": "local", "train.epochs": 4}, tmp_path / "l"), alone)
    assert near(fedrep["clients/head"], local["clients/theta"])
    assert not near(
        local["clients/theta"], content(tmp_path / "l/run/checkpoints/round_00000.h5")["clients/theta"], 0.1
    )


def test_heads_stay_with_their_clients(alone: Comm, tmp_path: Path) -> None:
    """Who was never in a round still has the first head; nobody has anybody else's."""
    settings = config({"algorithm": "fedper", "participation.fraction": 0.3}, tmp_path, rounds=2)
    got, plain = train(settings, alone), Plain(settings, alone)
    seen = {k for _, who in plain.rounds() for k in who}
    assert 0 < len(seen) < plain.clients
    first = content(settings.folder / "checkpoints/round_00000.h5")["clients/head"]
    for k in range(plain.clients):
        assert (k in seen) != bool((got["clients/head"][k] == first[k]).all()), k
    assert len(np.unique(got["clients/head"], axis=0)) == len(seen) + 1


# ---------------------------------------------------------------------- pFedBayes


def pfedbayes(
    plain: Plain, zeta: float, rho: float, eta_p: float, beta: float, optimizer: type[torch.optim.Optimizer]
) -> Result:
    """Algorithm 1 with one noise for each step, the divergence from torch.distributions."""
    d = len(plain.start)
    p = (plain.start, torch.full((d,), rho))
    q = [p] * plain.clients
    for round, who in plain.rounds():
        copies = []
        for i in who:
            own, prior = [[x.clone().requires_grad_() for x in pair] for pair in (q[i], p)]
            descent = optimizer([{"params": own}, {"params": prior, "lr": eta_p}], lr=plain.train.lr)  # type: ignore[call-arg]
            for number, batch in enumerate(plain.batches(i, round)):
                key = schedule.key(plain.settings.seed, "noise", round, i, number, np.arange(1))
                noise = schedule.normal(key, d)[0]
                (mu, rho_i), (mu_p, rho_p) = own, prior
                sigma, s = F.softplus(rho_i), F.softplus(rho_p)
                divergence = kl_divergence(Normal(mu, sigma), Normal(mu_p, s)).sum()
                descent.zero_grad()
                (plain.loss(mu + sigma * noise, batch) + zeta / plain.n[i] * divergence).backward()  # (10)
                descent.step()
            q[i] = (own[0].detach(), own[1].detach())
            copies.append([x.detach() for x in prior])
        p = tuple((1 - beta) * p[j] + beta * mean([copy[j] for copy in copies]) for j in range(2))  # type: ignore[assignment]
    state = {
        "server/mu": p[0], "server/rho": p[1],
        "clients/mu": torch.stack([mu for mu, _ in q]), "clients/rho": torch.stack([rho for _, rho in q]),
    }  # fmt: skip
    return Result(state, [p[0]] * plain.clients, [mu for mu, _ in q])


@pytest.mark.parametrize(
    ("global_lr", "fraction", "optimizer"), [(None, 1.0, "sgd"), (0.02, 0.6, "sgd"), (0.02, 0.6, "adam")]
)
def test_pfedbayes_is_algorithm_1(
    global_lr: float | None, fraction: float, optimizer: str, alone: Comm, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By SGD and by Adam. Adam divides gradients by their size, also those that are all rounding: not with an epsilon
    far above it."""
    monkeypatch.setattr(descent, "LEAST", 0.1)
    how = {"kind": "pfedbayes", "zeta": 0.5, "rho": -1.0, "global_lr": global_lr, "beta": 0.7, "optimizer": optimizer}
    plain_one: Any = {"sgd": torch.optim.SGD, "adam": partial(torch.optim.Adam, eps=0.1)}[optimizer]
    settings = config({"algorithm": how, "participation.fraction": fraction}, tmp_path, rounds=3)
    assert settings.train.momentum > 0
    agrees(settings, alone, lambda plain: pfedbayes(plain, 0.5, -1.0, global_lr or 0.05, 0.7, plain_one))


def test_pfedbayes_without_noise_and_prior_is_local(alone: Comm, tmp_path: Path) -> None:
    """sigma = softplus(-20) = 2e-9 and zeta = 0: plain SGD for the means, and a global model that stays."""
    changes: dict[str, Any] = {"train.momentum": 0.0}
    how = {"kind": "pfedbayes", "zeta": 0, "rho": -20}
    bayes = train(config(changes | {"algorithm": how}, tmp_path / "b"), alone)
    local = train(config(changes | {"algorithm": "local"}, tmp_path / "l"), alone)
    start = content(tmp_path / "l/run/checkpoints/round_00000.h5")["clients/theta"]
    assert near(bayes["clients/mu"], local["clients/theta"], 1e-4)
    assert not near(local["clients/theta"], start, 0.01)
    assert near(bayes["server/mu"], start[0], 0)


def test_pfedbayes_posterior(quadratic: Bench) -> None:
    """Under a prior N(mu, s²) that stays, E[a/2 |theta - z|²] + zeta/n KL(q || p) is least for the Gaussian with
    1/sigma² = 1/s² + a n/zeta and mean (a z n/zeta + mu/s²) sigma². Its noise is averaged out over many coordinates."""
    a, n, zeta, z, mu, rho = 2.0, 4, 8.0, 1.5, -1.0, 0.0
    s, many = float(F.softplus(torch.tensor(rho))), 2000
    bench = quadratic([a], [[z] * many], samples=[n], steps=200, lr=0.05)
    _, clients = bench.run(PFedBayes(zeta=zeta, rho=rho, global_lr=1e-12), torch.full((many,), mu))
    precision = 1 / s**2 + a * n / zeta
    assert abs(precision**-0.5 - s) > 0.1
    assert float(clients.mu.mean()) == pytest.approx((a * z * n / zeta + mu / s**2) / precision, abs=0.02)
    assert float(F.softplus(clients.rho).mean()) == pytest.approx(precision**-0.5, abs=0.02)
