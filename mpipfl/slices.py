"""The server's step on long vectors, shared by all ranks: each sums up some of the columns, and steps there.

Rank 0 alone would receive all partial sums, make the step and send the new state off while the others wait, and all
would hold sums in float64, twice as large as the models. Here a chunk of the columns comes after the other: its partial
sums are made, every rank gets the sums of its share (Reduce_scatter), steps there, and what has become of them goes to
all (Allgather). Sums are exact and the step goes column by column, so the bits are those of rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from .comm import Comm
from .telemetry import Telemetry

S = TypeVar("S", bound=tuple[Any, ...])

LONG = 1 << 20  # columns from which on it pays
WORK = 1 << 22  # sums in work at once, of all ranks
LEAST = 1 << 14  # columns that a rank takes at a time at least


def length_of(f: Callable[..., Any], server: tuple[Tensor, ...], sums: list[tuple[int, ...]]) -> int:
    """How many columns the long ones of the server's fields and of the sums (their shapes) have, if it is one number
    and the server's step goes column by column; else 0."""
    shapes = [*(tuple(field.shape) for field in server), *sums]
    long = {shape[-1] for shape in shapes if shape and shape[-1] >= LONG}
    if len(long) != 1 or not getattr(f, "columnwise", False):
        return 0
    (length,) = long
    fields = [field for field in server if field.shape[-1:] == (length,)]
    others = [shape for shape in shapes if shape[-1:] != (length,)]
    alike = len({field.dtype for field in fields}) == 1
    return length if alike and all(torch.Size(shape).numel() < LONG for shape in others) else 0


def in_slices(
    step: Callable[[S, Tensor], S],
    server: S,
    length: int,
    rows: int,
    add: Callable[[int, slice, Tensor], None],
    wide: torch.dtype,
    comm: Comm,
    telemetry: Telemetry,
) -> S:
    """The server's state after `step`, which takes the state's and the sums' (rows, n) columns of one slice. `add` puts
    this rank's part of a row of the sums, in some columns, into a tensor of zeros."""
    long = [i for i, field in enumerate(server) if field.shape[-1:] == (length,)]
    new = [torch.empty_like(field) for field in server]
    heights = [new[i].shape[:-1].numel() for i in long]
    like = new[long[0]]
    comm.meet()
    for places in chunks(length, comm.size, rows):
        here, share = places[comm.rank], places[0].stop - places[0].start
        width, chunk = here.stop - here.start, slice(places[0].start, places[-1].stop)
        with telemetry.phase("reduce"):
            sums = torch.zeros(comm.size, rows, share, dtype=wide, device=like.device)
            if rows == 1:  # the ranks' parts follow each other
                add(0, chunk, sums.view(-1)[: chunk.stop - chunk.start])
            else:
                for place, block in zip(places, sums, strict=True):
                    for r, row in enumerate(block[:, : place.stop - place.start]):
                        add(r, place, row)
            own = comm.reduce_scatter(sums)[:, :width]
        with telemetry.phase("server"):
            seen = type(server)(*(field[..., here] if i in long else field for i, field in enumerate(server)))
            stepped = step(seen, own)
        with telemetry.phase("broadcast"):
            in_place = heights == [1] and chunk.stop - chunk.start == comm.size * share
            out = like.view(-1)[chunk] if in_place else like.new_empty(comm.size * sum(heights) * share)
            out = out.view(comm.size, sum(heights), share)
            for rows_of, i in zip(out[comm.rank, :, :width].split(heights), long, strict=True):
                rows_of.copy_(stepped[i].reshape(rows_of.shape))
            comm.allgather_parts(out)
            for place, block in zip(places, () if in_place else out, strict=not in_place):
                parts = block[:, : place.stop - place.start].split(heights)
                for i, part in zip(long, parts, strict=True):
                    new[i].view(-1, length)[:, place] = part
    return type(server)(*(new[i] if i in long else field for i, field in enumerate(stepped)))


def chunks(length: int, ranks: int, rows: int) -> Iterator[list[slice]]:
    """The columns, a chunk after the other, and each rank's of those; the last ones may have few or none."""
    share = min(-(-length // ranks), max(LEAST, WORK // (ranks * rows)))
    for first in range(0, length, share * ranks):
        ends = [min(length, first + share * (rank + 1)) for rank in range(ranks)]
        yield [slice(begin, end) for begin, end in zip([first, *ends], ends, strict=False)]
