"""Files that are written whole or not at all, also on a full disk."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which becomes `path` in one step when all went well."""
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")  # processes may share a folder
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Sink(io.FileIO):
    """A file for HDF5 to write to that takes everything, and says in the end what went wrong. HDF5 cannot close a file
    that it could not write: it keeps it open, and ends the process with a segmentation fault."""

    problem: OSError | None = None

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self.problem is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.problem = error
        return size

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.problem = self.problem or error
            return self.tell() if size is None else size

    def settle(self) -> None:
        self.close()
        if self.problem is not None:
            raise self.problem


@contextmanager
def hdf5(path: Path, user_block: int = 0) -> Iterator[h5py.File]:
    """A new HDF5 file; what could not be written is raised at the end."""
    sink = Sink(path, "w+")
    with sink, h5py.File(sink, "w", userblock_size=user_block) as file:
        yield file
    sink.settle()
