"""One local step on the rows of a matrix: every row's gradient of its own loss, and PyTorch's SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .models.batched import Batched, Loss, cross_entropy
from .models.linear import Use

LEAST = 1e-8  # Adam's epsilon
Rows = Tensor | slice
Slope = Callable[[Tensor], Tensor]  # logits (K, B, classes) -> gradient of the loss with respect to them


class Step(NamedTuple):
    """One step's batch for the first `active` rows of a matrix."""

    active: int
    x: Tensor  # arranged for the network
    y: Tensor  # (rows, B)
    weight: Tensor  # (rows, B): 1 / batch size (n / batch size for a sum, 1 in a sweep), zero where is no sample
    heard: Tensor | None = None  # (rows, B, classes): what another network says of it


class SGD:
    """Stochastic gradient descent on the rows of a matrix: PyTorch's rule, g += decay * theta; v = momentum * v + g;
    theta -= lr * v, with v = 0 at the start. Linear layers' gradients are added to v or theta by the product that makes
    them, and are never written out."""

    def __init__(
        self, model: Batched, lr: float, momentum: float, decay: float, only: str = "all", mu: float = 0.0
    ) -> None:
        self.model, self.lr, self.momentum, self.decay, self.mu = model, lr, momentum, decay, mu
        places = range(len(model.layout))
        self.moving = [i for i in places if only == "all" or (i in model.head) == (only == "head")]
        self.dense = [i for i in self.moving if i not in model.products]
        self.parts: list[Tensor] = []
        self.velocity: dict[int, Tensor] = {}
        self.anchor: list[Tensor] = []
        self.drift: list[Tensor] = []
        self.rows = 0

    def begin(self, rows: Rows, theta: Tensor, anchor: Tensor | None = None, drift: Tensor | None = None) -> None:
        """Start in these rows; the first ones are all rows there are, and a single one gets a twin."""
        for own, new in ((self.parts, theta), (self.anchor, anchor), (self.drift, drift)):
            if new is not None and own:
                for part, value in zip(own, self.model.cut(new), strict=True):
                    part[rows] = value
            elif new is not None:
                own += self.model.split(company(new))
        for velocity in self.velocity.values():
            velocity[rows] = 0
        if self.momentum and not self.velocity:
            self.velocity = {i: torch.zeros_like(self.parts[i]) for i in self.moving}

    def step(self, step: Step, loss: Loss | None = None, slope: Slope | None = None) -> None:
        if not self.moving:
            return  # the network has no such part: logistic regression is all head
        if self.rows != max(2, step.active):
            self.take(max(2, step.active))
        uses: list[Use] = []
        found = gradient(self.model, self.leaves, [self.leaves[i] for i in self.dense], step, loss, slope, uses=uses)
        with torch.no_grad():
            self.update(found[: len(self.dense)], uses, found[len(self.dense) :])

    def take(self, rows: int) -> None:
        """The first rows alone from now on."""
        self.rows = rows
        self.leaves = [part[:rows].detach() for part in self.parts]
        for i in self.moving:
            self.leaves[i].requires_grad_()
        self.theta = {i: self.parts[i][:rows] for i in self.moving}
        self.into, self.rate = self.theta, -self.lr  # what gradients are added to, and how much of them
        if self.momentum:
            self.into, self.rate = {i: v[:rows] for i, v in self.velocity.items()}, 1.0

    def update(self, gradients: list[Tensor], uses: list[Use], errors: list[Tensor]) -> None:
        """With the gradients of the dense parts, and those with respect to the outputs of linear layers."""
        theta, into, rate = list(self.theta.values()), list(self.into.values()), self.rate
        if self.momentum:
            torch._foreach_mul_(into, self.momentum)
        self.add_penalties(theta, into)
        if self.dense:
            torch._foreach_add_([self.into[i] for i in self.dense], gradients, alpha=rate)
        for (layer, x, _), error in zip(uses, errors, strict=True):
            if layer.weight in self.into:
                add_product(self.into[layer.weight], error, x.transpose(1, 2), rate)
            if layer.bias is not None and layer.bias in self.into:
                self.into[layer.bias].add_(error.sum(2, dtype=torch.float32), alpha=rate)
        if self.momentum:
            torch._foreach_add_(theta, into, alpha=-self.lr)

    def add_penalties(self, theta: list[Tensor], into: list[Tensor]) -> None:
        """decay * theta + mu * (theta - anchor) + drift"""
        anchor = [self.anchor[i][: self.rows] for i in self.moving] if self.anchor else []
        if anchor and not (self.momentum or self.decay):
            torch._foreach_lerp_(theta, anchor, self.lr * self.mu)  # in one pass
        else:
            apart = list(torch._foreach_sub(theta, anchor)) if anchor else []
            if self.decay:
                torch._foreach_add_(into, theta, alpha=self.rate * self.decay)
            if apart:
                torch._foreach_add_(into, apart, alpha=self.rate * self.mu)
        if self.drift:
            torch._foreach_add_(into, [self.drift[i][: self.rows] for i in self.moving], alpha=self.rate)

    def result(self, rows: Rows) -> Tensor:
        """What has become of these."""
        return self.model.join([part[rows] for part in self.parts])


def company(theta: Tensor) -> Tensor:
    """Two rows at least: the only one twice."""
    return theta.expand(2, -1) if len(theta) == 1 else theta


def add_product(out: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """out += scale a b, the product in the precision of a."""
    if a.dtype == out.dtype:
        out.baddbmm_(a, b, alpha=scale)
    else:
        out.add_(torch.bmm(a, b.to(a.dtype)), alpha=scale)


def adam(
    number: np.ndarray, theta: Tensor, gradient: Tensor, lr: float, mean: Tensor, square: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Step `number` (from 0, of each row) of PyTorch's Adam with its defaults: the new theta and its gradient's running
    moments."""
    mean = mean.lerp(gradient, 0.1)
    square = (0.999 * square).addcmul_(gradient, gradient, value=0.001)
    past = [[1 - decay ** (n + 1) for n in number.tolist()] for decay in (0.9, 0.999)]
    of_mean, of_square = torch.tensor(past, dtype=theta.dtype, device=theta.device).unsqueeze(2)
    return theta.addcdiv(mean / of_mean, (square / of_square).sqrt_().add_(LEAST), value=-lr), mean, square


def gradient(
    model: Batched,
    parts: list[Tensor],
    wanted: list[Tensor],
    step: Step,
    loss: Loss | None = None,
    slope: Slope | None = None,
    several: int = 1,
    uses: list[Use] | None = None,
) -> list[Tensor]:
    """Each row's gradient of its own loss with respect to the wanted parts: one backward pass, as rows do not mix. With
    `several` heads side by side, of the sum of their losses; with a `slope`, of the loss that has it. With a list of
    `uses`, linear layers are put there, and the gradients with respect to their outputs come behind the others."""
    logits = model.mixed(parts, step.x, uses)
    wanted = [*wanted, *(use.y for use in uses or ())]
    if slope is not None:
        return list(torch.autograd.grad(logits, wanted, slope(logits.detach())))
    loss = loss or model.loss
    rows, samples, outputs = logits.shape
    logits = logits.reshape(rows, samples * several, outputs // several)
    labels, weight = (t if several == 1 else t.repeat_interleave(several, 1) for t in (step.y, step.weight))
    if loss is cross_entropy:  # its gradient is known: no need to record the loss
        return list(torch.autograd.grad(logits, wanted, surprise(logits.detach(), labels, weight)))
    total = (loss(logits.flatten(0, 1), labels.flatten()) * weight.flatten()).sum()
    return list(torch.autograd.grad(total, wanted))


def surprise(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """softmax(logits) - onehot(label), each sample with its weight: the gradient of the weighted cross-entropy."""
    error = torch.softmax(logits, 2).mul_(weight.unsqueeze(2))
    return error.scatter_add_(2, labels.unsqueeze(2), -weight.unsqueeze(2))
