"""Layers for sequences of token ids, and the client axis for them.

Ids reach a network as floating-point numbers, which hold them exactly; `Ids` makes integers of them. Id 0 is padding,
at the end of a sequence, and never changes a result: the mean of an EmbeddingBag leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[list[Tensor], Tensor], Tensor]


class Ids(nn.Module):
    """Numbers to integers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.long()


def to_ids(parts: list[Tensor], x: Tensor) -> Tensor:
    return x.long()


class Table:
    """An embedding's rows for each client: from the clients' own tables (K, V, E), or from a frozen one (V, E) that all
    share."""

    def __init__(self, weight: Tensor, place: int | None) -> None:
        self.weight, self.place = weight.detach(), place

    def rows(self, parts: list[Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
        """All tables as one (rows, E), and the ids' (K, ...) rows in it."""
        if self.place is None:
            self.weight = self.weight.to(ids.device)  # moves once
            return self.weight, ids
        tables = parts[self.place]
        first = torch.arange(len(tables), device=ids.device) * tables.shape[1]
        return tables.flatten(0, 1), ids + first.view(-1, *[1] * (ids.dim() - 1))


def embedding(module: nn.Module, place: int | None) -> Step | None:
    """nn.Embedding and nn.EmbeddingBag with a client axis, as far as they are plain."""
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return None
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        return None
    table, padding = Table(module.weight, place), module.padding_idx
    if isinstance(module, nn.Embedding):
        return lambda parts, ids: vectors(table, padding, parts, ids)
    if module.mode != "mean" or padding is None:
        return None
    return lambda parts, ids: Mean.apply(*table.rows(parts, ids), ids != padding, padding)  # type: ignore[no-any-return]


def vectors(table: Table, padding: int | None, parts: list[Tensor], ids: Tensor) -> Tensor:
    """The ids' vectors (K, ..., E); that of padding learns nothing."""
    tables, rows = table.rows(parts, ids)
    found = F.embedding(rows, tables)
    return found if padding is None else torch.where((ids == padding).unsqueeze(-1), found.detach(), found)


class Mean(torch.autograd.Function):
    """The mean of the vectors (rows, E) of each sequence (K, B, L) without its padding, zero for nothing but padding.

    PyTorch's own gradient adds up a word's occurrences in an order that depends on the other clients' words; here it is
    the order in which they stand.
    """

    @staticmethod
    def forward(ctx: Any, tables: Tensor, rows: Tensor, there: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(rows, there)
        ctx.shape = tables.shape
        bags = torch.where(there, rows, padding).flatten(0, 1)  # the first client's padding stands for everyone's
        return F.embedding_bag(bags, tables, mode="mean", padding_idx=padding).view(*rows.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        rows, there = ctx.saved_tensors
        each = gradients[0] / there.sum(2, keepdim=True).clamp(min=1)
        client, sequence, place = there.nonzero(as_tuple=True)
        out = torch.zeros(ctx.shape, dtype=each.dtype, device=each.device)
        out.index_add_(0, rows[client, sequence, place], each[client, sequence])
        return out, None, None, None
