"""The `data` section of a configuration, and the way from a source to every client's train, validation and test data.

`divide` settles who gets which samples; `fill` writes the chosen clients' samples into arrays, as they see them, and
`made` makes those that clients make themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from mpipfl.data.glyphs import Glyphs
from mpipfl.data.keyed import generator
from mpipfl.data.partition import PARTS, Partition, bounds_of
from mpipfl.data.partitions import Division, Iid, Natural, Pooled
from mpipfl.data.samples import MadeSamples, Samples
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
    test: Literal["official"] | Share = Field(
        default=0.2,
        description="Share of test samples, at least one if not 0; or official: the source's own test samples of the "
        "client's classes (subclasses, users), shared with the other clients that have these. All others are train.",
    )
    lists: bool = Field(default=False, description="Divided by the source's own lists (Speech Commands) instead.")
    users: bool = Field(
        default=False,
        description="The shares are of all users (speakers, writers), drawn by the seed, not of each client's samples: "
        "no client is tested on somebody that any client trains on.",
    )

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> Split:
        if self.validation + self.own_test >= 1:
            raise ValueError(
                f"validation + test is {self.validation + self.own_test:g}; it must be less than 1, the rest is train"
            )
        if self.lists and self.model_fields_set & {"validation", "test"}:
            raise ValueError("give lists, or validation and test, not both")
        if self.users and (self.lists or self.test == "official"):
            other = "lists" if self.lists else "test=official"
            raise ValueError(f"give users with shares, or {other}, not both")
        return self

    @property
    def own_test(self) -> float:
        """The share of a client's own samples that it is tested on."""
        return 0.0 if self.test == "official" else self.test

    @property
    def floor(self) -> int:
        """The least samples that make every part non-empty."""
        return int(self.wanted.sum())

    @property
    def wanted(self) -> np.ndarray:
        """Which parts (3) every client has."""
        return np.array([True, self.validation > 0, self.own_test > 0])

    def sizes(self, totals: np.ndarray) -> np.ndarray:
        """(M, 3) samples for train, validation and test; totals of at least `floor` leave none empty."""
        shares = (self.validation, self.own_test)
        parts = [np.maximum(np.rint(totals * share).astype(np.int64), share > 0) for share in shares]
        for part in sorted((0, 1), key=lambda part: -shares[part]):
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
        description="Use at most so many samples, besides official test samples, chosen by the seed; generated sources "
        "make exactly so many.",
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


def divide(data: Data, samples: Samples, seed: int, among: np.ndarray | None = None) -> Partition:
    """Who gets which samples (`among` these, or all) for which part, and how each client sees them: a function of its
    arguments alone."""
    if isinstance(samples, MadeSamples):
        index, sizes = np.empty(0, np.int64), sizes_of(data, samples)
    else:
        index, sizes = shares(data, samples, seed, among)
    group = data.shift.group(data.clients) if samples.groups is None else samples.groups[samples.first_client :]
    rotation = np.array([data.shift.degrees(int(own)) for own in range(int(group.max()) + 1)], np.int64)
    check_square(samples.shape, int(rotation.max()))
    permutations = [data.shift.permutation(own, samples.classes, seed) for own in range(len(rotation))]
    names = None if permutations[0] is None else np.stack([own for own in permutations if own is not None])
    return Partition(index, bounds_of(sizes), group, rotation[group], None if names is None else names[group])


def sizes_of(data: Data, samples: MadeSamples) -> np.ndarray:
    """(M, 3) samples of each part, where clients make their own: the first are for training, the last for testing."""
    kind = data.source.kind
    for wrong, key, advice in (
        (not isinstance(data.partition, Natural), f"partition={data.partition.kind}", "take partition=natural"),
        (data.samples is not None, f"samples={data.samples}", "its own keys say how many a client has; leave it out"),
        (
            data.split.lists or data.split.users or data.split.test == "official",
            "split",
            "give shares of their samples, for instance split.test=0.2",
        ),
    ):
        if wrong:
            raise DataError(f"data.{key}: with data.source={kind} every client makes its own samples; {advice}")
    enough_for_all(samples.sizes, data.split.floor)
    return data.split.sizes(samples.sizes)


def enough_for_all(totals: np.ndarray, floor: int) -> None:
    if (short := np.flatnonzero(totals < floor)).size:
        raise DataError(
            f"client {short[0]} gets {totals[short[0]]} samples and needs at least {floor}, "
            f"one for every part of the split."
        )


def shares(data: Data, samples: Samples, seed: int, among: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """All clients' samples (T,) in client order, each client's by parts, and the parts' sizes (M, 3)."""
    takes = samples.takes
    chosen = np.arange(len(samples)) if among is None else among
    chosen = chosen[chosen % takes == 0]  # the first take of each
    official = np.empty(0, np.int64)
    if data.split.test == "official":
        if samples.is_test is None or not samples.is_test.any():
            raise DataError(
                f"data.split.test=official: the source {data.source.kind} has no test samples of its own. Give a share "
                f"of each client's samples, for instance data.split.test=0.2."
            )
        if isinstance(data.partition, Pooled):
            raise DataError(
                "data.split.test=official with data.partition=pooled: clients would be tested on users they train on. "
                "Give a share, for instance data.split.test=0.2, or take partition=natural."
            )
        official, chosen = np.flatnonzero(samples.is_test), chosen[~samples.is_test[chosen]]
    if data.samples is not None and data.samples // takes < len(chosen):
        chosen = chosen[np.sort(generator(seed, "subset").permutation(len(chosen))[: data.samples // takes])]
    floor = data.split.floor
    pool = samples.pool(chosen)
    divided = data.partition.divide(pool, data.clients, seed, floor)
    totals = np.array([len(share) for share in divided], np.int64)
    enough_for_all(totals, floor)
    shuffled = [generator(seed, "split", client).permutation(share) for client, share in enumerate(divided)]
    sizes = data.split.sizes(totals)
    if data.split.lists:
        shuffled, sizes = as_divided(shuffled, own_division(samples)[chosen], "lists", data.split.wanted)
    elif data.split.users:
        shuffled, sizes = as_divided(shuffled, held_out(data, samples, seed)[chosen], "users", data.split.wanted)
    elif isinstance(data.partition, Pooled):
        assert pool.users is not None
        for client, share in enumerate(shuffled):
            shuffled[client], sizes[client] = by_user(share, pool.users[share], sizes[client])
    elif samples.place is not None:
        place = samples.place[chosen]
        check_running(data, place, samples.reach)
        for client, share in enumerate(shuffled):
            shuffled[client], sizes[client] = in_order(client, share, place[share], samples.reach, sizes[client])
    index = [(chosen[share][:, None] + np.arange(takes)).reshape(-1) for share in shuffled]
    sizes = takes * sizes
    if len(official):
        mark = marks(data.partition, samples)
        tests = [official[np.isin(mark[official], mark[own])] for own in index]
        index = [np.concatenate([own, test]) for own, test in zip(index, tests, strict=True)]
        sizes[:, 2] = [len(test) for test in tests]
    return np.concatenate(index).astype(np.int64), sizes


def marks(partition: Division, samples: Samples) -> np.ndarray:
    """What a partition goes by: each sample's user, subclass or class."""
    own = {"natural": samples.users, "pooled": samples.users, "superclasses": samples.subclasses}
    mark = own.get(partition.kind, samples.labels)
    assert mark is not None  # the partition has refused such a source
    return mark


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


def check_running(data: Data, place: np.ndarray, reach: int) -> None:
    """Where samples overlap, only clients that are users can be kept apart."""
    if not isinstance(data.partition, Natural) and (np.diff(np.sort(place)) < reach).any():
        raise DataError(
            f"data.partition={data.partition.kind}: samples of running text overlap, so that clients would be tested "
            f"on text that others train on. Take partition=natural or pooled, or data.source.every={reach} or more."
        )


def in_order(
    client: int, share: np.ndarray, place: np.ndarray, reach: int, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples of running text as they stand in it, cut into parts without those that reach over a border,
    and the parts' sizes (3)."""
    order = np.argsort(place, kind="stable")
    share, place = share[order], place[order]
    part, kept = np.repeat(np.arange(3), sizes), np.ones(len(share), dtype=bool)
    for border in np.cumsum(sizes)[:2]:
        if 0 < border < len(share):
            kept[border:] &= place[border:] >= place[border - 1] + reach
    left = np.bincount(part[kept], minlength=3)
    if ((left == 0) & (sizes > 0)).any():
        raise DataError(
            f"client {client} has {len(share)} samples of running text, too few for {' and '.join(PARTS)} data without "
            f"text in common. Take a larger data.partition.min_samples."
        )
    return share[kept], left


def own_division(samples: Samples) -> np.ndarray:
    """Each sample's part by the set's own lists."""
    if samples.division is None:
        raise DataError(
            "data.split.lists: this source has no validation_list.txt and testing_list.txt, or knows none; leave it "
            "out, and data.split cuts shares."
        )
    return samples.division


def held_out(data: Data, samples: Samples, seed: int) -> np.ndarray:
    """Each sample's part, where whole users are drawn for validation and testing."""
    if samples.users is None:
        raise DataError(
            f"data.split.users: the source {data.source.kind} does not say whose its samples are; leave it out, and "
            f"data.split cuts shares of each client's samples."
        )
    names, user = np.unique(samples.users, return_inverse=True)
    if len(names) < data.split.floor:
        raise DataError(f"data.split.users: {data.split.floor} parts need as many users, there are {len(names)}.")
    part = np.repeat(np.arange(3), data.split.sizes(np.array([len(names)]))[0])
    return generator(seed, "held-out users").permutation(part)[user]


def as_divided(
    shares: list[np.ndarray], part: np.ndarray, by: str, wanted: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Each client's samples ordered by their parts, and the parts' sizes (M, 3), none empty that is wanted (3)."""
    sizes = np.stack([np.bincount(part[share], minlength=3) for share in shares])
    if (empty := np.argwhere((sizes == 0) & wanted)).size:
        client, which = empty[0]
        whose = "in the set's own division" if by == "lists" else "of users drawn for that part"
        raise DataError(
            f"data.split.{by}: client {client} has no {PARTS[which]} samples {whose}. Take fewer clients, another "
            f"partition, or shares of each client's samples."
        )
    return [share[np.argsort(part[share], kind="stable")] for share in shares], sizes


def fill(
    samples: Samples, partition: Partition, clients: Iterable[int] | np.ndarray, x_out: np.ndarray, y_out: np.ndarray
) -> None:
    """Write the clients' samples, as the clients see them, into their places in x_out (partition.places) and their
    labels into y_out (T,). A sample that several clients share is written by the first of them."""
    _, stored = partition.places
    for client in clients:
        start, end = partition.bounds[client, [0, 3]]
        first, last = np.searchsorted(stored, [start, end])
        pictures = samples.read(partition.index[stored[first:last]], samples.first_client + int(client))
        x_out[first:last] = turned(pictures, int(partition.rotation[client]))
        labels = samples.labels[partition.index[start:end]]
        y_out[start:end] = labels if partition.permutation is None else partition.permutation[client][labels]


def made(samples: MadeSamples, partition: Partition, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The samples that some clients make themselves, client by client, and their labels."""
    starts, ends = partition.bounds[clients, 0], partition.bounds[clients, 3]
    last = np.cumsum(ends - starts)
    x = np.empty((int(last[-1]) if len(clients) else 0, *samples.shape), np.float32)
    y = np.empty(len(x), np.int64)
    for client, end, size in zip(clients.tolist(), last, ends - starts, strict=True):
        x[end - size : end], labels = samples.make(client)
        y[end - size : end] = labels if partition.permutation is None else partition.permutation[client][labels]
    return x, y
