"""When a run ends by itself: signals, their grace, time limits; and who counts as stuck."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from mpipfl import beacons, pulse, watchdog
from mpipfl.comm import Comm
from mpipfl.placement import keepers, place
from mpipfl.progress import Reporter
from mpipfl.pulse import FINE, GOES_ON, WHOLE, Pulse
from mpipfl.run import main

from .conftest import clean_environment, command, network
from .suite import differing
from .test_faults import LONG, complaints, results, written


@pytest.fixture
def beating() -> Pulse:
    return Pulse(lambda: None)


def test_a_signal_ends_the_run_after_the_round(beating: Pulse) -> None:
    with beating.heed_signals():
        assert beating.votes == FINE | GOES_ON | WHOLE
        os.kill(os.getpid(), signal.SIGUSR1)
        assert beating.votes == FINE | WHOLE and beating.beat()


@pytest.mark.parametrize(("rest", "skips"), [(5.0, False), (50.0, True), (math.inf, True)])
def test_a_round_that_takes_longer_than_the_grace_is_dropped(rest: float, skips: bool, beating: Pulse) -> None:
    """Of 20 seconds, twice 4 are kept for the checkpoint."""
    beating.grace, beating.saving, beating.round_ends = 20.0, 4.0, time.monotonic() + rest
    with beating.heed_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert beating.beat() is not skips
        assert beating.votes == (FINE if skips else FINE | WHOLE)
    assert 11 < beating.latest - time.monotonic() <= 12
    beating.free()
    assert beating.beat() and beating.votes == FINE | WHOLE


def test_the_limit_counts_from_the_start_of_the_process(beating: Pulse) -> None:
    age = pulse.age()
    assert 0 < age < 24 * 3600
    beating.end_by((age + 60) / 60)
    assert beating.latest - time.monotonic() == pytest.approx(60, abs=1)
    assert beating.votes == FINE | GOES_ON | WHOLE
    beating.round = 70.0  # seconds: the next round would not fit
    assert beating.votes == FINE | WHOLE and "the limit of " in str(beating.why)


def test_looks_for_dead_ranks_are_rare() -> None:
    seen: list[int] = []
    busy = Pulse(lambda: seen.append(1))
    for _ in range(1000):
        busy.beat()
    assert len(seen) == 1 and busy.moves == 1000


@pytest.mark.parametrize("beats", [0, 3, 40, 101])
def test_the_limit_ends_a_run_that_resumes_to_the_same_bits(
    beats: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is up after so many mini-batches, within a round: that round is dropped."""
    alone, limited = tmp_path / "alone", tmp_path / "limited"
    for folder in (alone, limited):
        folder.mkdir()
    short = LONG | {"rounds": 20}
    assert main([written(alone, "scaffold", **short)]) == 0
    path, beat = written(limited, "scaffold", **short), Pulse.beat

    def last(beating: Pulse) -> bool:
        if beating.moves >= beats:
            beating.deadline = min(beating.deadline, time.monotonic())
        return beat(beating)

    monkeypatch.setattr(Pulse, "beat", last)
    assert main([path, "limit.minutes=1000"]) == 75
    monkeypatch.undo()
    log = (limited / "run/log.txt").read_text(encoding="utf-8")
    assert "stopped by the limit of 1000 minutes" in log
    assert main([path, "--resume"]) == 0
    assert differing(results(alone), results(limited)) == []


# ---------------------------------------------------------------------- the watchdog


def watched(comm: Comm, seconds: float, folder: Path = Path()) -> watchdog.Watchdog:
    dog = watchdog.Watchdog(comm, Reporter(False, 1, "test"), seconds, folder)
    dog.killed = []  # type: ignore[attr-defined]
    dog._kill = lambda place, what: dog.killed.append((place, what))  # type: ignore[method-assign, attr-defined]
    return dog


def test_a_main_thread_that_does_nothing_is_found(alone: Comm) -> None:
    dog = watched(alone, 10)
    dog.look(0.0)
    dog.look(9.9)
    alone.pulse.beat()
    dog.look(19.0)
    assert dog.killed == []  # type: ignore[attr-defined]
    alone.pulse.waiting = True  # for others, as long as they take
    dog.look(40.0)
    assert dog.killed == []  # type: ignore[attr-defined]
    alone.pulse.waiting = False
    dog.look(41.0)
    assert dog.killed == [(0, "its main thread has done nothing for 22 s")]  # type: ignore[attr-defined]


def test_a_silent_rank_is_found_by_the_lowest_other(alone: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three ranks on a node, places 0 and 2 are silent: place 1 is the one to act."""
    for me, finds in ((1, True), (2, False)):
        dog = watched(alone, 10)
        dog.names, dog.me = np.arange(3), me
        monkeypatch.setattr(alone, "names", dog.names)
        dog.signs, dog.phases = np.ones((3, 2), np.int64), np.zeros((3, 64), np.uint8)
        for now in range(12):
            alone.pulse.beat()
            if me == 2:
                dog.signs[1, 0] += 1
            dog.look(float(now))
        silent = [0, 2] if finds else []
        assert sorted({place for place, _ in dog.killed}) == silent  # type: ignore[attr-defined]


def test_a_node_that_stands_still_is_found_by_the_one_before_it(
    alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes 0, 2 and 5 watch in a ring; a file that is left of an earlier job tells nothing, nor does one that this
    node cannot write beside."""
    dogs = {node: watched(alone, 10, tmp_path) for node in (0, 2, 5)}
    monkeypatch.setattr(alone, "nodes", np.array([0, 0, 2, 5]))
    dogs[2].beacons.light(2)
    time.sleep(0.02)
    ended: list[tuple[int, int]] = []

    def begin(node: int) -> None:
        dogs[node]._give_up = lambda other, since: ended.append((node, other))  # type: ignore[method-assign]
        dogs[node].node = node
        dogs[node].beacons.light(node)
        dogs[node].begun = dogs[node].beacons.seen(node)

    begin(0)
    begin(5)

    def pass_time(begin: int, end: int, *well: int) -> None:
        for now in range(begin, end):
            for node in well:
                dogs[node].look_around(float(now))

    pass_time(0, 30, 0, 5)  # node 2 has not begun, but its old file is there
    assert ended == []
    begin(2)
    pass_time(30, 60, 0, 2, 5)
    assert ended == []
    pass_time(60, 70, 0, 5)
    assert ended == []
    with monkeypatch.context() as failing:
        failing.setattr(beacons.Beacons, "light", lambda self, node: False)  # the file system, for all
        pass_time(70, 90, 0, 5)
    assert ended == []
    pass_time(90, 101, 0, 5)
    assert set(ended) == {(0, 2)}
    for node in dogs:
        beacons.Beacons(tmp_path).put_out(node)
    assert not (tmp_path / "alive").exists()


STUCK = network("if Net.calls > 200:", "    time.sleep(100)")


def test_a_run_that_is_stuck_ends_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    more = {"model": {"kind": "stuck:Net"}, "train.cohort": 2, "fault_tolerance.stall_seconds": 3}
    done = subprocess.run(
        command(written(tmp_path, **LONG | more)), cwd=tmp_path, capture_output=True, text=True, timeout=90,
        env=clean_environment() | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    (complaint,) = complaints(done.stderr)
    assert "is stuck in round " in complaint and "its main thread has done nothing for 3 s" in complaint
    assert "is stuck in round " in (tmp_path / "run/log.txt").read_text(encoding="utf-8")


# ---------------------------------------------------------------------- who keeps what


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 2), (4, 4, 4), (3, 1), (1, 1, 1), (4, 2, 1)])
def test_every_rank_keeps_one_other_ranks_copy(sizes: tuple[int, ...]) -> None:
    nodes = np.repeat(np.arange(len(sizes)), sizes)
    keeper = keepers(nodes)
    assert sorted(keeper) == list(range(len(nodes)))
    if len(nodes) > 1:
        assert (keeper != np.arange(len(nodes))).all()
    if max(sizes) * 2 <= len(nodes):
        assert (nodes[keeper] != nodes).all()


def test_who_has_a_host_stays_there() -> None:
    work = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    stay = np.array([-1, 2, 1, -1, -1])
    host = place(work, [1, 2], stay)
    assert (host[stay > 0] == stay[stay > 0]).all()
    assert host[0] == 2  # 5 to the rank with less work, then 3 and 2 level the rest
    assert abs(work[host == 1].sum() - work[host == 2].sum()) <= 3
