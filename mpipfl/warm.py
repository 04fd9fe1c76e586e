"""A trained model to begin with: of another run, or of rounds of FedAvg, a run of their own in this one's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import torch
from torch import Tensor

from . import checkpoint
from .algorithms.fedavg import FedAvg
from .config import Config, load
from .data.partition import Partition
from .errors import ConfigError, UserError
from .section import flat

if TYPE_CHECKING:
    from .world import Plan

FOLDER = "warm_start"  # of the rounds of FedAvg, in the run's folder
GLOBAL = ("theta", "w", "mu")  # what methods call their global model
RUN = "algorithm.warm_start.run"


def first_run(config: Config) -> Config | None:
    """The rounds of FedAvg that a run begins with, where it is to: what a run of fedavg with its settings does."""
    warm = config.algorithm.warm_start
    if warm is None or warm.rounds is None:
        return None
    return config.model_copy(
        update={
            "name": FOLDER, "output": config.folder, "algorithm": FedAvg(), "rounds": warm.rounds,
            "participation": config.participation.model_copy(update={"train": "sampled"}),
            "evaluate": config.evaluate.model_copy(update={"every": warm.rounds}),
        }
    )  # fmt: skip


def model(config: Config, plan: Plan) -> tuple[Tensor, list[str]]:
    """The model to begin with (d), of its run's newest whole checkpoint, and what is to be said of it."""
    warm = config.algorithm.warm_start
    assert warm is not None
    folder = warm.run or config.folder / FOLDER
    if not folder.is_dir():
        raise ConfigError(f"{RUN}: there is no folder {folder}; name a run's, such as runs/quickstart_fedavg")
    round, _ = checkpoint.newest(folder)
    if round is None:
        raise ConfigError(f"{RUN}: {folder} holds no whole checkpoint; name a run's folder")
    with h5py.File(checkpoint.path_of(folder, round), "r") as file:
        found = [np.asarray(file[f"server/{name}"][...]) for name in GLOBAL if f"server/{name}" in file]
    if not found or found[0].shape != (plan.model.dimension,):
        what = f"one of shape {found[0].shape}" if found else "none"
        raise ConfigError(
            f"{RUN}: needed is one global model of {plan.model.dimension} parameters; {folder} has {what}. "
            f"Take a run of fedavg with the same model"
        )
    return torch.from_numpy(found[0]).float(), remarks(folder, round, config, plan)


def remarks(folder: Path, round: int, config: Config, plan: Plan) -> list[str]:
    """What tells the run from one that is whole and of the same data. Raises where its model means something else."""
    before = load(folder / "config.yaml")
    old, new = (flat(c.model.model_dump(mode="json", exclude={"init"})) for c in (before, config))
    if changed := [key for key in sorted(old | new) if old.get(key) != new.get(key)]:
        key = changed[0]
        raise ConfigError(f"{RUN}: {folder} has trained model.{key}={old.get(key)}, not {new.get(key)}; set it so")
    said = []
    if round < before.all_rounds:
        said.append(f"warm start: {folder} has not finished; its model is of round {round} of {before.all_rounds}")
    if not same_division(folder, plan.partition):
        words = plan.samples.vocabulary is not None
        if words and not getattr(getattr(config.model, "embedding", None), "frozen", False):
            raise ConfigError(
                f"{RUN}: {folder} has another division of the data and so another vocabulary: its vectors stand for "
                f"other words. Take a run with the same data and seed, or frozen vectors from a file"
            )
        said.append(
            f"warm start: {folder} has another division of the data; "
            f"what its model was trained on may be test data here"
        )
    return said


def same_division(folder: Path, partition: Partition) -> bool:
    try:
        return Partition.read(folder / "partition.h5").digest == partition.digest
    except UserError:
        return False
