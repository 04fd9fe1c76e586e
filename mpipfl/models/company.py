"""Convolutions of K clients at once, whose bits do not depend on how many clients there are.

A library chooses a kernel for the whole of a problem: on processors without AVX-512 oneDNN takes another one for three
groups with a channel each than for four, and that one adds up in another order. So the bits of a client are, by
definition, those it has beside one other. When a number of clients is met for the first time it is tried against pairs,
forwards and backwards; where bits differ the clients are taken in parts, of numbers where they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Problem(NamedTuple):
    """What a library sees of one client's convolution."""

    x: tuple[int, ...]  # (B, channels, height, width)
    kernels: tuple[int, ...]
    biased: bool
    how: tuple[Any, ...]  # stride, padding, dilation
    derived: tuple[bool, ...]  # whether gradients of the input, and of kernels and biases, are wanted
    mixed: bool  # precision

    def alike(self, clients: int) -> bool:
        """Whether so many clients have the bits of pairs, on random numbers."""
        draw = torch.Generator().manual_seed(0)
        (batch, channels, *size), outputs = self.x, self.kernels[0]
        x = torch.randn(batch, *size, clients, channels, generator=draw)
        kernels = torch.randn(clients, *self.kernels, generator=draw)
        bias = torch.randn(clients, outputs, generator=draw) if self.biased else None

        def results(who: list[int]) -> list[Tensor]:
            images = x[..., who, :].flatten(3).permute(0, 3, 1, 2).requires_grad_(self.derived[0])
            own = [t[who].requires_grad_(self.derived[1]) for t in (kernels, bias) if t is not None]
            y = grouped(images, own[0], own[1] if self.biased else None, self.how)
            found = [by_client(y.detach(), len(who))]
            wanted = [t for t in (images, *own) if t.requires_grad]
            if wanted:
                slope = y.detach().clamp(min=0)  # any numbers that a client has in all company
                grads = torch.autograd.grad(y, wanted, slope)
                found += [by_client(g, len(who)) if t is images else g for t, g in zip(wanted, grads, strict=True)]
            return found

        with torch.enable_grad():
            return same_as_pairs(results, clients)


def convolve(x: Tensor, kernels: Tensor, bias: Tensor | None, how: tuple[Any, ...]) -> Tensor:
    """Images (B, K * C, H, W) under each client's kernels (K, O, C, h, w) and biases (K, O)."""
    clients = len(kernels)
    sizes: tuple[int, ...] = (clients,)
    if x.device.type == "cpu":
        x = x.contiguous(memory_format=torch.channels_last)  # as it comes; kernels go by the layout, too
        derived = tuple(torch.is_grad_enabled() and t.requires_grad for t in (x, kernels))
        one = (len(x), x.shape[1] // clients, *x.shape[2:])
        mixed = torch.is_autocast_enabled("cpu")
        sizes = parts_of(Problem(one, tuple(kernels.shape[1:]), bias is not None, how, derived, mixed), clients)
    if len(sizes) == 1:
        return grouped(x, kernels, bias, how)
    channels, found, first = x.shape[1] // clients, [], 0
    for some in sizes:
        part = slice(first, first + some)
        images, own = x[:, first * channels : (first + some) * channels], kernels[part]
        shift = None if bias is None else bias[part]
        if some == 1:
            images, own, shift = twins(images, 1), twins(own), None if shift is None else twins(shift)
        found.append(grouped(images, own, shift, how)[:, : some * kernels.shape[1]])
        first += some
    return torch.cat(found, 1)


def grouped(x: Tensor, kernels: Tensor, bias: Tensor | None, how: tuple[Any, ...]) -> Tensor:
    """The same as one convolution."""
    stride, padding, dilation = how
    shift = None if bias is None else bias.flatten()
    return F.conv2d(x, kernels.flatten(0, 1), shift, stride, padding, dilation, groups=len(kernels))


def by_client(x: Tensor, clients: int) -> Tensor:
    """Images (B, K * C, H, W) as (K, B, C, H, W)"""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def twins(x: Tensor, dim: int = 0) -> Tensor:
    """A client and one like it, whose results are not used."""
    return torch.cat([x, x.detach()], dim)


def same_as_pairs(results: Callable[[list[int]], list[Tensor]], clients: int) -> bool:
    """Whether results for these clients, tensors with a row for each, are those for two at a time."""
    every = results(list(range(clients)))
    pairs = [[i, (i + 1) % clients] for i in range(0, clients, 2)]
    return all(same_bits(e[who], few) for who in pairs for e, few in zip(every, results(who), strict=True))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Not a number is like itself here."""
    a, b = (t.flatten().contiguous().view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


def parts(alike: Callable[[int], bool], clients: int) -> tuple[int, ...]:
    """How many clients to take at a time; one alone is to have a twin."""
    if clients <= 2 or alike(clients):
        return (clients,)
    if clients == 3:
        return (2, 1)
    return parts(alike, clients - clients // 2) + parts(alike, clients // 2)


@cache
def parts_of(problem: Problem, clients: int) -> tuple[int, ...]:
    return parts(problem.alike, clients)
