"""This process: its arithmetic, threads and allocator, set once at the start."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def tune(threads: int) -> None:
    """One thread per rank unless told otherwise. MKL's products whose bits do not depend on where in memory a matrix
    lies, and so on a client's company: on Intel's processors they do not anyway, on AMD's they do if not told. Memory
    that is kept between steps: glibc by default gives every large block back to the system and takes a page fault for
    each of its pages in the next step."""
    os.environ.setdefault("MKL_CBWR", "AUTO")  # read at the first product
    torch.set_num_threads(threads)
    if sys.platform == "linux" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        try:
            mallopt = ctypes.CDLL("libc.so.6").mallopt
        except (OSError, AttributeError):
            return  # another C library: slower, nothing worse
        mallopt(M_MMAP_THRESHOLD, 1 << 26)
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
        mallopt(M_TOP_PAD, 64 << 20)
