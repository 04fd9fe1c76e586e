"""Is all of a run still as it was written? `python -m mpipfl.run --verify RUN` reads every file of a run's folder.

Checkpoints, volumes and the partition have checksums. The histories have none: they are compared with the newest whole
checkpoint, which holds them too, `metrics.csv` and `summary.json` with the histories. Nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import h5py

from . import checkpoint, sealed, volumes, warm
from .config import Config, load
from .data.partition import Partition
from .errors import UserError
from .history import History, all_series
from .runfolder import plain
from .volumes import Arrays, Volume

NOT_YET = "is not there: the run has not got so far"


class Finding(NamedTuple):
    """What is known of one file after it was read."""

    name: str
    problem: str | None = None  # None: it is whole
    remark: str = ""


def verify(folder: Path) -> int:
    """Read everything and print a line for each file; the exit code."""
    if not (folder / "config.yaml").exists():
        print(f"{folder} holds no run: it has no config.yaml; name a run's folder, for instance runs/quickstart")
        return 2
    problems = 0
    for found in findings(folder):
        problems += found.problem is not None
        state = "DAMAGED" if found.problem else "       " if found.remark == NOT_YET else "whole  "
        print(f"{state}  {found.name}  {found.problem or found.remark}".rstrip())
    newest, before = (checkpoint.newest(path)[0] for path in (folder, folder / warm.FOLDER))
    goes_on = "no checkpoint is whole: --resume begins anew"
    if newest is not None or before is not None:
        goes_on = f"--resume begins at round {before if newest is None else newest}"
        goes_on += f" of {warm.FOLDER}" if newest is None else ""
    print(f"{folder}: {f'{problems} damaged file(s)' if problems else 'everything is whole'}; {goes_on}")
    return checkpoint.CheckpointError.code if problems else 0


def findings(folder: Path) -> Iterator[Finding]:
    """Every file of the run, in the order in which they depend on each other."""
    config: Config | None = None
    try:
        config = load(folder / "config.yaml")
        yield Finding("config.yaml")
    except UserError as error:
        yield Finding("config.yaml", str(error))
    try:
        Partition.read(folder / "partition.h5")
        yield Finding("partition.h5")
    except UserError as error:
        yield Finding("partition.h5", str(error))
    newest: Path | None = None
    for round in checkpoint.rounds(folder):
        path = checkpoint.path_of(folder, round)
        problem = checkpoint.fault(path)
        if problem is None and config is not None and checkpoint.config_of(folder, round) != config.digest:
            problem = "belongs to other settings than those of config.yaml"
        if problem is None:
            newest = path
        yield Finding(str(path.relative_to(folder)), problem)
    needed = [] if newest is None else needed_by(newest)
    problems = [volume.problem(folder) for volume in needed]
    yield from map(Finding, [volume.name for volume in needed], problems)
    lost = any(problems)
    for path in sorted({*folder.glob("volumes/rounds_*.h5")} - {folder / volume.name for volume in needed}):
        yield Finding(str(path.relative_to(folder)), sealed.fault(path, "volume"), "the newest checkpoint needs it not")
    kept = {} if newest is None or lost else series(folder, newest, needed)
    history = None
    if (folder / "history.h5").exists():
        history, problem = history_of(folder, kept)
        yield Finding("history.h5", problem)
    yield from tables(folder, history, lost)
    if (folder / warm.FOLDER / "config.yaml").exists():
        for found in findings(folder / warm.FOLDER):
            yield found._replace(name=f"{warm.FOLDER}/{found.name}")
    for left in sorted([*folder.glob(".*"), *folder.glob("checkpoints/.*"), *folder.glob("volumes/.*")]):
        yield Finding(str(left.relative_to(folder)), remark="left over by a run that was killed; it can be deleted")


def needed_by(path: Path) -> list[Volume]:
    """The volumes that a whole checkpoint names."""
    with h5py.File(path, "r") as file:
        return volumes.listed(file)


def series(folder: Path, path: Path, needed: list[Volume]) -> Arrays:
    """A whole checkpoint's histories by name, with the rows in its volumes."""
    with h5py.File(path, "r") as file:
        recent = sealed.content(file["history"])
    return volumes.joined([folder / volume.name for volume in needed], recent)


def history_of(folder: Path, kept: Arrays) -> tuple[History | None, str | None]:
    """The histories, and what is wrong with them. A checkpoint may be some rounds older or newer."""
    try:
        found, lost = all_series(folder)
        history = History.of(found)
    except (OSError, KeyError, IndexError, ValueError, TypeError, RuntimeError) as error:
        return None, f"cannot be read ({error})"
    if lost:
        return history, f"needs {', '.join(lost)}"
    for name, values in kept.items():
        if name not in found:
            return history, f"has no {name}, which the newest whole checkpoint has"
        rows = min(len(values), len(found[name]))
        if values[:rows].tobytes() != found[name][:rows].tobytes():
            return history, f"{name} is not what the newest whole checkpoint has"
    return history, None


def tables(folder: Path, history: History | None, lost: bool) -> Iterator[Finding]:
    """What is computed from the histories; some of their rows may be lost."""
    for name, expected in (("metrics.csv", some_metrics if lost else metrics), ("summary.json", last_of_summary)):
        path = folder / name
        if not path.exists():
            yield Finding(name, remark=NOT_YET)
            continue
        try:
            problem = None if history is None else expected(path.read_text(encoding="utf-8"), history)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"cannot be read ({error})"
        yield Finding(name, problem, "" if history else "readable; there are no histories to compare it with")


def metrics(text: str, history: History) -> str | None:
    return None if text == history.table() else "is not what history.h5 says"


def some_metrics(text: str, history: History) -> str | None:
    """A volume that is lost leaves its rounds to metrics.csv alone."""
    return None if set(history.table().splitlines()) <= set(text.splitlines()) else "is not what history.h5 says"


def last_of_summary(text: str, history: History) -> str | None:
    said, known = json.loads(text)["last"], plain(history.figures[-1])
    return None if said == known else "its last round is not the one of history.h5"
