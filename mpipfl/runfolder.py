"""A run's folder, as rank 0 keeps it: `config.yaml`, `partition.h5`, `summary.json` and what stands beside them."""

from __future__ import annotations

import json
import math
import platform
import shlex
import shutil
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py

from . import __version__, checkpoint, volumes, warm
from .config import Config, dump, load
from .data.partition import Partition
from .errors import ConfigError
from .files import whole
from .history import KINDS, History
from .lock import Lock
from .section import flat

PACKAGES = ("torch", "mpi4py", "numpy", "h5py")


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.saved = True  # whether the newest results are on disk
        self.lock: Lock | None = None

    def claim(self) -> None:
        """Keep others from this folder, until `release` or the end of this process."""
        self.lock = Lock(self.path)

    def hold(self) -> None:
        """The same, where this process has not done it yet."""
        if self.lock is None:
            self.claim()

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def prepare(self, config: Config, resume: bool, overwrite: bool) -> tuple[int | None, list[str]]:
        """Make the folder ready. The round to resume from (None: from the start), and lines for the log."""
        started = (self.path / "config.yaml").exists()
        if resume:
            return self._resume(config, started)
        if started and not overwrite:
            raise ConfigError(
                f"{self.path} holds a run already; go on with it (--resume), replace it (--overwrite), "
                f"or give another name (name=...)"
            )
        if started:
            self._keep_origin(config)
            shutil.rmtree(self.path)
        return None, []

    def _keep_origin(self, config: Config) -> None:
        """Refuse to delete what the new run is to be made from."""
        begin, newcomers = config.algorithm.warm_start, config.newcomers
        origins = {
            warm.RUN: None if begin is None else begin.run,
            "--personalize": None if newcomers is None else newcomers.run,
        }
        for key, origin in origins.items():
            if origin is not None and origin.resolve().is_relative_to(self.path.resolve()):
                raise ConfigError(
                    f"--overwrite would delete {origin}, which the new run begins with ({key}); "
                    f"give the new one another name (name=...)"
                )

    def _resume(self, config: Config, started: bool) -> tuple[int | None, list[str]]:
        if not started:
            return None, [f"{self.path} holds no run yet: starting at round 0"]
        round, lines = checkpoint.newest(self.path)
        before = self.path / warm.FOLDER
        if round is None and checkpoint.newest(before)[0] is None:
            return None, [*lines, "no whole checkpoint: starting at round 0"]
        made = load(self.path / "config.yaml").digest if round is None else checkpoint.config_of(self.path, round)
        if made != config.digest:
            raise ConfigError(
                f"{self.path} was made with other settings: {differences(load(self.path / 'config.yaml'), config)}. "
                f"Resume with the same ones, or give another name (name=...)"
            )
        if round is None:
            return None, [*lines, f"going on with what it begins with, {before}"]
        if round > config.all_rounds:
            raise ConfigError(
                f"{self.path} has done {round} rounds already; resume with rounds={round} or more, not {config.rounds}"
            )
        return round, [*lines, f"resuming from {checkpoint.path_of(self.path, round)}"]

    def finished(self, config: Config, round: int | None) -> bool:
        """Whether the last round's checkpoint and the results are there: nothing is left to do."""
        try:
            summary = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
            with h5py.File(self.path / "history.h5", "r") as file:
                if volumes.listed(file):  # an earlier end's summary
                    return False
        except (OSError, ValueError):
            return False
        return round == config.all_rounds and config.rounds == summary["rounds"]

    def describe(self, config: Config, partition: Partition) -> None:
        """What will run, written before it does."""
        self.path.mkdir(parents=True, exist_ok=True)
        versions = ", ".join([f"mpipfl {__version__}", f"python {platform.python_version()}"]
                             + [f"{name} {version(name)}" for name in PACKAGES])  # fmt: skip
        head = f"# {shlex.join(sys.argv)}\n# {datetime.now():%Y-%m-%d %H:%M:%S}; {versions}\n"
        with whole(self.path / "config.yaml") as temporary:
            temporary.write_text(head + dump(config), encoding="utf-8")
        partition.write(self.path / "partition.h5", config.data.source.model_dump_json())

    def finish(
        self, config: Config, history: History, seconds: float, rounds: int, ranks: int, costs: dict[str, Any]
    ) -> None:
        """The last and the best-on-validation figures, and what they cost."""
        summary: dict[str, Any] = {
            "name": config.name, "algorithm": config.algorithm.kind, "rounds": config.rounds,
            "clients": config.data.clients,
            "last": history.figures[-1],
        }  # fmt: skip
        for kind in KINDS:
            best = history.best(kind)
            summary[f"best_{kind}"] = None if best is None else history.figures[best]
        summary |= {
            "seconds": seconds,
            "rounds_run": rounds,
            "seconds_per_round": seconds / max(1, rounds),
            "ranks": ranks,
        }
        with whole(self.path / "summary.json") as temporary:
            temporary.write_text(json.dumps(plain(summary | costs), indent=2) + "\n", encoding="utf-8")


def differences(old: Config, new: Config) -> str:
    """The settings in which two experiments differ."""
    before, after = flat(old.results()), flat(new.results())
    changed = [k for k in sorted(before | after) if before.get(k) != after.get(k)]
    return ", ".join(f"{k} was {before.get(k)}, is {after.get(k)}" for k in changed[:5]) or "an older version's"


def plain(value: Any) -> Any:
    """For JSON, which has no NaN."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
