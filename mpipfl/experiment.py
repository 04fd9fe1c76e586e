"""A run, from the divided data to the last round's files: the loop every method goes through."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from . import checkpoint, detection, schedule, sealed, volumes, warm, world
from .algorithms.base import Traffic
from .cohort import Cohort
from .comm import Comm
from .config import Config
from .evaluate import TOGETHER, evaluate
from .federation import Federation
from .history import History
from .hosting import Commit, Hosting
from .placement import place
from .progress import Reporter
from .runfolder import RunFolder
from .store import Store
from .survival import Gone, Survival
from .telemetry import Telemetry
from .watchdog import Watchdog

T = TypeVar("T")
INTERRUPTED = 75  # exit code: a checkpoint was written, `--resume` goes on


class Stopped(Exception):
    """A part of a step was skipped, as the run is to end; raised on all ranks together."""


class Experiment:
    """One run on all ranks."""

    def __init__(
        self,
        config: Config,
        plan: world.Plan,
        comm: Comm,
        folder: RunFolder,
        report: Reporter,
        store: Store | None = None,
    ) -> None:
        self.config, self.plan, self.comm, self.folder, self.report = config, plan, comm, folder, report
        self.round = 0
        self.fresh = True  # since the last checkpoint
        self.telemetry = Telemetry()
        self.survival = Survival(comm, report, config.fault_tolerance.mode)
        self.watchdog = Watchdog(comm, report, config.fault_tolerance.stall_seconds, folder.path)
        self.device = world.device(config, comm)
        self.store = world.store(plan, comm, self.device) if store is None else store
        self.method = plan.method
        self.clients = plan.partition.clients
        self.fl = Federation(comm, self.telemetry, self.clients, config.reduce, config.nonfinite)
        self.fl.rounds = config.rounds
        if config.evaluate.clients is not None:
            self.fl.listed = schedule.sample(config.seed, "evaluated", self.clients, config.evaluate.clients)
        copies = self.survival.goes_on and config.fault_tolerance.partner_copies
        megabytes = config.states.megabytes
        self.hosting = Hosting(plan.work, comm, self.device, copies, None if megabytes is None else megabytes * 1e6)

        theta = plan.theta.to(self.device)
        self.begin_with(theta)()
        best, listed = plan.samples.best or {}, self.fl.listed
        known = {"clients": listed} | {name: best[name][listed] for name in ("gain",) if name in best}
        self.history = History(plan.partition.n_train[listed], plan.partition.n_test[listed], **known)
        works = comm.rank in comm.workers
        width = np.array([world.width(config, self.store, plan.model, theta) if works else 0])
        comm.allreduce(width, "max")  # one disturbed trial must not slow its rank down for the whole run
        self.width = int(width[0])

    def begin_with(self, theta: Tensor) -> Commit:
        """Every state before the first round."""
        facts = world.facts(self.config, self.plan._replace(theta=theta))
        server = self.fl.publish(self.method.server(theta, facts))
        commit_clients = self.hosting.begin(self.method.client(theta, facts))

        def commit() -> None:
            self.server: Any = server
            commit_clients()

        return commit

    # ------------------------------------------------------------------ the loop

    def run(self, resume_from: int | None) -> int:
        """All rounds; the exit code."""
        with self.watchdog:
            return self._run(resume_from)

    def _run(self, resume_from: int | None) -> int:
        began, first = time.perf_counter(), resume_from or 0
        self.report.start(first)
        begin = self.warm_up if resume_from is None else lambda: self.load(resume_from)
        while True:
            try:
                self.step("start", begin)
                if self.config.newcomers is not None and not self.history.rounds:
                    self.step("arrive", self.prepare)
                self.rounds()
                self.step("end", lambda: self.finish(time.perf_counter() - began, self.round - first))
                return 0
            except Gone:
                begin = self.load_newest
            except Stopped:
                self.stop()
                return INTERRUPTED

    def rounds(self) -> None:
        """From the round that the state is of to the last one."""
        pulse = self.comm.pulse
        self.complete()
        while self.round < self.config.all_rounds:
            if self.survival.ending:
                raise Stopped
            began = time.monotonic()
            pulse.round_ends = began + (pulse.round or math.inf)
            if self.round == self.method.prepares_after:
                self.step("prepare", self.prepare)
            self.step("train", self.train, self.round + 1)
            self.complete()
            pulse.round = time.monotonic() - began

    def complete(self) -> None:
        """What a round's training is followed by, as far as it is not done yet."""
        config, method = self.config, self.method
        last = self.round == config.all_rounds
        due = self.round % config.evaluate.every == 0 or last
        if due and self.round not in self.history.rounds[-1:]:
            self.step("evaluate", self.evaluate)
        if not self.fresh:
            return
        if self.round:
            self.report.round(self.round, self.note() if due else "", due)
        if last:
            self.step("find", self.find)
        if self.round == 0 or last:
            self.step("listen", self.listen)
        every = config.checkpoint.every
        asked = self.round in (0, method.prepares_after) or (every and self.round % every == 0)
        if last or asked or self.survival.ending:
            self.step("checkpoint", self.save)

    def step(self, name: str, work: Callable[[], Commit], round: int | None = None) -> None:
        """Do a part of a round and make its result the run's state, on all ranks that are left."""
        if not self.survival.step(self.round if round is None else round, name, work, self.hosting.rehost):
            raise Stopped

    def stop(self) -> None:
        """Leave the last whole state on disk."""
        why = self.comm.pulse.why or "a signal"
        self.comm.pulse.free()
        if self.fresh:
            with contextlib.suppress(Gone):  # then an older state stays there
                self.step("checkpoint", self.save)
        self.report.stop()
        self.report.say(f"stopped by {why} after round {self.round}; --resume goes on from there")

    # ------------------------------------------------------------------ steps: they change nothing before all are done

    def warm_up(self) -> Commit:
        """The state before round 1: with a trained model, where the method is to have one."""
        theta, remarks = self.plan.theta, list[str]()
        if self.config.algorithm.warm_start is not None:
            theta, remarks = warm.model(self.config, self.plan)
        elif not self.history.rounds:
            return lambda: None  # it is there
        commit_state = self.begin_with(theta.to(self.device))

        def commit() -> None:
            self.round, self.fresh = 0, True
            self.history.clear()
            commit_state()
            for remark in remarks:
                self.report.say(remark)

        return commit

    def load(self, round: int) -> Commit:
        """The state of a checkpoint."""
        states = self.hosting.states.anew(self.hosting.hosted)
        server, history = checkpoint.read(self.folder.path, round, self.server, states)
        commit_clients = self.hosting.restore(states)

        def commit() -> None:
            self.round, self.server, self.fresh = round, server, False
            self.history.restore(history)
            commit_clients()
            for problem in volumes.sound(self.folder.path, history.volumes)[1] if self.comm.is_server else ():
                self.report.say(f"{problem}; its rows of the histories are lost")

        return commit

    def load_newest(self) -> Commit:
        """The state of the newest good checkpoint, or the one before round 1."""
        newest = np.array([-1])
        if self.comm.is_server:
            round, lines = checkpoint.newest(self.folder.path)
            newest[0] = -1 if round is None else round
            for line in lines:
                self.report.say(line)
        self.comm.broadcast(newest)
        return self.load(int(newest[0])) if newest[0] >= 0 else self.warm_up()

    def prepare(self) -> Commit:
        """The method's special round, of all clients; what it tells is kept as it is."""
        hosting = self.hosting
        self.fl.begin(self.round, hosting.everyone, hosting.home)
        with self.telemetry.phase("train"):
            rows = hosting.states.take(hosting.hosted)
            server, rows = self.method.prepare(self.server, rows, self.cohort(hosting.hosted), self.fl)
        commit_clients = hosting.change(hosting.everyone, hosting.home, np.array(self.fl.named), rows)
        told = {name: value.cpu().numpy() for name, value in self.fl.told.items()}
        left_out = self.left_out(f"{self.method.kind}'s special round")

        def commit() -> None:
            self.server = server
            commit_clients()
            for line in left_out:
                self.report.say(line)
            self.history.keep_own(self.method.kind, told)
            for remark in self.method.remarks(told):
                self.report.say(remark)

        return commit

    def train(self) -> Commit:
        """The next round: draw the clients, place them, let the method work, keep the clients' new rows."""
        config, who, round = self.config, self.config.participation, self.round + 1
        drawn = schedule.participants(config.seed, round, self.clients, who.fraction, who.probability)
        if round > config.rounds:
            drawn = np.arange(self.clients)
        trained = drawn if who.train == "sampled" else np.arange(self.clients)
        hosts = self.hosts(trained)
        self.fl.begin(round, trained, hosts, np.isin(trained, drawn))
        if not len(trained):
            return lambda: self.advance(round)
        cohort = self.cohort(self.fl.clients, round=round)
        with self.telemetry.phase("train"):
            rows = self.hosting.states.take(self.fl.clients)
            server, rows = self.method.round(self.server, rows, cohort, self.fl)
        self.fl.check(rows)
        commit_clients = self.hosting.change(trained, hosts, np.array(self.fl.named), rows)
        series, left_out = self.series(), self.left_out(f"round {round}")

        def commit() -> None:
            self.advance(round)
            self.server = server
            commit_clients()
            if series:
                self.history.append_own(self.method.kind, round, series)
            for line in left_out:
                self.report.say(line)
            self.telemetry.samples += cohort.tally.samples
            self.telemetry.steps += cohort.tally.steps

        return commit

    def left_out(self, round: str) -> list[str]:
        """A line that says who was left out of a round, if anybody was."""
        named = ", ".join(map(str, self.fl.named))
        return [f"{round}: left out, because its values are not finite: client {named}"] if named else []

    def advance(self, round: int) -> None:
        self.round, self.fresh = round, True

    def series(self) -> dict[str, np.ndarray]:
        """What the method recorded of this round: it goes into the history, under the method's name."""
        names, recorded = list(self.fl.recorded), list(self.fl.recorded.values())
        table = self.fl.table(torch.stack([value.double() for value in recorded], 1)) if recorded else np.empty((0, 0))
        values = {name: table[:, i].copy() for i, name in enumerate(names)}
        return values | {name: value.double().cpu().numpy() for name, value in self.fl.told.items()}

    def evaluate(self) -> Commit:
        """The accuracies and losses of clients' models."""
        round, samples = self.round, self.plan.samples
        with self.telemetry.phase("evaluate"):
            some = ((self.hosting.states.take(clients), self.cohort(clients)) for clients in self.listed())
            last = round == self.config.all_rounds
            found = evaluate(self.method, self.server, some, self.fl, samples.classes, samples.best, last)

        def commit() -> None:
            self.fresh = True
            costs = {name: np.float64(cost) for name, cost in self.traffic()._asdict().items()}
            self.history.append(round, found.scores | costs)
            for group, values in found.samples.items():
                self.history.keep_own(group, values)

        return commit

    def find(self) -> Commit:
        """What the method has found of every client goes into the history."""
        found = [self.method.findings(self.server, self.hosting.states.take(clients)) for clients in self.listed()]
        tables = {name: self.fl.table(torch.cat([some[name] for some in found])) for name in found[0]}
        return lambda: self.history.keep_own(self.method.kind, tables)

    def listen(self) -> Commit:
        """What detectors say to every test sample, before training and at its end, goes into the history."""
        samples, states = self.plan.samples, self.hosting.states
        if samples.states is None or self.method.warm_start is None:
            return lambda: None
        with self.telemetry.phase("evaluate"):
            found = [
                detection.scores(self.method, self.server, states.take(clients), self.cohort(clients))
                for clients in self.listed()
            ]
            tables = {kind: self.fl.table(torch.cat([some[kind] for some in found])) for kind in found[0]}
        if self.round == 0:
            tables = {"baseline": next(iter(tables.values()))}
            tables |= detection.marks(self.plan.partition, self.fl.listed, samples.labels, samples.states)
        return lambda: self.history.keep_own(detection.NAME, tables)

    def listed(self) -> list[np.ndarray]:
        """The clients of the histories that are hosted here, some at a time: there may not be memory for the models
        and samples of all together. The verbs speak of them from now on."""
        self.fl.begin(self.round, self.fl.listed, self.hosts(self.fl.listed))
        here = self.fl.clients
        return [here[first : first + TOGETHER] for first in range(0, max(1, len(here)), TOGETHER)]

    def save(self) -> Commit:
        """A checkpoint and the histories; a failure to write is said, and training goes on."""
        began = time.monotonic()
        if self.comm.is_server and self.comm.name:  # the server that kept others from the folder has died
            with contextlib.suppress(OSError):  # what is wrong with the disk shows below
                self.folder.hold()
        with self.telemetry.phase("checkpoint"):
            history = self.bound()
            try:
                path, states = self.folder.path, self.hosting.states
                checkpoint.write(path, self.round, self.server, states, history, self.config.digest, self.comm)
                if self.comm.is_server:
                    kept = self.config.checkpoint
                    checkpoint.prune(path, kept.keep, self.round, kept.keep_every)
                    history.write(path)
                    volumes.prune(path, history.volumes)
                    self.folder.saved = True
            except (checkpoint.CheckpointError, OSError) as error:
                self.folder.saved = False
                self.report.say(f"NOT SAVED: {error}")

        def commit() -> None:
            self.history, self.fresh, self.comm.pulse.saving = history, False, time.monotonic() - began

        return commit

    def bound(self) -> History:
        """The histories; where many rows have come together, with these in a volume that the server has written."""
        history = self.history
        few = history.size() < 1e6 * self.config.checkpoint.history_megabytes
        if few or (history.volumes and history.volumes[-1].last == self.round):
            return history
        seal = np.zeros(sealed.LENGTH, np.uint8)
        if self.comm.is_server:
            try:
                seal[:] = np.frombuffer(history.bind(self.folder.path, self.round), np.uint8)
            except OSError as error:
                self.report.say(f"round {self.round}: no volume could be written, checkpoints carry its rows ({error})")
        self.comm.broadcast(seal)
        return history.bound(self.round, seal.tobytes()) if seal.any() else history

    def finish(self, seconds: float, rounds: int) -> Commit:
        """The summary, and the histories once more: a run may have ended just after its last checkpoint."""
        self.report.stop()
        telemetry = self.telemetry.summary(self.comm)
        if telemetry is None:
            return lambda: None
        costs = self.traffic()._asdict() | telemetry
        costs |= {"deaths": self.survival.deaths}
        try:
            bound, lost = volumes.sound(self.folder.path, self.history.volumes)
            self.history.write(self.folder.path, bound)
            self.folder.finish(self.config, self.history, seconds, rounds, self.comm.size, costs)
            own = self.history.own(self.method.kind, bound)
            if series := self.history.own(detection.NAME, bound):
                names = self.config.data.source.model_dump()["states"]
                groups = self.plan.partition.group[self.fl.listed]
                detection.write(self.folder.path, detection.cells(series, groups, names))
            for problem in lost:
                self.folder.saved = False
                self.report.say(f"NOT SAVED: {problem}; history.h5 lacks its rows")
        except OSError as error:
            self.folder.saved = False
            self.report.say(f"NOT SAVED: {error}")
            return lambda: None

        def commit() -> None:
            for remark in self.method.remarks(own):
                self.report.say(remark)
            self.report.say(f"{rounds} rounds in {seconds:.1f} s; results in {self.folder.path}")

        return commit

    # ------------------------------------------------------------------ what the steps use

    def hosts(self, clients: np.ndarray) -> np.ndarray:
        """Where the round's clients train: at home, or wherever there is least to do if they have no state."""
        if self.hosting.states.fields or len(clients) == self.clients:
            return self.hosting.home[clients]
        return place(self.plan.work[clients], self.comm.workers)

    def cohort(self, clients: np.ndarray, round: int | None = None) -> Cohort:
        config, round, beat = self.config, self.round if round is None else round, self.comm.pulse.beat
        return Cohort(clients, self.store, self.plan.model, config.train, config.seed, round, self.width, beat)

    def traffic(self) -> Traffic:
        """What the last round cost."""
        return self.method.traffic(self.server, self.config.participation.expected(self.clients))

    def note(self) -> str:
        """The evaluated round in a few words."""
        row = self.history.figures[-1]
        kinds = [k for k in ("global", "personal") if getattr(self.config.algorithm, f"learns_{k}ly")]
        if f"{kinds[0]}_error_mean" in row:
            return "  ".join(f"{k} error {row[f'{k}_error_mean']:.4g}" for k in kinds)
        return "  ".join(f"{k} {100 * row[f'{k}_accuracy_mean']:.1f} %" for k in kinds)
