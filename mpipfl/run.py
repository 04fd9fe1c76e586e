"""Train one experiment: `mpirun -np 9 python -m mpipfl.run CONFIG [key.path=value ...]`."""

from __future__ import annotations

import argparse
import errno
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
import torch

from . import catalogue, checkpoint, launch, newcomers, process, warm
from .check import check
from .comm import LINGER, Comm, Lost
from .config import Config, load
from .errors import ConfigError, UserError
from .experiment import INTERRUPTED, Experiment
from .hosting import Commit
from .progress import Reporter
from .runfolder import RunFolder
from .survival import Survival
from .verify import verify
from .world import Plan, device, plan

T = TypeVar("T")
NOT_SAVED = 6  # exit code: the rounds are done, the last results are not on disk

EPILOG = """examples:
  python -m mpipfl.run configs/quickstart.yaml                        one process
  mpirun -np 3 python -m mpipfl.run configs/quickstart.yaml           a server and two workers
  python -m mpipfl.run configs/quickstart.yaml -n 9                   the same with mpirun's settings made for you
  ... algorithm=fedprox algorithm.mu=0.1 name=prox train.lr=0.05      any key of the file by its path
  mpirun -np 3 python -m mpipfl.run --check                           is this job as it should be?
  ... --resume                                                        go on from the newest good checkpoint
  python -m mpipfl.run --personalize RUN data.clients=10              newcomers of a finished run, with samples that its
                                                                      clients did not have
  mpirun --with-ft ulfm -np 9 python -m mpipfl.run ...                go on without ranks that die (Open MPI 5)

exit codes: 0 finished, 2 configuration, 3 data, 4 diverged, 5 checkpoint, 6 results not saved, 7 the run is being
trained elsewhere, 75 stopped by a signal (SIGTERM, SIGUSR1) or by limit.minutes after writing a checkpoint, 1 anything
else"""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "mpipfl run", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="?", help="a YAML file; see configs/ and --list")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings that replace the file's")
    parser.add_argument("--resume", action="store_true", help="go on from the newest good checkpoint of this run")
    parser.add_argument("--overwrite", action="store_true", help="replace a run of the same name")
    parser.add_argument(
        "--personalize", type=Path, metavar="RUN", help="what a finished run's models give newcomers; no CONFIG then"
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, train nothing")
    parser.add_argument("--check", action="store_true", help="look at ranks, MPI, cores, GPUs, folder; train nothing")
    parser.add_argument("--verify", type=Path, metavar="RUN", help="read all of a run's folder; say what is whole")
    parser.add_argument("--finished", action="store_true", help="is this run finished? Exit code 0 if so, else 1")
    parser.add_argument("--list", action="store_true", help="every method, model, source, partition and shift")
    parser.add_argument(
        "--keys", action="store_true", help="every key with its default; --keys KIND: a method's, a model's ..."
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="start N ranks on this machine with mpirun")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_intermixed_args(arguments)
    if options.resume and options.overwrite:
        parser().error("--resume goes on with a run, --overwrite replaces it: give one of them")
    if options.ranks is not None:
        return launch.ranks(options.ranks, ["-m", "mpipfl.run", *launch.without_ranks(arguments)])
    comm = Comm()
    with comm.pulse.heed_signals():
        return comm.finish(start(comm, options))


def start(comm: Comm, options: argparse.Namespace) -> int:
    """What the command line asks for; the exit code, the same on all ranks unless one has more to tell."""
    if options.list or options.keys:
        try:
            said = catalogue.listing() if options.list else catalogue.keys_of(options.config)
        except UserError as error:
            if comm.is_server:
                print(f"mpipfl: {error}", file=sys.stderr)
            return error.code
        if comm.is_server:
            print(said)
        return 0
    if options.verify is not None:
        return verify(options.verify) if comm.is_server else 0
    if options.config is None and options.personalize is None and not options.check:
        if comm.is_server:
            parser().print_usage(sys.stderr)
            print("mpipfl: name a configuration, for instance configs/quickstart.yaml", file=sys.stderr)
        return 2
    running: list[Experiment] = []
    try:
        process.tune(1)
        if options.check and options.config is None:
            return check(None, comm)
        config: Config = together(comm, lambda: configuration(options))
        if options.finished:
            return finished(config, comm)
        process.tune(config.threads)
        heed(comm, config)
        if options.check:
            return check(config, comm)
        together(comm, lambda: device(config, comm))
        made = in_turn(comm, lambda: plan(config))
        begin = config.algorithm.warm_start
        if begin is not None and begin.run is not None and not options.resume:
            together(comm, lambda: warm.model(config, made))  # a mistake is told before there is a folder
        if options.dry_run:
            lines = catalogue.plan(config, made, comm)
            if comm.is_server:
                print(lines)
            return 0
        folder = RunFolder(config.folder)
        code = train(comm, config, made, folder, options.resume, options.overwrite, running)
        return code if folder.saved else NOT_SAVED
    except Settled as settled:
        return settled.code
    except BaseException as error:
        experiment = running[0] if running else None
        if isinstance(error, Lost) and comm.survives:
            leave_the_dead(comm, experiment)
        complain(comm, error, experiment)
        if comm.survives and broken(error):
            os.kill(os.getpid(), signal.SIGKILL)  # the others notice, and go on
        comm.abort(error.code if isinstance(error, UserError) else 130 if isinstance(error, KeyboardInterrupt) else 1)


def train(
    comm: Comm, config: Config, made: Plan, folder: RunFolder, resume: bool, overwrite: bool, running: list[Experiment]
) -> int:
    """One run, from where it is to its end, after the one it begins with; the exit code, the same on all ranks."""
    report = Reporter(comm.is_server, config.all_rounds, config.name)
    try:
        resume_from = prepare(comm, config, made, folder, report, resume, overwrite)
        first = warm.first_run(config)
        if first is not None and resume_from is None:
            report.say(f"warm start: {first.rounds} rounds of fedavg in {first.folder}")
            if code := before(comm, first, made, running):
                return code
            report.speaks = comm.is_server  # who was it may have died
        deaths = running[0].survival.deaths if running else []
        survival = Survival(comm, report, config.fault_tolerance.mode)
        begin = partial(set_up, config, made, comm, folder, report, running)
        if not survival.step(0, "set-up", begin, survival.nothing):
            report.say(f"stopped by {comm.pulse.why or 'a signal'} before the first round; --resume starts again")
            return INTERRUPTED
        running[0].survival.deaths += [*deaths, *survival.deaths]
        return running[0].run(resume_from)
    finally:
        folder.release()


def before(comm: Comm, config: Config, made: Plan, running: list[Experiment]) -> int:
    """The run that another one begins with, or what is left of it to do."""
    try:
        plan, begun = made._replace(method=config.algorithm), (config.folder / "config.yaml").exists()
        return train(comm, config, plan, RunFolder(config.folder), begun, False, running)
    except Settled as settled:  # it is finished, or cannot be
        return settled.code


def configuration(options: argparse.Namespace) -> Config:
    """What the command line asks for."""
    if options.personalize is None:
        return load(options.config, options.overrides)
    words = [] if options.config is None else [options.config]
    return newcomers.settings(options.personalize, [*words, *options.overrides])


def finished(config: Config, comm: Comm) -> int:
    """Whether a run has nothing left to do, as an exit code."""
    folder = RunFolder(config.folder)
    done = folder.finished(config, max(checkpoint.rounds(folder.path), default=None))
    if comm.is_server:
        print(f"{folder.path} is {'' if done else 'not '}finished")
    return 0 if done else 1


def heed(comm: Comm, config: Config) -> None:
    """What the configuration says of dead ranks, signals and time limits."""
    comm.pulse.grace = config.fault_tolerance.grace_seconds or math.inf
    if config.limit.minutes is not None:
        comm.pulse.end_by(config.limit.minutes)


def set_up(
    config: Config, made: Plan, comm: Comm, folder: RunFolder, report: Reporter, out: list[Experiment]
) -> Commit:
    """The experiment, before its first step; with the data of the one that ran before it."""
    store = out[0].store if out else None
    experiment = Experiment(config, made, comm, folder, report, store)
    line = catalogue.start(config, made, comm, experiment.width, experiment.device)

    def commit() -> None:
        report.say(line)
        out[:] = [experiment]

    return commit


def prepare(
    comm: Comm, config: Config, made: Plan, folder: RunFolder, report: Reporter, resume: bool, overwrite: bool
) -> int | None:
    """The folder's affairs, on rank 0; the round to resume from, on every rank."""
    start = np.array([-1, False], dtype=np.int64)

    def on_server() -> None:
        if comm.is_server:
            folder.claim()
            round, lines = folder.prepare(config, resume, overwrite)
            if resume and folder.finished(config, round):
                start[1] = True
                more = "" if config.algorithm.closing_rounds else ". More go on with rounds=..."
                report.say(f"{folder.path} is finished: all {round} rounds are done{more}")
                return
            folder.describe(config, made.partition)
            report.log = folder.path / "log.txt"
            for line in lines:
                report.say(line)
            start[0] = -1 if round is None else round

    together(comm, on_server)
    comm.broadcast(start)
    if start[1]:
        raise Settled(0)
    report.log = folder.path / "log.txt"  # on every rank: each may be the server one day
    return None if start[0] < 0 else int(start[0])


class Settled(Exception):
    """An end that all ranks know of: it was said once, everybody leaves with its code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def together(comm: Comm, work: Callable[[], T]) -> T:
    """Do something without collectives on every rank; if it fails anywhere, the lowest such rank says so, all leave."""
    problem: UserError | OSError | None = None
    try:
        result = work()
    except (UserError, OSError) as error:
        problem = error
    code = getattr(problem, "code", 1)
    failed = np.array([0 if problem is None else (comm.size - comm.rank) * 1000 + code], dtype=np.int64)
    comm.allreduce(failed, "max")
    if not failed[0]:
        return result
    first, code = comm.size - int(failed[0]) // 1000, int(failed[0]) % 1000
    if comm.rank == first:
        where = "" if isinstance(problem, ConfigError) or comm.size == 1 or first == 0 else f"rank {first}: "
        said = str(problem)
        if isinstance(problem, OSError) and problem.filename is not None:
            said = f"{problem.filename}: {problem.strerror}"
        print(f"mpipfl: {where}{said}", file=sys.stderr, flush=True)
    comm.barrier()
    raise Settled(code)


def in_turn(comm: Comm, work: Callable[[], T]) -> T:
    """First rank 0, then one rank of each other node, then all others: what the first has downloaded, the rest find."""
    turn = 0 if comm.is_server else 1 if comm.local_rank == 0 else 2
    done: list[T] = []
    for now in range(3 if comm.size > 1 else 1):
        together(comm, lambda now=now: done.append(work()) if turn == now else None)  # type: ignore[misc]
    return done[0]


def leave_the_dead(comm: Comm, experiment: Experiment | None) -> NoReturn:
    """The end of a run that cannot go on without a rank that died, or of one that another rank ends."""
    code, dead = comm.part(0)
    if not code and comm.is_server:
        who = ", ".join(f"rank {rank} on {comm.hosts[rank]}" for rank in dead)
        when, then = "before the run could begin", "start it again"
        if experiment is not None:
            when, then = f"in round {experiment.survival.round}", "--resume goes on from the last checkpoint"
        print(f"mpipfl: {who} died {when}; {then}", file=sys.stderr, flush=True)
    comm.leave(code or 1, LINGER)


def broken(error: BaseException) -> bool:
    """Whether it is this rank's hardware that failed: others may do better."""
    lost = getattr(torch, "AcceleratorError", ())
    return isinstance(error, lost) or (isinstance(error, OSError) and error.errno in (errno.EIO, errno.ENXIO))


def complain(comm: Comm, error: BaseException, experiment: Experiment | None) -> None:
    """The one message of a job that ends: which rank, which round, which clients, and why."""
    where = [f"rank {comm.name}"]
    if experiment is not None:
        where.append(f"round {experiment.survival.round}")
        experiment.report.stop()
        if named := getattr(error, "clients", None):
            where.append("client " + ", ".join(map(str, named)))
    cause = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if isinstance(error, KeyboardInterrupt):
        cause = "interrupted; --resume goes on from the last checkpoint (SIGUSR1 ends a run after its round)"
    text = f"mpipfl: {', '.join(where)}: {cause}"
    if experiment is not None and not isinstance(error, UserError | KeyboardInterrupt):
        log = experiment.folder.path / "log.txt"
        try:
            with open(log, "a", encoding="utf-8") as file:
                file.write(text + "\n" + traceback.format_exc())
            text += f" (details in {log})"
        except OSError:
            pass
    if os.environ.get("MPIPFL_TRACEBACK"):
        traceback.print_exc()
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
