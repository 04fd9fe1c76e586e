"""K clients as one matrix do what each would do alone: against torch.optim and autograd, one client at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpipfl import schedule
from mpipfl.cohort import Cohort
from mpipfl.config import Train
from mpipfl.descent import Step, adam
from mpipfl.lanes import Leg
from mpipfl.minibatch import MiniBatch
from mpipfl.models import Batched, build
from mpipfl.models.networks import MLP, LeNet5, Logistic
from mpipfl.store import Store

from .test_models import Residual

SIZES = np.array([[13, 3, 5], [4, 0, 2], [30, 7, 150], [1, 1, 0], [8, 2, 9], [17, 4, 1]])  # train, validation, test
CLASSES, SEED, ROUND = 3, 5, 2
PARTS = ("train", "validation", "test")


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, CLASSES)),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES)),
    "convolutional": convolutional,
    "residual": Residual,
}


def store() -> Store:
    random = torch.Generator().manual_seed(0)
    total, ends = int(SIZES.sum()), np.cumsum(SIZES.sum(1))
    bounds = np.column_stack([ends - SIZES.sum(1), (ends - SIZES.sum(1))[:, None] + np.cumsum(SIZES, 1)])
    x = torch.randn(total, 2, 6, 6, generator=random)
    y = torch.randint(CLASSES, (total,), generator=random)
    return Store(x, y, bounds, np.arange(len(SIZES)) % 2)


class Bench:
    """A network, the clients' data, and a matrix to start from."""

    def __init__(self, network: str = "logistic", **train: Any) -> None:
        torch.manual_seed(0)
        self.network = NETWORKS[network]()
        self.model = Batched(self.network, (2, 6, 6))
        self.store = store()
        self.train = Train(**{"batch": 6, "lr": 0.05} | train)
        random = torch.Generator().manual_seed(1)
        self.theta = self.model.initial() + 0.1 * torch.randn(len(SIZES), self.model.dimension, generator=random)
        self.anchor, self.drift = (torch.randn(len(SIZES), self.model.dimension, generator=random) for _ in range(2))

    def cohort(self, clients: list[int] | None = None, width: int = 3) -> Cohort:
        who = np.arange(len(SIZES)) if clients is None else np.array(clients, dtype=np.int64)
        return Cohort(who, self.store, self.model, self.train, SEED, ROUND, width)

    def data(self, client: int, part: str) -> tuple[Tensor, Tensor]:
        start, end = self.store.bounds[client, [PARTS.index(part), PARTS.index(part) + 1]]
        return self.store.x[start:end], self.store.y[start:end]

    def set(self, theta: Tensor) -> None:
        nn.utils.vector_to_parameters(theta.clone(), self.network.parameters())

    def descend(
        self,
        client: int,
        theta: Tensor,
        steps: int,
        stream: str = "batches",
        lr: float | None = None,
        mu: float = 0.0,
        anchor: Tensor | None = None,
        drift: Tensor | None = None,
        only: str = "all",
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    ) -> Tensor:
        """One client's SGD by torch.optim on the plain network; pull and drift enter as terms of the loss."""
        self.set(theta)
        parameters = list(self.network.parameters())
        head = {id(parameters[i]) for i in self.model.head}
        moving = [p for p in parameters if only == "all" or (id(p) in head) == (only == "head")]
        if not moving:
            return theta
        optimizer = torch.optim.SGD(
            moving, lr=lr or self.train.lr, momentum=self.train.momentum, weight_decay=self.train.weight_decay
        )
        x, y = self.data(client, "train")
        index, count = schedule.batches(
            SEED, stream, ROUND, np.array([client]), np.array([len(x)]), np.array([steps]), self.train.batch
        )
        for s in range(steps):
            batch = index[0, s, : count[0, s]]
            vector = torch.cat([p.reshape(-1) for p in parameters])
            total = loss(self.network(x[batch]), y[batch])
            if anchor is not None:
                total = total + mu / 2 * (vector - anchor).square().sum()
            if drift is not None:
                total = total + (drift * vector).sum()
            self.network.zero_grad()
            total.backward()
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in parameters])


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> str:
    return request.param


def near(got: Tensor, expected: Tensor) -> bool:
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


def close(got: Tensor, expected: Tensor) -> bool:
    """As far apart as rounding takes sums of large numbers."""
    return got.shape == expected.shape and torch.allclose(got, expected, atol=3e-6 * (1 + float(expected.norm())))


def epochs(batch: int, passes: int = 1) -> list[int]:
    return [passes * -(-int(n) // batch) for n in SIZES[:, 0]]


RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "both, three epochs": {"momentum": 0.5, "weight_decay": 0.01, "epochs": 3},
    "seven steps": {"steps": 7, "momentum": 0.5},
    "one sample a step": {"batch": 1},
    "all samples in a step": {"batch": 30, "epochs": 2},
}


@pytest.mark.usefixtures("laid")
@pytest.mark.parametrize("rule", RULES)
def test_descend_is_torchs_sgd(rule: str, network: str) -> None:
    """Ragged clients, short last batches, over more clients than a cohort takes."""
    bench = Bench(network, **RULES[rule])
    got = bench.cohort().descend(bench.theta)
    steps = [bench.train.steps] * len(SIZES) if bench.train.steps else epochs(bench.train.batch, bench.train.epochs)
    for k in range(len(SIZES)):
        assert near(got[k], bench.descend(k, bench.theta[k], steps[k])), k


@pytest.mark.usefixtures("laid")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("only", ["all", "head", "base"])
def test_pull_and_drift(only: str, momentum: float, network: str) -> None:
    """The proximal term's gradient and a constant one, together, also where only a part moves."""
    bench = Bench(network, momentum=momentum, weight_decay=0.01)
    got = bench.cohort().descend(bench.theta, pull=(0.7, bench.anchor), drift=bench.drift, only=only, steps=5)
    for k in range(len(SIZES)):
        expected = bench.descend(k, bench.theta[k], 5, mu=0.7, anchor=bench.anchor[k], drift=bench.drift[k], only=only)
        assert near(got[k], expected), k


def tied() -> nn.Module:
    """A linear layer that stands there twice, and another one with its weights but a bias of its own, which is all
    that is in the head."""
    layer, last = nn.Linear(6, 6), nn.Linear(6, 6)
    last.weight = layer.weight
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 6, bias=False), layer, nn.Tanh(), layer, nn.Tanh(), last)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("only", ["all", "head", "base"])
def test_weights_in_several_places(only: str, momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn from all of them."""
    monkeypatch.setitem(NETWORKS, "tied", tied)
    bench = Bench("tied", momentum=momentum, weight_decay=0.01)
    assert bench.model.products == frozenset(range(len(bench.model.layout)))
    got = bench.cohort().descend(bench.theta, pull=(0.7, bench.anchor), only=only, steps=4)
    for k in range(len(SIZES)):
        assert near(got[k], bench.descend(k, bench.theta[k], 4, mu=0.7, anchor=bench.anchor[k], only=only)), k


def test_only_a_part_moves() -> None:
    bench = Bench("convolutional")
    head = torch.zeros(bench.model.dimension, dtype=torch.bool)
    for i in bench.model.head:
        head[bench.model.layout[i].start : bench.model.layout[i].stop] = True
    for only, moves in (("head", head), ("base", ~head)):
        moved = (bench.cohort().descend(bench.theta, only=only) != bench.theta).any(0)
        assert torch.equal(moved, moves)


def test_a_part_that_is_not_there() -> None:
    """Logistic regression is all head: its base stays, whatever pulls at it."""
    bench = Bench("logistic", weight_decay=0.1)
    assert torch.equal(bench.cohort().descend(bench.theta, only="base", drift=bench.drift), bench.theta)
    assert torch.equal(bench.cohort().descend(bench.theta, only="head"), bench.cohort().descend(bench.theta))


def test_the_same_anchor_for_all() -> None:
    """A vector stands for a matrix of equal rows: as start, anchor and drift."""
    bench = Bench()
    rows = {name: getattr(bench, name)[0].expand(len(SIZES), -1) for name in ("theta", "anchor", "drift")}
    one = bench.cohort().descend(bench.theta[0], pull=(0.3, bench.anchor[0]), drift=bench.drift[0])
    all_ = bench.cohort().descend(rows["theta"], pull=(0.3, rows["anchor"]), drift=rows["drift"])
    assert torch.equal(one, all_)


@pytest.mark.parametrize(
    "steps", [[3, 0, 9, 1, 0, 5], [0] * 6, [0, 0, 0, 0, 0, 1], [2] * 6, [10, 7, 6, 3, 1, 1], [4, 2, 9, 3, 3, 3]]
)
def test_steps_per_client(steps: list[int], network: str) -> None:
    bench = Bench(network, momentum=0.5)
    cohort = bench.cohort()
    got = cohort.descend(bench.theta, steps=np.array(steps))
    for k, s in enumerate(steps):
        expected = bench.descend(k, bench.theta[k], s) if s else bench.theta[k]
        assert near(got[k], expected) if s else torch.equal(got[k], expected), k
    assert cohort.tally.steps == sum(steps)


@pytest.mark.parametrize("network", ["mlp", "lenet5", "logistic"])
def test_a_head_is_trained_on_what_the_base_makes_of_the_samples(network: str) -> None:
    """As if the base were there and held still: the same batches, for any clients, as often as they are named. Logistic
    regression has no base; nothing is to be had by leaving it out."""
    section, shape = {
        "mlp": (MLP(hidden=(7,)), (2, 6, 6)),
        "lenet5": (LeNet5(), (1, 28, 28)),
        "logistic": (Logistic(), (2, 6, 6)),
    }[network]
    draw = torch.Generator().manual_seed(5)
    sizes = np.array([9, 30, 4, 17])
    ends = np.cumsum(sizes + 3)
    bounds = np.stack([ends - sizes - 3, ends - 3, ends - 2, ends], 1)
    store = Store(
        torch.randn(int(ends[-1]), *shape, generator=draw),
        torch.randint(0, 5, (int(ends[-1]),), generator=draw),
        bounds,
        np.zeros(4, dtype=np.int64),
    )
    model = Batched(build(section, shape, 5, 0), shape)
    base, head = model.divide(model.initial())
    for clients, width in (([0, 1, 2, 3], 3), ([3, 1, 3], 2), ([2], 4)):
        cohort = Cohort(np.array(clients), store, model, Train(batch=5, lr=0.1, momentum=0.5), SEED, ROUND, width)
        whole = cohort.descend(cohort.unite(base, head), only="head", epochs=2, stream="mine")
        seen, rest = cohort.through(base)
        assert seen.largest == cohort.largest == 30
        assert len(rest) == 0 and (seen.model is model) == (network == "logistic")
        got = seen.descend(torch.cat([rest, head]), epochs=2, stream="mine")
        assert near(got, cohort.divide(whole)[1]), clients
        if network != "logistic":
            assert seen.tally is cohort.tally and cohort.tally.samples == 4 * sizes[clients].sum()
        assert not near(got, head.expand_as(got))


def test_a_head_that_stands_in_the_base_too_is_not_taken_out() -> None:
    twice = nn.Linear(6, 6)
    model = Batched(nn.Sequential(nn.Flatten(), twice, nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), twice), (6,))
    assert model.translated and model.only_head is None
    after = Batched(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Tanh()), (6,))
    assert after.translated and after.only_head is None


def test_lr_zero_is_no_step() -> None:
    bench = Bench()
    assert torch.equal(bench.cohort().descend(bench.theta, lr=0.0), bench.theta)
    assert torch.equal(bench.cohort().descend(bench.theta, epochs=0), bench.theta)
    assert torch.equal(bench.cohort().descend(bench.theta, steps=0), bench.theta)


def test_the_callers_lr_epochs_and_stream() -> None:
    bench = Bench()
    got = bench.cohort().descend(bench.theta, lr=0.01, epochs=2, stream="other")
    for k, s in enumerate(epochs(6, 2)):
        assert near(got[k], bench.descend(k, bench.theta[k], s, lr=0.01, stream="other")), k
    assert not torch.equal(got, bench.cohort().descend(bench.theta, lr=0.01, epochs=2))


def test_the_start_stays_as_it_is() -> None:
    bench = Bench(momentum=0.5)
    before = bench.theta.clone()
    cohort = bench.cohort()
    cohort.descend(bench.theta, pull=(1.0, bench.theta), drift=bench.theta)
    cohort.grad(bench.theta)
    cohort.evaluate(bench.theta)
    assert torch.equal(bench.theta, before)


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss of the caller's: each sample's squared distance from its one-hot label."""
    return (logits - F.one_hot(labels, CLASSES)).square().sum(1)


def test_the_callers_loss(network: str) -> None:
    bench = Bench(network, lr=0.01)
    got, gradient = bench.cohort().descend(bench.theta, loss=squared), bench.cohort().grad(bench.theta, squared)
    for k, s in enumerate(epochs(6)):
        assert near(got[k], bench.descend(k, bench.theta[k], s, loss=lambda x, y: squared(x, y).mean())), k
        bench.set(bench.theta[k])
        x, y = bench.data(k, "train")
        expected = torch.autograd.grad(squared(bench.network(x), y).mean(), list(bench.network.parameters()))
        assert near(gradient[k], torch.cat([g.reshape(-1) for g in expected])), k


# ---------------------------------------------------------------------- a method's own local loop


def plan_of(client: int, steps: int, batch: int, stream: str = "batches") -> list[np.ndarray]:
    """A client's mini-batches, as places in its training data."""
    one, samples = np.array([client]), np.array([SIZES[client, 0]])
    index, count = schedule.batches(SEED, stream, ROUND, one, samples, np.array([steps]), batch)
    return [batch[:size] for batch, size in zip(index[0], count[0], strict=True)]


@pytest.mark.parametrize(("batch", "passes"), [(None, 1), (4, 3), (30, 2), (1000, 2)])
def test_iterate_takes_batches_of_a_size_of_its_own(batch: int | None, passes: int) -> None:
    bench, cohort = Bench(), Bench().cohort()
    got, taken = cohort.iterate(
        lambda theta, n, batch: (theta - 0.05 * batch.grad(theta), n + 1),
        (bench.theta, torch.zeros(len(SIZES), 1)), epochs=passes, batch=batch, stream="mine",
    )  # fmt: skip
    size = min(batch or 6, 30)
    steps = epochs(size, passes)
    assert taken[:, 0].tolist() == steps and cohort.tally.steps == sum(steps)
    for k, s in enumerate(steps):
        theta, (x, y) = bench.theta[k], bench.data(k, "train")
        for places in plan_of(k, s, size, "mine"):
            bench.set(theta)
            loss = F.cross_entropy(bench.network(x[places]), y[places])
            slope = torch.autograd.grad(loss, list(bench.network.parameters()))
            theta = theta - 0.05 * torch.cat([g.reshape(-1) for g in slope])
        assert near(got[k], theta), k


def test_draws_of_noise_are_keyed_by_client_and_step() -> None:
    """The same for a client in any company; draws are independent, and one draw has the shape of the state."""
    seen: dict[tuple[int, int], Tensor] = {}

    def look(theta: Tensor, batch: Any) -> tuple[Tensor]:
        noise, one = batch.normal(theta, "mine", draws=4), batch.normal(theta, "mine")
        assert noise.shape == (len(theta), 4, 5) and one.shape == theta.shape
        assert torch.equal(one, noise[:, 0])
        assert not torch.equal(batch.normal(theta, "other"), one)
        for row, client in enumerate(cohort.clients[batch.rows]):
            assert torch.equal(seen.setdefault((int(client), int(batch.number[row])), noise[row]), noise[row])
        return (theta,)

    for clients, width in (([0, 1, 2, 3, 4, 5], 6), ([2, 5, 1], 2), ([3], 2)):
        cohort = Bench().cohort(clients, width)
        cohort.iterate(look, (torch.zeros(len(clients), 5),), epochs=2)
    assert len(seen) == sum(epochs(6, 2))
    every = torch.stack(list(seen.values())).reshape(-1, 5)
    assert len(torch.unique(every, dim=0)) == 4 * len(seen)
    keys = schedule.key(SEED, "mine", ROUND, 2, 7, np.arange(4))
    assert torch.equal(seen[2, 7], schedule.normal(keys, 5))
    assert abs(float(every.mean())) < 0.2 and abs(float(every.std()) - 1) < 0.2


@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("kind", [*NETWORKS, "normalized"])
def test_grad_of_heads_is_autograds_of_each(kind: str, custom: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ragged batches, with weight decay on the base, by the network's own loss too; also where heads cannot be one
    wide layer."""
    monkeypatch.setitem(NETWORKS, "normalized", lambda: nn.Sequential(convolutional(), nn.LogSoftmax(1)))
    bench, draws, checked = Bench(kind, weight_decay=0.3), 3, 0
    loss: Callable[[Tensor, Tensor], Tensor] = lambda x, y: F.cross_entropy(x, y, reduction="none")  # noqa: E731
    if custom:
        bench.model.loss = loss = squared
    inside = torch.zeros(bench.model.dimension, dtype=torch.bool)
    for i in bench.model.head:
        inside[bench.model.layout[i].start : bench.model.layout[i].stop] = True
    base, head = bench.theta[:, ~inside], bench.theta[:, inside]
    heads = head.unsqueeze(1) + torch.randn(*head.shape[:1], draws, head.shape[1])
    assert bench.model.side_by_side == (kind != "normalized")

    def look(row: Tensor, batch: Any) -> tuple[Tensor]:
        nonlocal checked
        who = row[:, 0].long()
        by_base, by_head = batch.grad_of_heads(base[who], heads[who], of_base=True)
        nothing, again = batch.grad_of_heads(base[who], heads[who])
        assert nothing.shape == (len(who), 0) and close(again, by_head)
        for r, k in enumerate(who.tolist()[: batch.data.active]):
            places = plan_of(k, batch.number[r] + 1, 6)[batch.number[r]]
            x, y = (data[places] for data in bench.data(k, "train"))
            slopes = torch.zeros_like(base[k])
            for j in range(draws):
                theta = torch.empty(bench.model.dimension)
                theta[~inside], theta[inside] = base[k], heads[k, j]
                bench.set(theta)
                slope = torch.autograd.grad(loss(bench.network(x), y).mean(), list(bench.network.parameters()))
                whole = torch.cat([g.reshape(-1) for g in slope])
                assert close(by_head[r, j], whole[inside]), (k, j)
                slopes += whole[~inside] / draws
            assert close(by_base[r], slopes + 0.3 * base[k]), k
            checked += 1
        return (row,)

    bench.cohort(width=4).iterate(look, (torch.arange(len(SIZES), dtype=torch.float32)[:, None],))
    assert checked == sum(epochs(6))


def test_adam_is_torchs() -> None:
    random = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 7, generator=random)
    plain = theta.clone().requires_grad_()
    optimizer = torch.optim.Adam([plain], lr=0.03)
    mean = square = torch.zeros_like(theta)
    for number in range(12):
        plain.grad = 10.0 ** torch.arange(-9, -2) * torch.randn(4, 7, generator=random)  # down to Adam's epsilon
        theta, mean, square = adam(np.full(4, number), theta, plain.grad, 0.03, mean, square)
        optimizer.step()
        assert torch.allclose(theta, plain.detach(), rtol=1e-5, atol=1e-6), number


def test_grad_is_autograds(network: str) -> None:
    """Of the mean over all training samples, as one batch."""
    bench = Bench(network)
    got = bench.cohort().grad(bench.theta)
    for k in range(len(SIZES)):
        bench.set(bench.theta[k])
        x, y = bench.data(k, "train")
        expected = torch.autograd.grad(F.cross_entropy(bench.network(x), y), list(bench.network.parameters()))
        assert near(got[k], torch.cat([g.reshape(-1) for g in expected])), k


@pytest.mark.parametrize("part", PARTS)
def test_evaluate_counts_by_hand(part: str, network: str) -> None:
    """Each on its own data, in more than one bite; NaN for who has none of that part."""
    bench = Bench(network)
    score, loss = bench.cohort().evaluate(bench.theta, part), bench.cohort().loss(bench.theta, part)
    assert score.accuracy.dtype == score.loss.dtype == torch.float64
    for k in range(len(SIZES)):
        x, y = bench.data(k, part)
        if not len(x):
            assert torch.isnan(score.accuracy[k])
            assert torch.isnan(score.loss[k])
            continue
        bench.set(bench.theta[k])
        with torch.no_grad():
            logits = bench.network(x)
        assert float(score.accuracy[k]) == pytest.approx(float((logits.argmax(1) == y).double().mean()), abs=1e-12)
        assert float(score.loss[k]) == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
        assert loss[k] == score.loss[k]


def test_nobody_has_validation_data() -> None:
    bench = Bench()
    bounds = bench.store.bounds.copy()
    bounds[:, 2] = bounds[:, 1]
    bench.store = replace(bench.store, bounds=bounds)
    score = bench.cohort().evaluate(bench.theta, "validation")
    assert torch.isnan(score.accuracy).all()
    assert torch.isnan(score.loss).all()


def test_what_a_cohort_knows() -> None:
    cohort = Bench().cohort([4, 1])
    assert len(cohort) == 2
    assert cohort.n_train.tolist() == [8, 4]
    assert cohort.group.tolist() == [0, 1]
    cohort.descend(torch.zeros(72 * 3 + 3), epochs=2)
    assert (cohort.tally.steps, cohort.tally.samples) == (2 * (2 + 1), 2 * (8 + 4))


# ---------------------------------------------------------------------- parts of the data

CHOSEN = [[0, 12, 5, 7, 1], [], list(range(29, 0, -3)), [0], [7, 2], [3, 3, 16]]  # places, in any order


@pytest.mark.parametrize("bite", [2, 128])
def test_the_mean_gradient_of_chosen_samples(bite: int, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one bite or several; NaN for who has none of them; without weight decay, and never summed."""
    monkeypatch.setattr("mpipfl.feed.SWEEP", bite)
    bench = Bench(network, weight_decay=0.5, loss="sum")
    got = bench.cohort().mean_grad(bench.theta, [np.array(places, dtype=np.int64) for places in CHOSEN])
    all_, one = bench.cohort().mean_grad(bench.theta), bench.cohort().mean_grad(bench.theta[0])
    assert got.dtype == all_.dtype == torch.float64
    for k, places in enumerate(CHOSEN):
        x, y = bench.data(k, "train")
        for found, theta, where in (
            (got[k], bench.theta[k], places),
            (all_[k], bench.theta[k], list(range(len(x)))),
            (one[k], bench.theta[0], list(range(len(x)))),
        ):
            if not where:
                assert torch.isnan(found).all()
                continue
            bench.set(theta)
            loss = F.cross_entropy(bench.network(x[where]), y[where])
            expected = torch.autograd.grad(loss, list(bench.network.parameters()))
            assert near(found.float(), torch.cat([g.reshape(-1) for g in expected])), k


def test_nobody_has_a_chosen_sample() -> None:
    bench = Bench()
    none = [np.empty(0, dtype=np.int64)] * len(SIZES)
    assert torch.isnan(bench.cohort().mean_grad(bench.theta, none)).all()
    assert bench.cohort([]).mean_grad(bench.theta[:0], []).shape == (0, bench.model.dimension)


COUNTS = np.array([3, 4, 7, 1, 1, 17])


def test_parts_make_up_the_data() -> None:
    """Every sample once, in parts whose sizes differ by one at most, at random."""
    turns = list(Bench().cohort().parts(COUNTS))
    assert len(turns) == 17
    for i, (n, count) in enumerate(zip(SIZES[:, 0], COUNTS, strict=True)):
        parts = [turn[i] for turn in turns]
        assert all(len(part) == 0 for part in parts[count:])
        sizes = [len(part) for part in parts[:count]]
        assert 0 < min(sizes) <= max(sizes) <= min(sizes) + 1
        order = np.concatenate(parts).tolist()
        assert sorted(order) == list(range(n))
        assert order != sorted(order) or n < 5


def test_independent_parts_are_drawn_one_by_one() -> None:
    """Each without the same sample twice, but not without those of the others."""
    counts = np.minimum(SIZES[:, 0], 3)
    turns = list(Bench().cohort().parts(counts, SIZES[:, 0] // counts))
    assert len(turns) == 3
    for i, (n, count) in enumerate(zip(SIZES[:, 0], counts, strict=True)):
        parts = [turn[i].tolist() for turn in turns]
        assert [len(part) for part in parts] == [n // count] * count + [0] * (3 - count)
        assert all(len(set(part)) == len(part) and set(part) <= set(range(n)) for part in parts)
    shared = [len(set(turns[0][i]) & set(turns[1][i])) for i in (0, 2, 5)]
    assert any(shared)  # parts of a partition share nothing
    assert turns[0][2].tolist() != turns[1][2].tolist()


@pytest.mark.parametrize("independent", [False, True])
def test_parts_depend_on_seed_and_client_alone(independent: bool) -> None:
    bench, who = Bench(), np.array([5, 2])
    size = SIZES[:, 0] // COUNTS if independent else None
    whole = list(bench.cohort().parts(COUNTS, size))
    few = list(bench.cohort(who.tolist()).parts(COUNTS[who], None if size is None else size[who]))
    other = bench.cohort(width=6)
    other.round += 1
    for k, turn in enumerate(other.parts(COUNTS, size)):
        assert all(np.array_equal(a, b) for a, b in zip(turn, whole[k], strict=True))
        assert np.array_equal(few[k][0], whole[k][5])
        assert np.array_equal(few[k][1], whole[k][2])
    other.seed += 1
    assert not np.array_equal(next(other.parts(COUNTS, size))[2], whole[0][2])
    assert list(bench.cohort([]).parts(COUNTS[:0])) == []


# ---------------------------------------------------------------------- the same bits in any company


def everything(cohort: Cohort, bench: Bench) -> Tensor:
    """All a cohort computes, one row per client."""
    rows = torch.from_numpy(cohort.clients)
    theta = bench.theta[rows]
    scores = [s for part in PARTS for s in cohort.evaluate(theta, part)[:2]]
    said = torch.cat([cohort.evaluate(theta, part).said for part in PARTS], 1)
    moved = cohort.descend(theta, pull=(0.1, bench.anchor[rows]), epochs=2)
    chosen = [np.array(CHOSEN[client], dtype=np.int64) for client in cohort.clients]
    return torch.cat([moved, cohort.grad(theta), cohort.mean_grad(theta, chosen), torch.stack(scores, 1), said], 1)


@pytest.fixture
def company(network: str) -> tuple[Bench, Tensor]:
    bench = Bench(network, momentum=0.5, weight_decay=0.01)
    return bench, everything(bench.cohort(width=6), bench)


def same(got: Tensor, expected: Tensor) -> bool:
    return got.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 100])
def test_bits_do_not_depend_on_width(width: int, company: tuple[Bench, Tensor]) -> None:
    bench, expected = company
    assert same(everything(bench.cohort(width=width), bench), expected)


@pytest.mark.usefixtures("laid")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("section", [Logistic(), MLP(), LeNet5()], ids=lambda section: section.kind)
def test_bits_of_the_papers_networks_do_not_depend_on_width(section: Any, momentum: float) -> None:
    """Whose matrices are large enough for the libraries' other kernels; clients make 3, 2 and 1 steps."""
    random = torch.Generator().manual_seed(3)
    x, y = torch.randn(50, 1, 28, 28, generator=random), torch.randint(10, (50,), generator=random)
    ends = np.array([25, 30, 45, 46, 50])
    starts = np.array([0, 25, 30, 45, 46])
    data = Store(x, y, np.column_stack([starts, ends, ends, ends]), np.zeros(5, dtype=np.int64))
    model = Batched(build(section, (1, 28, 28), 10, 0), (1, 28, 28))
    train = Train(batch=10, lr=0.05, momentum=momentum, weight_decay=0.01)
    found = [Cohort(np.arange(5), data, model, train, SEED, ROUND, k).descend(model.initial()) for k in (5, 2, 3)]
    assert same(found[1], found[0]) and same(found[2], found[0])


@pytest.mark.parametrize(
    "clients", [[5, 4, 3, 2, 1, 0], [2, 0, 4], [1, 3], [3, 1, 5, 0]], ids=lambda clients: "".join(map(str, clients))
)
def test_bits_do_not_depend_on_companions_or_order(clients: list[int], company: tuple[Bench, Tensor]) -> None:
    bench, expected = company
    assert same(everything(bench.cohort(clients), bench), expected[clients])


@pytest.mark.parametrize("client", range(len(SIZES)))
def test_a_lonely_client(client: int, company: tuple[Bench, Tensor]) -> None:
    bench, expected = company
    assert same(everything(bench.cohort([client]), bench), expected[[client]])


def test_no_clients_at_all() -> None:
    bench = Bench()
    cohort = bench.cohort([])
    assert cohort.descend(bench.theta[:0]).shape == (0, bench.model.dimension)
    assert cohort.grad(bench.theta[0]).shape == (0, bench.model.dimension)
    assert cohort.evaluate(bench.theta[0]).accuracy.shape == (0,)


@pytest.mark.parametrize(
    ("limit", "value", "width"),
    [*(("feed.AHEAD", many, 4) for many in (1, 500, 3000)), *(("lanes.WAVE", many, 2) for many in (1, 60))],
)
def test_bits_do_not_depend_on_how_much_is_prepared(
    limit: str, value: int, width: int, company: tuple[Bench, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far batches are laid out, and how many clients are seated at once."""
    monkeypatch.setattr(f"mpipfl.{limit}", value)
    bench, expected = company
    assert same(everything(bench.cohort(width=width), bench), expected)


def test_an_error_names_the_clients() -> None:
    def fails(logits: Tensor, labels: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        Bench().cohort([4, 2], width=2).descend(torch.zeros(72 * 3 + 3), loss=fails)
    assert sorted(raised.value.clients) == [2, 4]  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- other clients, and losses by their slope


def test_any_clients_as_often_as_they_are_named(company: tuple[Bench, Tensor]) -> None:
    """Also from a cohort that has none of them: the same data, draws and bits."""
    bench, expected = company
    who = [2, 5, 2, 0, 2]
    assert same(everything(bench.cohort([1], width=2).at(np.array(who)), bench), expected[who])


def test_the_same_clients_in_another_round() -> None:
    bench = Bench()
    here, who = bench.cohort([3]), np.array([2, 4])
    theta = bench.theta[torch.from_numpy(who)]
    later = here.at(who, ROUND + 1)
    assert (here.round, here.at(who).round, later.round) == (ROUND, ROUND, ROUND + 1)
    expected = Cohort(who, bench.store, bench.model, bench.train, SEED, ROUND + 1, 3).descend(theta)
    assert same(later.descend(theta), expected)
    assert not same(here.at(who).descend(theta), expected)
    steps = sum(epochs(bench.train.batch, bench.train.epochs)[client] for client in who)
    assert here.tally.steps == 2 * steps, "what is made of a cohort counts with it"


@pytest.mark.parametrize("sums", ["mean", "sum"])
def test_the_slope_of_the_cross_entropy_is_what_is_descended(sums: str, network: str) -> None:
    bench = Bench(network, momentum=0.5, weight_decay=0.01, loss=sums, lr=0.005)
    how: dict[str, Any] = {"epochs": 2, "stream": "other", "only": "head"}
    got = bench.cohort().descend(bench.theta, slope=lambda batch, logits: batch.surprise(logits), **how)
    assert same(got, bench.cohort().descend(bench.theta, **how))


def test_a_slope_is_another_loss_for_each_client(network: str) -> None:
    """c_k times the squared distance from another network's outputs, and 2 (logits - outputs) c_k of it: on the same
    batch, with the client's own value and its own other network, also when some clients are finished."""
    bench = Bench(network, momentum=0.5, lr=0.02)
    factor, other = torch.linspace(0.1, 0.6, len(SIZES)), bench.theta.flip(0)
    shapes = set[int]()

    def slope(batch: MiniBatch, logits: Tensor) -> Tensor:
        shapes.add(len(logits))
        assert not logits.requires_grad
        apart = logits - batch.heard
        return 2 * batch.take(factor).view(-1, 1, 1) * apart * batch.data.weight.unsqueeze(2)

    got = bench.cohort(width=12).listening(other).descend(bench.theta, slope=slope, epochs=2)
    assert len(shapes) > 1
    for k, steps in enumerate(epochs(6, 2)):
        x, _ = bench.data(k, "train")
        index, count = schedule.batches(SEED, "batches", ROUND, *(np.array([n]) for n in (k, len(x), steps)), 6)
        batches = [x[i[:n]] for i, n in zip(index[0], count[0], strict=True)]
        bench.set(other[k])
        with torch.no_grad():
            said = [bench.network(x) for x in batches]
        bench.set(bench.theta[k])
        optimizer = torch.optim.SGD(bench.network.parameters(), 0.02, 0.5)
        for x, o in zip(batches, said, strict=True):
            optimizer.zero_grad()
            (factor[k] * (bench.network(x) - o).square().sum(1).mean()).backward()
            optimizer.step()
        assert near(got[k], nn.utils.parameters_to_vector(bench.network.parameters()).detach()), k


def test_surprise_is_the_gradient_of_the_cross_entropy() -> None:
    """Of each row's own labels; samples of weight zero have none."""
    bench, random = Bench(), torch.Generator().manual_seed(4)
    y, weight = torch.randint(CLASSES, (2, 5), generator=random), torch.rand(2, 5, generator=random)
    weight[1, 3:] = 0
    logits = torch.randn(2, 5, CLASSES, generator=random, requires_grad=True)
    total = (F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none") * weight.flatten()).sum()
    (expected,) = torch.autograd.grad(total, logits)
    before = logits.detach().clone()
    step = Step(2, torch.zeros(0), y, weight)
    got = MiniBatch(bench.cohort(), leg_of([3, 1]), step).surprise(logits.detach())
    assert torch.allclose(got, expected, atol=1e-7)
    assert torch.equal(logits.detach(), before)
    assert not got[1, 3:].any()


def test_what_a_batch_takes() -> None:
    """Rows of the cohort, not client numbers."""
    cohort, values = Bench().cohort([5, 3, 1]), torch.tensor([[50.0], [30.0], [10.0]])
    batch = MiniBatch(cohort, leg_of([2, 0, 1]), Step(3, *[torch.zeros(0)] * 3))
    assert batch.take(values)[:, 0].tolist() == [10, 50, 30]


def leg_of(rows: list[int]) -> Leg:
    return Leg(None, np.array(rows), np.zeros(len(rows), np.int64), (), None)
