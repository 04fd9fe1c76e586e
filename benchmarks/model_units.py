"""Units from measurements: what one of each cause takes, if causes add up. And the file that keeps them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls

from mpipfl.errors import ConfigError

from . import common
from .model_messages import Units
from .model_workers import Network

OTHERS = np.zeros(1 << 22)  # what other work has in the caches
Counts = dict[str, float]
Measured = tuple[Counts, Callable[[], object]]


class Calibration(NamedTuple):
    """What is known of a machine."""

    units: Units
    networks: dict[str, Network]


def read(path: Path) -> Calibration:
    """A calibration's file."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return Calibration(result["units"], {name: Network(**one) for name, one in result["networks"].items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a calibration; python -m benchmarks.model --calibrate makes one") from error


def fit(counts: Sequence[Counts], seconds: Sequence[float]) -> Counts:
    """The units >= 0 with the least relative squared error of Σ counts * units against the seconds."""
    names = list(dict.fromkeys(name for some in counts for name in some))
    took = np.maximum(seconds, 1e-9)
    matrix = np.array([[some.get(name, 0.0) for name in names] for some in counts]) / took[:, None]
    scale = np.maximum(np.abs(matrix).max(0), 1e-300)  # a count may be zero everywhere
    units, _ = nnls(matrix / scale, np.ones(len(took)))
    return dict(zip(names, (units / scale).tolist(), strict=True))


def least(works: Sequence[Callable[[], object]], repeats: int, warm: bool = False) -> list[float]:
    """The least seconds of each, taken in turns after a warm-up, with caches as other work leaves them, or warm."""
    turns = np.empty((repeats + 1, len(works)))
    for turn in turns:
        for i, work in enumerate(works):
            if not warm:
                OTHERS.fill(0)
            turn[i] = common.seconds(work, time.process_time)
    best: list[float] = turns[1:].min(0).tolist()
    return best


def fitted(repeats: int, *measured: Measured, warm: bool = False) -> Counts:
    return fit([counts for counts, _ in measured], least([work for _, work in measured], repeats, warm))


def yardstick() -> float:
    """CPU seconds of a fixed piece of work, much like training: how fast the machine is at the moment."""
    draw = torch.Generator().manual_seed(0)
    theta, x = torch.rand(32, 784, 100, generator=draw), torch.rand(32, 20, 784, generator=draw)

    def work() -> None:
        for _ in range(5):
            theta.baddbmm_(x.transpose(1, 2), torch.bmm(x, theta), alpha=-1e-6)

    work()
    return min(common.seconds(work, time.process_time) for _ in range(3))
