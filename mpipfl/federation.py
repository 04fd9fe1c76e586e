"""The verbs by which clients and server speak: what a method may ask of the federation, and all that ever travels.

A value has the clients hosted here as its first axis. Sums run over the clients of the round, in no particular order
and with no effect of it: see `exact`. A client whose contribution is not finite stops the run, or is left out of the
round, by the policy of `nonfinite`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from . import exact
from .comm import Comm
from .errors import UserError
from .telemetry import Telemetry

S = TypeVar("S", bound=tuple[Any, ...])
Term = Tensor | tuple[Tensor | float, Tensor]


class Diverged(UserError):
    """A client's contribution is not finite."""

    code = 4


class Weighted(NamedTuple):
    """One sum to be made: Σ_k weight_kr value_k for each row r of the result."""

    weight: Tensor  # (m, rows), float64
    value: Tensor  # (m, n)
    shape: tuple[int, ...]  # of the result


class Federation:
    """The clients of one round, wherever they are hosted."""

    def __init__(self, comm: Comm, telemetry: Telemetry, reduce: str = "exact", nonfinite: str = "stop") -> None:
        self.comm, self.telemetry = comm, telemetry
        self.exact, self.stop = reduce == "exact", nonfinite == "stop"
        self.round = self.terms = self.kept = 0
        self.named: list[int] = []  # rank 0: the clients left out of this round
        self.clients = np.empty(0, dtype=np.int64)
        self.left_out = torch.zeros(0, dtype=torch.bool)

    def begin(self, round: int, clients: np.ndarray, everywhere: int) -> None:
        """Start a round with the clients hosted here, out of so many everywhere."""
        self.round, self.clients = round, clients
        self.terms = self.kept = everywhere
        self.named = []
        self.left_out = torch.zeros(len(clients), dtype=torch.bool)

    def aggregate(self, f: Callable[[S, Any], S], server: S, **sums: Term) -> S:
        """f(server, Σ) computed on rank 0, on every rank. A sum is given as `value` or `(weight, value)`: a weight per
        client, or a row of weights per client (m, r) for a result of r rows."""
        with self.telemetry.phase("reduce"):
            total = self._sum({name: weighted(term) for name, term in sums.items()}, everywhere=False)
        if not self.kept:
            return server  # every client of the round was left out
        with self.telemetry.phase("server"):
            new = like(server, f(server, SimpleNamespace(**total))) if self.comm.is_server else server
        with self.telemetry.phase("broadcast"):
            return self.publish(new)

    def share(self, value: Tensor) -> Tensor:
        """Σ over the round's clients of a small value per client, on every rank."""
        with self.telemetry.phase("reduce"):
            return self._sum({"value": weighted(value)}, everywhere=True)["value"]

    def gather(self, value: Tensor, clients: int) -> np.ndarray | None:
        """One value or short row per client, in client order on rank 0 (None elsewhere); NaN where none was given."""
        keyed = np.concatenate(
            [self.clients[:, None], value.reshape(len(value), value.shape[1:].numel()).double().cpu().numpy()], axis=1
        )
        parts = self.comm.gather(keyed)
        if parts is None:
            return None
        rows = np.concatenate(parts)
        out = np.full((clients, rows.shape[1] - 1), np.nan)
        out[rows[:, 0].astype(np.int64)] = rows[:, 1:]
        return out.reshape(clients, *value.shape[1:])

    def publish(self, server: S) -> S:
        """Rank 0's server state on every rank, in one broadcast; the fields are views of the buffer that arrived."""
        fields = list(server)
        if self.comm.size == 1 or not fields:
            return server
        ends = np.cumsum([(t.numel() * t.element_size() + 63) // 64 * 64 for t in fields])
        packed = torch.empty(int(ends[-1]), dtype=torch.uint8, device=fields[0].device)
        views = [
            packed[end - (t.numel() * t.element_size() + 63) // 64 * 64 :][: t.numel() * t.element_size()]
            .view(t.dtype)
            .view(t.shape)
            for t, end in zip(fields, ends.tolist(), strict=True)
        ]
        if self.comm.is_server:
            for view, field in zip(views, fields, strict=True):
                view.copy_(field)
        self.comm.broadcast(packed)
        return type(server)(*views)

    # ------------------------------------------------------------------ how sums are made

    def _sum(self, terms: dict[str, Weighted], everywhere: bool) -> dict[str, Tensor]:
        spacing = self._spacing(terms)
        kept = ~self.left_out
        sizes = [term.weight.shape[1] * term.value.shape[1] for term in terms.values()]
        device = next(iter(terms.values())).value.device
        wide = self.exact or all(term.value.dtype == torch.float64 for term in terms.values())
        buffer = torch.zeros(sum(sizes), dtype=torch.float64 if wide else torch.float32, device=device)
        parts = dict(zip(terms, buffer.split(sizes), strict=True))
        for name, term in terms.items():
            rows = parts[name].view(term.weight.shape[1], -1)
            for r, row in enumerate(rows):
                used = kept.to(device) & (term.weight[:, r] != 0)
                weight, value = (
                    (term.weight[:, r], term.value) if used.all() else (term.weight[used, r], term.value[used])
                )
                if self.exact:
                    exact.add_weighted(row, weight, value, spacing[name])
                else:
                    row += (weight.to(buffer.dtype) @ value.to(buffer.dtype)).to(row.dtype)
        self.comm.allreduce(buffer) if everywhere else self.comm.reduce(buffer)
        return {name: parts[name].view(terms[name].shape) for name in terms}

    def _spacing(self, terms: dict[str, Weighted]) -> dict[str, float]:
        """The grid of each sum, the same on all ranks; on the way, contributions that are not finite are found."""
        sizes = [magnitude(term.value) * term.weight.abs().amax(1) for term in terms.values()]
        greatest = torch.stack(sizes, 1).cpu()  # (m, sums)
        fine = torch.isfinite(greatest).all(1)
        used = greatest[fine & ~self.left_out]
        peaks = np.zeros(len(terms) + 1)
        if len(used):
            peaks[:-1] = used.amax(0).numpy()
        peaks[-1] = float((~fine & ~self.left_out).any())
        self.comm.allreduce(peaks, "max")
        if peaks[-1]:
            self._leave_out(~fine & ~self.left_out)
        return {name: exact.grid(exact.exponent(peak), self.terms) for name, peak in zip(terms, peaks, strict=False)}

    def check(self, clients: tuple[Tensor, ...]) -> None:
        """Clients whose new state is not finite are found too: it may not have travelled."""
        if not clients:
            return
        fine = torch.ones(len(self.clients), dtype=torch.bool)
        for field in (field for field in clients if field.is_floating_point()):
            fine &= torch.isfinite(magnitude(field.reshape(len(field), field.shape[1:].numel()))).cpu()
        if self.comm.any(bool((~fine & ~self.left_out).any())):
            self._leave_out(~fine & ~self.left_out)

    def _leave_out(self, bad: Tensor) -> None:
        """The policy for clients that diverged; every rank must call."""
        names = self.clients[bad.numpy()]
        everywhere = self.comm.gather(names)
        if self.stop:
            if everywhere is None:
                self.comm.barrier()  # never passed: rank 0 is about to name the clients of all ranks and end the job
            raise Diverged(
                f"client {listed(np.concatenate(everywhere or [names]))} diverged: its values are not finite. "
                f"Lower train.lr, or leave such clients out of a round with nonfinite=skip"
            )
        self.left_out |= bad
        count = np.array([len(names)], dtype=np.int64)
        self.comm.allreduce(count)
        self.kept -= int(count[0])
        self.named += sorted(np.concatenate(everywhere).tolist()) if everywhere else []


def listed(clients: np.ndarray) -> str:
    """The first few clients by number."""
    return ", ".join(map(str, np.sort(clients)[:10])) + (f" and {len(clients) - 10} more" if len(clients) > 10 else "")


def magnitude(value: Tensor) -> Tensor:
    """max |v| of each row (m, n), float64, not finite where one of them is not."""
    if not value.shape[1]:
        return torch.zeros(len(value), dtype=torch.float64, device=value.device)
    return torch.maximum(value.amax(1), -value.amin(1)).double()


def like(old: S, new: S) -> S:
    """The new state in the old one's types: sums are made in float64, models stay in float32."""
    return type(old)(*(field.to(before.dtype) for before, field in zip(old, new, strict=True)))


def weighted(term: Term) -> Weighted:
    """A sum as the caller wrote it, in one form."""
    weight, value = term if isinstance(term, tuple) else (1.0, term)
    count, shape = len(value), value.shape[1:]
    weights = torch.as_tensor(weight, dtype=torch.float64, device=value.device)
    rows = weights.shape[1:]
    weights = (weights if weights.dim() == 2 else weights.expand(count)[:, None]).contiguous()
    flat = value.reshape(count, shape.numel())
    return Weighted(weights, flat if flat.is_floating_point() else flat.double(), (*rows, *shape))
