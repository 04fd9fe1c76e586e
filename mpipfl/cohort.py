"""K clients as one matrix: their gradients, their descent, their losses, each as one batched computation.

Row k of Theta (K, d) is client k. Clients differ in samples and steps: short batches are filled up with samples of
weight zero, and where one has made all its steps, the next takes its row (see `lanes`). A client's result does not
depend on which others share its matrix (two rows at least: a lonely client gets a twin).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import schedule
from .config import Train
from .descent import SGD, Rows, Step, company, gradient
from .feed import relay, sweep
from .lanes import Leg
from .minibatch import MiniBatch, Slope
from .models import Batched
from .models.batched import Loss, cross_entropy
from .store import Store


class Score(NamedTuple):
    """How models do on each client's own data; NaN for a client that has none."""

    accuracy: Tensor  # (m), float64
    loss: Tensor  # (m), float64
    said: Tensor  # the class each sample is taken for (m, longest), int32; -1 behind a client's last one


@dataclass
class Tally:
    """What has been trained, for telemetry: by a cohort, and by those that were made of it."""

    steps: int = 0
    samples: int = 0


class Cohort:
    """The clients of a round hosted here, and what they can do with their data."""

    def __init__(
        self,
        clients: np.ndarray,
        store: Store,
        model: Batched,
        train: Train,
        seed: int,
        round: int,
        width: int,
        beat: Callable[[], bool] = lambda: True,
        tally: Tally | None = None,
    ) -> None:
        self.clients, self.store, self.model, self.train = clients, store.of(clients), model, train
        self.beat = beat  # asked before every step: whether to do it, as a round may have to end early
        self.seed, self.round, self.width = seed, round, max(2, width)
        self.device = store.x.device
        self.n_train = torch.from_numpy(self.store.part("train", clients)[1]).to(self.device, torch.float64)
        self.group = torch.from_numpy(store.group[clients]).to(self.device)
        self.tally = tally or Tally()

    def __len__(self) -> int:
        return len(self.clients)

    # ------------------------------------------------------------------ verbs

    def descend(
        self,
        theta: Tensor,
        *,
        steps: int | np.ndarray | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        pull: tuple[float, Tensor] | None = None,
        drift: Tensor | None = None,
        only: str = "all",
        loss: Loss | None = None,
        slope: Slope | None = None,
        stream: str = "batches",
    ) -> Tensor:
        """SGD from theta (m, d) or (d) on each client's training data, with the configuration's batch, learning rate,
        momentum and weight decay where nothing else is given: theta <- theta - lr * (grad + mu * (theta - anchor) +
        drift), for `pull` = (mu, anchor).

        `steps` is a number for all or one per client, else `epochs` passes over the data; `only` the "head" or the
        "base" moves where asked; another `stream` gives other batches in the same round. `slope` is another loss by
        its gradient with respect to the logits.
        """
        wanted = self.steps_for(steps, epochs)
        rate, inertia = self.train.lr if lr is None else lr, self.train.momentum if momentum is None else momentum

        mu, anchor = (0.0, None) if pull is None else pull

        out = self.empty(self.model.dimension)

        def train(legs: Iterator[Leg]) -> None:
            sgd = SGD(self.model, rate, inertia, self.train.weight_decay, only, mu)
            for leg in legs:
                if leg.begun is not None:
                    lanes, rows = places(leg.begun.lanes), self._at(leg.begun.rows)
                    sgd.begin(
                        lanes,
                        take(theta, rows),
                        anchor=None if anchor is None else take(anchor, rows),
                        drift=None if drift is None else take(drift, rows),
                    )
                own = None if slope is None else partial(slope, MiniBatch(self, leg, leg.steps[0]))
                sgd.step(leg.steps[0], loss, own)
                if leg.ended is not None:
                    lanes, rows = places(leg.ended.lanes), self._at(leg.ended.rows)
                    out[rows] = sgd.result(lanes)

        relay(self, train, wanted, None, [stream])
        return self._unmoved(out, theta, wanted)

    def iterate(
        self,
        step: Callable[..., tuple[Tensor, ...]],
        state: tuple[Tensor, ...],
        *,
        steps: int | np.ndarray | None = None,
        epochs: int | None = None,
        batches: int = 1,
        batch: int | None = None,
        stream: str = "batches",
    ) -> tuple[Tensor, ...]:
        """A method's own local loop: state <- step(*state, batch, ...) in every local step, on many clients at once.

        The state's tensors have a row per client (or none yet: (d) is every client's start). `step` gets the rows of
        some clients and as many independent mini-batches as `batches` says, of `batch` samples where it is not the
        configuration's; `batch.grad(theta)` is the gradient of their losses.
        """
        wanted = self.steps_for(steps, epochs, batch)
        out = tuple(self.empty(*field.shape[-1:], dtype=field.dtype) for field in state)

        def run(legs: Iterator[Leg]) -> None:
            fields: list[Tensor] = []
            for leg in legs:
                if leg.begun is not None:
                    lanes, rows = places(leg.begun.lanes), self._at(leg.begun.rows)
                    seat(fields, lanes, [take(field, rows) for field in state])
                seen = [MiniBatch(self, leg, data) for data in leg.steps]
                new = step(*(field[: len(leg.rows)] for field in fields), *seen)
                for field, value in zip(fields, new, strict=True):
                    field[: len(value)] = value
                if leg.ended is not None:
                    lanes, rows = places(leg.ended.lanes), self._at(leg.ended.rows)
                    for result, field in zip(out, fields, strict=True):
                        result[rows] = field[lanes]

        relay(self, run, wanted, batch, [f"{stream} {b}" if b else stream for b in range(batches)])
        return tuple(self._unmoved(result, field, wanted) for result, field in zip(out, state, strict=True))

    def grad(self, theta: Tensor, loss: Loss | None = None) -> Tensor:
        """The gradient (m, d) of each client's loss over all its training data (`train.loss`: its mean or its sum) at
        theta (m, d) or (d), weight decay included."""
        mean = self.mean_grad(theta, loss=loss)
        samples = 1.0 if self.train.loss == "mean" else self.n_train[:, None]
        return (mean * samples + self.train.weight_decay * theta).float()

    def mean_grad(self, theta: Tensor, chosen: Sequence[np.ndarray] | None = None, loss: Loss | None = None) -> Tensor:
        """The gradient (m, d), float64, of each client's mean loss over its training data, or over the chosen ones
        (NaN where none are): an array of places for each client."""

        out = self.empty(self.model.dimension, dtype=torch.float64)
        samples = self.store.part("train", self.clients)[1] if chosen is None else np.array([len(c) for c in chosen])

        def run(rows: np.ndarray, feed: Iterator[Step]) -> None:
            parts = self._split(theta, rows)
            total = torch.zeros(len(parts[0]), self.model.dimension, dtype=torch.float64, device=self.device)
            for step in feed:
                leaves = [p[: max(2, step.active)].detach().requires_grad_() for p in parts]
                total[: step.active] += self.model.join(gradient(self.model, leaves, leaves, step, loss))[: step.active]
            out[self._at(rows)] = total[: len(rows)]

        sweep(self, run, "train", chosen)
        return out / torch.from_numpy(samples).to(self.device)[:, None]

    def loss(self, theta: Tensor, part: str = "train") -> Tensor:
        """Each client's mean loss (m) at theta (m, d) or (d)."""
        return self.evaluate(theta, part).loss

    def evaluate(self, theta: Tensor, part: str = "test") -> Score:
        """Accuracy and mean loss of theta (m, d) or (d) on each client's own data."""

        out, longest = self.empty(2, dtype=torch.float64), self.store.longest(part)
        said = self.empty(longest, dtype=torch.int32)

        def run(rows: np.ndarray, feed: Iterator[Step]) -> None:
            parts, place = self._split(theta, rows), self._at(rows)
            total = torch.zeros(len(rows), 2, dtype=torch.float64, device=self.device)
            for number, step in enumerate(feed):
                logits = self.model.outputs([p[: max(2, step.active)] for p in parts], step.x)
                losses = self.model.loss(logits.flatten(0, 1), step.y.flatten()).view_as(step.y)
                taken = logits.argmax(2)
                right = (taken == step.y).to(torch.float64)
                sums = torch.stack([(right * step.weight).sum(1), (losses.double() * step.weight).sum(1)], 1)
                total[: step.active] += sums[: step.active]
                write(said, place[: step.active], number, taken.int())
            out[place] = total

        with torch.no_grad():
            sweep(self, run, part)
        samples = torch.from_numpy(self.store.part(part, self.clients)[1]).to(self.device)
        said[torch.arange(longest, device=self.device) >= samples[:, None]] = -1
        right, losses = (out / samples[:, None]).unbind(1)  # 0 / 0 is NaN
        if self.model.loss is not cross_entropy:
            right = torch.full_like(right, torch.nan)  # no classes, nothing to hit
        return Score(right, losses, said)

    def labels(self, part: str = "test") -> Tensor:
        """Each client's labels (m, longest), -1 behind the last one."""
        start, samples = self.store.part(part, self.clients)
        place = np.arange(self.store.longest(part))
        index = torch.from_numpy(np.where(place < samples[:, None], start[:, None] + place, -1)).to(self.device)
        return torch.where(index >= 0, self.store.y[index.clamp(min=0)], -1)

    def scores(self, theta: Tensor, score: Callable[[Tensor], Tensor], part: str = "test") -> Tensor:
        """A number for each of a client's own samples (m, longest), NaN beyond its last: `score` makes it (K, B) from
        what theta (m, d) or (d) says to them, logits (K, B, classes)."""
        samples, longest = self.store.part(part, self.clients)[1], self.store.longest(part)
        out = self.empty(longest, dtype=torch.float64)

        def run(rows: np.ndarray, feed: Iterator[Step]) -> None:
            parts, place = self._split(theta, rows), self._at(rows)
            for number, step in enumerate(feed):
                logits = self.model.outputs([p[: max(2, step.active)] for p in parts], step.x)
                write(out, place[: step.active], number, score(logits).double())

        with torch.no_grad():
            sweep(self, run, part)
        out[torch.arange(longest, device=self.device) >= torch.from_numpy(samples).to(self.device)[:, None]] = torch.nan
        return out

    # ------------------------------------------------------------------ who and how much

    def at(self, clients: np.ndarray, round: int | None = None) -> Cohort:
        """Any clients, wherever they are hosted, as often as they are named; with the draws of this round or of
        another one."""
        round = self.round if round is None else round
        return Cohort(clients, self.store, self.model, self.train, self.seed, round, self.width, self.beat, self.tally)

    def through(self, base: Tensor) -> tuple[Cohort, Tensor]:
        """The same clients, draws and batches for loops in which a base (b) does not move: their training samples are
        what it makes of them, the network is the head alone, and its base is empty. Where the head is not the network's
        last layer, all is as it was."""
        head = self.model.only_head
        if head is None:
            return self, base
        here = self.at(np.unique(self.clients))
        whole = self.unite(base, base.new_zeros(head.dimension))
        seen = here.store.seen(here.clients, here._of_training(whole, self.model.features))
        return self._with(seen, head), base[:0]

    def listening(self, theta: Tensor) -> Cohort:
        """The same clients, draws and batches, and with every training sample what the client's network theta (m, d)
        says of it (`MiniBatch.heard`), found once. A client that is here several times has one network."""
        clients, first = np.unique(self.clients, return_index=True)
        here = self.at(clients)
        said = here._of_training(take(theta, self._at(first)), self.model.outputs)
        return self._with(here.store.heard(clients, said), self.model)

    def _with(self, store: Store, model: Batched) -> Cohort:
        return Cohort(self.clients, store, model, self.train, self.seed, self.round, self.width, self.beat, self.tally)

    def _of_training(self, theta: Tensor, f: Callable[..., Tensor]) -> Tensor:
        """What f makes of all training samples with each client's model, client after client."""
        samples = self.store.part("train", self.clients)[1]
        ends = np.cumsum(samples)
        out = torch.empty(0, device=self.device)

        def run(rows: np.ndarray, feed: Iterator[Step]) -> None:
            nonlocal out
            parts = self._split(theta, rows)
            for number, step in enumerate(feed):
                some = rows[: step.active]
                at = number * step.y.shape[1] + np.arange(step.y.shape[1])
                there = self._at(at < samples[some, None])
                place = self._at((ends - samples)[some, None] + at)
                found = f([p[: max(2, step.active)] for p in parts], step.x)
                if not len(out):
                    out = torch.empty(int(ends[-1]), *found.shape[2:], device=self.device)
                out[place[there]] = found[: step.active][there]

        with torch.no_grad():
            sweep(self, run, "train")
        return out

    def of(self, rows: Tensor) -> Cohort:
        """Some of the clients by themselves."""
        return self.at(self.clients[rows.cpu().numpy()])

    def counted(self, weights: str) -> Tensor:
        """What each client counts in an average (m): its training "samples", or all the same ("equal")."""
        return self.n_train if weights == "samples" else torch.ones_like(self.n_train)

    def steps_for(
        self, steps: int | np.ndarray | None = None, epochs: int | None = None, batch: int | None = None
    ) -> np.ndarray:
        """How many local steps each client makes (m), by the configuration where nothing else is given."""
        if steps is None and epochs is None:
            steps = self.train.steps
        if steps is not None:
            return np.broadcast_to(np.asarray(steps, dtype=np.int64), (len(self),)).copy()
        passes = self.train.epochs if epochs is None else epochs
        return steps_of(batch or self.train.batch, passes, self.store.part("train", self.clients)[1])

    def parts(self, count: np.ndarray, size: np.ndarray | None = None) -> Iterator[list[np.ndarray]]:
        """Random parts of the clients' training data, by (seed, client) alone: `count` (m) parts of nearly equal size
        that make up the whole, or are drawn each by itself, of so many samples. Every turn gives one part per client,
        empty where a client has no more."""
        samples = self.store.part("train", self.clients)[1]
        for k in range(int(count.max(initial=0))):
            keys = schedule.key(self.seed, "parts", self.clients, 0 if size is None else k)
            order = schedule.permutations(keys, samples)
            first = k * samples // count if size is None else np.zeros_like(samples)
            last = (k + 1) * samples // count if size is None else size
            yield [
                order[i, a:b] if k < count[i] else order[i, :0]
                for i, (a, b) in enumerate(zip(first, last, strict=True))
            ]

    @property
    def largest(self) -> int:
        """The most training samples any client has, in the cohort or not."""
        return self.store.longest("train")

    def uniform(self, count: int, stream: str) -> Tensor:
        """Numbers in [0, 1) for each client (m, count), float64, by (seed, stream, round, client) alone."""
        keys = schedule.key(self.seed, stream, self.round, self.clients)
        return torch.from_numpy(schedule.uniform(keys, count)).to(self.device)

    def divide(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Base and head of vectors (..., d)."""
        return self.model.divide(theta)

    def unite(self, base: Tensor, head: Tensor) -> Tensor:
        """The inverse of `divide`; a single base or head goes with every row."""
        return self.model.unite(base, head)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(len(self), *shape, dtype=dtype, device=self.device)

    # ------------------------------------------------------------------ how rows are worked off

    def _at(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _split(self, theta: Tensor, rows: np.ndarray) -> list[Tensor]:
        """The parameters of these rows' models, two at least."""
        return self.model.split(company(take(theta, self._at(rows))))

    def _unmoved(self, out: Tensor, start: Tensor, steps: np.ndarray) -> Tensor:
        """With the start of those that make no step."""
        idle = self._at(np.flatnonzero(steps == 0))
        out[idle] = take(start, idle)
        return out


def take(theta: Tensor, rows: Tensor) -> Tensor:
    """The rows of a matrix, or a vector as often."""
    return theta.expand(len(rows), -1) if theta.dim() == 1 else theta.index_select(0, rows)


def places(lanes: np.ndarray) -> Rows:
    """Rows that follow each other as a slice, which is copied faster."""
    first, last = int(lanes[0]), int(lanes[-1])
    return slice(first, last + 1) if last - first == len(lanes) - 1 else torch.from_numpy(lanes)


def seat(fields: list[Tensor], lanes: Rows, new: list[Tensor]) -> None:
    """Put rows into these lanes of some matrices; the first ones make the matrices."""
    if not fields:
        fields += [company(value).clone() for value in new]
    else:
        for field, value in zip(fields, new, strict=True):
            field[lanes] = value


def write(out: Tensor, rows: Tensor, number: int, values: Tensor) -> None:
    """Put a sweep's values for its bite of this number (K, size) into the rows' columns."""
    size = values.shape[1]
    columns = slice(number * size, min((number + 1) * size, out.shape[1]))
    out[rows, columns] = values[: len(rows), : columns.stop - columns.start]


def steps_of(batch: int, epochs: int, samples: np.ndarray) -> np.ndarray:
    """How many steps so many epochs are for clients with so many samples."""
    return epochs * -(-samples // batch)
