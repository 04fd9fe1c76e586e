"""Where a file or folder named in a configuration lies, and whether it can hold what it says."""

from __future__ import annotations

import os
from pathlib import Path

import h5py

from mpipfl.errors import DataError

COMPRESSION = 1100  # what gzip gets at most out of a byte


def find(key: str, path: Path, root: Path, inside: str = "") -> Path:
    """The path as it is if absolute, else under the data sets' root, else under the working directory; a folder can be
    told by what must be inside."""
    path = path.expanduser()
    tried = [path] if path.is_absolute() else [root / path, Path.cwd() / path]
    for candidate in tried:
        if (candidate / inside).is_dir() if inside else candidate.is_file():
            return candidate
    what = "folder" if inside else "file"
    missing = " nor at ".join(str(candidate / inside) for candidate in tried)
    raise DataError(f"{key}: no {what} at {missing}. Put it there, or point data.root (or MPIPFL_DATA) at a copy.")


def check_size(dataset: h5py.Dataset) -> None:
    """What was never written of an HDF5 data set takes no room in the file, but memory when it is read."""
    size = os.path.getsize(dataset.file.filename)
    if dataset.nbytes > COMPRESSION * size:
        raise ValueError(f"{dataset.name} declares {dataset.nbytes / 1e9:.1f} GB in a file of {size / 1e6:.1f} MB")
