"""Functions of single numbers: PyTorch's values, and bits that do not depend on an element's place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mpipfl import elementwise

ACTIVATIONS = [nn.Sigmoid(), nn.SiLU(), nn.ELU(0.7), nn.Softplus(2.0, 9.0), nn.ReLU(), nn.Tanh(), nn.GELU()]
named = pytest.mark.parametrize("module", ACTIVATIONS, ids=lambda module: type(module).__name__)


def some(rows: int = 5) -> torch.Tensor:
    return 5 * torch.randn(rows, 1003, generator=torch.Generator().manual_seed(0))


@named
def test_it_is_the_activation(module: nn.Module) -> None:
    x, y = (some().requires_grad_() for _ in range(2))
    mine, theirs = elementwise.of(module, x), module(y)
    assert torch.allclose(mine, theirs, atol=1e-6)
    mine.sum().backward()
    theirs.sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert torch.allclose(x.grad, y.grad, atol=1e-6)


@named
def test_a_row_has_the_same_bits_among_others(module: nn.Module) -> None:
    together = some().requires_grad_()
    out = elementwise.of(module, together)
    out.sum().backward()
    assert together.grad is not None
    for first in range(5):
        for last in range(first + 1, 6):
            alone = some()[first:last].clone().requires_grad_()
            mine = elementwise.of(module, alone)
            mine.sum().backward()
            assert torch.equal(mine, out[first:last])
            assert alone.grad is not None
            assert torch.equal(alone.grad, together.grad[first:last])


def test_softplus_inverse() -> None:
    for y in (1e-30, 1e-6, 0.05, 1.0, 20.0, 1e6):
        x = torch.tensor(elementwise.softplus_inverse(y), dtype=torch.float64)
        assert float(torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0)) == pytest.approx(y, rel=1e-12)
    assert elementwise.softplus_inverse(1e-320) < -700


def test_no_overflow() -> None:
    x = torch.tensor([-1e30, -100.0, 100.0, 1e30])
    assert elementwise.softplus(x).tolist() == [0.0, pytest.approx(0.0, abs=1e-30), 100.0, pytest.approx(1e30)]
    assert elementwise.sigmoid(x).tolist() == [0.0, pytest.approx(0.0, abs=1e-30), 1.0, 1.0]
