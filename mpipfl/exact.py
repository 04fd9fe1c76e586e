"""Sums of floating-point numbers that do not depend on their order, so a run does not depend on its number of ranks.

Every term is rounded once to a common grid of spacing g, a power of two chosen so that no sum of all terms needs more
than binary64's 53 bits. On such a grid every addition is exact, hence associative: fixed-point numbers that travel as
float64. With n terms of magnitude below 2**e the grid is g = 2**(e + ceil(log2 n) - 51): for a hundred clients a
term's rounding error, g/2, is at most 2**-44 of the greatest term, far below float32's own 2**-24.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 1 << 17  # elements in work at once: small enough for the cache


def exponent(magnitude: float) -> int:
    """The least e with magnitude < 2**e; far below every number for 0."""
    return math.frexp(magnitude)[1] if magnitude > 0 else -900


def grid(exponent: int, terms: int) -> float:
    """The spacing for `terms` numbers of magnitude below 2**exponent."""
    return 2.0 ** max(exponent + math.ceil(math.log2(max(terms, 1))) - 51, -1000)


def snap_(values: Tensor, spacing: float) -> Tensor:
    """Round float64 values to multiples of the spacing, in place (adding 1.5 * 2**52 g leaves no finer bits)."""
    shift = 1.5 * 2.0**52 * spacing
    return values.add_(shift).sub_(shift)


def add_weighted(out: Tensor, weight: Tensor, values: Tensor, spacing: float) -> None:
    """out (n) += Σ_k weight_k values_k (K, n), each term snapped to the grid.

    In units of the grid the terms are integers, and so are all their sums: a product with ones adds them exactly.
    """
    units = weight.to(torch.float64)[:, None] / spacing
    ones = torch.ones(len(values), dtype=torch.float64, device=out.device)
    columns = max(1, BLOCK // max(1, len(values)))
    work = torch.empty(len(values), min(columns, out.numel()), dtype=torch.float64, device=out.device)
    for start in range(0, out.numel(), columns):
        block = slice(start, start + columns)
        terms = work[:, : len(out[block])]
        terms.copy_(values[:, block]).mul_(units).round_()
        out[block].add_(ones @ terms, alpha=spacing)
