"""The verbs by which clients and server speak: what a method may ask of the federation, and all that ever travels.

A value has the clients hosted here as its first axis. The round's clients are those that report: sums run over them, in
no particular order and with no effect of it (see `exact`), and matrices have a row and a column for each of them, in
client order. A client whose contribution is not finite stops the run, or is left out of the round, by the policy of
`nonfinite`; a vector that was left out counts as zero.
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
from .exchange import Routes
from .pulse import Skipped
from .slices import in_slices, length_of
from .telemetry import Telemetry

S = TypeVar("S", bound=tuple[Any, ...])
Term = Tensor | tuple[Tensor | float, Tensor]


SMALL = 1 << 15  # bytes; a message of its own costs more than copying so many


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

    def __init__(
        self, comm: Comm, telemetry: Telemetry, population: int, reduce: str = "exact", nonfinite: str = "stop"
    ) -> None:
        self.comm, self.telemetry = comm, telemetry
        self.population = population  # N: all clients, in the round or not
        self.listed = np.arange(population)  # those that have a row in the histories, sorted
        self.rounds = 0  # of training that are planned; what comes after are a method's closing rounds
        self.exact, self.stop = reduce == "exact", nonfinite == "stop"
        self.begin(0, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    def begin(self, round: int, clients: np.ndarray, hosts: np.ndarray, reports: np.ndarray | None = None) -> None:
        """Start a round with these clients (sorted) on these ranks; those that report, or all, are heard of."""
        reports = np.ones(len(clients), dtype=bool) if reports is None else reports
        here = hosts == self.comm.rank
        self.round = round
        self.clients = clients[here]  # a row here is one of these
        self.everyone = clients[reports]  # a row or column of a matrix is one of these
        self.reporting = torch.from_numpy(reports[here])
        self.left_out = torch.zeros(len(self.clients), dtype=torch.bool)
        self.named: list[int] = []  # the clients left out of this round, on every rank
        self.recorded: dict[str, Tensor] = {}
        self.told: dict[str, Tensor] = {}
        self._routes = Routes(self.comm, hosts[reports])

    @property
    def kept(self) -> int:
        """How many clients the sums of this round run over."""
        return len(self.everyone) - len(np.intersect1d(self.named, self.everyone))

    # ------------------------------------------------------------------ the verbs

    def aggregate(self, f: Callable[[S, Any], S], server: S, **sums: Term) -> S:
        """f(server, Σ) computed on rank 0, on every rank. A sum is given as `value` or `(weight, value)`: a weight per
        client, or a row of weights per client (m, r) for a result of r rows."""
        terms = {name: weighted(term) for name, term in sums.items()}
        if length := length_of(f, server, [(term.weight.shape[1], term.value.shape[1]) for term in terms.values()]):
            return self._stepped_in_slices(f, server, terms, length)
        with self.telemetry.phase("reduce"):
            total = self._sum(terms, self._spacing(terms), everywhere=False)
        if not self.kept:
            return server  # nobody reported, or every client of the round was left out
        with self.telemetry.phase("server"):
            new = like(server, f(server, SimpleNamespace(**total))) if self.comm.is_server else server
        with self.telemetry.phase("broadcast"):
            return self.publish(new)

    def share(self, value: Tensor) -> Tensor:
        """Σ over the round's clients of a small value per client, on every rank."""
        with self.telemetry.phase("reduce"):
            terms = {"value": weighted(value)}
            return self._sum(terms, self._spacing(terms), everywhere=True)["value"]

    def gather(self, value: Tensor) -> Tensor:
        """One value or short row per client of the round (n, ...), in client order, on every rank."""
        with self.telemetry.phase("reduce"):
            rows = self.comm.allgather(value[self.reporting.to(value.device)].detach().cpu().numpy())
            return torch.from_numpy(self._routes.in_order(rows)).to(value.device)

    def update(self, values: Tensor, new: Tensor) -> Tensor:
        """A value for each of all clients (M, ...), with the new ones of the round's clients, on every rank."""
        values = values.clone()
        values[torch.from_numpy(self.everyone).to(values.device)] = self.gather(new)
        return values

    def gram(self, theta: Tensor) -> Tensor:
        """The inner products <theta_i, theta_j> of the round's clients (n, n), float64, on every rank.

        Each rank multiplies blocks of coordinates of all clients. The blocks do not depend on the number of ranks, and
        their products are added on a grid, so neither does the sum. Every vector is scaled by a power of two first, so
        that a long one does not coarsen the others' grid.
        """
        with self.telemetry.phase("reduce"):
            theta = self._finite(theta)
            n, d = len(self.everyone), theta.shape[1]
            peak = self._routes.in_order(self.comm.allgather(magnitude(theta).cpu().numpy()))
            scale = torch.from_numpy(np.ldexp(1.0, -np.frexp(peak)[1])).to(theta.device)[:, None]
            spacing = exact.grid(exact.exponent(min(d, self._routes.width)), self._routes.count(d))
            total = torch.zeros(n, n, dtype=torch.float64, device=theta.device)
            for block in self._routes.columns(theta):
                scaled = block.double() * scale  # all below 1
                product = scaled @ scaled.T
                total += exact.snap_(product, spacing) if self.exact else product
            self.comm.allreduce(total)
            return (total + total.T) / 2 / (scale * scale.T)

    def mix(self, weight: Tensor, theta: Tensor) -> Tensor:
        """Row i is Σ_j weight_ij theta_j over the round's clients, at i's host; weight (m, n) has rows for the clients
        hosted here. A row keeps its sum where a client was left out; a client that does not report keeps its theta."""
        with self.telemetry.phase("reduce"):
            finite = self._finite(theta)
            everywhere = self.gather(weight.double())
            lost = torch.from_numpy(np.isin(self.everyone, self.named))
            if lost.any():
                everywhere = without(everywhere, lost.to(weight.device))
            out = theta.clone()
            rows = torch.zeros(len(finite), theta.shape[1], dtype=theta.dtype, device=theta.device)
            for columns, mixed in self._routes.through(lambda block: everywhere @ block.double(), finite):
                rows[:, columns] = mixed
            out[self.reporting.to(theta.device)] = rows
            return out

    def cross(
        self,
        f: Callable[[Tensor, Tensor], Tensor],
        theta: Tensor,
        wanted: Tensor | None = None,
        shape: tuple[int, ...] = (),
    ) -> Tensor:
        """L_ij = f(theta_j, i) for the clients i hosted here and every j of the round (m, n, *shape), float64: models
        travel, data stays. f takes one model (d) and the rows it is to be judged for, and gives a value of that shape
        for each of them. Where `wanted` (m, n) says no, a model is not judged (NaN), and not sent where nobody wants
        it."""
        with self.telemetry.phase("reduce"):
            finite = self._finite(theta)
            ask = torch.ones(len(theta), len(self.everyone), dtype=torch.bool) if wanted is None else wanted.cpu()
            out = torch.full((*ask.shape, *shape), torch.nan, dtype=torch.float64, device=theta.device)
            for j, model in self._routes.models(finite, ask.any(0).numpy()):
                rows = torch.nonzero(ask[:, j])[:, 0].to(theta.device)
                out[rows, j] = f(model, rows).double()
            return out

    def spread(
        self, f: Callable[[np.ndarray, np.ndarray, Tensor], tuple[Tensor, Tensor]], theta: Tensor, tasks: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Every client of the round has so many tasks with its vector, worked off wherever there is room: all workers
        get equally many. f takes clients (r), their tasks (r) and vectors (r, d), and gives a value (r) and a new
        vector (r, d) for each. Here arrive, of the reporting clients hosted here, the values (m, tasks), float64, which
        is the greatest (m), the first of equals, and the vector that came with it (m, d)."""
        with self.telemetry.phase("reduce"):
            theta = self._finite(theta)
            count, workers, me = len(self.everyone), np.asarray(self.comm.workers), self.comm.rank
            owner = workers[np.arange(count * tasks) * len(workers) // max(1, count * tasks)].reshape(count, tasks)
            who, task = np.nonzero(owner == me)
            models = dict(self._routes.models(theta, np.isin(np.arange(count), who)))
            value, new = torch.zeros(0, dtype=torch.float64), theta[:0]
            if len(who):
                with self.telemetry.phase("train"):
                    value, new = f(self.everyone[who], task, torch.stack([models[j] for j in who.tolist()]))
            values = np.concatenate(self.comm.allgather(value.double().cpu().numpy())).reshape(count, tasks)
            best = np.where(np.isnan(values), -np.inf, values).argmax(1)
            place = {(j, t): i for i, (j, t) in enumerate(zip(who.tolist(), task.tolist(), strict=True))}
            come = owner[np.arange(count), best]  # whence each client's best vector comes
            send = [new[[place[j, best[j]] for j in rows.tolist() if come[j] == me]] for rows in self._routes.rows]
            mine = self._routes.rows[me]
            sizes = [int((come[mine] == r).sum()) * theta.shape[1] for r in range(self.comm.size)]
            out = torch.empty_like(theta)
            for r, part in enumerate(self.comm.exchange(send, sizes)):
                out[torch.from_numpy(np.flatnonzero(come[mine] == r))] = part.view(-1, theta.shape[1])
            return torch.from_numpy(values[mine]).to(theta.device), torch.from_numpy(best[mine]).to(theta.device), out

    def where_reporting(self, new: Tensor, old: Tensor) -> Tensor:
        """The new rows of clients that report, the old ones of those that only train."""
        return torch.where(self.reporting.to(new.device)[:, None], new, old)

    # ------------------------------------------------------------------ for the histories

    def record(self, **values: Tensor) -> None:
        """Keep a value per client (m) in history.h5, one row a round; NaN for clients not in the round."""
        self.recorded |= values

    def tell(self, **values: Tensor) -> None:
        """Keep a value that every rank has in history.h5, one row a round."""
        self.told |= values

    def table(self, value: Tensor) -> np.ndarray:
        """A value or short row per client hosted here, as a row for each client of the histories, on every rank; NaN
        for those that are not in the round."""
        keyed = np.concatenate(
            [self.clients[:, None], value.reshape(len(value), value.shape[1:].numel()).double().cpu().numpy()], axis=1
        )
        rows = np.concatenate(self.comm.allgather(keyed[np.isin(self.clients, self.listed)]))
        out = np.full((len(self.listed), rows.shape[1] - 1), np.nan)
        out[np.searchsorted(self.listed, rows[:, 0])] = rows[:, 1:]
        return out.reshape(len(self.listed), *value.shape[1:])

    def publish(self, server: S) -> S:
        """Rank 0's server state on every rank: a large field as it is, the small ones in one broadcast."""
        fields = [
            field.contiguous()
            if self.comm.is_server
            else torch.empty(field.shape, dtype=field.dtype, device=field.device)
            for field in server
        ]
        if self.comm.size == 1:
            return server
        small = [field for field in fields if 0 < field.numel() * field.element_size() < SMALL]
        if len(small) > 1:
            packed = torch.cat([as_bytes(field) for field in small])
            self.comm.broadcast(packed)
            if not self.comm.is_server:
                arrived = packed.split([field.numel() * field.element_size() for field in small])
                for field, part in zip(small, arrived, strict=True):
                    field.view(-1).view(torch.uint8).copy_(part)
        for field in fields:
            if len(small) == 1 or field.numel() * field.element_size() >= SMALL:
                self.comm.broadcast(field)
        return type(server)(*fields)

    # ------------------------------------------------------------------ how sums are made

    def _sum(self, terms: dict[str, Weighted], spacing: dict[str, float], everywhere: bool) -> dict[str, Tensor]:
        sizes = [term.weight.shape[1] * term.value.shape[1] for term in terms.values()]
        device = next(iter(terms.values())).value.device
        buffer = torch.zeros(sum(sizes), dtype=self._wide(terms), device=device)
        parts = dict(zip(terms, buffer.split(sizes), strict=True))
        for name, term in terms.items():
            for r, row in enumerate(parts[name].view(term.weight.shape[1], -1)):
                self._add(row, term.weight[:, r], term.value, spacing[name])
        self.comm.allreduce(buffer) if everywhere else self.comm.reduce(buffer)
        return {name: parts[name].view(terms[name].shape) for name in terms}

    def _wide(self, terms: dict[str, Weighted]) -> torch.dtype:
        """What sums are made in."""
        wide = self.exact or all(term.value.dtype == torch.float64 for term in terms.values())
        return torch.float64 if wide else torch.float32

    def _add(self, row: Tensor, weight: Tensor, value: Tensor, spacing: float) -> None:
        """row (n) += Σ_k weight_k value_k over the clients whose vectors count."""
        used = (self.reporting & ~self.left_out).to(value.device) & (weight != 0)
        if not used.all():
            weight, value = weight[used], value[used]
        if self.exact:
            exact.add_weighted(row, weight, value, spacing)
        else:
            row += (weight.to(row.dtype) @ value.to(row.dtype)).to(row.dtype)

    def _stepped_in_slices(self, f: Callable[[S, Any], S], server: S, terms: dict[str, Weighted], length: int) -> S:
        """f(server, Σ), its long vectors worked off by all ranks."""
        with self.telemetry.phase("reduce"):
            spacing = self._spacing(terms)
            long = {name: term for name, term in terms.items() if term.value.shape[1] == length}
            short = {name: term for name, term in terms.items() if name not in long}
            known = self._sum(short, spacing, everywhere=True) if short else {}
        if not self.kept:
            return server
        heights = [term.weight.shape[1] for term in long.values()]
        rows = [(name, r) for name, term in long.items() for r in range(term.weight.shape[1])]

        def add(row: int, columns: slice, out: Tensor) -> None:
            name, r = rows[row]
            self._add(out, long[name].weight[:, r], long[name].value[:, columns], spacing[name])

        def step(old: S, sums: Tensor) -> S:
            parts = zip(long.items(), sums.split(heights), strict=True)
            found = {name: part.reshape(*term.shape[:-1], part.shape[1]) for (name, term), part in parts}
            return like(old, f(old, SimpleNamespace(**known, **found)))

        return in_slices(step, server, length, len(rows), add, self._wide(long), self.comm, self.telemetry)

    def _spacing(self, terms: dict[str, Weighted]) -> dict[str, float]:
        """The grid of each sum, the same on all ranks; on the way, contributions that are not finite are found."""
        sizes = [magnitude(term.value) * term.weight.abs().amax(1) for term in terms.values()]
        greatest = torch.stack(sizes, 1).cpu()  # (m, sums)
        fine = torch.isfinite(greatest).all(1)
        heard = self.reporting & ~self.left_out
        used = greatest[fine & heard]
        peaks = np.zeros(len(terms) + 1)
        if len(used):
            peaks[:-1] = used.amax(0).numpy()
        peaks[-1] = float((~fine & heard).any())
        self.comm.allreduce(peaks, "max")
        if peaks[-1]:
            self._leave_out(~fine & heard)
        count = len(self.everyone)
        return {name: exact.grid(exact.exponent(peak), count) for name, peak in zip(terms, peaks, strict=False)}

    def _finite(self, theta: Tensor) -> Tensor:
        """The vectors that may travel: of the clients that report, with zeros for one that is left out."""
        fine = torch.isfinite(magnitude(theta)).cpu()
        if self.comm.any(bool((~fine & self.reporting & ~self.left_out).any())):
            self._leave_out(~fine & self.reporting & ~self.left_out)
        if self.left_out.any():
            theta = theta.masked_fill(self.left_out.to(theta.device)[:, None], 0)
        return theta if self.reporting.all() else theta[self.reporting.to(theta.device)]

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
        if self.comm.any(self.comm.pulse.skipping):
            raise Skipped  # values of a round that is not finished mean nothing
        everywhere = np.sort(np.concatenate(self.comm.allgather(self.clients[bad.numpy()])))
        if self.stop:
            if not self.comm.is_server:
                self.comm.barrier()  # never passed: rank 0 is about to name the clients of all ranks and end the job
            raise Diverged(
                f"client {listed(everywhere)} diverged: its values are not finite. "
                f"Lower train.lr (or the method's own learning rate, if it has one), "
                f"or leave such clients out of a round with nonfinite=skip"
            )
        self.left_out |= bad
        self.named = sorted([*self.named, *everywhere.tolist()])


def listed(clients: np.ndarray) -> str:
    """The first few clients by number."""
    return ", ".join(map(str, clients[:10])) + (f" and {len(clients) - 10} more" if len(clients) > 10 else "")


def without(weight: Tensor, lost: Tensor) -> Tensor:
    """The rows of weights (n, n) without the lost columns, their sums as before; the identity's where none is left."""
    alive = weight.masked_fill(lost, 0)
    touched = (weight[:, lost] != 0).any(1, keepdim=True)
    empty = (alive == 0).all(1, keepdim=True)
    scaled = alive * (weight.sum(1, keepdim=True) / alive.sum(1, keepdim=True))
    own = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    return torch.where(touched, torch.where(empty, own, scaled), weight)


def magnitude(value: Tensor) -> Tensor:
    """max |v| of each row (m, n), float64, not finite where one of them is not."""
    if not value.shape[1]:
        return torch.zeros(len(value), dtype=torch.float64, device=value.device)
    return torch.maximum(value.amax(1), -value.amin(1)).double()


def as_bytes(field: Tensor) -> Tensor:
    """A copy, as bytes (a single number may have any stride, which a view as bytes does not take)."""
    return field.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


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
