"""One local step on the rows of a matrix: every row's gradient of its own loss, and PyTorch's SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .models.batched import Batched, Loss, cross_entropy

Slope = Callable[[Tensor], Tensor]  # logits (K, B, classes) -> gradient of the loss with respect to them


class Step(NamedTuple):
    """One step's batch for the first `active` rows of a matrix."""

    active: int
    x: Tensor  # arranged for the network
    y: Tensor  # (rows, B)
    weight: Tensor  # (rows, B): 1 / batch size (n / batch size for a sum, 1 in a sweep), zero where is no sample


class SGD:
    """Stochastic gradient descent on the rows of a matrix: PyTorch's rule, g += decay * theta; v = momentum * v + g;
    theta -= lr * v, with v = 0 at the start."""

    def __init__(
        self, model: Batched, theta: Tensor, lr: float, momentum: float, decay: float, only: str = "all"
    ) -> None:
        self.model, self.lr, self.momentum, self.decay = model, lr, momentum, decay
        self.parts = model.split(theta)
        places = range(len(self.parts))
        self.moving = [i for i in places if only == "all" or (i in model.head) == (only == "head")]
        self.velocity = [torch.zeros_like(self.parts[i]) for i in self.moving] if self.momentum else []
        self.pull: tuple[float, list[Tensor]] | None = None
        self.drift: list[Tensor] | None = None
        self.rows = 0

    def step(self, step: Step, loss: Loss | None = None, slope: Slope | None = None) -> None:
        if not self.moving:
            return  # the network has no such part: logistic regression is all head
        active = step.active
        if self.rows != active:
            self.rows = active
            self.leaves = [p[: max(2, active)].detach() for p in self.parts]
            self.trained = [self.leaves[i].requires_grad_() for i in self.moving]
            self.theta = [self.parts[i][:active] for i in self.moving]
        gradients = gradient(self.model, self.leaves, self.trained, step, loss, slope)
        with torch.no_grad():
            self.update(gradients if active > 1 else [g[:active] for g in gradients])

    def update(self, gradient: list[Tensor]) -> None:
        active, theta = self.rows, self.theta
        if self.decay:
            torch._foreach_add_(gradient, theta, alpha=self.decay)
        if self.pull is not None:
            mu, anchor = self.pull
            torch._foreach_add_(
                gradient, torch._foreach_sub(theta, [anchor[i][:active] for i in self.moving]), alpha=mu
            )
        if self.drift is not None:
            torch._foreach_add_(gradient, [self.drift[i][:active] for i in self.moving])
        if self.momentum:
            velocity = [v[:active] for v in self.velocity]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, gradient)
            gradient = velocity
        torch._foreach_add_(theta, gradient, alpha=-self.lr)


def adam(
    number: int, theta: Tensor, gradient: Tensor, lr: float, mean: Tensor, square: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Step `number` (from 0) of PyTorch's Adam with its defaults: the new theta and its gradient's running moments."""
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient.square()
    likely, scale = mean / (1 - 0.9 ** (number + 1)), (square / (1 - 0.999 ** (number + 1))).sqrt()
    return theta - lr * likely / (scale + 1e-8), mean, square


def gradient(
    model: Batched,
    parts: list[Tensor],
    wanted: list[Tensor],
    step: Step,
    loss: Loss | None = None,
    slope: Slope | None = None,
    several: int = 1,
) -> list[Tensor]:
    """Each row's gradient of its own loss with respect to the wanted parts: one backward pass, as rows do not mix. With
    `several` heads side by side, of the sum of their losses; with a `slope`, of the loss that has it."""
    logits = model.outputs(parts, step.x)
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
