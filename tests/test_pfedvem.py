"""pFedVEM against its paper: equations by hand and by torch.distributions, a plain loop, closed forms and guards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from mpipfl import schedule, world
from mpipfl.algorithms import PFedVEM
from mpipfl.algorithms.pfedvem import Client, Server
from mpipfl.comm import Comm
from mpipfl.config import Config
from mpipfl.errors import ConfigError
from mpipfl.federation import Federation
from mpipfl.progress import Reporter
from mpipfl.telemetry import Telemetry

from .plain import Plain, Quadratic, Result, agrees, mean, near
from .suite import config, content, train
from .test_cohort import ROUND, SEED, SIZES, Bench, close

ALL = {"participation": {"fraction": 1.0}}
REPORTING = np.array([True, False, True, True, True, False])


class Outer(nn.Module):
    """A user's module: its last linear layer, made first, is its last operation, or its outputs are normalized."""

    def __init__(self, shape: tuple[int, ...], classes: int, normalized: bool = False) -> None:
        super().__init__()
        self.width, self.normalized = int(np.prod(shape)), normalized
        self.first, self.out = nn.Linear(self.width, 9), nn.Linear(9, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x.flatten(1)))
        return 3 * F.normalize(self.out(hidden), dim=1) if self.normalized else self.out(hidden)


# ---------------------------------------------------------------------- one round, equation by equation


class Scene:
    """Six clients of ragged sizes in the middle of training, two of them stragglers, one new."""

    def __init__(self, alone: Comm, network: str = "convolutional", **how: Any) -> None:
        self.bench = Bench(network, batch=6, lr=0.05)
        self.method = PFedVEM.model_validate(
            {"draws": 3, "head_epochs": 1, "head_lr": 0.01, "head_optimizer": "sgd", "rho2": 0.3} | how
        )
        random, model = torch.Generator().manual_seed(3), self.bench.model
        self.inside = torch.zeros(model.dimension, dtype=torch.bool)
        for i in model.head:
            self.inside[model.layout[i].start : model.layout[i].stop] = True
        d = int(self.inside.sum())
        theta = self.bench.theta[0]
        w = theta[self.inside]
        mu = w + torch.linspace(0.05, 0.6, 6)[:, None] * torch.randn(6, d, generator=random)
        pi = torch.linspace(-4, 0, 6).roll(2)[:, None] + 0.3 * torch.randn(6, d, generator=random)
        self.server = Server(theta[~self.inside], w, known=theta[~self.inside] + 1)
        self.clients = Client(mu, pi, torch.tensor([True, True, False, True, True, True]))
        self.fl = Federation(alone, Telemetry(), 6)
        self.fl.begin(ROUND, np.arange(6), np.zeros(6, dtype=np.int64), REPORTING)

    def round(self) -> tuple[Server, Client]:
        return self.method.round(self.server, self.clients, self.bench.cohort(width=4), self.fl)

    def noise(self, client: int, step: int) -> Tensor:
        keys = schedule.key(SEED, "head noise", ROUND, client, step, np.arange(self.method.draws))
        return schedule.normal(keys, len(self.server.w))

    def likelihood(self, client: int, head: Tensor) -> Tensor:
        """The mean negative log-likelihood on all of a client's training data, by the plain network."""
        theta = torch.zeros(len(self.inside)).masked_scatter(~self.inside, self.server.theta)
        theta = theta.masked_scatter(self.inside, head)
        parts = theta.split([p.numel() for p in self.bench.network.parameters()])
        named = {n: t.view_as(p) for (n, p), t in zip(self.bench.network.named_parameters(), parts, strict=True)}
        x, y = self.bench.data(client, "train")
        said = torch.func.functional_call(self.bench.network, named, (x,))
        return -torch.log_softmax(said, 1)[torch.arange(len(y)), y].mean()

    def doubts(self) -> dict[str, np.ndarray]:
        """What (8) is made of, in numpy."""
        mu, w = self.clients.mu.double().numpy(), self.server.w.double().numpy()
        sigma = np.log1p(np.exp(self.clients.pi.double().numpy()))
        trace, deviation = (sigma**2).sum(1), ((mu - w) ** 2).sum(1)
        tau = len(w) / (trace + deviation)
        tau[2] = 1 / self.method.rho2  # who has never trained
        return {"tau": tau, "trace": trace, "deviation": deviation}


@pytest.mark.parametrize("confidence", ["both", "uncertainty", "deviation", "none"])
def test_confidence_and_the_global_head(confidence: str, alone: Comm) -> None:
    """(8), and (9) over those that report; the ablations weigh as they say."""
    scene = Scene(alone, confidence=confidence)
    d, expected = len(scene.server.w), scene.doubts()
    assert np.ptp(expected["tau"]) > 5
    server, clients = scene.round()
    for name, value in expected.items():
        assert scene.fl.recorded[name].numpy() == pytest.approx(value, rel=1e-5), name
    weight = {
        "both": expected["tau"],
        "uncertainty": d / expected["trace"],
        "deviation": d / expected["deviation"],
        "none": np.ones(6),
    }[confidence]
    assert scene.fl.recorded["weight"].numpy() == pytest.approx(weight, rel=1e-5)
    weight = weight * REPORTING
    w = (weight[:, None] * clients.mu.double().numpy()).sum(0) / weight.sum()
    assert near(server.w, w, 1e-6)
    assert clients.seen.all()
    equal = clients.mu[torch.from_numpy(REPORTING)].mean(0)
    assert near(server.w, equal, 1e-6) == (confidence == "none")


@pytest.mark.parametrize(("network", "draws"), [("logistic", 5), ("convolutional", 3), ("residual", 1)])
def test_a_heads_gradient(network: str, draws: int, alone: Comm) -> None:
    """A step descends n_j mean_k -log p(y | w_jk) + KL(q_j || N(w, rho_j²)), draw after draw, by autograd."""
    scene = Scene(alone, network, draws=draws)
    _, got = scene.round()
    for j, tau in enumerate(scene.doubts()["tau"]):
        mu, pi = scene.clients.mu[j].clone().requires_grad_(), scene.clients.pi[j].clone().requires_grad_()
        sigma, noise = F.softplus(pi), scene.noise(j, 0)
        losses = [scene.likelihood(j, mu + sigma * noise[k]) for k in range(draws)]
        prior = Normal(scene.server.w, torch.full_like(scene.server.w, float(tau) ** -0.5))
        objective = int(SIZES[j, 0]) * torch.stack(losses).mean() + kl_divergence(Normal(mu, sigma), prior).sum()
        by_mu, by_pi = torch.autograd.grad(objective, (mu, pi))
        assert close((scene.clients.mu[j] - got.mu[j]) / 0.01, by_mu), j
        assert close((scene.clients.pi[j] - got.pi[j]) / 0.01, by_pi), j


def test_the_divergences_gradient_by_finite_differences(alone: Comm) -> None:
    """Without a likelihood a step descends the divergence alone, written out here."""
    scene = Scene(alone)
    scene.bench.model.loss = lambda outputs, labels: 0 * outputs.sum(1)
    _, got = scene.round()
    w = scene.server.w.double().numpy()
    for j, tau in enumerate(scene.doubts()["tau"]):
        at = [scene.clients.mu[j].double().numpy(), scene.clients.pi[j].double().numpy()]

        def divergence(mu: np.ndarray, pi: np.ndarray, tau: float = tau) -> np.ndarray:
            s2 = np.log1p(np.exp(pi)) ** 2
            return -0.5 * np.log(s2 * tau) + tau * (s2 + (mu - w) ** 2) / 2 - 0.5  # by coordinate

        for i, new in enumerate((got.mu[j], got.pi[j])):
            step = np.eye(2)[i] * 1e-5
            slope = (divergence(at[0] + step[0], at[1] + step[1]) - divergence(at[0] - step[0], at[1] - step[1])) / 2e-5
            moved = (at[i] - new.double().numpy()) / 0.01
            assert np.abs(moved - slope).max() <= 1e-4 * (1 + np.abs(slope).max()), (j, i)


def test_a_summed_loss_is_the_same_for_heads(alone: Comm) -> None:
    """(10) has a sum already: `train.loss` is the base's."""
    summed, averaged = Scene(alone), Scene(alone)
    summed.bench.train = summed.bench.train.model_copy(update={"loss": "sum"})
    (server, clients), (other, same) = summed.round(), averaged.round()
    assert close(clients.mu, same.mu) and close(clients.pi, same.pi)
    assert not near(server.theta, other.theta, 1e-3)


def test_the_posterior(alone: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n samples with loss a/2 |head - z|² under N(w, rho²), (10) is least at precision 1/rho² + n a and mean
    (n a z + w / rho²) / precision; noise is averaged out over many coordinates."""
    a, z, n, many, rho2 = [2.0, 0.5], [1.5, -0.5], [4, 9], 1000, 0.2
    bench = Quadratic(alone, monkeypatch, a, [[value] * many for value in z], samples=n)
    bench.model.loss = bench.loss
    method = PFedVEM(rho2=rho2, sigma=0.3, head_epochs=60, head_lr=0.02, head_optimizer="sgd", head_batch=3)
    server, clients = bench.run(method, torch.full((many,), -1.0))
    assert server.theta.shape == (0,)
    for j in range(2):
        precision = 1 / rho2 + n[j] * a[j]
        assert float(clients.mu[j].mean()) == pytest.approx((n[j] * a[j] * z[j] - 1 / rho2) / precision, abs=0.02)
        assert float(F.softplus(clients.pi[j]).mean()) == pytest.approx(precision**-0.5, abs=0.02)
    assert near(server.w, clients.mu.mean(0))  # tau is alike in the first round


# ---------------------------------------------------------------------- whole runs by hand


def pfedvem(plain: Plain, series: dict[str, np.ndarray]) -> Result:
    """Algorithm 1 with torch.optim and torch.distributions, one client and one draw after the other."""
    method, settings, head = plain.settings.algorithm, plain.settings, plain.head
    assert isinstance(method, PFedVEM)
    who, optimizer = settings.participation, {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[method.head_optimizer]
    theta, w = plain.start[~head], plain.start[head]
    w = torch.zeros_like(w) if method.heads == "zero" else w
    d = len(w)
    mu, pi = [w] * plain.clients, [torch.full((d,), float(np.log(np.expm1(method.sigma))))] * plain.clients
    seen: set[int] = set()

    def unite(base: Tensor, own: Tensor) -> Tensor:
        return torch.zeros(len(head)).masked_scatter(~head, base).masked_scatter(head, own)

    def noise(stream: str, round: int, j: int, step: int) -> Tensor:
        return schedule.normal(schedule.key(settings.seed, stream, round, j, step, np.arange(method.draws)), d)

    for round in range(1, settings.rounds + 1):
        drawn = schedule.participants(settings.seed, round, plain.clients, who.fraction, who.probability).tolist()
        known = theta
        bases, tau = {}, {}
        for j in range(plain.clients) if who.train == "all" else drawn:
            trace, deviation = F.softplus(pi[j]).square().sum(), (mu[j] - w).square().sum()
            rho2 = (trace + deviation) / d if j in seen else torch.tensor(method.rho2)  # (8)
            seen.add(j)
            tau[j] = float(1 / rho2)
            for name, value in (("tau", 1 / rho2), ("trace", trace), ("deviation", deviation)):
                series.setdefault(name, np.full((settings.rounds, plain.clients), np.nan))[round - 1, j] = value
            m, p = mu[j].clone().requires_grad_(), pi[j].clone().requires_grad_()
            descent = optimizer([m, p], lr=method.head_lr)  # type: ignore[operator]
            passes = plain.batches(j, round, "head batches", epochs=method.head_epochs, batch=method.head_batch or 1000)
            for step, batch in enumerate(passes):
                draws = [m + F.softplus(p) * e for e in noise("head noise", round, j, step)]
                likelihood = torch.stack([plain.loss(unite(theta, head), batch) for head in draws]).mean()
                q, prior = Normal(m, F.softplus(p)), Normal(w, rho2.sqrt().expand(d))
                descent.zero_grad()
                (plain.n[j] * likelihood + kl_divergence(q, prior).sum()).backward()  # (10), (11)
                descent.step()
            mu[j], pi[j] = m.detach(), p.detach()
            base = theta.clone().requires_grad_()
            descent = torch.optim.SGD(
                [base], plain.train.lr, plain.train.momentum, weight_decay=plain.train.weight_decay
            )
            for step, batch in enumerate(plain.batches(j, round)):
                draws = [mu[j] + F.softplus(pi[j]) * e for e in noise("base noise", round, j, step)]
                descent.zero_grad()
                torch.stack([plain.loss(unite(base, head), batch) for head in draws]).mean().backward()
                descent.step()
            bases[j] = base.detach()
        if drawn:
            theta = mean([bases[j] for j in drawn], [plain.n[j] for j in drawn])
            w = mean([mu[j] for j in drawn], [tau[j] for j in drawn])  # (9)
    state = {"server/w": w, "clients/mu": torch.stack(mu), "clients/pi": torch.stack(pi)}
    state |= {"server/theta": theta} if len(theta) else {}
    state |= {"server/known": known} if len(theta) else {}
    return Result(state, [unite(theta, w)] * plain.clients, [unite(known, own) for own in mu])


RUNS: dict[str, dict[str, Any]] = {
    "adam, everybody": ALL | {"model": {"kind": "tests.plain:Smooth"}},
    "adam in batches, stragglers": {
        "algorithm": {"head_batch": 9, "head_epochs": 2, "heads": "zero", "rho2": 1.0},
        "participation": {"fraction": 0.4, "train": "all"}, "model": {"kind": "tests.plain:Smooth"},
    },
    "sgd, stragglers by chance": {
        "algorithm": {"head_optimizer": "sgd", "head_lr": 0.003, "sigma": 0.3},
        "participation": {"probability": 0.3, "train": "all"}, "train": {"momentum": 0.9, "epochs": 2, "lr": 0.02},
    },
    "sgd in batches, some": {
        "algorithm": {"head_optimizer": "sgd", "head_lr": 0.002, "sigma": 0.3, "head_batch": 5, "draws": 1},
        "participation": {"fraction": 0.6}, "train": {"weight_decay": 0.1},
    },
    "all head": ALL | {"algorithm": {"head_optimizer": "sgd", "head_lr": 0.002, "sigma": 0.3}, "model": "logistic"},
    "a module of one's own": ALL | {"model": {"kind": f"{__name__}:Outer"}},
    "outputs normalized": ALL | {"model": {"kind": f"{__name__}:Outer", "args": {"normalized": True}}},
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_pfedvem_is_algorithm_1(name: str, alone: Comm, tmp_path: Path) -> None:
    """Three rounds: state, both evaluations, and what history.h5 has of the confidences."""
    how = {"kind": "pfedvem", "draws": 2, "head_epochs": 2} | RUNS[name].get("algorithm", {})
    settings, series = config(RUNS[name] | {"algorithm": how}, tmp_path, rounds=3), {}
    adam = settings.algorithm.head_optimizer == "adam"  # type: ignore[union-attr]
    agrees(settings, alone, lambda plain: pfedvem(plain, series), 1e-4 if adam else 2e-5)
    history = content(settings.folder / "history.h5")
    for key, expected in series.items():
        got = history[f"pfedvem/{key}"]
        assert got.shape == expected.shape == (3, 7)
        assert (np.isnan(got) == np.isnan(expected)).all(), key
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-6, nan_ok=True), key
    assert np.isnan(history["pfedvem/tau"]).any() == (name == "sgd in batches, some")
    assert history["pfedvem/round"].tolist() == [1, 2, 3]


def small(folder: Path, rounds: int = 1, **algorithm: Any) -> Config:
    how = {"kind": "pfedvem", "draws": 2, "head_epochs": 2} | algorithm
    return config({"algorithm": how, **ALL}, folder, rounds=rounds)


def test_without_uncertainty_it_is_fedavg_on_heads(alone: Comm, tmp_path: Path) -> None:
    """sigma -> 0, no prior, no confidence: heads descend the summed loss and count the same, then the base its mean."""
    settings = small(tmp_path, sigma=1e-6, rho2=1e12, confidence="none", head_optimizer="sgd", head_lr=0.002)
    got, plain = train(settings, alone), Plain(settings, alone)
    head, heads, bases = plain.head, [], []
    for k in range(plain.clients):
        theta = plain.start.clone().requires_grad_()
        for batch in plain.batches(k, 1, "head batches", epochs=2, batch=1000):
            (slope,) = torch.autograd.grad(
                F.cross_entropy(plain.outputs(theta, batch[0]), batch[1], reduction="sum"), theta
            )
            theta = (theta - 0.002 * slope * head).detach().requires_grad_()
        heads.append(theta.detach()[head])
        bases.append(plain.sgd(theta.detach(), plain.batches(k, 1), moving=~head)[~head])
    assert near(got["clients/mu"], torch.stack(heads), 2e-5)
    assert near(got["server/w"], mean(heads), 2e-5)
    assert near(got["server/theta"], mean(bases, plain.n), 2e-5)
    assert float((heads[0] - plain.start[head]).abs().max()) > 0.01


def test_a_wide_prior_gives_local_heads(alone: Comm) -> None:
    """The global head makes no difference."""
    one, other = (Scene(alone, rho2=1e9, head_epochs=5) for _ in range(2))
    for scene in (one, other):
        scene.clients = scene.clients._replace(seen=torch.zeros(6, dtype=torch.bool))
    other.server = other.server._replace(w=other.server.w + 1)
    assert near(one.round()[1].mu, other.round()[1].mu, 1e-6)
    assert not near(one.round()[1].mu, one.clients.mu, 1e-3)


def test_a_narrow_prior_gives_a_shared_head(alone: Comm) -> None:
    """Wherever they were, heads come to w, and their deviations to rho."""
    scene = Scene(alone, rho2=1e-4, head_epochs=60, head_lr=4e-5)
    scene.clients = scene.clients._replace(seen=torch.zeros(6, dtype=torch.bool))
    server, clients = scene.round()
    assert float((scene.clients.mu - scene.server.w).abs().max()) > 1
    assert near(clients.mu, scene.server.w.expand(6, -1), 0.02)
    assert near(server.w, scene.server.w, 0.02)


# ---------------------------------------------------------------------- guards, starts, ends


@pytest.mark.parametrize("confidence", ["both", "uncertainty", "deviation"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_no_nan_where_sigma_vanishes(optimizer: str, confidence: str, alone: Comm, tmp_path: Path) -> None:
    """softplus(pi) is 0 in float32: sigma stays at its bound, and history.h5 counts the coordinates that are there."""
    settings = small(tmp_path, 3, sigma=1e-60, head_optimizer=optimizer, head_lr=1e-3, confidence=confidence, rho2=1.0)
    got = train(settings, alone)
    for name in ("server/theta", "server/w", "clients/mu", "clients/pi"):
        assert np.isfinite(got[name]).all(), name
    d = got["server/w"].size
    assert (content(settings.folder / "history.h5")["pfedvem/guarded"] == d).all()
    assert got["history/pfedvem/trace"][0] == pytest.approx(d * 1e-12, rel=1e-3)
    assert (got["clients/pi"] < -100).all()


def test_the_guard_at_its_bound(alone: Comm) -> None:
    """Only coordinates below are counted; the deviations are never smaller, nor is rho² below its own."""
    scene = Scene(alone, head_epochs=1, head_lr=1e-9)
    pi = torch.full_like(scene.clients.pi, -5.0)
    pi[1, :4], pi[4, 2], pi[5] = -40.0, -13.9, -200.0
    pi[5, 0] = 90.0
    mu = scene.clients.mu.clone()
    mu[0] = mu[3] = scene.server.w
    pi[3] = -60.0
    scene.clients = Client(mu, pi, torch.ones(6, dtype=torch.bool))
    _, clients = scene.round()
    d = len(scene.server.w)
    assert scene.fl.recorded["guarded"].tolist() == [0, 4, 0, d, 1, d - 1]
    assert float(scene.fl.recorded["tau"].max()) == pytest.approx(1e8)
    assert torch.isfinite(clients.mu).all() and torch.isfinite(clients.pi).all()


def test_the_guard_is_counted_after_training(alone: Comm) -> None:
    scene = Scene(alone, head_lr=0.5)
    scene.clients = scene.clients._replace(pi=torch.full_like(scene.clients.pi, -13.9))  # below the bound by 9 %
    assert (F.softplus(scene.round()[1].pi) > 1e-6).all()
    assert scene.fl.recorded["guarded"].tolist() == [0] * 6


@pytest.mark.parametrize("settings", [{"rho2": 1e30}, {"rho2": 1e-30}, {"sigma": 30.0}, {"rho2": 1e300, "draws": 1}])
def test_no_nan_at_the_ends_of_the_scale(settings: dict[str, Any], alone: Comm, tmp_path: Path) -> None:
    got = train(small(tmp_path, 2, **settings), alone)
    for name, value in got.items():
        assert name.startswith("history") or np.isfinite(value).all(), name
    first = got["history/pfedvem/tau"][0]
    assert first == pytest.approx(1 / max(settings.get("rho2", 0.1), 1e-8))


@pytest.mark.parametrize("heads", ["network", "zero"])
def test_where_heads_start(heads: str, alone: Comm, tmp_path: Path) -> None:
    settings = small(tmp_path, heads=heads, sigma=0.2, rho2=0.01)
    train(settings, alone)
    start, plain = content(settings.folder / "checkpoints/round_00000.h5"), Plain(settings, alone)
    expected = plain.start[plain.head] if heads == "network" else torch.zeros(int(plain.head.sum()))
    assert near(start["server/w"], expected, 0) and near(start["clients/mu"], expected.expand(7, -1), 0)
    assert near(start["server/theta"], plain.start[~plain.head], 0)
    assert F.softplus(torch.from_numpy(start["clients/pi"])).numpy() == pytest.approx(0.2, rel=1e-6)
    assert not start["clients/seen"].any()
    assert content(settings.folder / "history.h5")["pfedvem/tau"][0] == pytest.approx(100.0)


def test_nobody_reports(alone: Comm, tmp_path: Path) -> None:
    """Everybody trains; the server keeps what it has until somebody reports."""
    changes = {
        "participation": {"probability": 0.08, "train": "all"},
        "algorithm": {"kind": "pfedvem", "draws": 1, "head_epochs": 1},
    }
    settings = config(changes, tmp_path, rounds=6)
    train(settings, alone)
    states = [content(settings.folder / f"checkpoints/round_{r:05}.h5") for r in range(7)]
    heard = [len(schedule.participants(settings.seed, r, 7, 1.0, 0.08)) > 0 for r in range(1, 7)]
    assert 0 < sum(heard) < 6
    for r, anybody in enumerate(heard, 1):
        for name in ("server/theta", "server/w"):
            assert (states[r][name].tobytes() != states[r - 1][name].tobytes()) == anybody, (r, name)
        assert (states[r]["clients/mu"] != states[r - 1]["clients/mu"]).any(1).all()


def test_personal_and_global_are_the_means(alone: Comm) -> None:
    """mu with the base it was trained on, the new one with w: no noise, no deviations."""
    scene = Scene(alone)
    models = scene.method.models(scene.server, scene.clients, scene.bench.cohort())
    assert models.globally is not None and models.personal is not None
    assert models.globally.shape == scene.inside.shape and models.personal.shape == (6, len(scene.inside))
    assert torch.equal(models.globally[~scene.inside], scene.server.theta)
    assert torch.equal(models.globally[scene.inside], scene.server.w)
    assert torch.equal(models.personal[:, ~scene.inside], scene.server.known.expand(6, -1))
    assert torch.equal(models.personal[:, scene.inside], scene.clients.mu)


def test_confidences_that_decide_nothing_are_remarked() -> None:
    """In the last round, over those that trained, of what clients are weighed by."""

    def remarks(last: list[float], confidence: str = "both") -> list[str]:
        weight = np.array([[1.0, 9.0, 3.0, 4.0], last])
        return PFedVEM.model_validate({"confidence": confidence}).remarks({"weight": weight, "tau": weight[::-1]})

    (said,) = remarks([1.0, 1.02, np.nan, 1.02])
    assert "confidences differ by 0.9 % only" in said and "equal average" in said
    assert remarks([1.0, 1.0, 1.0, 1.0], "deviation")
    assert remarks([1.0, 1.2, np.nan, 1.0]) == []
    assert remarks([1.0, np.nan, np.nan, np.nan]) == []
    assert remarks([1.0, 1.0, 1.0, 1.0], "none") == []
    assert PFedVEM().remarks({}) == []


def test_the_run_says_the_remark(alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round everybody has the same rho²."""
    said: list[str] = []
    monkeypatch.setattr(Reporter, "say", lambda self, line: said.append(line))
    train(small(tmp_path), alone)
    assert any("differ by 0.0 % only" in line for line in said)


def test_a_network_without_a_head_is_refused(tmp_path: Path) -> None:
    data = {"source": {"kind": "gaussian"}, "clients": 4, "partition": "natural", "shift": "none"}
    settings = {"algorithm": {"kind": "pfedvem"}, "data": data, "model": {"kind": "location"}}
    with pytest.raises(ConfigError, match=r"kind=pfedvem needs a network with a linear layer.*kind=location has none"):
        world.plan(config(settings, tmp_path))
