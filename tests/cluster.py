"""A real Slurm on this machine: five nodes of it, with ports and a key of their own, gone when the tests end.

Needs Debian's packages slurm-wlm, munge and libpmix-dev, and root. The daemons are children of the test process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .conftest import PROJECT, clean_environment

NODES = 5
PATIENCE = 240.0  # seconds for anything to happen, on a machine that may have other work


def missing() -> str | None:
    """Why there can be no cluster here."""
    absent = [name for name in ("slurmctld", "slurmd", "munged", "setpriv") if path_of(name) is None]
    if not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        absent.append("libpmix.so")  # Slurm's plugin looks for this name
    if absent:
        return f"{', '.join(absent)} not found: a Slurm of its own needs slurm-wlm, munge and libpmix-dev"
    return None if os.geteuid() == 0 else "only root can start a Slurm of its own"


def path_of(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; sockets stay open until all are found, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


class Cluster:
    """A running cluster: jobs go in by `sbatch`, and are looked at by `wait`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = clean_environment() | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "MPIPFL_VENV": os.environ.get("VIRTUAL_ENV", str(PROJECT / ".venv")),
        }
        self.environment["PATH"] += ":/usr/sbin"
        self.hastened: set[tuple[str, str]] = set()

    # ------------------------------------------------------------------ jobs

    def command(self, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, arguments)), cwd=PROJECT, env=self.environment | environ, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip

    def said(self, *arguments: object, **environ: str) -> str:
        """What a command says that must succeed."""
        done = self.command(*arguments, **environ)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def sbatch(self, *arguments: object, **environ: str) -> int:
        """Submit from the project's folder, as a user does; the job's number."""
        output = f"--output={self.folder}/job-%A_%a.txt"
        return int(self.said("sbatch", "--parsable", output, *arguments, **environ))

    def output(self, job: int) -> str:
        """What a job has said so far, in all its tasks."""
        found = sorted(self.folder.glob(f"job-{job}_*.txt"))
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in found)

    def show(self, job: int) -> list[dict[str, str]]:
        """Everything Slurm knows of a job, for each of its tasks."""
        blocks = self.said("scontrol", "show", "job", job).strip().split("\n\n")
        return [dict(re.findall(r"(\S+?)=(\S*)", block)) for block in blocks]

    def wait(self, job: int, until: Callable[[dict[str, str]], bool] | None = None) -> list[dict[str, str]]:
        """Until all the job's tasks have ended, or until something holds of them; then what Slurm knows of them.
        A task that waits to be started again does not have to wait for long."""
        limit = time.monotonic() + PATIENCE
        while not all(map(until or ended, tasks := self.show(job))):
            hopeless = until is not None and all(map(ended, tasks))
            assert time.monotonic() < limit and not hopeless, f"{tasks}\n{self.output(job)}"
            for task in tasks:
                start = (task["JobId"], task["Restarts"])
                if task["JobState"] == "PENDING" and task["Reason"] == "BeginTime" and start not in self.hastened:
                    self.hastened.add(start)  # not at once: the node still remembers the job as killed
                    self.command("scontrol", "update", f"jobid={task['JobId']}", "StartTime=now+5")
            time.sleep(0.3)
        return tasks


def ended(task: dict[str, str]) -> bool:
    return task["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "PREEMPTED")


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    configure(folder)
    with contextlib.ExitStack() as stack:
        socket_file = folder / "munge.sock"
        stack.enter_context(daemon(
            cluster, "munged", "--foreground", "--force", f"--socket={socket_file}", f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed",
        ))  # fmt: skip
        until(socket_file.exists, "munged has no socket")
        stack.enter_context(daemon(cluster, "slurmctld", "-D", "-i"))
        for node in range(1, NODES + 1):
            stack.enter_context(daemon(cluster, "slurmd", "-D", "-N", f"n{node}"))

        def idle() -> bool:
            return cluster.command("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").stdout.strip() == str(NODES)

        until(idle, "the nodes do not come up")
        try:
            yield cluster
        finally:
            cluster.command("scancel", "--user=root", "--full")
            cluster.command("scancel", "--user=root")
            until(idle, "jobs do not end")


def configure(folder: Path) -> None:
    ports = free_ports(1 + NODES)
    values = {"HOST": socket.gethostname().split(".")[0], "FOLDER": str(folder), "PORT": str(ports[0])}
    values |= {f"PORT{node}": str(port) for node, port in enumerate(ports[1:], 1)}
    text = (PROJECT / "tests/slurm.conf").read_text(encoding="utf-8")
    (folder / "slurm.conf").write_text(re.sub(r"@(\w+)@", lambda found: values[found[1]], text), encoding="utf-8")
    (folder / "gres.conf").write_text(f"NodeName=n[1-{NODES}] Name=gpu File=/dev/null\n", encoding="utf-8")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    for name in ("state", *(f"{kind}-n{node}" for node in range(1, NODES + 1) for kind in ("spool", "tmp"))):
        (folder / name).mkdir()


@contextlib.contextmanager
def daemon(cluster: Cluster, name: str, *arguments: str) -> Iterator[None]:
    """A daemon in the foreground, which ends with the test process whatever happens to that."""
    command: Sequence[str] = ["setpriv", "--pdeathsig", "TERM", path_of(name) or name, *arguments]
    with open(cluster.folder / "daemons.txt", "ab") as output:
        running = subprocess.Popen(
            command, env=cluster.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )  # fmt: skip
    try:
        yield
    finally:
        running.terminate()
        running.wait(60)


def until(holds: Callable[[], bool], otherwise: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit, otherwise
        time.sleep(0.1)
