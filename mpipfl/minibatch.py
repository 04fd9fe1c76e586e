"""What a method's own local step sees of some clients' data: gradients, several heads at once, keyed noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from . import schedule
from .descent import SGD, Step, gradient, surprise
from .models import Batched
from .models.batched import Loss

if TYPE_CHECKING:
    from .cohort import Cohort
    from .lanes import Leg

Slope = Callable[["MiniBatch", Tensor], Tensor]  # (batch, logits (K, B, classes)) -> gradient of the loss there


class MiniBatch:
    """What a method's own local step sees of some clients' data in one step."""

    def __init__(self, cohort: Cohort, leg: Leg, step: Step) -> None:
        self.cohort, self.rows, self.number, self.data = cohort, leg.rows, leg.number, step

    def grad(self, theta: Tensor, loss: Loss | None = None) -> Tensor:
        """The gradient (K, d) of each client's mean loss on this batch at theta (K, d), weight decay included."""
        model, decay = self.cohort.model, self.cohort.train.weight_decay
        leaves = [part.requires_grad_() for part in model.split(theta)]
        g = model.join(gradient(model, leaves, leaves, self.data, loss))
        return g.add_(theta, alpha=decay) if decay else g

    def descend(
        self, theta: Tensor, *, steps: int, lr: float, pull: tuple[float, Tensor], loss: Loss | None = None
    ) -> Tensor:
        """So many steps of SGD on this one batch: theta <- theta - lr * (grad + mu * (theta - anchor)), `pull` = (mu,
        anchor)."""
        cohort, rows = self.cohort, slice(0, len(theta))
        sgd = SGD(cohort.model, lr, 0.0, cohort.train.weight_decay, mu=pull[0])
        sgd.begin(rows, theta, anchor=pull[1])
        for _ in range(steps):
            sgd.step(self.data, loss)
        return sgd.result(rows)

    def take(self, values: Tensor) -> Tensor:
        """Of a value or vector for each client of the cohort, those of this batch's (K, ...)."""
        return values[torch.from_numpy(self.rows).to(values.device)]

    @property
    def heard(self) -> Tensor:
        """What the network that the cohort is listening to says to this batch (K, B, classes)."""
        assert self.data.heard is not None, "only in a cohort.listening(theta)"
        return self.data.heard

    def surprise(self, logits: Tensor) -> Tensor:
        """The gradient of the cross-entropy of this batch's labels with respect to the logits: softmax - onehot, each
        sample with its weight."""
        return surprise(logits, self.data.y, self.data.weight)

    def grad_of_heads(self, base: Tensor, heads: Tensor, of_base: bool = False) -> tuple[Tensor, Tensor]:
        """Of several heads (K, draws, h) on each client's base (K, b) at once: the gradient of the base (K, b) of the
        mean over the heads (of no columns unless asked for), and each head's of its own mean loss (K, draws, h)."""
        model, decay = self.cohort.model, self.cohort.train.weight_decay
        by_base, by_head = (side_by_side if model.side_by_side else one_by_one)(model, base, heads, self.data, of_base)
        return by_base + decay * base if of_base else by_base, by_head

    def normal(self, like: Tensor, stream: str = "noise", draws: int = 1) -> Tensor:
        """Standard normal numbers of the shape (K, n) of `like`, or (K, draws, n), by (seed, stream, round, client,
        step, draw) alone."""
        cohort = self.cohort
        whose = cohort.clients[self.rows][:, None], self.number[:, None]
        keys = schedule.key(cohort.seed, stream, cohort.round, *whose, np.arange(draws))
        found = schedule.normal(keys.ravel(), like.shape[1], like.device)
        return found if draws == 1 else found.view(len(like), draws, like.shape[1])


def side_by_side(model: Batched, base: Tensor, heads: Tensor, step: Step, of_base: bool) -> tuple[Tensor, Tensor]:
    """Gradients of several heads on each base as one wide layer."""
    parts, draws = model.with_heads(base, heads), heads.shape[1]
    wanted = [i for i in range(len(parts)) if of_base or i in model.head]
    found = gradient(model, parts, [parts[i].requires_grad_() for i in wanted], step, several=draws)
    by_head = [g for i, g in zip(wanted, found, strict=True) if i in model.head]
    rest = [g.reshape(len(g), -1) for i, g in zip(wanted, found, strict=True) if i not in model.head]
    return torch.cat([base[:, :0], *rest], 1) / draws, model.join_heads(by_head, draws)


def one_by_one(model: Batched, base: Tensor, heads: Tensor, step: Step, of_base: bool) -> tuple[Tensor, Tensor]:
    """The same with a network for each head, where heads do not fit side by side."""
    rows, draws = heads.shape[:2]
    leaves = [part.requires_grad_() for part in model.split(model.unite(base.unsqueeze(1), heads).flatten(0, 1))]
    y, weight = (t.repeat_interleave(draws, 0) for t in (step.y, step.weight))
    repeated = Step(rows * draws, model.repeat(step.x, rows, draws), y, weight)
    by_base, by_head = model.divide(model.join(gradient(model, leaves, leaves, repeated)).unflatten(0, (rows, draws)))
    return by_base.mean(1) if of_base else base[:, :0], by_head
