"""What every source of data comes to: labelled samples that can be read by index.

Labels, users and the official split are whole arrays; the samples themselves are read a few at a time, so a source may
draw them, map them from disk or hold them in memory as it likes. Where clients make their samples themselves, there is
nothing but their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpipfl.errors import DataError

if TYPE_CHECKING:
    from mpipfl.data.words import Vocabulary

MANY_CLASSES = 10_000  # more are believed only if there are as many samples


@dataclass(eq=False, kw_only=True)
class Samples:
    """Labelled samples; a uint8 sample x reaches the model as (x / 255 - mean) / std, others as they are."""

    labels: np.ndarray  # (N,) int64
    classes: int
    shape: tuple[int, ...]  # of one sample, channels first
    dtype: np.dtype[Any]  # uint8, float32, or int32 for token ids
    mean: float | tuple[float, ...] = 0.0  # for all channels, or one per channel
    std: float | tuple[float, ...] = 1.0
    users: np.ndarray | None = None  # (N,) int64, 0..U-1: who made the sample, where that is known
    subclasses: np.ndarray | None = None  # (N,) int64: a finer class, of which each label has several
    is_test: np.ndarray | None = None  # (N,) bool: the official split, train first
    division: np.ndarray | None = None  # (N,) int64: the set's own division, 0 train, 1 validation, 2 test
    place: np.ndarray | None = None  # (N,) int64: where in running text a sample begins; other texts are far away
    reach: int = 0  # samples that begin within less of each other have text in common
    takes: int = 1  # so many samples in a row are takes of one thing: they are never divided
    states: np.ndarray | None = None  # (N,) int64: the circumstances that a detector is judged in
    groups: np.ndarray | None = None  # (M,) int64: the clients' groups, where the source makes them differ
    vocabulary: Vocabulary | None = None  # what token ids stand for
    best: dict[str, np.ndarray] | None = None  # the best models by kind, by user, where they are known
    first_client: int = 0  # the number that client 0 has for the source; newcomers come after a run's clients

    def __len__(self) -> int:
        return len(self.labels)

    def pool(self, chosen: np.ndarray) -> Pool:
        """The marks of the samples at `chosen`."""
        marks = (self.labels, self.users, self.subclasses)
        return Pool(*(None if mark is None else mark[chosen] for mark in marks))  # type: ignore[arg-type]

    def fitted(self, train: np.ndarray) -> Samples:
        """The samples once it is settled which of them are training samples: what a source makes from its samples (a
        vocabulary), it makes from those at `train` alone. Most make nothing."""
        return self

    def read(self, indices: np.ndarray, client: int) -> np.ndarray:
        """The samples at `indices` as (n, *shape); most sources look the same to every client."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class MadeSamples(Samples):
    """Samples that every client makes for itself, when they are needed: nobody divides them, and nobody keeps them.

    There may be very many clients, so nothing here is as long as there are samples.
    """

    labels: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # come with the samples
    sizes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (M,) samples of each client

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def make(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """All samples of a client as the network takes them (n, *shape) float32, and their labels (n,)."""
        raise NotImplementedError

    def after(self, clients: int) -> MadeSamples:
        """Those of the clients behind the first ones."""
        later = copy(self)
        later.sizes, later.first_client = self.sizes[clients:], self.first_client + clients
        return later


class Pool(NamedTuple):
    """What a partition sees of the samples it divides."""

    labels: np.ndarray  # (N,) int64
    users: np.ndarray | None = None
    subclasses: np.ndarray | None = None


@dataclass(eq=False, kw_only=True)
class ArraySamples(Samples):
    """Samples in arrays that are read one after the other as if they were one, without making that one."""

    parts: Sequence[np.ndarray] = field(default_factory=list)  # each (N_i, *shape)

    def read(self, indices: np.ndarray, client: int) -> np.ndarray:
        out = np.empty((len(indices), *self.shape), self.dtype)
        start = 0
        for part in self.parts:
            here = (indices >= start) & (indices < start + len(part))
            out[here] = part[indices[here] - start]
            start += len(part)
        return out


def from_parts(
    images: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    classes: int,
    mean: float | tuple[float, ...] = 0.0,
    std: float | tuple[float, ...] = 1.0,
    users: np.ndarray | None = None,
) -> ArraySamples:
    """Join train and, if it is there, test arrays; checked arrays are expected."""
    is_test = np.repeat([False, True], [len(part) for part in labels]) if len(labels) == 2 else None
    return ArraySamples(
        labels=np.concatenate([np.asarray(part, np.int64) for part in labels]),
        classes=classes,
        shape=tuple(images[0].shape[1:]),
        dtype=images[0].dtype,
        mean=mean,
        std=std,
        users=users,
        is_test=is_test,
        parts=list(images),
    )


def checked_labels(labels: np.ndarray, count: int, where: str) -> np.ndarray:
    """Labels as (count,) int64, or a DataError that starts with `where` (file and key)."""
    if labels.ndim != 1:
        raise DataError(f"{where} has shape {labels.shape}; labels must be one-dimensional, one integer per sample.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{where} has type {labels.dtype}; labels must be integers 0, 1, ..., classes - 1.")
    if len(labels) != count:
        raise DataError(f"{where} has {len(labels)} entries for {count} samples; the lengths must be equal.")
    if count and labels.min() < 0:
        raise DataError(f"{where} contains {labels.min()}; labels must be 0 or greater.")
    return labels.astype(np.int64)


def classes_of(labels: np.ndarray, where: str) -> int:
    """How many classes there are when none is missing at the end. Networks and tables have a place for each class, so
    labels far beyond the number of samples are numbers of something else."""
    greatest = int(labels.max(initial=0))
    if greatest >= max(MANY_CLASSES, len(labels)):
        raise DataError(f"{where} has label {greatest} among {len(labels)} samples; labels must be 0 ... classes - 1.")
    return greatest + 1


def checked_samples(x: np.ndarray, where: str) -> np.ndarray:
    """Samples as uint8 or float32 with channels first, or a DataError that starts with `where` (file and key)."""
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{where} has type {x.dtype}; samples must be uint8 (0..255) or floating point.")
    if not 2 <= x.ndim <= 4 or 0 in x.shape:
        raise DataError(
            f"{where} has shape {x.shape}; expected (N, features), (N, H, W), (N, H, W, C) or (N, C, H, W), not empty."
        )
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise DataError(f"{where} contains NaN or infinite values; clean the file first.")
    if x.ndim == 3:
        return x[:, None]
    # (N, H, W, C) is told from (N, C, H, W) by its few channels at the end.
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        return x.transpose(0, 3, 1, 2)
    return x


def mapped(path: Path) -> np.ndarray:
    """A .npy file mapped into memory: the ranks of a node share its pages."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:
        raise DataError(f"{path} cannot be read ({error}).") from error
