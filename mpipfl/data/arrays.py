"""A source for one's own data: a file of plain arrays, .npz or HDF5.

Nothing in the file is trusted: pickles are never loaded, and whatever cannot be used is reported by file and key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from pydantic import Field

from mpipfl.data.places import check_size, find
from mpipfl.data.samples import Samples, checked_labels, checked_samples, classes_of, from_parts
from mpipfl.errors import DataError
from mpipfl.section import Count, Section

LAYOUT = "x_train and y_train, with or without x_test and y_test; or x and y, with or without user"
KEYS = ("x_train", "y_train", "x_test", "y_test", "x", "y", "user")


class Arrays(Section):
    """One's own data: arrays in an .npz or HDF5 file."""

    kind: Literal["arrays"] = "arrays"
    path: Path = Field(
        description=f"The .npz, .h5 or .hdf5 file, relative to data.root or the working directory. It holds {LAYOUT}."
    )
    classes: Count | None = Field(default=None, description="Number of classes; by default the greatest label + 1.")
    mean: float | tuple[float, ...] = Field(
        default=0.0,
        description="uint8 samples reach the model as (x / 255 - mean) / std; one number or one per channel.",
    )
    std: float | tuple[float, ...] = Field(default=1.0, description="See mean.")

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        path = find("data.source.path", self.path, root)
        arrays = read_arrays(path)
        if "x_train" in arrays or "y_train" in arrays:
            parts = ["_train"] + (["_test"] if "x_test" in arrays or "y_test" in arrays else [])
        else:
            parts = [""]
        images, labels = [], []
        for part in parts:
            for key in (f"x{part}", f"y{part}"):
                if key not in arrays:
                    raise DataError(
                        f"{path} has no {key}; it holds {sorted(arrays) or 'nothing known'}. Needed: {LAYOUT}."
                    )
            images.append(checked_samples(arrays[f"x{part}"], f"{path}: x{part}"))
            labels.append(checked_labels(arrays[f"y{part}"], len(images[-1]), f"{path}: y{part}"))
        first, last = images[0], images[-1]
        if first.shape[1:] != last.shape[1:] or first.dtype != last.dtype:
            raise DataError(
                f"{path}: x_test has samples of {last.dtype} {last.shape[1:]}, "
                f"x_train of {first.dtype} {first.shape[1:]}."
            )
        users = (
            checked_users(arrays["user"], len(first), f"{path}: user") if parts == [""] and "user" in arrays else None
        )
        return from_parts(images, labels, self._classes(labels, path), *self._scale(first, path), users)

    def _classes(self, labels: list[np.ndarray], path: Path) -> int:
        greatest = max(int(part.max()) for part in labels)
        if self.classes is not None and greatest >= self.classes:
            raise DataError(
                f"{path} has label {greatest}; with classes: {self.classes} labels end at {self.classes - 1}."
            )
        return self.classes or classes_of(np.concatenate(labels), str(path))

    def _scale(self, x: np.ndarray, path: Path) -> tuple[Any, Any]:
        for name, value in (("mean", self.mean), ("std", self.std)):
            if isinstance(value, tuple) and (x.ndim != 4 or len(value) != x.shape[1]):
                raise DataError(
                    f"data.source.{name} has {len(value)} values; {path} has samples of shape {x.shape[1:]}."
                )
        if not np.all(np.isfinite([*np.atleast_1d(self.mean), *np.atleast_1d(self.std)])) or not np.all(
            np.asarray(self.std) > 0
        ):
            raise DataError(f"data.source.std must be greater than 0 and mean finite, not {self.std} and {self.mean}.")
        return self.mean, self.std


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the known keys that a file holds."""
    if path.suffix not in (".npz", ".h5", ".hdf5"):
        raise DataError(f"{path}: unknown ending '{path.suffix}'; expected .npz, .h5 or .hdf5.")
    key = ""
    try:
        if path.suffix == ".npz":
            arrays = {}
            with np.load(path, allow_pickle=False) as file:
                for key in [key for key in KEYS if key in file.files]:
                    arrays[key] = file[key]
            return arrays
        with h5py.File(path, "r") as file:
            return {key: _dataset(file[key]) for key in KEYS if key in file}
    except Exception as error:  # a foreign file can fail in any way, and all of them mean the same to the user
        where = f"{path}: {key}" if key else str(path)
        raise DataError(
            f"{where} cannot be read ({error}); the file is damaged or holds other than plain arrays."
        ) from error


def _dataset(dataset: Any) -> np.ndarray:
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{dataset.name} is a group, not a data set")
    check_size(dataset)
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.asarray(dataset.asstr()[...], dtype=np.str_)
    return np.asarray(dataset[...])


def checked_users(users: np.ndarray, count: int, where: str) -> np.ndarray:
    """Users as (count,) int64 numbers 0..U-1 in the order of their sorted names."""
    if users.shape != (count,):
        raise DataError(f"{where} has shape {users.shape} for {count} samples; expected one user per sample.")
    if users.dtype.kind not in "iuSU":
        raise DataError(f"{where} has type {users.dtype}; users must be integers or strings.")
    return np.unique(users, return_inverse=True)[1].astype(np.int64)
