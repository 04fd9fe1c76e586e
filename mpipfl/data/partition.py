"""A finished partition: which sample belongs to which client and part, and how the client sees it.

It is the `partition.h5` of a run's folder: written once, whole or not at all, and checked by its digest when read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from mpipfl.errors import DataError
from mpipfl.files import hdf5, whole

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Partition:
    """All clients' sample indices in one array, client by client, and in each train, validation, test. Training and
    validation samples are one client's only; official test samples may be several clients'. Where the clients make
    their samples themselves, there is nothing to point at: how many are for which part says all."""

    index: np.ndarray  # (T,) int64 into the source's samples; (0,) where clients make their own
    bounds: np.ndarray  # (M, 4) int64: start, end of train, end of validation, end
    group: np.ndarray  # (M,) int64
    rotation: np.ndarray  # (M,) int64 degrees, counter-clockwise
    permutation: np.ndarray | None = None  # (M, classes) int64: the label that stands for each class

    @property
    def clients(self) -> int:
        return len(self.bounds)

    @property
    def samples(self) -> int:
        """T, of all clients together."""
        return int(self.bounds[-1, 3])

    @property
    def made(self) -> bool:
        """Whether the clients make their samples themselves."""
        return not len(self.index)

    @property
    def n_train(self) -> np.ndarray:
        """(M,) training samples of each client."""
        return self.bounds[:, 1] - self.bounds[:, 0]

    @property
    def n_validation(self) -> np.ndarray:
        """(M,) validation samples of each client."""
        return self.bounds[:, 2] - self.bounds[:, 1]

    @property
    def n_test(self) -> np.ndarray:
        """(M,) test samples of each client."""
        return self.bounds[:, 3] - self.bounds[:, 2]

    @property
    def training(self) -> np.ndarray:
        """The indices of all clients' training samples, where samples have an index."""
        if self.made:
            return self.index
        return np.concatenate([self.index[start:end] for start, end in self.bounds[:, :2]])

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each entry of `index` is stored (T,), and which entry is stored at each place: a test sample that
        several clients see alike has one place, in the order of first appearance."""
        if np.bincount(self.index, minlength=1).max() <= 1:
            return np.arange(len(self.index)), np.arange(len(self.index))
        seen = self.index * 4 + np.repeat(self.rotation // 90, np.diff(self.bounds[:, ::3])[:, 0])
        _, first, place = np.unique(seen, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        return number[place], first[order]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all arrays: equal for equal partitions, on any machine."""
        total = hashlib.sha256()
        for array in (self.index, self.bounds, self.group, self.rotation, self.permutation):
            if array is not None:
                total.update(repr(array.shape).encode())
                total.update(np.ascontiguousarray(array, "<i8").tobytes())
        return total.hexdigest()

    def write(self, path: Path, source: str = "") -> None:
        """Write atomically; `source` describes the source (JSON) for the reader."""
        try:
            with whole(path) as temporary, hdf5(temporary) as file:
                file.attrs.update(source=source, clients=self.clients, digest=self.digest)
                if self.made:
                    self._write_sizes(file)
                for client in range(0 if self.made else self.clients):
                    self._write_client(file.create_group(f"clients/{client}"), client)
        except OSError as error:
            raise DataError(f"{path} cannot be written ({error}).") from error

    def _write_sizes(self, file: h5py.File) -> None:
        arrays = {"sizes": np.diff(self.bounds), "group": self.group, "rotation": self.rotation}
        if self.permutation is not None:
            arrays["label_permutation"] = self.permutation
        for name, values in arrays.items():
            file.create_dataset(name, data=values, dtype="<i4", chunks=True, shuffle=True, compression=1)

    def _write_client(self, group: h5py.Group, client: int) -> None:
        for number, part in enumerate(PARTS):
            start, end = self.bounds[client, number : number + 2]
            group.create_dataset(part, data=self.index[start:end], dtype="<i8")
        group.attrs["group"] = self.group[client]
        group.attrs["rotation"] = self.rotation[client]
        if self.permutation is not None:
            group.attrs["label_permutation"] = self.permutation[client]

    @classmethod
    def read(cls, path: Path) -> Partition:
        """Read what `write` wrote; a damaged or altered file is a DataError."""
        try:
            with h5py.File(path, "r") as file:
                digest = str(file.attrs["digest"])
                partition = cls._read_sizes(file) if "sizes" in file else cls._read_clients(file)
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise DataError(
                f"{path} cannot be read as a partition ({error}); delete it to have it made anew."
            ) from error
        if partition.digest != digest:
            raise DataError(
                f"{path} does not match its digest: it was damaged or altered. Delete it to have it made anew."
            )
        return partition

    @classmethod
    def _read_sizes(cls, file: h5py.File) -> Partition:
        group, rotation = (file[name][...].astype(np.int64) for name in ("group", "rotation"))
        permutation = file["label_permutation"][...].astype(np.int64) if "label_permutation" in file else None
        return cls(np.empty(0, np.int64), bounds_of(file["sizes"][...].astype(np.int64)), group, rotation, permutation)

    @classmethod
    def _read_clients(cls, file: h5py.File) -> Partition:
        groups = [file[f"clients/{client}"] for client in range(int(file.attrs["clients"]))]
        pieces = [group[part][...] for group in groups for part in PARTS]
        permuted = [group.attrs["label_permutation"] for group in groups if "label_permutation" in group.attrs]
        return cls(
            index=np.concatenate(pieces).astype(np.int64),
            bounds=bounds_of(np.array([len(piece) for piece in pieces]).reshape(-1, len(PARTS))),
            group=np.array([group.attrs["group"] for group in groups], np.int64),
            rotation=np.array([group.attrs["rotation"] for group in groups], np.int64),
            permutation=np.array(permuted, np.int64) if permuted else None,
        )


def bounds_of(sizes: np.ndarray) -> np.ndarray:
    """(M, 4) where each client's parts start and end, from their sizes (M, 3)."""
    ends = np.cumsum(sizes.ravel(), dtype=np.int64).reshape(sizes.shape)
    return np.column_stack([ends[:, 0] - sizes[:, 0], ends])
