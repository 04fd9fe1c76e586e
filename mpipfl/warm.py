"""A trained model to begin with: after some rounds of FedAvg, or from another run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from . import checkpoint, schedule
from .algorithms.base import Nothing
from .algorithms.fedavg import FedAvg, Server
from .cohort import Cohort
from .config import Config
from .errors import ConfigError
from .federation import Federation
from .placement import place

GLOBAL = ("theta", "w", "mu")  # what methods call their global model


def rounds_of_fedavg(
    config: Config,
    theta: Tensor,
    rounds: int,
    work: np.ndarray,
    fl: Federation,
    cohort: Callable[[np.ndarray, int, int], Cohort],
) -> Tensor:
    """theta after the warm start's rounds, with draws of their own: those of the run do not depend on it."""
    seed = int(schedule.key(config.seed, "warm start")) >> 1
    method, who = FedAvg(), config.participation
    server = Server(theta)
    for round in range(1, rounds + 1):
        drawn = schedule.participants(seed, round, len(work), who.fraction, who.probability)
        fl.begin(round, drawn, place(work[drawn], fl.comm.workers))
        if len(drawn):
            server, _ = method.round(server, Nothing(), cohort(fl.clients, seed, round), fl)
    return server.theta


def model_of_run(folder: Path, dimension: int) -> Tensor:
    """The global model of a run's newest whole checkpoint."""
    round, _ = checkpoint.newest(folder)
    if round is None:
        raise ConfigError(f"algorithm.warm_start.run: {folder} holds no whole checkpoint; name a run's folder")
    with h5py.File(checkpoint.path_of(folder, round), "r") as file:
        found = [np.asarray(file[f"server/{name}"][...]) for name in GLOBAL if f"server/{name}" in file]
    if not found or found[0].shape != (dimension,):
        what = f"one of shape {found[0].shape}" if found else "none"
        raise ConfigError(
            f"algorithm.warm_start.run: needed is one global model of {dimension} parameters; {folder} has {what}. "
            f"Take a run of fedavg with the same model"
        )
    return torch.from_numpy(found[0]).float()
