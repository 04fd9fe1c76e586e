"""The shared suite: what every method must hold, whatever it computes. A new method joins with one line in METHODS."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpipfl import warm, world
from mpipfl.comm import Comm
from mpipfl.config import Config, check
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder

METHODS: dict[str, dict[str, Any]] = {
    "local": {"kind": "local"},
    "fedavg": {"kind": "fedavg"},
    "fedavg-equal": {"kind": "fedavg", "weights": "equal"},
    "fedprox": {"kind": "fedprox", "mu": 0.1},
    "oracle": {"kind": "oracle"},
    "scaffold": {"kind": "scaffold", "server_lr": 0.7},
    "ditto": {"kind": "ditto", "lambda": 0.5, "personal_steps": 3},
    "pfedme": {"kind": "pfedme", "lambda": 2, "inner_steps": 2, "beta": 0.8},
    "perfedavg-fo": {"kind": "perfedavg", "variant": "first_order"},
    "perfedavg-hf": {"kind": "perfedavg", "variant": "hessian_free", "adapt_steps": 2},
    "fedper": {"kind": "fedper"},
    "fedrep": {"kind": "fedrep", "head_epochs": 2},
    "pfedbayes": {"kind": "pfedbayes", "zeta": 0.1},  # with 10 it all but diverges on a handful of samples
    "pfedbayes-adam": {"kind": "pfedbayes", "optimizer": "adam"},
    "ifca": {"kind": "ifca", "k": 2},
    "cfl": {"kind": "cfl", "eps1": 5, "eps2": 0.01},
    "fedfomo": {"kind": "fedfomo"},
    "fedfomo-few": {"kind": "fedfomo", "models": 1, "epsilon": 0.5},
    "selffl": {"kind": "selffl", "l_max": 6, "smoothing": 1.0},
    "selffl-all": {"kind": "selffl", "l_max": 6, "others": "all", "step_rule": "gradient", "weights": "samples"},
    "selffl-clusters": {"kind": "selffl", "l_max": 6, "level": "cluster"},
    "selffl-augmented": {
        "kind": "selffl_augmented",
        "l_max": 3,
        "longest": 6,
        "stretch": 3,
        "clusters": 2,
        "level": "cluster",
    },
    "pfedvem": {"kind": "pfedvem", "head_epochs": 2, "draws": 3},
    "pfedvem-sgd": {"kind": "pfedvem", "head_epochs": 1, "draws": 1, "head_optimizer": "sgd", "head_batch": 7},
    "persfl": {"kind": "persfl", "lambdas": [0, 0.5], "temperatures": [1, 5], "points": 3, "student_epochs": 1},
    "ucfl": {"kind": "ucfl"},
    "ucfl-streams": {"kind": "ucfl", "streams": 2, "variance": {"parts": [2, 3]}, "weights": {"at_round": 1}},
    "ucfl-auto": {"kind": "ucfl", "streams": "auto", "stream_weights": "group", "variance": {"part": 5}},
    "ucfl-parallel": {"kind": "ucfl", "streams": 2, "parallel": True, "variance": {"parts": 3, "draws": "independent"}},
}

SMALL: dict[str, Any] = {
    "rounds": 4,
    "data": {
        "source": {"kind": "glyphs", "classes": 6},
        "samples": 260,
        "clients": 7,
        "partition": {"kind": "classes", "k": 3, "sizes": "power_law", "exponent": 1.2},
        "shift": {"kind": "rotate", "groups": 2},
    },
    "model": {"kind": "mlp", "hidden": [12]},
    "train": {"batch": 8, "lr": 0.05, "momentum": 0.5, "cohort": 3},
    "evaluate": {"every": 2},
    "checkpoint": {"every": 1, "keep": 100},
}


def config(changes: dict[str, Any], folder: Path, **more: Any) -> Config:
    """The small experiment with changes by `key.path`."""
    values = merge(SMALL, {"output": str(folder), "name": "run"})
    changes = changes | more
    if not any(path.startswith("participation") for path in changes):
        changes |= {"participation.fraction": 0.6}
    for path, value in changes.items():
        *outer, last = path.split("__") if "__" in path else path.split(".")
        tree = {last: value}
        for key in reversed(outer):
            tree = {key: tree}
        values = merge(values, tree)
    return check(values, "the test's configuration")


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Mappings of one kind are joined, everything else is replaced."""
    out = dict(old)
    for key, value in new.items():
        before = out.get(key)
        alike = isinstance(before, dict) and isinstance(value, dict) and value.get("kind") in (None, before.get("kind"))
        out[key] = merge(before, value) if alike else value
    return out


def train(config: Config, comm: Comm, resume: bool = False) -> dict[str, np.ndarray]:
    """A whole run on these ranks; the content of its last checkpoint, histories included, on rank 0."""
    folder = RunFolder(config.folder)
    made = world.plan(config)
    start = np.array([-1])
    if comm.is_server:
        round, _ = folder.prepare(config, resume, overwrite=False)
        folder.describe(config, made.partition)
        start[0] = -1 if round is None else round
    comm.broadcast(start)
    if start[0] < 0 and (first := warm.first_run(config)) is not None:
        train(first, comm, resume=True)
    experiment = Experiment(config, made, comm, folder, Reporter(False, config.all_rounds, config.name))
    assert experiment.run(None if start[0] < 0 else int(start[0])) == 0
    assert folder.saved
    comm.barrier()
    return content(config.folder / "checkpoints" / f"round_{config.all_rounds:05d}.h5") if comm.is_server else {}


def rewound(config: Config, folder: Path, round: int) -> Config:
    """A copy of a finished run in another folder, as if it had been killed after a round."""
    shutil.copytree(config.folder, folder / config.name)
    for path in (folder / config.name / "checkpoints").glob("round_*.h5"):
        if int(path.stem.removeprefix("round_")) > round:
            path.unlink()
    return config.model_copy(update={"output": folder})


def content(path: Path) -> dict[str, np.ndarray]:
    """All data sets of an HDF5 file by name; of a checkpoint, a row of state for each of all clients. Its figures are
    left out, as they follow from the histories and are in metrics.csv."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None)
        clients = file.attrs.get("clients", 0)
    found.pop("figures", None)
    active = found.pop("active", None)
    for name in [name for name in found if name.startswith("first/")]:
        own = name.replace("first", "clients")
        every = np.stack([found.pop(name)] * clients)
        every[active] = found[own]
        found[own] = every
    return found


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    """The names of what is not the same to the bit."""
    names = sorted(one.keys() | other.keys())
    return [n for n in names if n not in one or n not in other or one[n].tobytes() != other[n].tobytes()]


def without_costs(run: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What may be the same where two methods are, which send different things."""
    return {name: value for name, value in run.items() if name not in ("history/streams", "history/uplinks")}
