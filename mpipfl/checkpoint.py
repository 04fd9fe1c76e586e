"""The complete state of a run in one sealed HDF5 file per kept round.

`/server/<field>`; `/clients/<field>`, a row for each client in `/active`, which are all that have ever been in a round,
and `/first/<field>`, what all others have; `/history/...`, of which what was found `once` has that attribute, and
`/figures`, the table of metrics.csv; `/volumes`, which files have the history's earlier rows, and their seals;
attributes `round`, `config` and `clients`, how many there are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from . import sealed, volumes
from .comm import Comm
from .errors import UserError
from .history import History, Record, columns
from .states import States

NAME = re.compile(r"^round_(\d+)\.h5$")


class CheckpointError(UserError):
    """A checkpoint that cannot be written or used."""

    code = 5


def path_of(folder: Path, round: int) -> Path:
    return folder / "checkpoints" / f"round_{round:05d}.h5"


def write(folder: Path, round: int, server: Any, states: States, history: History, config: str, comm: Comm) -> None:
    """Write a round's state; every rank must call. On failure rank 0 raises after all ranks have sent their rows."""
    path = path_of(folder, round)
    rows = ((name, *block) for i, name in enumerate(states.kind._fields) for block in states.blocks(comm, i))
    if not comm.is_server:
        exhaust(rows)
        return
    try:
        path.parent.mkdir(exist_ok=True)  # not the run's folder: what is missing there could not be made good
        with sealed.sealed(path) as file:
            file.attrs.update(round=round, config=config, clients=states.clients)
            for name, field in zip(server._fields, server, strict=True):
                file[f"server/{name}"] = field.detach().cpu().numpy()
            write_history(file, history.record())
            if states.fields:
                file["active"] = np.flatnonzero(states.active)
            for name, field in zip(states.kind._fields, states.first, strict=True):
                file[f"first/{name}"] = field.cpu().numpy()
                file.create_dataset(f"clients/{name}", (states.active.sum(), *field.shape), file[f"first/{name}"].dtype)
            for name, start, some in rows:
                file[f"clients/{name}"][start : start + len(some)] = some
    except OSError as error:
        exhaust(rows)  # the other ranks send them in any case
        raise CheckpointError(f"round {round}: no checkpoint could be written to {path} ({error})") from error


def exhaust(rows: Iterator[Any]) -> None:
    for _ in rows:
        pass


def write_history(file: h5py.File, history: Record) -> None:
    group = file.create_group("history")
    for name, values in (history.rows | history.once).items():
        group[name] = values
    for name in history.once:
        group[name].attrs["once"] = True
    names = columns(history.figures)
    file["figures"] = [[row.get(name, np.nan) for name in names] for row in history.figures]
    file["figures"].attrs["columns"] = names
    volumes.enlist(file, history.volumes)


def read_history(file: h5py.File) -> Record:
    found = sealed.content(file["history"])
    if found and "figures" not in file:
        raise outdated(file)
    once = {name: values for name, values in found.items() if file["history"][name].attrs.get("once")}
    rows = {name: values for name, values in found.items() if name not in once}
    names = file["figures"].attrs["columns"]
    figures = [dict(zip(names, row, strict=True)) for row in file["figures"][...].tolist()]
    return Record(rows, once, [{**row, "round": int(row["round"])} for row in figures], volumes.listed(file))


def fault(path: Path) -> str | None:
    """What is wrong with a checkpoint file, or None if it is whole."""
    problem = sealed.fault(path, "checkpoint")
    if problem is not None:
        return problem
    try:
        with h5py.File(path, "r") as file:
            file.attrs["round"], file.attrs["config"]
    except (OSError, KeyError) as error:
        return f"cannot be read ({error})"
    return None


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """The newest whole checkpoint's round, and a line for each damaged one that was passed over."""
    passed: list[str] = []
    for round in reversed(rounds(folder)):
        problem = fault(path_of(folder, round))
        if problem is None:
            return round, passed
        passed.append(f"{path_of(folder, round)} {problem}; trying the one before it")
    return None, passed


def read(folder: Path, round: int, server: Any, states: States) -> tuple[Any, Record]:
    """A whole checkpoint's server state and history; the hosted clients' rows go into `states`."""
    with h5py.File(path_of(folder, round), "r") as file:
        fields = [
            torch.from_numpy(np.asarray(file[f"server/{n}"][...])).to(f)
            for n, f in zip(server._fields, server, strict=True)
        ]
        if states.fields and "active" not in file:
            raise outdated(file)
        if states.fields:
            read_clients(file, states)
        return type(server)(*fields), read_history(file)


def outdated(file: h5py.File) -> CheckpointError:
    return CheckpointError(f"{file.filename} is an older version's; start the run anew (--overwrite)")


def read_clients(file: h5py.File, states: States) -> None:
    """The rows of those clients that are hosted here."""
    groups = [(file[f"first/{name}"], file[f"clients/{name}"]) for name in states.kind._fields]
    states.first = [torch.from_numpy(np.asarray(first[()])).to(states.device) for first, _ in groups]
    ids = file["active"][...]
    states.active[ids] = True
    here = np.flatnonzero(np.isin(ids, states.hosted))
    for start in range(0, len(here), 1000):
        some = here[start : start + 1000]
        new = [torch.from_numpy(np.asarray(rows[some])) for _, rows in groups]
        states.put(ids[some], new, torch.ones(len(some), dtype=torch.bool))


def server(folder: Path, round: int, kind: type[Any]) -> Any:
    """A whole checkpoint's server state alone, a NamedTuple of this kind."""
    with h5py.File(path_of(folder, round), "r") as file:
        return kind(*(torch.from_numpy(np.asarray(file[f"server/{name}"][...])) for name in kind._fields))


def rows(folder: Path, round: int, kind: type[Any]) -> Iterator[Any]:
    """A whole checkpoint's clients, one after the other, each a NamedTuple of this kind."""
    with h5py.File(path_of(folder, round), "r") as file:
        groups = [(file[f"first/{name}"], file[f"clients/{name}"]) for name in kind._fields]
        ids = file["active"][...] if groups else np.empty(0, np.int64)
        place = np.full(int(file.attrs["clients"]) if groups else 0, -1)
        place[ids] = np.arange(len(ids))
        for at in place:
            yield kind(*(torch.from_numpy(np.asarray(first[()] if at < 0 else some[at])) for first, some in groups))


def config_of(folder: Path, round: int) -> str:
    with h5py.File(path_of(folder, round), "r") as file:
        return str(file.attrs["config"])


def prune(folder: Path, keep: int, newest: int, keep_every: int = 0) -> None:
    """Leave the newest `keep` checkpoints up to this round, those of every `keep_every`-th round, and round 0. Later
    ones are damaged: a run would have gone on from there."""
    for round in [r for r in rounds(folder) if 0 < r <= newest][:-keep]:
        if not (keep_every and round % keep_every == 0):
            path_of(folder, round).unlink(missing_ok=True)


def rounds(folder: Path) -> list[int]:
    found = folder / "checkpoints"
    return sorted(int(m[1]) for name in (os.listdir(found) if found.is_dir() else ()) if (m := NAME.match(name)))
