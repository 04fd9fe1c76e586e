"""How long a user waits for the first round."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mpipfl import launch

from . import common
from .common import Row

QUICKSTART = Path(__file__).parent.parent / "configs" / "quickstart.yaml"
READY = 5.0  # seconds, the goal


def row(ranks: int, repeats: int) -> Row:
    """Seconds from the command to a run that is set up, and to one whose round 0 is evaluated and saved."""
    times = np.array([one_start(ranks) for _ in range(repeats)])
    built, ready = np.median(times, axis=0).tolist()
    return {
        "ranks": ranks, "set up (s)": built, "ready for round 1 (s)": ready,
        "slowest": float(times[:, 1].max()), "goal": READY, "verdict": common.verdict(ready <= READY),
    }  # fmt: skip


def one_start(ranks: int) -> tuple[float, float]:
    """Both times of one run, by what it leaves in its folder."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_"))}
    with tempfile.TemporaryDirectory() as folder:
        command = [launch.mpirun(), "-np", str(ranks), sys.executable, "-m", "mpipfl.run", str(QUICKSTART)]
        command += ["rounds=1", f"output={folder}"]
        marks = [Path(folder, "quickstart", name) for name in ("log.txt", "checkpoints/round_00000.h5")]
        begin = time.perf_counter()
        job = subprocess.Popen(command, env=inherited | launch.ENVIRONMENT, stdout=subprocess.DEVNULL)
        built, ready = (wait(job, mark, begin) for mark in marks)
        if job.wait():
            raise RuntimeError(f"{' '.join(command)} ended with code {job.returncode}")
    return built, ready


def wait(job: subprocess.Popen[bytes], mark: Path, begin: float) -> float:
    """Seconds until the file is there."""
    while not mark.exists() and job.poll() is None:
        time.sleep(0.005)
    return time.perf_counter() - begin
