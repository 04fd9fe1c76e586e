"""Where a file or folder named in a configuration lies."""

from __future__ import annotations

from pathlib import Path

from mpipfl.errors import DataError


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
