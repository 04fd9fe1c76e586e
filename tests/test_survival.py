"""Ranks that die while the others go on: under `mpirun --with-ft ulfm` no death costs more than the step it hits."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mpipfl import checkpoint, survival
from mpipfl.comm import MPI, Comm
from mpipfl.run import main

from .conftest import PROJECT, clean_environment, command, network
from .suite import METHODS, config, differing, train
from .test_faults import LONG, WARM, Job, Results, complaints, ranks, results, started, warm, written

__all__ = ["warm"]  # a fixture

ULFM = "Open MPI v5" in MPI.Get_library_version()
ulfm = pytest.mark.skipif(not ULFM, reason="needs Open MPI 5: no other MPI lets ranks outlive others")
LIMIT = 200.0  # seconds for a whole disturbed run on a busy machine


def wait_until(there: Callable[[], bool], job: Job) -> None:
    limit = time.monotonic() + LIMIT
    while not there():
        assert job.poll() is None, "the job has ended"
        assert time.monotonic() < limit
        time.sleep(0.002)


def reached(folder: Path, round: int) -> Callable[[], bool]:
    return lambda: checkpoint.rounds(folder / "run")[-1:] >= [round]


def logged(folder: Path, text: str) -> Callable[[], bool]:
    return lambda: text in (folder / "run/log.txt").read_text(encoding="utf-8")


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run/summary.json").read_text(encoding="utf-8"))
    return found


# ---------------------------------------------------------------------- dead ranks


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What `scaffold`, with state on the server and at the clients, makes without any disturbance."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([written(folder, "scaffold", **LONG)]) == 0
    return results(folder)


@ulfm
def test_one_after_the_other(undisturbed: Results, tmp_path: Path) -> None:
    """A worker, then the server and another worker at once, then the new server is stopped: the last rank finishes."""
    path = written(tmp_path, "scaffold", **LONG | {"fault_tolerance": {"stall_seconds": 15}})
    with started(tmp_path, path, np=5, survive=True) as job:
        all_ranks = ranks(job)
        wait_until(reached(tmp_path, 2), job)
        all_ranks[2].kill()
        wait_until(logged(tmp_path, "rank 2 on "), job)
        all_ranks[0].kill()
        all_ranks[3].kill()
        wait_until(logged(tmp_path, "rank 1 is the server now"), job)
        all_ranks[1].send_signal(signal.SIGSTOP)
        said, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, said
    assert differing(results(tmp_path), undisturbed) == []
    deaths = summary(tmp_path)["deaths"]
    assert deaths[0]["rank"] == 2 and {d["rank"] for d in deaths[1:3]} == {0, 3} and deaths[3]["rank"] == 1
    assert all(d["recovery_seconds"] < 5 and not d["went_back"] and d["host"] for d in deaths)
    log = (tmp_path / "run/log.txt").read_text(encoding="utf-8")
    assert re.search(r"rank 1 on \S+ is stuck in round \d+ \(\w+\): it has shown no sign of life for 1\d s", log)
    assert re.search(
        r"rank 1 on \S+ died in round \d+ \(\w+\); the other 1 go on after 0.\d\d s; rank 4 is the server", log
    )
    assert complaints(said) != [] and "goes back" not in log


@ulfm
def test_the_server_dies_in_the_warm_start(warm: Results, tmp_path: Path) -> None:
    with started(tmp_path, written(tmp_path, **LONG | WARM), np=4, survive=True) as job:
        wait_until(lambda: checkpoint.rounds(tmp_path / "run/warm_start")[-1:] >= [2], job)
        ranks(job)[0].kill()
        said, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, said
    assert differing(results(tmp_path), warm) == []
    assert [death["rank"] for death in summary(tmp_path)["deaths"]] == [0]
    assert "3 rounds in" in (tmp_path / "run/log.txt").read_text(encoding="utf-8")


APART = """
import sys
import numpy as np
from mpipfl import comm

begin = comm.Comm.__init__

def apart(self, *arguments):
    begin(self, *arguments)
    self.nodes = np.arange(self.size)

comm.Comm.__init__ = apart
from mpipfl.run import main

sys.exit(main())
"""


@pytest.mark.parametrize("survive", [False, pytest.param(True, marks=ulfm)])
def test_a_node_that_stands_still_ends_the_job(survive: bool, undisturbed: Results, tmp_path: Path) -> None:
    """Every rank believes to be alone on its node: nobody else can kill the one that is stopped."""
    path = written(tmp_path, "scaffold", **LONG | {"fault_tolerance": {"stall_seconds": 15}})
    (tmp_path / "apart.py").write_text(APART)
    with started(tmp_path, path, np=3, survive=survive, program=[str(tmp_path / "apart.py")]) as job:
        wait_until(reached(tmp_path, 2), job)
        all_ranks = ranks(job)
        all_ranks[2].send_signal(signal.SIGSTOP)
        said, _ = job.communicate(timeout=LIMIT)
        assert psutil.wait_procs(all_ranks, timeout=LIMIT)[1] == []
        assert re.search(r"rank 2 on \S+: no sign of life from this node for 1\d s; the job ends", said)
    assert "no sign of life from this node" in (tmp_path / "run/log.txt").read_text(encoding="utf-8")
    assert main([path, "--resume"]) == 0
    assert differing(results(tmp_path), undisturbed) == []


@ulfm
def test_without_copies_the_run_goes_back_to_a_checkpoint(undisturbed: Results, tmp_path: Path) -> None:
    """Two at once, the second one during the recovery from the first."""
    path = written(tmp_path, "scaffold", **LONG | {"fault_tolerance": {"partner_copies": False}, "checkpoint.every": 4})
    with started(tmp_path, path, np=4, survive=True) as job:
        all_ranks = ranks(job)
        wait_until(reached(tmp_path, 8), job)
        all_ranks[3].kill()
        time.sleep(0.01)
        all_ranks[1].kill()
        said, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, said
    assert "the run goes back to its newest checkpoint" in said
    assert differing(results(tmp_path), undisturbed) == []
    assert {d["rank"] for d in summary(tmp_path)["deaths"]} == {1, 3}


@ulfm
def test_switched_off_a_death_ends_the_job(tmp_path: Path) -> None:
    path = written(tmp_path, **LONG | {"rounds": 100_000, "fault_tolerance": "off"})
    with started(tmp_path, path, np=3, survive=True) as job:
        wait_until(reached(tmp_path, 2), job)
        ranks(job)[2].kill()
        said, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 1
    (complaint,) = complaints(said)
    assert re.search(r"rank 2 on \S+ died in round \d+; --resume goes on from the last checkpoint", complaint)


FAILING = network(
    'rank = os.environ["OMPI_COMM_WORLD_RANK"]',
    'if rank == "2" and Path("run/checkpoints/round_00002.h5").exists():',
    '    raise OSError(5, "Input/output error")',
    'if rank == "1" and Path("run/checkpoints/round_00009.h5").exists():',
    '    raise RuntimeError("boom")',
)


@ulfm
def test_own_errors(tmp_path: Path) -> None:
    """A rank whose hardware fails dies alone; a mistake in the program ends the job, with its message and code."""
    (tmp_path / "failing.py").write_text(FAILING)
    path = written(tmp_path, **LONG | {"rounds": 100_000, "model": {"kind": "failing:Net"}})
    done = subprocess.run(
        command(path, np=3, survive=True), cwd=tmp_path, env=clean_environment() | {"PYTHONPATH": str(tmp_path)},
        timeout=LIMIT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    hardware, program = complaints(done.stderr)
    assert re.match(r"mpipfl: rank 2, round \d+, client .*: OSError: \[Errno 5\] Input/output error", hardware)
    assert re.match(r"mpipfl: rank 1, round \d+, client .*: RuntimeError: boom", program)
    assert re.search(r"rank 2 on \S+ died in round \d+ \(\w+\); the other 2 go on", done.stdout)


@ulfm
def test_a_short_soak(tmp_path: Path) -> None:
    """Random faults, as in the long one: no run hangs, and each ends with the bits of the undisturbed one."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--quick", "-o", str(tmp_path / "soak.json")], cwd=PROJECT,
        env=clean_environment() | {"TMPDIR": str(tmp_path)}, timeout=280, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))["tables"].values()
    assert table[-1]["fault"] == "all" and table[-1]["times"] == 4 and table[-1]["most at once"] <= 1


# ---------------------------------------------------------------------- steps


@pytest.mark.parametrize("method", METHODS)
def test_every_step_can_be_repeated(method: str, alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Done twice, as if a rank had died at the end of the first try, a step gives the same bits: it changes nothing."""
    settings = {"algorithm": METHODS[method], "model": {"kind": "logistic"}, "rounds": 2}
    plain = train(config(settings, tmp_path / "plain"), alone)
    once = survival.Survival._attempt

    def twice(self: survival.Survival, work: Callable[[], Any]) -> Any:
        once(self, work)
        return once(self, work)

    monkeypatch.setattr(survival.Survival, "_attempt", twice)
    assert differing(plain, train(config(settings, tmp_path / "twice"), alone)) == []
