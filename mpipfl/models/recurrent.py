"""LSTM layers for sequences of ids, and the client axis for them.

    i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b),  c <- f c + i g,  h <- o tanh(c)

Where oneDNN has a kernel for all times of a layer (float32 on a CPU), each client has it to itself: a client's
recurrent weights then stay in cache from time to time, which is worth more than one product of all clients. Elsewhere
the K clients' products of a time step are one (`Layer`). Sequences are padded at their end: the result is h after the
last id, so what comes of padding is never used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import elementwise
from .sequences import Step, embedding


def in_full(forward: Callable[..., Any]) -> Callable[..., Any]:
    """In the precision of the weights, under autocast too."""

    @functools.wraps(forward)
    def wrapped(ctx: Any, x: Tensor, times: int, *weights: Tensor) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return forward(ctx, x.to(weights[0].dtype), times, *weights)

    return wrapped


class LastState(nn.Module):
    """Ids (B, L) to the upper LSTM layer's state after each sequence's last id (B, H), zero for nothing but padding."""

    def __init__(self, embedding: nn.Embedding, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.padding = embedding, embedding.padding_idx or 0
        self.lstm = nn.LSTM(embedding.embedding_dim, hidden, layers, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(ids))
        return last(states, ids.ne(self.padding).sum(-1))


def last(states: Tensor, lengths: Tensor) -> Tensor:
    """The states (..., L, H) after the last id of each sequence."""
    where = (lengths - 1).clamp(min=0)[..., None, None].expand(*lengths.shape, 1, states.shape[-1])
    return torch.where(lengths[..., None] > 0, states.gather(-2, where).squeeze(-2), 0.0)


def translated(module: LastState, place: dict[int, int]) -> Step | None:
    """A LastState with a client axis: ids (K, B, L) to (K, B, H)."""
    embed = embedding(module.embedding, place.get(id(module.embedding.weight)))
    if embed is None or any(id(weight) not in place for layer in module.lstm.all_weights for weight in layer):
        return None
    layers = [[place[id(weight)] for weight in layer] for layer in module.lstm.all_weights]

    def step(parts: list[Tensor], ids: Tensor) -> Tensor:
        lengths = ids.ne(module.padding).sum(-1)
        x = embed(parts, ids.transpose(1, 2))  # (K, L, B, E): time by time
        weights = [[parts[where] for where in layer] for layer in layers]
        if has_kernel(weights[0][0]):
            with torch.autocast(x.device.type, enabled=False):
                return client_by_client(x.float(), lengths, weights)
        times = int(lengths.max())
        for layer in weights:
            x = Layer.apply(x, times, *layer)
        return last(x.transpose(1, 2), lengths)

    return step


def has_kernel(weight: Tensor) -> bool:
    """Whether an LSTM with such weights has a kernel for all times."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def client_by_client(x: Tensor, lengths: Tensor, weights: list[list[Tensor]]) -> Tensor:
    """x (K, L, B, E) to the upper layer's states after the last ids (K, B, H), through PyTorch's own LSTM for as many
    times as the client's longest sequence has."""
    begin = x.new_zeros(len(weights), x.shape[2], weights[0][1].shape[2])
    learning = torch.is_grad_enabled()
    states = []
    for own, ends, *flat in zip(x, lengths, *(weight.unbind(0) for layer in weights for weight in layer), strict=True):
        times = max(1, int(ends.max()))
        every, _, _ = torch.lstm(own[:times], (begin, begin), flat, True, len(weights), 0.0, learning, False, False)
        states.append(last(every.transpose(0, 1), ends))
    return torch.stack(states)


class Layer(torch.autograd.Function):
    """One LSTM layer: x (K, L, B, E) to all its states h (K, L, B, H), of which those from `times` on are zero. In
    the weights' precision always: rounding would add up over the times."""

    @staticmethod
    @in_full
    def forward(ctx: Any, x: Tensor, times: int, w: Tensor, u: Tensor, b: Tensor, b2: Tensor) -> Tensor:
        K, L, B, _ = x.shape
        H = u.shape[2]
        x, turned = x.flatten(1, 2), u.transpose(1, 2).contiguous()  # a turned copy serves all times
        gates = torch.baddbmm((b + b2).unsqueeze(1), x, w.transpose(1, 2)).view(K, L, B, 4 * H)
        cells, states = x.new_zeros(K, L + 1, B, H), x.new_zeros(K, L + 1, B, H)  # [:, 0] is before the first time
        for t in range(times):
            i, f, g, o = gates[:, t].baddbmm_(states[:, t], turned).chunk(4, 2)
            g.tanh_()
            for gate in (gates[:, t, :, : 2 * H], o):
                elementwise.sigmoid_(gate)
            torch.mul(f, cells[:, t], out=cells[:, t + 1]).addcmul_(i, g)
            torch.mul(o, torch.tanh(cells[:, t + 1]), out=states[:, t + 1])
        ctx.save_for_backward(x, gates, cells, states, w, u)
        ctx.times = times
        return states[:, 1:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gates, cells, states, w, u = ctx.saved_tensors
        (K, L, B, H), wanted = gradients[0].shape, gradients[0]
        i, f, g, o = gates.chunk(4, 3)
        out = torch.tanh(cells[:, 1:])
        through = o * (1 - out * out)  # dh/dc
        errors = gates * (1 - gates)  # first d(c or h)/d(W x + U h + b), then times the loss's gradient by c or h
        for slope, factor in zip(errors.chunk(4, 3), (g, cells[:, :-1], i, out), strict=True):
            slope.mul_(factor) if factor is not i else torch.mul(i, 1 - g * g, out=slope)
        errors[:, ctx.times :] = 0
        dh, dc = torch.zeros_like(wanted[:, 0]), torch.zeros_like(wanted[:, 0])
        for t in reversed(range(ctx.times)):
            dh = dh + wanted[:, t]
            dc.addcmul_(dh, through[:, t])
            errors[:, t].view(K, B, 4, H)[:, :, :3].mul_(dc.unsqueeze(2))
            errors[:, t, :, 3 * H :].mul_(dh)
            dc.mul_(f[:, t])
            dh = torch.bmm(errors[:, t], u)
        error = errors.flatten(1, 2)
        dw, du = (torch.bmm(error.transpose(1, 2), by.flatten(1, 2)) for by in (x.unsqueeze(1), states[:, :-1]))
        db = error.sum(1)
        dx = torch.bmm(error, w).view(K, L, B, -1) if ctx.needs_input_grad[0] else None
        return dx, None, dw, du, db, db
