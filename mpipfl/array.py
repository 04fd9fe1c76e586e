"""A study as Slurm job arrays: `python -m mpipfl.sweep STUDY --slurm` writes the names of the runs that are to be done,
a line for each task of `slurm/array.sbatch`, and submits it. A task trains the run of its line."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from .errors import ConfigError
from .files import whole

SCRIPT, SITE = Path("slurm/array.sbatch"), Path("slurm/site.sh")
TASKS = 1000  # of one array: Slurm's MaxArraySize is 1001 where the site has not changed it


def submit(study: Path, overrides: Sequence[str], runs: Sequence[str], folder: Path, ranks: int, at_once: int) -> None:
    """Submit the runs of these names, so many ranks each; at most `at_once` of an array's tasks run at a time (0: as
    many as there is room for). The arrays' numbers are printed."""
    if shutil.which("sbatch") is None:
        raise ConfigError("--slurm: there is no sbatch in PATH; submit from a machine of a Slurm cluster")
    if not SCRIPT.exists():
        raise ConfigError(f"--slurm: there is no {SCRIPT} here; start it in the project's folder")
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(runs), TASKS):
        some = runs[first : first + TASKS]
        names = folder / f"array_{datetime.now():%Y%m%d-%H%M%S}_{first // TASKS}.txt"
        with whole(names) as temporary:
            temporary.write_text("".join(f"{name}\n" for name in some), encoding="utf-8")
        tasks = f"1-{len(some)}" + (f"%{at_once}" if at_once else "")
        job = sbatch(
            f"--array={tasks}", f"--ntasks-per-node={ranks}", f"--job-name={folder.name}",
            f"--output={folder}/slurm-%A_%a.out", SCRIPT, names, study, *overrides,
        )  # fmt: skip
        print(f"job array {job}: {len(some)} run(s) of {names}; what they say goes to {folder}/slurm-{job}_*.out")


def sbatch(*arguments: object) -> str:
    """A job's number, submitted with the site's settings."""
    command = ["bash", "-c", f'source {SITE} && exec sbatch --parsable "$@"', "sbatch", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"sbatch refused the job array: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout.strip().partition(";")[0]
