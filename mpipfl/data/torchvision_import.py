"""Imports torchvision.datasets, also where torchvision was built for another torch than the one installed.

A CUDA build of torchvision beside a CPU build of torch fails at import, because two operators were never registered.
Data sets need neither, so their schemas are declared after such a failure; a good install is left alone.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from mpipfl.errors import DataError

_kept: list[Any] = []  # the operators live only as long as the library object that declares them


def datasets() -> Any:
    """The module torchvision.datasets; torchvision is imported at the first call, never before."""
    try:
        try:
            return importlib.import_module("torchvision.datasets")
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            _declare_operators()
            return importlib.import_module("torchvision.datasets")
    except Exception as error:
        raise DataError(
            f"torchvision cannot be imported ({error}). Install the torchvision that belongs to your torch "
            f"(pip install torchvision), or use data.source=glyphs or arrays, which do without."
        ) from error


def _declare_operators() -> None:
    import torch

    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # half imported
    library = torch.library.Library("torchvision", "FRAGMENT")
    _kept.append(library)
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
