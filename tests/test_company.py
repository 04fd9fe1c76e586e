"""Convolutions whose bits do not depend on how many clients there are, whatever kernels a library has for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpipfl.models import Batched, company
from mpipfl.models.company import Problem, convolve, parts, same_as_pairs

from .conftest import PROJECT, clean_environment

HOW = ((1, 1), (1, 1), (1, 1))


def test_parts() -> None:
    """As many as are alike, else in halves; one that is left has a twin."""
    assert parts(lambda clients: True, 9) == (9,)
    assert parts(lambda clients: False, 9) == (2, 1, 2, 2, 2)
    assert parts(lambda clients: clients == 4, 8) == (4, 4)
    assert parts(lambda clients: clients != 3, 3) == (2, 1)
    assert parts(lambda clients: False, 1) == (1,)


def test_same_as_pairs() -> None:
    rows = torch.randn(5, 3)
    assert same_as_pairs(lambda who: [rows[who]], 5)
    assert not same_as_pairs(lambda who: [rows[who] + (len(who) == 5) * 1e-6], 5)
    assert not same_as_pairs(lambda who: [rows[who], rows[who] * (4 if 4 in who and len(who) < 5 else 1)], 5)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("clients", [1, 2, 5, 6])
def test_in_parts_it_is_each_clients_own(clients: int, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, where no number but two is alike."""
    monkeypatch.setattr(Problem, "alike", lambda self, clients: False)
    company.parts_of.cache_clear()
    x = torch.randn(clients, 4, 3, 6, 6, requires_grad=True)
    kernels = torch.randn(clients, 5, 3, 3, 3, requires_grad=True)
    bias = torch.randn(clients, 5, requires_grad=True) if biased else None
    leaves = [leaf for leaf in (x, kernels, bias) if leaf is not None]
    y = convolve(x.transpose(0, 1).flatten(1, 2), kernels, bias, HOW).unflatten(1, (clients, 5)).transpose(0, 1)
    own = torch.stack(
        [F.conv2d(x[k], kernels[k], None if bias is None else bias[k], padding=1) for k in range(clients)]
    )
    torch.testing.assert_close(y, own, rtol=1e-4, atol=1e-5)
    slope = torch.randn_like(y)
    for mine, theirs in zip(
        torch.autograd.grad(y, leaves, slope), torch.autograd.grad(own, leaves, slope), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    company.parts_of.cache_clear()


class Layer(nn.Module):
    """A network that goes through torch.func: a convolution, and another layer that nobody asks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer, self.last, self.unused = nn.Conv2d(channels, 16, 3, padding=1), nn.Linear(16, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x).relu().mean((2, 3)))  # type: ignore[no-any-return]


class Function(nn.Module):
    """The same without a module that could be recognised."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.kernels, self.last = nn.Parameter(torch.randn(16, channels, 3, 3)), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.conv2d(x, self.kernels, padding=1).relu().mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Layer, Function])
@pytest.mark.parametrize("shape", [(2, 8, 7), (3, 12, 7), (1, 12, 12)])
def test_a_network_of_ones_own(kind: Callable[[int], nn.Module], shape: tuple[int, ...]) -> None:
    """PyTorch's own grouping by vmap has other bits for seven clients than for two, on any processor."""
    network = Batched(kind(shape[0]), shape)
    assert not network.translated
    theta, x = network.initial() + 0.1 * torch.randn(7, network.dimension), torch.randn(7, 4, *shape)

    def everything(who: list[int]) -> Tensor:
        leaves = [part.requires_grad_() for part in network.split(theta[who])]
        out = network.outputs(leaves, network.arrange(x[who][None])[0])
        found = torch.autograd.grad(out.sin().sum(), leaves, materialize_grads=True)
        return torch.cat([out.detach().flatten(1), network.join(list(found))], 1)

    every = everything(list(range(7)))
    for who in ([3, 1], [4, 0, 2], [2, 0, 1, 4]):
        assert torch.equal(everything(who), every[who])


def test_what_is_not_a_number_is_like_itself() -> None:
    rows = torch.tensor([[1.0, float("nan")], [float("inf"), 0.0], [2.0, -1.0]])
    assert same_as_pairs(lambda who: [rows[who]], 3)


@pytest.mark.skipif(sys.platform != "linux", reason="oneDNN's kernels for other processors are chosen by a variable")
def test_a_processor_without_avx512() -> None:
    """Where oneDNN's kernels do depend on the number of clients."""
    tests = ["tests/test_models.py", "-k", "companions and not products"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--with-mpi", *tests], cwd=PROJECT,
        env=clean_environment() | {"ONEDNN_MAX_CPU_ISA": "AVX2"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
