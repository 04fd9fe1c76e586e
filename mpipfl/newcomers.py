"""Newcomers: clients that come to a finished run, and what its models give them.

`python -m mpipfl.run --personalize RUN data.clients=10` makes a run of its own. Its configuration is that of RUN with
`newcomers: {run: RUN}`; source, shift, network, seed and method are the same, and its samples are none that a client of
RUN had for training, validation or testing (nor of the same user, where clients are users); official test samples
(`data.split.test: official`) are everybody's.

The method's models are as RUN left them and stay so. `arrive` says what newcomers begin with, before round 0; a round
is `newcomer`, in which each trains by itself. Everything else is as in any run: evaluation, checkpoints, resume.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from . import checkpoint
from .algorithms.base import Algorithm, Facts, Models, Past, Traffic
from .config import Config, assign, check, load
from .data.federated import divide
from .data.partition import Partition
from .data.partitions import Natural, Pooled
from .data.samples import MadeSamples, Samples
from .errors import ConfigError, DataError
from .section import flat

SHARED = ("seed", "model", "data.source", "data.shift", "algorithm.kind")  # what newcomers have in common with the run
ROUNDS = 10  # of training, unless told otherwise


def settings(folder: Path, overrides: Sequence[str]) -> Config:
    """The configuration of a finished run's newcomers."""
    before = Origin(folder).config
    trains = type(before.algorithm).newcomer is not Algorithm.newcomer and not before.algorithm.closing_rounds
    values = before.model_dump(mode="json") | {
        "name": f"newcomers_{folder.resolve().name}",
        "output": str(folder.parent),
        "newcomers": {"run": str(folder)},
        "rounds": ROUNDS if trains else 1,
        "participation": {},
        "evaluate": {"every": 1},
    }
    values["algorithm"]["warm_start"] = values["data"]["samples"] = None
    for override in overrides:
        assign(values, override)
    return check(values, f"newcomers of {folder}")


class Origin:
    """A finished run, as its folder tells it. Raises where it is not one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"{folder} holds no config.yaml: name a finished run's folder, such as runs/ditto")
        self.config = load(folder / "config.yaml")
        if self.config.newcomers is not None:
            raise ConfigError(
                f"{folder} is of newcomers itself; name the run they came to: {self.config.newcomers.run}"
            )
        self.round = self.config.all_rounds
        last = checkpoint.path_of(folder, self.round)
        again = f"python -m mpipfl.run {folder / 'config.yaml'} --resume"
        try:
            finished = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["rounds"] == self.config.rounds
        except (OSError, ValueError, KeyError, TypeError):
            finished = False
        if not finished or not last.exists():
            newest = max(checkpoint.rounds(folder), default=0)
            raise ConfigError(
                f"{folder} has not finished: its newest checkpoint is of round {newest} of {self.round}. "
                f"Newcomers come to a finished run; go on with it first ({again})"
            )
        if problem := checkpoint.fault(last):
            raise checkpoint.CheckpointError(f"{last} {problem}; make it anew ({again})")
        if checkpoint.config_of(folder, self.round) != self.config.digest:
            raise ConfigError(f"{folder / 'config.yaml'} is not what the run was made with; restore it, or run it anew")
        self.partition = Partition.read(folder / "partition.h5")

    def admit(self, config: Config) -> None:
        """Raise where newcomers would not fit the run's models, or the method has nothing for them."""
        before, now = (flat(c.model_dump(mode="json")) for c in (self.config, config))
        for key in sorted(before | now, key=lambda key: (not key.endswith("kind"), key)):  # another kind, other keys
            if key.startswith(SHARED) and before.get(key) != now.get(key):
                raise ConfigError(
                    f"{key}={now.get(key)}: newcomers share this with the clients of {self.folder}, "
                    f"where it is {before.get(key)}; leave it out"
                )
        method = type(config.algorithm)
        if method.client is not Algorithm.client and method.newcomer is Algorithm.newcomer:
            raise ConfigError(
                f"algorithm.kind={config.algorithm.kind} has nothing for newcomers: its clients keep a state that only "
                f"rounds with the others make. Take a run of another method"
            )

    # ------------------------------------------------------------------ data

    def divide(self, config: Config) -> tuple[Samples, Partition]:
        """The source, and the newcomers' parts of what the run's clients have left of it.

        Without `data.samples` there are as many samples a client as the run's had, and with clients that are users all
        of a user's. Generated sources make as many more as are needed."""
        data, before = config.data, self.partition
        if before.made:
            everybody = data.source.open(data.folder, config.seed, before.clients + data.clients)
            assert isinstance(everybody, MadeSamples)
            later = everybody.after(before.clients)
            return later, divide(data, later, config.seed)
        users = isinstance(data.partition, Natural | Pooled)
        held = before.n_train + before.n_validation
        if self.config.data.split.test != "official":
            held = held + before.n_test
        share = round(held.sum() / before.clients * data.clients)
        wanted = data.samples or (None if users else share)
        first = int(before.index.max()) + 1
        samples = data.source.open(
            data.folder, config.seed, before.clients + data.clients, first + (data.samples or share)
        )
        if samples.best is not None:
            raise DataError(f"data.source={data.source.kind} draws a run's clients together: it has no newcomers")
        if len(samples) < first:
            raise DataError(
                f"data.source has {len(samples)} samples now, and {self.folder} was made with {first} or more"
            )
        taken = np.zeros(len(samples), dtype=bool)
        taken[before.index] = True
        if users and samples.users is not None:
            taken = np.isin(samples.users, samples.users[taken])
        if data.split.test == "official" and samples.is_test is not None:
            taken |= samples.is_test
        left = np.flatnonzero(~taken)
        if len(left) < (wanted or 1):
            what = f"samples of users that are no clients of {self.folder}" if users else "samples"
            raise DataError(
                f"newcomers have samples that no client of {self.folder} had: {wanted or 'some'} are wanted, and "
                f"{len(left)} {what} are left of {len(samples)}. Take fewer (data.clients, data.samples), or train the "
                f"run on a part of the source (its data.samples)"
            )
        samples = samples.fitted(before.training)
        samples.first_client = before.clients
        if samples.groups is not None:  # dealt to the newcomers as to the clients of any run
            own = data.source.open(data.folder, config.seed, data.clients).groups
            assert own is not None
            samples.groups = np.concatenate([before.group, own])
        return samples, divide(data.model_copy(update={"samples": wanted}), samples, config.seed, left)

    # ------------------------------------------------------------------ states

    def server(self, kind: type[Any], round: int | None = None) -> Any:
        """The server's state after a round of training, or the last one."""
        return checkpoint.server(self.folder, self.round if round is None else round, kind)

    def past(self, server: type[Any], client: type[Any]) -> Past:
        return Past(self._servers(server), checkpoint.rows(self.folder, self.round, client))

    def _servers(self, kind: type[Any]) -> Iterator[tuple[int, Any]]:
        for round in checkpoint.rounds(self.folder):
            if 0 < round < self.config.rounds and checkpoint.fault(checkpoint.path_of(self.folder, round)) is None:
                yield round, self.server(kind, round)
        yield self.config.rounds, self.server(kind)


class Newcomers(Algorithm):
    """A method as it is for newcomers: its server has learnt, each client trains by itself"""

    kind: str
    method: Algorithm
    origin: Any  # an Origin

    @classmethod
    def of(cls, config: Config, origin: Origin) -> Newcomers:
        return cls.model_construct(kind=config.algorithm.kind, method=config.algorithm, origin=origin)

    @property
    def closing_rounds(self) -> int:
        return self.method.closing_rounds

    def server(self, theta: Tensor, facts: Facts) -> Any:
        left = self.origin.server(type(self.method.server(theta, facts)))
        return type(left)(*(field.to(theta.device) for field in left))

    def client(self, theta: Tensor, facts: Facts) -> Any:
        return self.method.client(theta, facts)

    def prepare(self, server: Any, clients: Any, cohort: Any, fl: Any) -> tuple[Any, Any]:
        """The newcomers' arrival."""
        return self.method.arrive(server, clients, self.origin.past(type(server), type(clients)), cohort, fl)

    def round(self, server: Any, clients: Any, cohort: Any, fl: Any) -> tuple[Any, Any]:
        return server, self.method.newcomer(server, clients, cohort, fl)

    def findings(self, server: Any, clients: Any) -> dict[str, Tensor]:
        return self.method.findings(server, clients)

    def models(self, server: Any, clients: Any, cohort: Any) -> Models:
        return self.method.models(server, clients, cohort)

    def traffic(self, server: Any, active: int) -> Traffic:
        return Traffic(streams=0, uplinks=0)  # but for the models that they begin with
