"""What all tests share: the data, the ranks, and runs of the program as a user starts it.

Under mpirun a failing test ends the whole job at once, because the other ranks may be waiting in a collective; ranks
other than 0 are silent unless they fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mpipfl import process
from mpipfl.comm import MPI, Comm
from mpipfl.launch import ENVIRONMENT, mpirun
from mpipfl.models import linear

PROJECT = Path(__file__).parent.parent
os.environ["MPIPFL_PROGRESS"] = "lines"  # what is said must not depend on where the tests are started
process.tune(1)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if MPI.COMM_WORLD.Get_rank() > 0:
        terminal = config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            config.pluginmanager.unregister(terminal)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and MPI.COMM_WORLD.Get_size() > 1:
        print(f"\nrank {MPI.COMM_WORLD.Get_rank()}: {report.nodeid} failed\n{report.longreprtext}", flush=True)
        MPI.COMM_WORLD.Abort(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets."""
    root = os.environ.get("MPIPFL_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("no real data: MPIPFL_DATA does not name a folder")
    return Path(root)


@pytest.fixture(scope="session")
def comm() -> Comm:
    """All ranks of the test job."""
    return Comm()


@pytest.fixture
def alone() -> Comm:
    """This rank by itself: what every other number of ranks is compared with."""
    return Comm(MPI.COMM_SELF)


@pytest.fixture
def together_path(comm: Comm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One temporary folder for all ranks."""
    mine = tmp_path_factory.mktemp("run") if comm.is_server else None
    return Path(comm.text(None if mine is None else str(mine)))


@pytest.fixture(params=[True, False], ids=["columns", "rows"])
def laid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples as they lie in the products of linear layers on Intel's processors, and on others."""
    monkeypatch.setattr(linear, "COLUMNS", request.param)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(*arguments, np=None)`: the program in a process of its own, in a temporary folder, with a time limit."""

    def start(*arguments: object, np: int | None = None, timeout: float = 120, **environ: str):
        return subprocess.run(
            command(*arguments, np=np),
            cwd=tmp_path, env=clean_environment() | environ, timeout=timeout, capture_output=True, text=True,
        )  # fmt: skip

    return start


PROGRAM = ("-m", "mpipfl.run")
NETWORK = """
import os, time
from pathlib import Path
from torch import nn

class Net(nn.Module):
    calls = 0
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(784, classes)
    def forward(self, x):
        Net.calls += 1
        ACT
        return self.layer(x.flatten(1))
"""


def network(*act: str) -> str:
    """A module whose class Net is logistic regression that does something first, by these lines, in each pass."""
    return NETWORK.replace("ACT", "\n        ".join(act))


def command(
    *arguments: object, np: int | None = None, survive: bool = False, program: Sequence[str] = PROGRAM
) -> list[str]:
    """The program's command line, under mpirun where a number of ranks is given."""
    launcher = [] if np is None else [mpirun(), *(["--with-ft", "ulfm"] if survive else []), "-np", str(np)]
    return [*launcher, sys.executable, *program, *map(str, arguments)]


def clean_environment() -> dict[str, str]:
    """The environment for a job of its own, also from inside one."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_"))}
    return inherited | ENVIRONMENT | {"PYTHONPATH": str(PROJECT), "MPIPFL_PROGRESS": "lines"}
