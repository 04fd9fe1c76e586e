"""Runs that are disturbed until they are done: `python -m benchmarks.soak [--faults N] [--seed N] [--quick] [-o FILE]`.

Methods that use every verb, at random numbers of ranks under `mpirun --with-ft ulfm`: ranks are killed or stopped at
random moments, also several at once and the server; jobs are asked to end (USR1, TERM), or killed as a whole, with the
newest checkpoint damaged now and then, and resumed at another number of ranks. Every run must end with the bits of the
undisturbed one, no fault may hang it, and where ranks keep copies none may cost more than a round.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from mpipfl import checkpoint, launch
from mpipfl.config import check, dump

from . import common
from .common import Row
from .nursery import Nursery

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "selffl": {"l_max": 6},
    "ucfl": {"streams": 2, "weights": {"at_round": 1}},
    "ifca": {"k": 2},
    "pfedvem": {"head_epochs": 1, "draws": 2},
    "persfl": {"lambdas": [0, 0.5], "temperatures": [1, 5], "points": 2, "student_epochs": 1},
    "fedfomo": {},
}
ROUNDS = 24
LIMIT = 300.0  # seconds until the next round, on a busy machine: longer is a hang
STALL = 20.0
KINDS = {  # and how often
    "a worker killed": 6, "the server killed": 4, "two ranks killed": 4, "killed during recovery": 3,
    "a rank stopped": 1, "USR1": 3, "TERM": 2, "the job killed": 1, "the job killed, checkpoint damaged": 2,
}  # fmt: skip


class Fault(NamedTuple):
    """What was done to a run, and what it cost."""

    kind: str
    method: str
    seconds: float  # until the next round was done, a new start included
    repeated: int  # rounds that were done before and had to be done again


class Run:
    """One experiment in its folder, started as often as it takes."""

    def __init__(self, method: str, folder: Path, nursery: Nursery, chance: random.Random) -> None:
        self.method, self.folder, self.nursery, self.chance = method, folder, nursery, chance
        folder.mkdir()
        settings = {
            "name": "run", "output": str(folder), "rounds": ROUNDS, "algorithm": {"kind": method, **METHODS[method]},
            "data": {"source": {"kind": "glyphs", "classes": 6}, "samples": 260, "clients": 9,
                     "partition": {"kind": "classes", "k": 3}, "shift": {"kind": "rotate", "groups": 2}},
            "model": {"kind": "mlp", "hidden": [12]}, "train": {"batch": 8, "lr": 0.05, "cohort": 3},
            "participation": {"fraction": 0.7}, "evaluate": {"every": 2},
            "checkpoint": {"every": 1, "keep": 100, "history_megabytes": 0.01},
            "fault_tolerance": {"stall_seconds": STALL},
        }  # fmt: skip
        self.config = check(settings, "the soak test")
        (folder / "config.yaml").write_text(dump(self.config), encoding="utf-8")

    def start(self, ranks: int) -> None:
        for old in self.folder.glob("rank_*"):
            old.unlink()
        command = [launch.mpirun(), "--with-ft", "ulfm", "-np", str(ranks), *self.nursery.command]
        with open(self.folder / "output", "a", encoding="utf-8") as output:
            self.job = subprocess.Popen(
                [*command, "config.yaml", "--resume"], cwd=self.folder, stdout=output, stderr=subprocess.STDOUT,
                env=launch.environment() | {"MPIPFL_PROGRESS": "lines"},
            )  # fmt: skip
        self.alive = list(range(ranks))

    def done(self) -> int:
        """The newest round on disk."""
        return max(checkpoint.rounds(self.folder / "run"), default=-1)

    def wait_for(self, round: int) -> bool:
        """Until a round is on disk; whether the job is still at work then."""
        limit = time.monotonic() + LIMIT
        while self.done() < min(round, self.config.all_rounds) and self.job.poll() is None:
            if time.monotonic() > limit:
                raise TimeoutError(f"{self.folder} hangs after round {self.done()}")
            time.sleep(0.005)
        return self.job.poll() is None

    def kill(self, *ranks: int, number: signal.Signals = signal.SIGKILL) -> None:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(int((self.folder / f"rank_{rank}").read_text(encoding="ascii")), number)

    def end(self) -> int:
        try:
            return self.job.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.folder} does not end after round {self.done()}") from None

    def stop(self) -> None:
        self.kill(*range(9))
        self.job.kill()

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "run/log.txt").read_text(encoding="utf-8")
        return ""

    # ------------------------------------------------------------------ faults

    def disturb(self, kind: str) -> Fault:
        """One fault, and the run at work again."""
        begin, done, log = time.monotonic(), self.done(), len(self.log())
        if "job" in kind:
            self.kill(*self.alive)
            self.job.kill()
            self.end()
            done = self.done()
            if "damaged" in kind:
                flip(checkpoint.path_of(self.folder / "run", done))
            self.resume()
        elif kind in ("USR1", "TERM"):
            if kind == "USR1":
                self.job.send_signal(signal.SIGUSR1)
            else:
                self.kill(*self.alive, number=signal.SIGTERM)
            if (code := self.end()) not in (0, 75):
                raise RuntimeError(f"{self.folder} ended with code {code} after {kind}")
            done = self.done()
            if code:
                self.resume()
        else:
            self.end_ranks(kind)
        self.wait_for(done + 2)  # the round that is hit may be done already
        return Fault(kind, self.method, time.monotonic() - begin, self.repeated(done, self.log()[log:]))

    def end_ranks(self, kind: str) -> None:
        """Ranks die or stop while the job goes on."""
        server, *workers = self.alive
        if kind in ("a worker killed", "the server killed"):
            victims = [server if kind == "the server killed" else self.chance.choice(workers)]
        else:
            victims = self.chance.sample(self.alive, 1 if kind == "a rank stopped" else 2)
        self.kill(victims[0], number=signal.SIGSTOP if kind == "a rank stopped" else signal.SIGKILL)
        for victim in victims[1:]:
            time.sleep(self.chance.uniform(0.005, 0.05) if kind == "killed during recovery" else 0)
            self.kill(victim)
        self.alive = [rank for rank in self.alive if rank not in victims]

    def resume(self) -> None:
        self.start(self.chance.randint(4, 6))

    def repeated(self, done: int, said: str) -> int:
        """Rounds that were on disk, or all but, and were trained again."""
        back = [int(round) for round in re.findall(r"(?:resuming from \S+round_|goes back to round )(\d+)", said)]
        hit = [int(round) for round in re.findall(r"died in round (\d+) \(train\)", said)]
        return max([0, *(done - round for round in back), *(len(hit[:1]),)])


def flip(path: Path) -> None:
    """Damage a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def content(folder: Path) -> dict[str, bytes]:
    """All that two runs must agree in."""
    found = {name: (folder / "run" / name).read_bytes() for name in ("metrics.csv", "history.h5")}
    with h5py.File(checkpoint.path_of(folder / "run", max(checkpoint.rounds(folder / "run")))) as file:
        file.visititems(
            lambda name, item: found.update({name: np.asarray(item).tobytes()}) if hasattr(item, "dtype") else None
        )
    return found


def unlike(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    return [name for name in sorted(one | other) if one.get(name) != other.get(name)]


# ---------------------------------------------------------------------- the whole test


def soak(count: int, seed: int, folder: Path, methods: list[str]) -> tuple[list[Fault], list[str]]:
    """So many faults, and what went wrong."""
    chance, faults, problems = random.Random(seed), list[Fault](), list[str]()
    nursery = Nursery(folder)
    whole: dict[str, dict[str, bytes]] = {}
    number = 0
    try:
        while len(faults) < count:
            method = methods[(number + seed) % len(methods)]
            if method not in whole:
                calm = Run(method, folder / f"calm_{method}", nursery, chance)
                calm.start(3)
                if calm.end():
                    raise RuntimeError(f"{calm.folder} fails undisturbed:\n{(calm.folder / 'output').read_text()}")
                whole[method] = content(calm.folder)
            run = Run(method, folder / f"{number:03}_{method}", nursery, chance)
            number += 1
            try:
                for fault in disturbed(run, count - len(faults)):
                    faults.append(fault)
                if differing := unlike(content(run.folder), whole[method]):
                    problems.append(f"{run.folder}: other bits in {', '.join(differing)}")
            except (RuntimeError, TimeoutError, OSError) as error:
                problems.append(str(error))
                run.stop()
            print(f"{len(faults)} faults, {len(problems)} problems, after {run.folder.name}", flush=True)
    except KeyboardInterrupt:
        print("ended early", flush=True)  # what was found until now counts
        run.stop()
    finally:
        nursery.close()
    return faults, problems


def disturbed(run: Run, most: int) -> Iterator[Fault]:
    """One run with as many faults as it takes in."""
    run.resume()
    while most and run.wait_for(run.done() + run.chance.randint(1, 2)) and run.done() < ROUNDS - 3:
        kind = run.chance.choices(list(KINDS), list(KINDS.values()))[0]
        few = len(run.alive) < 3 and not kind.startswith(("the job", "USR1", "TERM"))
        if few:
            kind = run.chance.choice(["USR1", "TERM", "the job killed"])  # and more ranks again
        time.sleep(run.chance.uniform(0, 0.3))
        if run.job.poll() is not None:
            break
        yield run.disturb(kind)
        most -= 1
    if code := run.end():
        raise RuntimeError(f"{run.folder} ended with code {code}")


def rows(faults: list[Fault]) -> list[Row]:
    """A line for each kind of fault."""
    lines: list[Row] = []
    for kind in [*KINDS, "all"]:
        some = [fault for fault in faults if kind in (fault.kind, "all")]
        if some:
            seconds = [fault.seconds for fault in some]
            lines.append({
                "fault": kind, "times": len(some), "rounds repeated": sum(fault.repeated for fault in some),
                "most at once": max(fault.repeated for fault in some),
                "seconds to go on: median": common.middle(seconds), "worst": max(seconds),
            })  # fmt: skip
    return lines


def main() -> int:
    parser = common.options(__doc__)
    parser.add_argument("--faults", type=int, default=120, metavar="N", help="how many (default: 120)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    methods = ["scaffold"] if options.quick else list(METHODS)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    faults, problems = soak(4 if options.quick else options.faults, options.seed, folder, methods)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    verdict = {"problems": problems, "methods": methods, "seed": options.seed}
    common.publish("soak", {f"{len(faults)} faults, {len(problems)} problems": rows(faults)}, options.output, verdict)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
