"""Functions of single numbers whose bits do not depend on where in a tensor the number lies.

PyTorch's own sigmoid, softplus, SiLU and ELU take another path for the last few elements of a tensor than for those
before, so a client's result would depend on how many others share its matrix. exp, expm1 and log1p do not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    return 1 / (1 + torch.exp(-x))


def sigmoid_(x: Tensor) -> Tensor:
    """The same in place."""
    return x.neg_().exp_().add_(1).reciprocal_()


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow"""
    return torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0)


def softplus_inverse(y: float) -> float:
    """x with softplus(x) = y > 0"""
    return y + math.log(-math.expm1(-y))


def of(module: nn.Module, x: Tensor) -> Tensor:
    """What the activation gives."""
    if isinstance(module, nn.Sigmoid):
        return sigmoid(x)
    if isinstance(module, nn.SiLU):
        return x * sigmoid(x)
    if isinstance(module, nn.ELU):
        return torch.where(x > 0, x, module.alpha * torch.expm1(x.clamp(max=0)))
    if isinstance(module, nn.Softplus):
        return torch.where(x * module.beta > module.threshold, x, softplus(x * module.beta) / module.beta)
    return module(x)  # type: ignore[no-any-return]
