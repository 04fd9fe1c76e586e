"""A run, from the divided data to the last round's files: the loop every method goes through."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Any

import numpy as np

from . import checkpoint, schedule, world
from .algorithms import Facts
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
        self.fl = Federation(comm, self.telemetry, config.reduce, config.nonfinite)
        self.method = config.algorithm
        self.clients = plan.partition.clients
        self.home = place(plan.work, comm.workers)
        self.hosted = np.flatnonzero(self.home == comm.rank)

        theta = plan.model.initial().to(self.device)
        facts = Facts(self.clients, int(plan.partition.group.max()) + 1)
        self.server: Any = self.fl.publish(self.method.server(theta, facts))
        self.states = States(self.method.client(theta, facts), self.hosted, self.clients, self.device)
        self.history = History(plan.partition.n_train, plan.partition.n_test)
        works = comm.rank in comm.workers
        width = np.array([world.width(config, self.store, plan.model, theta) if works else 0])
        comm.allreduce(width, "max")  # one disturbed trial must not slow its rank down for the whole run
        self.width = int(width[0])

    # ------------------------------------------------------------------ the loop

    def run(self, resume_from: int | None) -> int:
        """All rounds; the exit code. SIGTERM and SIGUSR1 end the run after the round in progress."""
        with self._signals():
            return self._run(resume_from)

    def _run(self, resume_from: int | None) -> int:
        begin, config = time.perf_counter(), self.config
        if resume_from is None:
            self.evaluate()
            self.save()
        else:
            self.round = resume_from
            self.server, history = checkpoint.read(self.folder.path, resume_from, self.server, self.states)
            self.history.restore(history)
        first = self.round
        self.report.start(first)
        while self.round < config.rounds:
            self.round += 1
            self.train()
            last = self.round == config.rounds
            due = self.round % config.evaluate.every == 0 or last
            if due:
                self.evaluate()
            self.report.round(self.round, self.note() if due else "", due)
            stop = self.comm.any(self.stopping is not None)
            if last or stop or (config.checkpoint.every and self.round % config.checkpoint.every == 0):
                self.save()
            if stop and not last:
                self.report.stop()
                self.report.say(f"stopped by a signal after round {self.round}; --resume goes on from there")
                return INTERRUPTED
        self.finish(time.perf_counter() - begin, self.round - first)
        return 0

    def train(self) -> None:
        """One round: draw the clients, place them, let the method work, keep the clients' new rows."""
        config, who = self.config, self.config.participation
        drawn = schedule.participants(config.seed, self.round, self.clients, who.fraction, who.probability)
        here = drawn[self.hosts(drawn) == self.comm.rank]
        self.fl.begin(self.round, here, len(drawn))
        if not len(drawn):
            return
        with self.telemetry.phase("train"):
            cohort = self.cohort(here)
            server, rows = self.method.round(self.server, self.states.take(here), cohort, self.fl)
        self.fl.check(rows)
        self.server = server
        self.states.put(here, rows, ~self.fl.left_out)
        if self.fl.named:
            names = ", ".join(map(str, self.fl.named))
            self.report.say(f"round {self.round}: left out, because its values are not finite: client {names}")
        self.telemetry.samples += cohort.samples
        self.telemetry.steps += cohort.steps

    def hosts(self, clients: np.ndarray) -> np.ndarray:
        """Where the round's clients train: at home, or wherever there is least to do if they have no state."""
        if self.states.fields or len(clients) == self.clients:
            return self.home[clients]
        return place(self.plan.work[clients], self.comm.workers)

    def cohort(self, clients: np.ndarray) -> Cohort:
        config = self.config
        return Cohort(clients, self.store, self.plan.model, config.train, config.seed, self.round, self.width)

    # ------------------------------------------------------------------ what is seen and kept

    def evaluate(self) -> None:
        with self.telemetry.phase("evaluate"):
            self.fl.begin(self.round, self.hosted, self.clients)
            rows = self.states.take(self.hosted)
            scores = evaluate(self.method, self.server, rows, self.cohort(self.hosted), self.fl, self.clients)
        if self.comm.is_server:
            self.history.append(self.round, scores)

    def save(self) -> None:
        """A checkpoint and the histories; a failure to write is said, and training goes on."""
        with self.telemetry.phase("checkpoint"):
            try:
                arrays = self.history.arrays()
                checkpoint.write(
                    self.folder.path, self.round, self.server, self.states, arrays, self.config.digest, self.comm
                )
                if self.comm.is_server:
                    checkpoint.prune(self.folder.path, self.config.checkpoint.keep, self.round)
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
        kinds = [k for k in ("global", "personal") if getattr(self.method, f"learns_{k}ly")]
        return "  ".join(f"{k} {100 * row[f'{k}_accuracy_mean']:.1f} %" for k in kinds)

    def finish(self, seconds: float, rounds: int) -> None:
        self.report.stop()
        telemetry = self.telemetry.summary(self.comm)
        if telemetry is None:
            return
        try:
            self.history.write(self.folder.path)  # again: a run may have ended just after its last checkpoint
            self.folder.finish(self.config, self.history, seconds, rounds, self.comm.size, telemetry)
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
