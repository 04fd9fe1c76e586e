"""The `data` section of a configuration, and the way from a source to every client's train, validation and test data.

`divide` settles who gets which samples, `fill` writes the chosen clients' samples into arrays, as they see
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import Field, model_validator

from mpipfl.data.glyphs import Glyphs
from mpipfl.data.keyed import generator
from mpipfl.data.partition import PARTS, Partition
from mpipfl.data.partitions import Division, Iid, Pooled
from mpipfl.data.samples import Samples
from mpipfl.data.shifts import AnyShift, NoShift, check_square, turned
from mpipfl.data.sources import Source
from mpipfl.errors import DataError
from mpipfl.section import Count, Number, Section

# kind -> the section class of each source
SOURCES: dict[str, type[Section]] = {
    get_args(source.model_fields["kind"].annotation)[0]: source for source in get_args(get_args(Source)[0])
}


Share = Annotated[float, Number, Field(ge=0, lt=1)]


class Split(Section):
    """Each client's own division into training, validation and test data."""

    validation: Share = Field(default=0.1, description="Share of validation samples; at least one if not 0.")
    test: Share = Field(default=0.2, description="Share of test samples; at least one if not 0.")
    official: bool = Field(default=False, description="The set's own division instead (lists of Speech Commands).")

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> Split:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation + test is {self.validation + self.test:g}; it must be less than 1, the rest is train"
            )
        if self.official and self.model_fields_set & {"validation", "test"}:
            raise ValueError("give official, or the shares validation and test, not both")
        return self

    @property
    def floor(self) -> int:
        """The least samples that make every part non-empty."""
        return 1 + (self.validation > 0) + (self.test > 0)

    def sizes(self, totals: np.ndarray) -> np.ndarray:
        """(M, 3) samples for train, validation and test; totals of at least `floor` leave none empty."""
        parts = [
            np.maximum(np.rint(totals * share).astype(np.int64), share > 0) for share in (self.validation, self.test)
        ]
        for part in sorted((0, 1), key=lambda part: -(self.validation, self.test)[part]):
            # Rounding up may have taken the last training sample of a tiny client: the greater part returns it.
            missing = np.maximum(1 - (totals - parts[0] - parts[1]), 0)
            parts[part] = parts[part] - np.minimum(missing, np.maximum(parts[part] - 1, 0))
        return np.stack([totals - parts[0] - parts[1], *parts], 1)


class Data(Section):
    """What the clients learn from: a source, its division over clients, and a shift."""

    source: Source = Field(default=Glyphs(), description="Where the samples come from.")
    root: Path | None = Field(
        default=None, description="Folder of the data sets; by default $MPIPFL_DATA, else ~/.cache/mpipfl/data."
    )
    samples: Count | None = Field(
        default=None,
        description="Use at most so many samples, chosen by the seed; generated sources make exactly so many.",
    )
    clients: Count = Field(default=20, description="Number of clients.")
    partition: Division = Field(default=Iid(), description="How samples are divided over clients.")
    shift: AnyShift = Field(default=NoShift(), description="How groups of clients see the data differently.")
    split: Split = Field(default=Split(), description="Each client's validation and test shares.")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        """A bare word is a kind, and a source's own keys may stand beside `source`."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        for name in ("source", "partition", "shift"):
            if isinstance(value.get(name), str):
                value[name] = {"kind": value[name]}
        source = value.get("source", {"kind": "glyphs"})
        if isinstance(source, dict) and source.get("kind") in SOURCES:
            own = SOURCES[source["kind"]].model_fields
            # `split: byclass` names a part of EMNIST, `split: {test: 0.2}` the clients' shares.
            moved = {key for key in value if key in own and key not in cls.model_fields}
            moved |= {"split"} if isinstance(value.get("split"), str) else set()
            if twice := sorted(moved & set(source)):
                raise ValueError(f"{twice[0]} is given both in source and beside it; give it once")
            value["source"] = source | {key: value.pop(key) for key in sorted(moved)}
        return value

    @property
    def folder(self) -> Path:
        """Where the data sets are kept."""
        root = self.root or os.environ.get("MPIPFL_DATA") or "~/.cache/mpipfl/data"
        return Path(root).expanduser()

    def open(self, seed: int) -> Samples:
        """The source's samples."""
        return self.source.open(self.folder, seed, self.clients, self.samples)


def divide(data: Data, samples: Samples, seed: int) -> Partition:
    """Who gets which samples for which part, and how each client sees them: a function of its arguments alone."""
    takes = samples.takes
    chosen = np.arange(0, len(samples), takes)  # the first take of each
    if data.samples is not None and data.samples < len(samples):
        chosen = chosen[np.sort(generator(seed, "subset").permutation(len(chosen))[: data.samples // takes])]
    floor = data.split.floor
    pool = samples.pool(chosen)
    shares = data.partition.divide(pool, data.clients, seed, floor)
    totals = np.array([len(share) for share in shares], np.int64)
    if (short := np.flatnonzero(totals < floor)).size:
        raise DataError(
            f"client {short[0]} gets {totals[short[0]]} samples and needs at least {floor}, "
            f"one for every part of the split."
        )
    shuffled = [generator(seed, "split", client).permutation(share) for client, share in enumerate(shares)]
    sizes = data.split.sizes(totals)
    if data.split.official:
        shuffled, sizes = as_published(shuffled, samples, chosen)
    elif isinstance(data.partition, Pooled):
        assert pool.users is not None
        for client, share in enumerate(shuffled):
            shuffled[client], sizes[client] = by_user(share, pool.users[share], sizes[client])
    ends = np.cumsum(totals)
    bounds = np.column_stack([ends - totals, (ends - totals)[:, None] + np.cumsum(sizes, 1)])
    index = chosen[np.concatenate(shuffled)][:, None] + np.arange(takes)
    group = data.shift.group(data.clients) if samples.groups is None else samples.groups
    rotation = np.array([data.shift.degrees(int(own)) for own in range(int(group.max()) + 1)], np.int64)
    check_square(samples.shape, int(rotation.max()))
    permutations = [data.shift.permutation(own, samples.classes, seed) for own in range(len(rotation))]
    names = None if permutations[0] is None else np.stack([own for own in permutations if own is not None])
    return Partition(
        index=index.reshape(-1).astype(np.int64),
        bounds=takes * bounds.astype(np.int64),
        group=group,
        rotation=rotation[group],
        permutation=None if names is None else names[group],
    )


def by_user(share: np.ndarray, users: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples ordered such that no user is in two parts, and the parts' sizes (3), as near to those wished
    for as whole users allow: the greatest users first, each to the part that lacks most, none left empty."""
    names, first, user, counts = np.unique(users, return_index=True, return_inverse=True, return_counts=True)
    lack, filled, part = sizes.copy(), sizes == 0, np.zeros(len(names), np.int64)
    order = np.lexsort((first, -counts))  # `first` is random, as the samples are shuffled
    for left, own in zip(range(len(names), 0, -1), order, strict=True):
        open_to = ~filled if left == np.count_nonzero(~filled) else sizes > 0
        part[own] = np.argmax(np.where(open_to, lack, lack.min() - 1))
        lack[part[own]] -= counts[own]
        filled[part[own]] = True
    where = part[user]
    return share[np.argsort(where, kind="stable")], np.bincount(where, minlength=3)


def as_published(shares: list[np.ndarray], samples: Samples, chosen: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Each client's samples ordered by the set's own division, and the parts' sizes (M, 3)."""
    if samples.official is None:
        raise DataError(
            "data.split.official: this source has no validation_list.txt and testing_list.txt, or knows none; leave it "
            "out, and data.split cuts shares."
        )
    part = samples.official[chosen]
    sizes = np.stack([np.bincount(part[share], minlength=3) for share in shares])
    if (empty := np.argwhere(sizes == 0)).size:
        client, which = empty[0]
        raise DataError(
            f"data.split.official: client {client} has no {PARTS[which]} samples in the set's own division. Take fewer "
            f"clients, another partition, or shares."
        )
    return [share[np.argsort(part[share], kind="stable")] for share in shares], sizes


def fill(
    samples: Samples, partition: Partition, clients: Iterable[int] | np.ndarray, x_out: np.ndarray, y_out: np.ndarray
) -> None:
    """Write the clients' samples into their rows of x_out (T, *shape) and y_out (T,), as the clients see them."""
    for client in clients:
        start, end = partition.bounds[client, [0, 3]]
        indices = partition.index[start:end]
        x_out[start:end] = turned(samples.read(indices, int(client)), int(partition.rotation[client]))
        labels = samples.labels[indices]
        y_out[start:end] = labels if partition.permutation is None else partition.permutation[client][labels]
