"""Linear layers with a client axis, and what a training step wants to know of them.

With e the gradient of the loss with respect to y = W x + b, that of W is e x', a product of two small matrices that
need not be written out to be added to W, and that of b is e 1. So a step takes the inputs and outputs of the layers to
be trained (`Use`), and asks autograd for e alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn


def on_intel() -> bool:
    """Whether this is an Intel processor, as far as Linux tells."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as told:
            return "GenuineIntel" in told.read(4096)
    except OSError:
        return False


# How samples lie in products. On Intel's processors MKL is up to twice as fast with those of a small batch as columns,
# on AMD's up to three times as fast with rows. By the processor and not by trial: the last bits depend on it.
COLUMNS = on_intel()
WIDE = 32  # outputs from which on a turned copy of the input pays


@dataclass(frozen=True)
class Linear:
    """y = W x + b"""

    weight: int
    bias: int | None

    def __call__(self, parts: list[Tensor], x: Tensor) -> Tensor:
        weight, bias = self.own(parts)
        return columns(weight, bias, turned(weight, x)).transpose(1, 2)

    def own(self, parts: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        return parts[self.weight], None if self.bias is None else parts[self.bias]

    def trained(self, parts: list[Tensor]) -> bool:
        return any(part is not None and part.requires_grad for part in self.own(parts))

    def use(self, parts: list[Tensor], x: Tensor) -> Use:
        """The same, its parameters taken as constants."""
        weight, bias = self.own(parts)
        x = turned(weight, x)
        y = columns(weight.detach(), None if bias is None else bias.detach(), x)
        return Use(self, x.detach(), y if y.requires_grad else y.requires_grad_())


def turned(weight: Tensor, x: Tensor) -> Tensor:
    """Samples (K, B, n) as columns (K, n, B), in memory too where that is faster."""
    x = x.transpose(1, 2)
    return x.contiguous() if COLUMNS and weight.shape[1] >= WIDE else x


def columns(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """W x + b (K, outputs, B); or in memory x' W' + b'."""
    if COLUMNS:
        return torch.bmm(weight, x) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, x)
    x, weight = x.transpose(1, 2), weight.transpose(1, 2)
    y = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)
    return y.transpose(1, 2)


class Use(NamedTuple):
    """A linear layer's inputs and outputs in one step."""

    layer: Linear
    x: Tensor  # (K, inputs, B)
    y: Tensor  # (K, outputs, B)


def products(network: nn.Module, names: list[str]) -> frozenset[int]:
    """The places of linear layers' parameters; none where layers of another kind share one of them."""
    owners: dict[int, set[bool]] = {}
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(isinstance(module, nn.Linear))
    named = dict(network.named_parameters())
    kinds = [owners[id(named[name])] for name in names]
    shared = any(len(kind) == 2 for kind in kinds)
    return frozenset() if shared else frozenset(i for i, kind in enumerate(kinds) if kind == {True})
