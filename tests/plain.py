"""What methods are compared with: their papers' formulas in plain PyTorch, one network and one client at a time, and
clients with a quadratic loss, for which rounds can be done by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpipfl import schedule, world
from mpipfl.algorithms import Algorithm, Facts
from mpipfl.cohort import Cohort
from mpipfl.comm import Comm
from mpipfl.config import Config, Train
from mpipfl.federation import Federation
from mpipfl.minibatch import MiniBatch
from mpipfl.models import Batched
from mpipfl.store import Store
from mpipfl.telemetry import Telemetry

from .suite import content, train

PARTS = ("train", "validation", "test")
Batch = tuple[Tensor, Tensor]


def Smooth(shape: tuple[int, ...], classes: int) -> nn.Module:  # noqa: N802
    """A dense network without kinks, by import path."""
    width = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 10), nn.Tanh(), nn.Linear(10, classes))


class Result(NamedTuple):
    """What a plain loop ends with: the state by its names in the checkpoint, and the models to be evaluated."""

    state: dict[str, Tensor]
    globally: list[Tensor] | None  # one per client
    personal: list[Tensor] | None


class Plain:
    """An experiment's clients and network. Only who takes part, and which samples are drawn, come from the program."""

    def __init__(self, settings: Config, comm: Comm) -> None:
        self.settings, self.train = settings, settings.train
        made = world.plan(settings)
        self.store = world.store(made, comm, torch.device("cpu"))
        self.network = made.model.network
        self.clients = made.partition.clients
        self.n = [float(n) for n in made.partition.n_train]
        self.start = nn.utils.parameters_to_vector(self.network.parameters()).detach()
        last = [name for name, module in self.network.named_modules() if isinstance(module, nn.Linear)][-1]
        self.head = torch.cat([
            torch.full((p.numel(),), name.startswith(last + ".")) for name, p in self.network.named_parameters()
        ])  # fmt: skip

    # ------------------------------------------------------------------ data

    def data(self, client: int, part: str = "train") -> Batch:
        start, end = self.store.bounds[client, [PARTS.index(part), PARTS.index(part) + 1]]
        return self.store.x[start:end], self.store.y[start:end]

    def rounds(self) -> list[tuple[int, list[int]]]:
        """Each round's number and clients."""
        fraction, seed = self.settings.participation.fraction, self.settings.seed
        return [
            (r, schedule.participants(seed, r, self.clients, fraction).tolist())
            for r in range(1, self.settings.rounds + 1)
        ]

    def batches(
        self,
        client: int,
        round: int,
        stream: str = "batches",
        steps: int | None = None,
        epochs: int | None = None,
        batch: int | None = None,
    ) -> list[Batch]:
        """A client's mini-batches in a round: so many steps, or else epochs, or else as configured."""
        x, y = self.data(client)
        batch = batch or self.train.batch
        if steps is None:
            steps = (epochs or self.train.epochs) * -(-len(x) // batch)
        one, samples, wanted = np.array([client]), np.array([len(x)]), np.array([steps])
        index, count = schedule.batches(self.settings.seed, stream, round, one, samples, wanted, batch)
        return [(x[one[:size]], y[one[:size]]) for one, size in zip(index[0], count[0], strict=True)]

    # ------------------------------------------------------------------ the network

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        parts = theta.split([p.numel() for p in self.network.parameters()])
        named = {n: part.view_as(p) for (n, p), part in zip(self.network.named_parameters(), parts, strict=True)}
        return torch.func.functional_call(self.network, named, (x,))  # type: ignore[no-any-return]

    def loss(self, theta: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(self.outputs(theta, batch[0]), batch[1])

    def f(self, theta: Tensor, batch: Batch) -> Tensor:
        """What is trained: the loss and the weight decay's penalty."""
        return self.loss(theta, batch) + self.train.weight_decay / 2 * theta.square().sum()

    def grad(self, theta: Tensor, batch: Batch) -> Tensor:
        return gradients(lambda theta: self.f(theta, batch), theta)[0]

    def sgd(
        self,
        theta: Tensor,
        batches: list[Batch],
        more: Callable[[Tensor], Tensor] | None = None,
        moving: Tensor | None = None,
    ) -> Tensor:
        """torch.optim.SGD on f and whatever more there is; only the `moving` coordinates."""
        theta = theta.clone().requires_grad_()
        optimizer = torch.optim.SGD([theta], self.train.lr, self.train.momentum)
        for batch in batches:
            optimizer.zero_grad()
            (self.f(theta, batch) + (0.0 if more is None else more(theta))).backward()
            if moving is not None and theta.grad is not None:
                theta.grad *= moving
            optimizer.step()
        return theta.detach()

    def score(self, theta: Tensor, client: int, part: str) -> tuple[float, float]:
        """Accuracy and loss."""
        x, y = self.data(client, part)
        with torch.no_grad():
            right = (self.outputs(theta, x).argmax(1) == y).double().mean()
            return float(right), float(self.loss(theta, (x, y)))


def gradients(f: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, ...]:
    """∂f / ∂x for each of the points."""
    leaves = [x.clone().requires_grad_() for x in at]
    return torch.autograd.grad(f(*leaves), leaves)


def mean(values: list[Tensor], weights: list[float] | None = None) -> Tensor:
    w = torch.tensor(weights or [1.0] * len(values), dtype=torch.float64)
    return (w @ torch.stack(values).double() / w.sum()).float()


def agrees(settings: Config, comm: Comm, plainly: Callable[[Plain], Result], tolerance: float = 1e-5) -> Any:
    """Runs the experiment, and compares its last state and its last evaluation with the plain loop's. Returns what
    the run left."""
    got, plain = train(settings, comm), Plain(settings, comm)
    result = plainly(plain)
    first = content(settings.folder / "checkpoints/round_00000.h5")
    for name, value in result.state.items():
        assert got[name].shape == value.shape, name
        assert np.abs(got[name] - value.numpy()).max() <= tolerance, name
        assert np.abs(got[name] - first[name]).max() > 100 * tolerance, f"{name} has hardly moved"
    for kind, models in (("global", result.globally), ("personal", result.personal or result.globally)):
        for part, prefix in (("test", ""), ("validation", "validation_")):
            accuracy, loss = (got[f"history/{kind}/{prefix}{name}"][-1] for name in ("accuracy", "loss"))
            if models is None:
                assert np.isnan(loss).all()
                continue
            expected = np.array([plain.score(theta, k, part) for k, theta in enumerate(models)])
            assert np.abs(accuracy - expected[:, 0]).max() <= 1e-12, (kind, part)
            assert np.abs(loss - expected[:, 1]).max() <= 10 * tolerance, (kind, part)
    return got


# ---------------------------------------------------------------------- rounds by hand


class Quadratic:
    """Clients whose loss is a_k/2 |theta - z_k|², in the real engine: a network that says theta itself, and labels that
    say whose a_k and z_k count. For the test's duration this is the default loss."""

    def __init__(
        self,
        comm: Comm,
        monkeypatch: pytest.MonkeyPatch,
        a: list[float],
        z: list[list[float]],
        samples: list[int] | None = None,
        **how: Any,
    ) -> None:
        for method in (Cohort.grad, MiniBatch.grad):
            monkeypatch.setattr(method, "__defaults__", (self.loss,))
        for descend in (Cohort.descend, MiniBatch.descend):
            monkeypatch.setitem(descend.__kwdefaults__ or {}, "loss", self.loss)
        self.a, self.z = torch.tensor(a), torch.tensor(z)
        self.clients, d = self.z.shape
        n = np.array(samples or [1] * self.clients)
        ends, self.samples = np.cumsum(n), torch.from_numpy(n).double()
        self.model = Batched(nn.Sequential(nn.Linear(1, d, bias=False)), (1,))
        y = torch.arange(self.clients).repeat_interleave(torch.from_numpy(n))
        bounds = np.column_stack([ends - n, ends, ends, ends])
        self.store = Store(torch.ones(len(y), 1), y, bounds, np.zeros(self.clients, dtype=np.int64))
        self.train = Train(**{"lr": 0.1, "batch": 4} | how)
        self.fl = Federation(comm, Telemetry(), self.clients)

    def loss(self, theta: Tensor, client: Tensor) -> Tensor:
        return self.a[client] / 2 * (theta - self.z[client]).square().sum(1)

    def cohort(self, who: np.ndarray, round: int) -> Cohort:
        return Cohort(who, self.store, self.model, self.train, seed=0, round=round, width=3)

    def run(self, method: Algorithm, theta: Tensor, rounds: int = 1, fraction: float = 1.0) -> tuple[Any, Any]:
        """The server's and all clients' state after some rounds from theta."""
        facts = Facts(self.clients, 1, self.samples, lambda number: theta, self.model.divide)
        server, first = method.server(theta, facts), method.client(theta, facts)
        fields = [field.expand(self.clients, *field.shape).clone() for field in first]
        for round in range(1, rounds + 1):
            who = schedule.participants(0, round, self.clients, fraction)
            self.fl.begin(round, who, np.zeros_like(who))
            rows = type(first)(*(field[who] for field in fields))
            server, new = method.round(server, rows, self.cohort(who, round), self.fl)
            for field, value in zip(fields, new, strict=True):
                field[who] = value
        return server, type(first)(*fields)


def near(got: Any, expected: Any, tolerance: float = 1e-5) -> bool:
    return bool(np.abs(np.asarray(got) - np.asarray(expected)).max() <= tolerance)
