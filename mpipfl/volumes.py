"""Rows of histories in files that are written once: `volumes/rounds_00000_00020.h5` has those of rounds 0 to 20.

A file's name and the run say what is in it, so it does not matter if it is written twice. Whoever needs it knows its
seal. A volume that is lost takes its rows with it and nothing else: a run goes on from its newest checkpoint, and the
figures over clients are in `metrics.csv`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from .files import sync
from .sealed import LENGTH, fault, seal_of, sealed

Arrays = dict[str, np.ndarray]
KINDS = ("personal", "global")  # of models
COSTS = ("streams", "uplinks")  # of a round, by the method's `traffic`
ALIGNED = (*KINDS, *COSTS)  # series, by the first part of their names, that have a row for each one of `round`


class Volume(NamedTuple):
    """A file that is there, or was."""

    first: int
    last: int
    seal: bytes = b""

    @property
    def name(self) -> str:
        return f"volumes/rounds_{self.first:05d}_{self.last:05d}.h5"

    def problem(self, folder: Path) -> str | None:
        """What is wrong with the file, or None."""
        found = fault(folder / self.name, "volume")
        if found is None and seal_of(folder / self.name) != self.seal:
            found = "is another run's"
        return found

    def write(self, folder: Path, rows: Arrays) -> bytes:
        """Put rows into the file. Its seal."""
        path = folder / self.name
        if not path.parent.exists():
            path.parent.mkdir()
            sync(folder)
        with sealed(path) as file:
            for name, values in rows.items():
                file[name] = values
        return seal_of(path)


def listed(file: h5py.Group) -> list[Volume]:
    """Those that a checkpoint or a history.h5 names."""
    if "volumes" not in file:
        return []
    rounds, seals = (file["volumes"][name][...].tolist() for name in ("rounds", "seals"))
    return [Volume(first, last, seal) for (first, last), seal in zip(rounds, seals, strict=True)]


def enlist(file: h5py.Group, volumes: list[Volume]) -> None:
    """Name them there."""
    if volumes:
        file["volumes/rounds"] = [[volume.first, volume.last] for volume in volumes]
        file["volumes/seals"] = np.array([volume.seal for volume in volumes], f"S{LENGTH}")


def sound(folder: Path, volumes: Iterable[Volume]) -> tuple[list[Path], list[str]]:
    """The files of volumes that are whole, and what is wrong with the others."""
    paths, problems = [], []
    for volume in volumes:
        problem = volume.problem(folder)
        if problem is None:
            paths.append(folder / volume.name)
        else:
            problems.append(f"{volume.name} {problem}")
    return paths, problems


def names(paths: list[Path], recent: Arrays) -> list[str]:
    """Of all series."""
    found = set(recent)
    for path in paths:
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, item: found.add(name) if isinstance(item, h5py.Dataset) else None)
    return sorted(found)


def series(paths: list[Path], recent: Arrays, name: str) -> np.ndarray:
    """A series' rows in volumes and then the recent ones; NaN where a series began late, in another version."""
    parts: list[np.ndarray] = []
    missing = 0  # rows, until one shows what they look like
    aligned = name.split("/")[0] in ALIGNED
    for part in (*paths, recent):
        if isinstance(part, dict):
            rows, there = part.get(name), len(part.get("round", ()))
        else:
            with h5py.File(part, "r") as file:
                rows = file[name][...] if name in file else None
                there = len(file["round"]) if "round" in file else 0
        if rows is None:
            missing += there if aligned else 0
            continue
        if missing:
            parts.append(np.full((missing, *rows.shape[1:]), np.nan, rows.dtype))
            missing = 0
        parts.append(rows)
    if missing:
        parts.append(np.full((missing, *parts[-1].shape[1:]), np.nan, parts[-1].dtype))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def joined(paths: list[Path], recent: Arrays) -> Arrays:
    """All series with their rows in volumes."""
    return {name: series(paths, recent, name) for name in names(paths, recent)}


def prune(folder: Path, volumes: list[Volume]) -> None:
    """Leave these only: a run that had gone back to an earlier checkpoint has bound others."""
    kept = {folder / volume.name for volume in volumes}
    for path in folder.glob("volumes/rounds_*.h5"):
        if path not in kept:
            path.unlink(missing_ok=True)
