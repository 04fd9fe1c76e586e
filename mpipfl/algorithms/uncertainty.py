"""The arithmetic of Self-FL's uncertainties: a client's running variance, and the local steps that (8) asks for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import blocks, col

BY_EQUATION, UNKNOWN, TOO_SMALL = 0, 1, 2  # which rule gave a client its steps


def observe(mean: Tensor, var: Tensor, seen: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A new vector x_t of each client enters its running mean (m, d) and variance (m), summed over coordinates:

    mean_t = (t-1)/t mean_(t-1) + x_t / t
    var_t  = (t-1)/t var_(t-1) + (t-1)/t |mean_t - mean_(t-1)|² + |x_t - mean_t|² / t
    """
    t, new = (seen + 1).double(), torch.empty_like(mean)
    moved, apart = torch.zeros_like(t), torch.zeros_like(t)
    for some in blocks(x):
        new[:, some] = mean[:, some] + (x[:, some] - mean[:, some]) / col(t)
        moved += squared(new[:, some] - mean[:, some])
        apart += squared(x[:, some] - new[:, some])
    return new, (t - 1) / t * (var + moved) + apart / t, seen + 1


def local_steps(
    sigma2: Tensor, known: Tensor, rest: Tensor, eta: float, least: int, most: int
) -> tuple[Tensor, Tensor]:
    """l with (1 - eta / sigma²)^l = S / (1 / sigma² + S), rounded and kept between `least` and `most`, and the rule
    used: `most` where sigma² is not known, 1 where it is not greater than eta."""
    shrink = 1 - eta / sigma2
    exact = -torch.log1p(1 / (sigma2 * rest)) / torch.log(shrink.clamp(min=0))
    length = torch.where(shrink > 0, exact.nan_to_num(math.inf, math.inf), 1.0)
    rule = torch.where(shrink > 0, BY_EQUATION, TOO_SMALL)
    steps = torch.where(known, length, math.inf).clamp(least, most).round().long()
    return steps, torch.where(known, rule, UNKNOWN)


def squared(x: Tensor) -> Tensor:
    """|x|² of each row, float64."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for some in blocks(x):
        total += x[:, some].double().square().sum(1)
    return total
