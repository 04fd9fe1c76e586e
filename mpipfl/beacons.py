"""How nodes see each other: a file in the run's folder for each, whose time is new as long as a rank there is well.

Ranks of one node see each other in memory. Where a whole node stands still, or its only rank, nobody there can tell.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Beacons:
    """The files of all nodes; a node goes by a number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "alive"

    def light(self, node: int) -> bool:
        """Renew a node's file; whether the file system took it (it needs no room)."""
        try:
            self.folder.mkdir(exist_ok=True)
            self.file(node).touch()
            return True
        except OSError:
            return False

    def seen(self, node: int) -> int | None:
        """A number that is another one when the file was renewed; None where there is no file."""
        try:
            with open(self.file(node), "rb") as file:  # network file systems ask the server when a file is opened
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return None

    def put_out(self, node: int) -> None:
        """Not to be looked at any more."""
        with contextlib.suppress(OSError):
            self.file(node).unlink()
            self.folder.rmdir()  # the last one

    def file(self, node: int) -> Path:
        return self.folder / f"node_{node}"
