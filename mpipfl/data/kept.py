"""Arrays that take long to make, kept on disk: written part by part, whole or not at all, and mapped when read.

Several processes may make the same file at once: each writes a temporary one of its own, and the last to finish puts
the same content in its place again. Where nothing can be written, the array is made in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mpipfl.data.samples import mapped
from mpipfl.errors import DataError
from mpipfl.files import whole


def kept(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The array that the parts, one after the other, make up; from the file if it is there."""
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole(path) as temporary, open(temporary, "wb") as stream:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                for part in parts():
                    stream.write(np.ascontiguousarray(part, dtype).data)
        except OSError:  # a folder that cannot be written to, a full disk
            return in_memory(shape, dtype, parts())
    found = mapped(path)
    if found.shape != shape or found.dtype != dtype:
        raise DataError(f"{path} holds other samples than it should; delete it to have it made anew.")
    return found


def in_memory(shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterable[np.ndarray]) -> np.ndarray:
    out, start = np.empty(shape, dtype), 0
    for part in parts:
        out[start : start + len(part)] = part
        start += len(part)
    return out
