"""Methods reduce to known cases: to each other to the last bit, to plain loops, to arithmetic by hand, and on real
MNIST to an independent FedAvg within the noise of its seeds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpipfl import schedule, world
from mpipfl.comm import Comm
from mpipfl.config import Config
from mpipfl.models import build

from .suite import config, content, differing, train

NO_SHIFT: dict[str, Any] = {"data.shift": {"kind": "none"}}


def start(settings: Config) -> Tensor:
    """The initial model, as the run's round 0 shows it."""
    return torch.from_numpy(content(settings.folder / "checkpoints/round_00000.h5")["server/theta"])


def data(settings: Config, comm: Comm) -> tuple[world.Plan, Any]:
    made = world.plan(settings)
    return made, world.store(made, comm, torch.device("cpu"))


# ---------------------------------------------------------------------- one method is another


@pytest.mark.mpi
@pytest.mark.parametrize("model", ["logistic", "mlp", "lenet5"])
def test_fedprox_without_a_pull_is_fedavg(model: str, comm: Comm, together_path: Path) -> None:
    settings = {"model": model, "train.momentum": 0.9, "train.weight_decay": 0.01}
    average = train(config(settings | {"algorithm": "fedavg"}, together_path / "a"), comm)
    proximal = train(config(settings | {"algorithm": {"kind": "fedprox", "mu": 0}}, together_path / "p"), comm)
    assert differing(average, proximal) == []


def test_fedprox_with_a_pull_is_not(alone: Comm, tmp_path: Path) -> None:
    average = train(config({"algorithm": "fedavg"}, tmp_path / "a"), alone)
    proximal = train(config({"algorithm": {"kind": "fedprox", "mu": 0.1}}, tmp_path / "p"), alone)
    assert "server/theta" in differing(average, proximal)


@pytest.mark.mpi
def test_oracle_with_one_group_is_fedavg(comm: Comm, together_path: Path) -> None:
    average = train(config(NO_SHIFT | {"algorithm": "fedavg"}, together_path / "a"), comm)
    oracle = train(config(NO_SHIFT | {"algorithm": "oracle"}, together_path / "o"), comm)
    if comm.is_server:
        assert oracle["server/theta"].shape == (1, *average["server/theta"].shape)
        oracle["server/theta"] = oracle["server/theta"][0]
        assert differing(average, oracle) == []


def test_oracles_groups_are_fedavgs_of_their_own(alone: Comm, tmp_path: Path) -> None:
    """Each row follows from its group's clients alone: by hand, from their local models."""
    settings = config({"algorithm": "oracle", "participation.fraction": 1.0}, tmp_path / "o", rounds=1)
    rows = train(settings, alone)["server/theta"]
    local = train(config({"algorithm": "local", "participation.fraction": 1.0}, tmp_path / "l", rounds=1), alone)
    made, _ = data(settings, alone)
    for g in range(2):
        mine = made.partition.group == g
        n = made.partition.n_train[mine].astype(float)
        expected = n @ local["clients/theta"][mine].astype(float) / n.sum()
        assert np.allclose(rows[g], expected, rtol=0, atol=1e-7)


# ---------------------------------------------------------------------- plain loops


def loop(network: nn.Module, x: Tensor, y: Tensor, settings: Config, client: int, rounds: int) -> nn.Module:
    """A client trains by itself with torch.optim, a new optimizer each round, on the run's batches."""
    size = settings.train.batch
    for round in range(1, rounds + 1):
        optimizer = torch.optim.SGD(
            network.parameters(), settings.train.lr, settings.train.momentum, weight_decay=settings.train.weight_decay
        )
        steps = np.array([settings.train.epochs * -(-len(x) // size)])
        index, count = schedule.batches(
            settings.seed, "batches", round, np.array([client]), np.array([len(x)]), steps, size
        )
        for s in range(int(steps[0])):
            batch = index[0, s, : count[0, s]]
            optimizer.zero_grad()
            F.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
    return network


def vector(network: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(network.parameters()).detach()


ORIGINAL = {"kind": "lenet5", "activation": "tanh", "pooling": "average"}


@pytest.mark.parametrize(
    ("model", "rounds"), [("logistic", 3), ("mlp", 3), (ORIGINAL, 3), ("lenet5", 1)], ids=lambda v: str(v)[:20]
)
def test_fedavg_with_one_client_is_a_plain_loop(model: Any, rounds: int, alone: Comm, tmp_path: Path) -> None:
    """ReLU's and max pooling's kinks turn a last bit into 1e-3 in three rounds with momentum, for plain PyTorch in
    float32 against float64 just as for ours, so LeNet-5 with them runs one round here."""
    changes = NO_SHIFT | {
        "algorithm": "fedavg", "model": model, "data.clients": 1, "data.partition": "iid",
        "train": {"batch": 8, "lr": 0.02, "momentum": 0.9, "weight_decay": 0.001, "epochs": 2},
    }  # fmt: skip
    settings = config(changes, tmp_path, rounds=rounds)
    theta = train(settings, alone)["server/theta"]
    made, store = data(settings, alone)
    end = store.bounds[0, 1]
    expected = vector(loop(copy.deepcopy(made.model.network), store.x[:end], store.y[:end], settings, 0, rounds))
    assert np.abs(theta - expected.numpy()).max() <= 1e-5
    assert float((expected - start(settings)).abs().max()) > 0.01  # and it has learnt something


@pytest.mark.mpi
def test_local_is_each_client_alone(comm: Comm, alone: Comm, together_path: Path) -> None:
    settings = config({"algorithm": "local", "participation.fraction": 1.0}, together_path)
    got = train(settings, comm)
    if comm.is_server:
        made, store = data(settings, alone)
        for k in range(made.partition.clients):
            own = slice(*store.bounds[k, :2])
            network = loop(copy.deepcopy(made.model.network), store.x[own], store.y[own], settings, k, settings.rounds)
            assert np.abs(got["clients/theta"][k] - vector(network).numpy()).max() <= 1e-5


@pytest.mark.mpi
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_one_round_of_logistic_fedavg_by_hand(weights: str, comm: Comm, alone: Comm, together_path: Path) -> None:
    """One full-batch step each, in numpy: theta_k = theta - lr/n X'(softmax(X W' + b) - Y), then the average."""
    changes = {
        "algorithm": {"kind": "fedavg", "weights": weights}, "model": "logistic", "participation.fraction": 1.0,
        "train": {"batch": 1000, "lr": 0.1, "momentum": 0.0},
    }  # fmt: skip
    settings = config(changes, together_path, rounds=1)
    got = train(settings, comm)
    if not comm.is_server:
        return
    made, store = data(settings, alone)
    theta, classes = start(settings).double().numpy(), made.samples.classes
    W, b = theta[:-classes].reshape(classes, -1), theta[-classes:]
    models, n = [], made.partition.n_train.astype(float)
    for k in range(made.partition.clients):
        own = slice(*store.bounds[k, :2])
        X, y = store.x[own].double().flatten(1).numpy(), store.y[own].numpy()
        scores = np.exp(X @ W.T + b)
        error = scores / scores.sum(1, keepdims=True) - np.eye(classes)[y]
        models.append(theta - 0.1 * np.concatenate([(error.T @ X).ravel(), error.sum(0)]) / len(y))
    n = n if weights == "samples" else np.ones_like(n)
    assert np.abs(got["server/theta"] - n @ np.array(models) / n.sum()).max() <= 1e-6


def test_histories_show_the_models_that_were_trained(alone: Comm, tmp_path: Path) -> None:
    """The last row of the history is the last checkpoint's model on each client's own test data, by hand."""
    settings = config({"algorithm": "fedavg"}, tmp_path)
    last = train(settings, alone)
    made, store = data(settings, alone)
    nn.utils.vector_to_parameters(torch.from_numpy(last["server/theta"]), made.model.network.parameters())
    for k in range(made.partition.clients):
        own = slice(*store.bounds[k, 2:4])
        with torch.no_grad():
            logits = made.model.network(store.x[own])
        right = (logits.argmax(1) == store.y[own]).double().mean()
        assert last["history/global/accuracy"][-1, k] == pytest.approx(float(right), abs=1e-12)
        assert last["history/global/loss"][-1, k] == pytest.approx(
            float(F.cross_entropy(logits, store.y[own])), rel=1e-5
        )
    assert last["history/round"].tolist() == [0, 2, 4]


# ---------------------------------------------------------------------- real MNIST

ROUNDS, SHOWN = 20, 10  # rounds, and how many of the last are averaged: single rounds jump with whom they drew


def mnist(**more: Any) -> dict[str, Any]:
    """A hundred clients with two digits each, ten of them a round."""
    return NO_SHIFT | {
        "algorithm": "fedavg",
        "data": {
            "source": "mnist", "samples": 20_000, "clients": 100,
            "partition": {"kind": "classes", "k": 2, "sizes": "equal"},
        },
        "model": "mlp",
        "train": {"batch": 10, "lr": 0.02, "momentum": 0.0, "cohort": 10},
        "participation.fraction": 0.1,
        "evaluate.every": 1,
        "checkpoint.every": 0,
        "rounds": ROUNDS,
    } | more  # fmt: skip


class OwnDraws:
    """Clients and batches as one would draw them with NumPy."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def clients(self, round: int) -> np.ndarray:
        return self.random.choice(100, 10, replace=False)

    def batches(self, round: int, client: int, samples: int) -> list[np.ndarray]:
        return np.array_split(self.random.permutation(samples), range(10, samples, 10))


class TheRunsDraws:
    """The same clients and batches as the run itself."""

    def clients(self, round: int) -> np.ndarray:
        return schedule.participants(0, round, 100, 0.1)

    def batches(self, round: int, client: int, samples: int) -> list[np.ndarray]:
        one, n, steps = np.array([client]), np.array([samples]), np.array([-(-samples // 10)])
        index, count = schedule.batches(0, "batches", round, one, n, steps, 10)
        return [row[:size] for row, size in zip(index[0], count[0], strict=True)]


def plain_fedavg(network: nn.Module, store: Any, lr: float, rounds: int, draws: Any) -> Iterator[nn.Module]:
    """McMahan's algorithm 1 as one would write it: copies of a model and torch.optim. The model after each round."""
    for round in range(1, rounds + 1):
        total, samples = torch.zeros_like(vector(network)), 0
        for k in draws.clients(round):
            start, end = store.bounds[k, :2]
            copied = copy.deepcopy(network)
            optimizer = torch.optim.SGD(copied.parameters(), lr)
            for batch in draws.batches(round, int(k), int(end - start)):
                optimizer.zero_grad()
                F.cross_entropy(copied(store.x[start + batch]), store.y[start + batch]).backward()
                optimizer.step()
            total, samples = total + (end - start) * vector(copied), samples + end - start
        nn.utils.vector_to_parameters(total / samples, network.parameters())
        yield network


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_fedavg_on_mnist_is_a_plain_fedavg_with_its_draws(model: str, alone: Comm, tmp_path: Path) -> None:
    """The same clients, batches and first model: the same last model, but for rounding."""
    settings = config(mnist(model=model, rounds=3), tmp_path)
    theta = train(settings, alone)["server/theta"]
    made, store = data(settings, alone)
    network = copy.deepcopy(made.model.network)
    *_, last = plain_fedavg(network, store, settings.train.lr, settings.rounds, TheRunsDraws())
    assert np.abs(theta - vector(last).numpy()).max() <= 1e-5
    assert np.abs(theta - start(settings).numpy()).max() > 0.01


@pytest.mark.usefixtures("real_data")
def test_fedavg_on_mnist_is_a_plain_fedavg_within_its_noise(alone: Comm, tmp_path: Path) -> None:
    """Ours draws other clients, batches and first weights, so it is one more seed among the plain loop's: within their
    range, widened by itself on both sides. A fourth of four normal draws lies there in 87 of 100 cases; with seeds
    fixed the verdict is too. It sees half or double the lr or the batch by the loss (0.95, 0.67 and 0.94 here, where
    0.675 to 0.900 passes), but not momentum 0.5 or two epochs (0.72 and 0.74): the test above is the sharp one,
    this one is for the draws."""
    settings = config(mnist(), tmp_path)
    history = train(settings, alone)
    made, store = data(settings, alone)
    test = torch.cat([torch.arange(*b[2:4]) for b in store.bounds])
    plain = []
    for seed in range(3):
        network, seen = build(settings.model, made.samples.shape, made.samples.classes, seed + 1), []
        for round, model in enumerate(plain_fedavg(network, store, settings.train.lr, ROUNDS, OwnDraws(seed)), 1):
            if round > ROUNDS - SHOWN:
                with torch.no_grad():
                    logits = model(store.x[test])
                right = (logits.argmax(1) == store.y[test]).float().mean()
                seen.append((float(right), float(F.cross_entropy(logits, store.y[test]))))
        plain.append(np.mean(seen, axis=0))
    n = made.partition.n_test / made.partition.n_test.sum()
    for name, theirs in zip(("accuracy", "loss"), np.array(plain).T, strict=True):
        ours, spread = float((history[f"history/global/{name}"][-SHOWN:] @ n).mean()), float(np.ptp(theirs))
        print(f"{name}: ours {ours:.4f}, plain {np.round(theirs, 4)}")
        assert theirs.min() - spread <= ours <= theirs.max() + spread, name
    assert min(accuracy for accuracy, _ in plain) > 0.5  # of ten classes


@pytest.mark.mpi
@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("model", ["logistic", "lenet5"])
def test_bits_on_mnist(model: str, comm: Comm, alone: Comm, together_path: Path) -> None:
    changes = mnist(model=model, rounds=3)
    together = train(config(changes, together_path / "together"), comm)
    if comm.is_server:
        single = train(config(changes, together_path / "alone", train__cohort=4), alone)
        assert differing(together, single) == []
