"""HDF5 files that are whole or not there at all, and in which a flipped bit anywhere is found.

A file is written under a temporary name, flushed to disk and renamed. Its first 512 bytes are an HDF5 user block that
holds a hash of all that follows, its seal; any HDF5 reader opens it as it is.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from .files import hdf5, sync, whole

USER_BLOCK = 512
MAGIC = b"mpipfl blake2b of crc32 "
PIECE = 1 << 16  # bytes
LENGTH = 64  # of a seal


@contextmanager
def sealed(path: Path) -> Iterator[h5py.File]:
    """A new file to fill, which is there when it is sealed."""
    with whole(path) as temporary:
        with hdf5(temporary, USER_BLOCK) as file:
            yield file
        seal(temporary)


def seal(path: Path) -> None:
    """Write a file's hash into its user block, found while the disk is at work."""
    with ThreadPoolExecutor(1) as beside:
        flushed = beside.submit(sync, path)
        digest = digest_of(path)
        flushed.result()
    with open(path, "r+b") as raw:
        raw.write(MAGIC + digest)


def digest_of(path: Path) -> bytes:
    """A hash of the CRCs of a file's pieces: a third of the time of hashing everything."""
    total = hashlib.blake2b(digest_size=LENGTH // 2)
    with open(path, "rb") as raw:
        raw.seek(USER_BLOCK)
        while piece := raw.read(PIECE):
            total.update(zlib.crc32(piece).to_bytes(4, "little"))
    return total.hexdigest().encode()


def seal_of(path: Path) -> bytes:
    """What a file's user block says."""
    with open(path, "rb") as raw:
        return raw.read(USER_BLOCK).removeprefix(MAGIC).rstrip(b"\0")


def fault(path: Path, kind: str) -> str | None:
    """What is wrong with a file of this kind, or None if it is whole."""
    try:
        with open(path, "rb") as raw:
            head = raw.read(USER_BLOCK)
        if not head.startswith(MAGIC):
            return f"is not a {kind}, or its beginning is damaged"
        if head[len(MAGIC) :].rstrip(b"\0") != digest_of(path):
            return "is damaged: its content does not match its checksum"
        with h5py.File(path, "r"):
            return None
    except OSError as error:
        return f"cannot be read ({error})"


def content(group: h5py.Group) -> dict[str, np.ndarray]:
    """All data sets of a group by name."""
    found: dict[str, np.ndarray] = {}
    group.visititems(lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None)
    return found
