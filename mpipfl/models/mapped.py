"""Any module with a client axis, by torch.func."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import company


class Mapped:
    """K networks at once, or where that cannot be one after the other."""

    def __init__(self, network: nn.Module, names: list[str], shape: tuple[int, ...]) -> None:
        self.network, self.names, self.shape = network, names, shape
        self.known: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self.every, self.together = torch.func.vmap(self.one), True
        own = dict(network.named_parameters())
        try:
            with torch.no_grad():
                self.every([torch.zeros(2, *own[name].shape) for name in names], torch.zeros(2, 1, *shape))
        except RuntimeError:  # some operations, such as PyTorch's LSTM, know no vmap
            self.every, self.together = self.in_turn, False

    def __call__(self, parts: list[Tensor], x: Tensor) -> Tensor:
        self.network.to(x.device)  # its frozen parameters, once
        x = x.reshape(*x.shape[:2], *self.shape)
        found, first = [], 0
        for some in self.sizes(parts, x):
            own = [part[first : first + some] for part in (*parts, x)]
            *theta, mine = [company.twins(part) for part in own] if some == 1 < len(x) else own
            found.append(self.every(theta, mine)[:some])
            first += some
        return torch.cat(found)

    def sizes(self, parts: list[Tensor], x: Tensor) -> tuple[int, ...]:
        """How many clients to take at a time: nobody knows what is in there, so every network is tried."""
        if not self.together or x.device.type != "cpu":
            return (len(x),)
        trained = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
        key = (x.shape, trained, torch.is_autocast_enabled("cpu"))
        if key not in self.known:
            draw = torch.Generator().manual_seed(0)
            theta = [0.1 * torch.randn(part.shape, generator=draw) for part in parts]

            def results(who: list[int]) -> list[Tensor]:
                own = [part[who].requires_grad_(trained) for part in theta]
                out = self.every(own, x[who])
                return [
                    out.detach(),
                    *(torch.autograd.grad(out.square().sum(), own, materialize_grads=True) if trained else ()),
                ]

            self.known[key] = company.parts(lambda clients: company.same_as_pairs(results, clients), len(x))
        return self.known[key]

    def one(self, theta: list[Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(self.network, dict(zip(self.names, theta, strict=True)), (x,))  # type: ignore[no-any-return]

    def in_turn(self, theta: list[Tensor], x: Tensor) -> Tensor:
        return torch.stack([self.one([part[k] for part in theta], x[k]) for k in range(len(x))])
