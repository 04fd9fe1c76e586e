"""A run, from the divided data to the last round's files: the loop every method goes through."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import checkpoint, detection, schedule, world
from .cohort import Cohort
from .comm import Comm
from .config import Config
from .evaluate import evaluate
from .federation import Federation
from .history import History
from .placement import place
from .progress import Reporter
from .runfolder import RunFolder
from .states import States
from .telemetry import Telemetry
from .warm import rounds_of_fedavg

INTERRUPTED = 75  # exit code: a checkpoint was written, `--resume` goes on


class Experiment:
    """One run on all ranks."""

    def __init__(self, config: Config, plan: world.Plan, comm: Comm, folder: RunFolder, report: Reporter) -> None:
        self.config, self.plan, self.comm, self.folder, self.report = config, plan, comm, folder, report
        self.round = 0
        self.stopping: int | None = None
        self.telemetry = Telemetry()
        self.device = world.device(config, comm)
        self.store = world.store(plan, comm, self.device)
        self.method = plan.method
        self.clients = plan.partition.clients
        self.fl = Federation(comm, self.telemetry, self.clients, config.reduce, config.nonfinite)
        self.fl.rounds = config.rounds
        self.home = place(plan.work, comm.workers)
        self.hosted = np.flatnonzero(self.home == comm.rank)

        theta = plan.theta.to(self.device)
        self.begin_with(theta)
        best = plan.samples.best or {}
        known = {name: best[name] for name in ("gain",) if name in best}
        self.history = History(plan.partition.n_train, plan.partition.n_test, **known)
        works = comm.rank in comm.workers
        width = np.array([world.width(config, self.store, plan.model, theta) if works else 0])
        comm.allreduce(width, "max")  # one disturbed trial must not slow its rank down for the whole run
        self.width = int(width[0])

    def begin_with(self, theta: Tensor) -> None:
        """Every state before the first round."""
        facts = world.facts(self.config, self.plan)
        self.server: Any = self.fl.publish(self.method.server(theta, facts))
        self.states = States(self.method.client(theta, facts), self.hosted, self.clients, self.device)

    # ------------------------------------------------------------------ the loop

    def run(self, resume_from: int | None) -> int:
        """All rounds; the exit code. SIGTERM and SIGUSR1 end the run after the round in progress."""
        with self._signals():
            return self._run(resume_from)

    def _run(self, resume_from: int | None) -> int:
        begin, config = time.perf_counter(), self.config
        if resume_from is None:
            self.warm_up()
            self.evaluate()
            self.listen()
            self.save()
        else:
            self.round = resume_from
            self.server, history = checkpoint.read(self.folder.path, resume_from, self.server, self.states)
            self.history.restore(history)
        first = self.round
        self.report.start(first)
        while self.round < config.all_rounds:
            if self.round == self.method.prepares_after:
                self.prepare()
            self.round += 1
            self.train()
            last = self.round == config.all_rounds
            due = self.round % config.evaluate.every == 0 or last
            if due:
                self.evaluate()
            self.report.round(self.round, self.note() if due else "", due)
            stop = self.comm.any(self.stopping is not None)
            if last:
                self.find()
                self.listen()
            if last or stop or (config.checkpoint.every and self.round % config.checkpoint.every == 0):
                self.save()
            if stop and not last:
                self.report.stop()
                self.report.say(f"stopped by a signal after round {self.round}; --resume goes on from there")
                return INTERRUPTED
        self.finish(time.perf_counter() - begin, self.round - first)
        return 0

    def warm_up(self) -> None:
        """What comes before round 0: rounds of FedAvg, where the method is to have them; newcomers' arrival."""
        if self.config.newcomers is not None:
            self.prepare()
        warm = self.method.warm_start
        if warm is not None and warm.rounds is not None:
            self.report.say(f"warm start: {warm.rounds} rounds of fedavg")
            with self.telemetry.phase("train"):
                theta = self.plan.theta.to(self.device)
                theta = rounds_of_fedavg(self.config, theta, warm.rounds, self.plan.work, self.fl, self.cohort)
            self.begin_with(theta)

    def prepare(self) -> None:
        """The method's special round, of all clients; what it tells is kept as it is."""
        self.fl.begin(self.round, np.arange(self.clients), self.home)
        with self.telemetry.phase("train"):
            cohort = self.cohort(self.hosted)
            rows = self.states.take(self.hosted)
            self.server, rows = self.method.prepare(self.server, rows, cohort, self.fl)
        self.states.put(self.hosted, rows, ~self.fl.left_out)
        if self.comm.is_server:
            self.history.keep_own(self.method.kind, {k: v.cpu().numpy() for k, v in self.fl.told.items()})
            for remark in self.method.remarks(self.history.own(self.method.kind)):
                self.report.say(remark)

    def find(self) -> None:
        """What the method has found of every client goes into the history."""
        self.fl.begin(self.round, np.arange(self.clients), self.home)
        found = self.method.findings(self.server, self.states.take(self.hosted))
        tables = {name: self.fl.table(value) for name, value in found.items()}
        self.history.keep_own(self.method.kind, {name: t for name, t in tables.items() if t is not None})

    def listen(self) -> None:
        """What detectors say to every test sample, before training and at its end, goes into the history."""
        samples, partition = self.plan.samples, self.plan.partition
        if samples.states is None or self.method.warm_start is None:
            return
        self.fl.begin(self.round, np.arange(self.clients), self.home)
        with self.telemetry.phase("evaluate"):
            rows = self.states.take(self.hosted)
            found = detection.scores(self.method, self.server, rows, self.cohort(self.hosted))
            tables = {kind: table for kind, value in found.items() if (table := self.fl.table(value)) is not None}
        if self.comm.is_server and self.round == 0:
            tables = {"baseline": next(iter(tables.values()))}
            tables |= detection.marks(partition, samples.labels, samples.states)
        self.history.keep_own(detection.NAME, tables)

    def train(self) -> None:
        """One round: draw the clients, place them, let the method work, keep the clients' new rows."""
        config, who = self.config, self.config.participation
        drawn = schedule.participants(config.seed, self.round, self.clients, who.fraction, who.probability)
        if self.round > config.rounds:
            drawn = np.arange(self.clients)
        trained = drawn if who.train == "sampled" else np.arange(self.clients)
        self.fl.begin(self.round, trained, self.hosts(trained), np.isin(trained, drawn))
        if not len(trained):
            return
        here = self.fl.clients
        with self.telemetry.phase("train"):
            cohort = self.cohort(here)
            server, rows = self.method.round(self.server, self.states.take(here), cohort, self.fl)
        self.fl.check(rows)
        self.server = server
        self.states.put(here, rows, ~self.fl.left_out)
        self.keep_series()
        if self.fl.named:
            names = ", ".join(map(str, self.fl.named))
            self.report.say(f"round {self.round}: left out, because its values are not finite: client {names}")
        self.telemetry.samples += cohort.samples
        self.telemetry.steps += cohort.steps

    def keep_series(self) -> None:
        """What the method recorded of this round goes into the history, under the method's name."""
        names, recorded = list(self.fl.recorded), list(self.fl.recorded.values())
        table = self.fl.table(torch.stack([value.double() for value in recorded], 1)) if recorded else None
        values = {} if table is None else {name: table[:, i].copy() for i, name in enumerate(names)}
        values |= {name: value.double().cpu().numpy() for name, value in self.fl.told.items()}
        if self.comm.is_server and values:
            self.history.append_own(self.method.kind, self.round, values)

    def hosts(self, clients: np.ndarray) -> np.ndarray:
        """Where the round's clients train: at home, or wherever there is least to do if they have no state."""
        if self.states.fields or len(clients) == self.clients:
            return self.home[clients]
        return place(self.plan.work[clients], self.comm.workers)

    def cohort(self, clients: np.ndarray, seed: int | None = None, round: int | None = None) -> Cohort:
        config = self.config
        seed, round = config.seed if seed is None else seed, self.round if round is None else round
        return Cohort(clients, self.store, self.plan.model, config.train, seed, round, self.width)

    # ------------------------------------------------------------------ what is seen and kept

    def evaluate(self) -> None:
        with self.telemetry.phase("evaluate"):
            self.fl.begin(self.round, np.arange(self.clients), self.home)
            rows = self.states.take(self.hosted)
            found = evaluate(
                self.method, self.server, rows, self.cohort(self.hosted), self.fl, self.plan.samples.classes,
                self.plan.samples.best, last=self.round == self.config.all_rounds,
            )  # fmt: skip
        if self.comm.is_server:
            self.history.append(self.round, found.scores)
            for group, values in found.samples.items():
                self.history.keep_own(group, values)

    def save(self) -> None:
        """A checkpoint and the histories; a failure to write is said, and training goes on."""
        with self.telemetry.phase("checkpoint"):
            try:
                arrays = self.history.arrays()
                checkpoint.write(
                    self.folder.path, self.round, self.server, self.states, arrays, self.config.digest, self.comm
                )
                if self.comm.is_server:
                    kept = self.config.checkpoint
                    checkpoint.prune(self.folder.path, kept.keep, self.round, kept.keep_every)
                    self.history.write(self.folder.path)
                    self.folder.saved = True
            except (checkpoint.CheckpointError, OSError) as error:
                self.folder.saved = False
                self.report.say(f"NOT SAVED: {error}")

    def note(self) -> str:
        """The evaluated round in a few words."""
        if not self.comm.is_server:
            return ""
        row = self.history.row(-1)
        kinds = [k for k in ("global", "personal") if getattr(self.config.algorithm, f"learns_{k}ly")]
        if f"{kinds[0]}_error_mean" in row:
            return "  ".join(f"{k} error {row[f'{k}_error_mean']:.4g}" for k in kinds)
        return "  ".join(f"{k} {100 * row[f'{k}_accuracy_mean']:.1f} %" for k in kinds)

    def finish(self, seconds: float, rounds: int) -> None:
        self.report.stop()
        telemetry = self.telemetry.summary(self.comm)
        if telemetry is None:
            return
        try:
            self.history.write(self.folder.path)  # again: a run may have ended just after its last checkpoint
            traffic = self.method.traffic(self.server, self.clients)._asdict()
            self.folder.finish(self.config, self.history, seconds, rounds, self.comm.size, traffic | telemetry)
            if series := self.history.own(detection.NAME):
                names = self.config.data.source.model_dump()["states"]
                detection.write(self.folder.path, detection.cells(series, self.plan.partition.group, names))
            for remark in self.method.remarks(self.history.own(self.method.kind)):
                self.report.say(remark)
            self.report.say(f"{rounds} rounds in {seconds:.1f} s; results in {self.folder.path}")
        except OSError as error:
            self.folder.saved = False
            self.report.say(f"NOT SAVED: {error}")

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """The signals that ask for an end are remembered."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping = number

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
