"""The files of slurm/ as a cluster's users start them, on a real Slurm of five nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from mpipfl import array, checkpoint, sweep
from mpipfl.config import dump
from mpipfl.run import main

from . import cluster as slurm
from .cluster import Cluster
from .conftest import network
from .suite import config, content, differing

WHY = slurm.missing()


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Needs a cluster, and its time: jobs wait for the scheduler, and for other work of this machine."""
    return pytest.mark.timeout(900)(pytest.mark.skipif(WHY is not None, reason=WHY or "")(test))


TWO_TASKS = ("--ntasks-per-node=2", "--gpus-per-node=1", "--cpus-per-task=1")  # what a node of the cluster has

# Its rounds take a second as long as a file is there; the results do not depend on it
HELD = network("if Path({held!r}).exists():", "    time.sleep(0.1)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with slurm.started(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def written(folder: Path, **changes: object) -> Path:
    """A configuration file whose run goes to `folder/run`."""
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(dump(config({"algorithm": "fedavg"} | changes, folder)))
    return path


def last(folder: Path) -> dict[str, np.ndarray]:
    newest, damaged = checkpoint.newest(folder / "run")
    assert newest is not None and damaged == []
    return content(checkpoint.path_of(folder / "run", newest))


@real
@pytest.mark.parametrize(
    ("nodes", "launch"), [(1, None), (2, None), (2, "mpirun --map-by node -n {ranks}")], ids=["one", "two", "mpirun"]
)
def test_nodes(nodes: int, launch: str | None, cluster: Cluster, tmp_path: Path) -> None:
    """The job checks itself, trains on one rank a node and a server, and ends with the bits of a single process."""
    script = "slurm/single_node.sbatch" if nodes == 1 else "slurm/multi_node.sbatch"
    environ = {} if launch is None else {"MPIPFL_LAUNCH": launch}
    job = cluster.sbatch(*TWO_TASKS, script, written(tmp_path), **environ)
    assert main([str(written(tmp_path / "alone"))]) == 0
    (task,) = cluster.wait(job)
    said = cluster.output(job)
    assert task["JobState"] == "COMPLETED", said
    assert task["NumNodes"] == str(nodes)
    assert f"{nodes + 1} rank(s) on {nodes} node(s)" in said
    assert f"{nodes} worker(s) on cpu" in said and "WRONG" not in said and "srun: " not in said
    assert "Slurm gave GPUs, PyTorch uses none" in said
    assert differing(last(tmp_path), last(tmp_path / "alone")) == []


@real
def test_the_scaling_benchmark(cluster: Cluster, tmp_path: Path) -> None:
    """Its worlds of one and of two workers, in one job."""
    file = tmp_path / "scaling.json"
    arguments = ("--workload", "logreg", "--quick", "-o", file)
    (task,) = cluster.wait(job := cluster.sbatch("--nodes=2", *TWO_TASKS, "slurm/scaling.sbatch", *arguments))
    assert task["JobState"] == "COMPLETED", cluster.output(job)
    (rows,) = json.loads(file.read_text())["tables"].values()
    assert [row["workers"] for row in rows] == [1, 2]


@real
def test_signal_time_limit_and_preemption(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is signalled while it starts, meets its time limit, and gives way to an urgent job, ends by itself
    with the bits of a run that nobody has disturbed."""
    held = tmp_path / "held"
    held.touch()
    (tmp_path / "held_network.py").write_text(HELD.format(held=str(held)))
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"rounds": 120, "model": {"kind": "held_network:Net"}, "checkpoint.keep": 2, "checkpoint.every": 1000}
    job = cluster.sbatch(
        *TWO_TASKS, "--time=1", "--signal=B:USR1@20", "slurm/preemptible.sbatch", written(tmp_path, **settings),
        PYTHONPATH=f"{cluster.environment['PYTHONPATH']}:{tmp_path}",
    )  # fmt: skip

    def restarted(times: int) -> None:
        cluster.wait(job, lambda task: task["Restarts"] == str(times) and task["JobState"] == "RUNNING")

    slurm.until(lambda: cluster.said("squeue", "--steps", "-h", "-j", job).count(f"{job}.0") == 1, "no ranks")
    cluster.said("scancel", "--batch", "--signal=USR1", job)  # Python is only starting
    restarted(1)
    restarted(2)  # by the time limit
    cluster.said("scontrol", "update", f"jobid={job}", "TimeLimit=30")
    slurm.until(lambda: cluster.output(job).count("resuming from") == 2, "the run does not go on")
    urgent = cluster.sbatch("--partition=urgent", "--nodes=5", "--exclusive", "--wrap=true")
    assert cluster.wait(urgent)[0]["JobState"] == "COMPLETED"  # it takes all nodes
    held.unlink()
    (task,) = cluster.wait(job)
    said = cluster.output(job)
    assert (task["JobState"], task["Restarts"]) == ("COMPLETED", "3"), said
    assert said.count("stopped by a signal after round") == 3
    assert said.count("stopped with code 75 before the run was finished; it waits in the queue again") == 3
    assert main([str(written(tmp_path / "alone", **settings))]) == 0
    assert differing(last(tmp_path), last(tmp_path / "alone")) == []


@real
def test_an_elastic_job_outlives_its_ranks(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is killed, then the server: the job goes on without them. A node dies: it goes on after the requeue. The
    bits are those of a single process."""
    held = tmp_path / "held"
    held.touch()
    (tmp_path / "held_network.py").write_text(HELD.format(held=str(held)))
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"rounds": 60, "model": {"kind": "held_network:Net"}, "checkpoint.every": 1}
    job = cluster.sbatch(
        "--nodes=3", *TWO_TASKS, "slurm/elastic.sbatch", written(tmp_path, **settings),
        PYTHONPATH=f"{cluster.environment['PYTHONPATH']}:{tmp_path}",
    )  # fmt: skip
    log = tmp_path / "run/log.txt"

    def said(count: int, what: str) -> None:
        slurm.until(lambda: log.exists() and log.read_text().count(what) >= count, cluster.output(job))

    for victim in (2, 0):
        said(1, "round 2/60" if victim else "died in round")
        time.sleep(1)
        os.kill(rank_of(job, victim), signal.SIGKILL)
    said(2, "died in round")
    assert "rank 1 is the server now" in log.read_text()
    rank = psutil.Process(rank_of(job, 1))
    node = rank.parent()
    assert node is not None and node.name() == "prted"
    node.kill()  # what mpirun has on a node
    rank.kill()
    held.unlink()
    (task,) = cluster.wait(job)
    assert (task["JobState"], task["Restarts"]) == ("COMPLETED", "1"), cluster.output(job)
    assert log.read_text().count("resuming from") == 1
    assert main([str(written(tmp_path / "alone", **settings))]) == 0
    assert differing(last(tmp_path), last(tmp_path / "alone")) == []


def rank_of(job: int, rank: int) -> int:
    """The process of a rank of a job."""
    wanted = {f"SLURM_JOB_ID={job}", f"OMPI_COMM_WORLD_RANK={rank}"}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = {f"{name}={value}" for name, value in process.environ().items()}
            if wanted <= named and "mpipfl.run" in process.cmdline() and "python" in process.name():
                return process.pid
    raise AssertionError(f"job {job} has no rank {rank}")


@real
def test_a_cancelled_job_does_not_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """Although its ranks say that they were stopped; a job that fails of itself is not tried again either."""
    script = (slurm.PROJECT / "slurm/preemptible.sbatch").read_text()
    *head, last_line = script.splitlines()
    assert last_line == 'requeued on_ranks python -m mpipfl.run "$@" --resume'
    commands = {"waits": "trap 'exit 75' USR1 TERM; echo up; while sleep 0.1; do :; done", "fails": "exit 4"}
    jobs = []
    for name, command in commands.items():
        (tmp_path / name).write_text("\n".join([*head, f'requeued bash -c "{command}"']))
        jobs.append(cluster.sbatch(*TWO_TASKS, tmp_path / name))
    slurm.until(lambda: "up" in cluster.output(jobs[0]), "the job does not start")
    cluster.said("scancel", jobs[0])
    states = [cluster.wait(job)[0] for job in jobs]
    time.sleep(2)  # a requeue would show by now
    assert [cluster.show(job)[0]["JobState"] for job in jobs] == ["CANCELLED", "FAILED"]
    assert [state["Restarts"] for state in states] == ["0", "0"]
    assert states[1]["ExitCode"] == "4:0"


@real
def test_a_study_as_an_array(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tasks train the study's runs; a failed one is listed, and what is done is not submitted again."""
    for name in ("PATH", "SLURM_CONF", "MPIPFL_VENV"):
        monkeypatch.setenv(name, cluster.environment[name])
    monkeypatch.setenv("SBATCH_EXPORT", "ALL")
    monkeypatch.chdir(slurm.PROJECT)
    lost = {"data.source": {"kind": "arrays", "path": "/nowhere.npz"}}
    path = tmp_path / "study.yaml"
    study = {
        "name": "study", "base": str(written(tmp_path)), "ranks": 2, "output": str(tmp_path),
        "axes": {"method": {"fedavg": {}, "lost": lost}},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(study))
    assert sweep.main([str(path), "train.lr=0.07", "--slurm", "--runs", "2"]) == 0
    said = capsys.readouterr().out
    job = int(said.split("job array ")[1].split(":")[0])
    tasks = cluster.wait(job)
    assert sorted(task["JobState"] for task in tasks) == ["COMPLETED", "FAILED"]
    assert sweep.main([str(path), "train.lr=0.07", "--slurm"]) == 0
    said = capsys.readouterr().out
    assert "2 runs: 1 done, 1 failed" in said and "job array" not in said
    done = (tmp_path / "study/fedavg_s0/output.txt").read_text()
    assert "1 worker(s) on cpu" in done and "4 rounds in" in done
    assert "lr: 0.07" in (tmp_path / "study/fedavg_s0/config.yaml").read_text()
    assert "exit code 3: mpipfl: data.source.path" in (tmp_path / "study/lost_s0/failed.txt").read_text()


# ---------------------------------------------------------------------- without a cluster


def in_a_job(script: str, **environ: str) -> list[str]:
    """What a script says that has read slurm/job.sh, started by a launcher that only tells what it was told."""
    inside = {"PATH": "/usr/bin:/bin", "MPIPFL_LAUNCH": "echo {ranks} ranks:"} | environ
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; source slurm/job.sh; {script}"], cwd=slurm.PROJECT, env=inside,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("nodes", "tasks", "ranks"), [(1, 1, 1), (3, 1, 3), (1, 2, 2), (2, 2, 3), (1, 5, 5), (4, 5, 17)]
)
def test_one_server_in_all(nodes: int, tasks: int, ranks: int) -> None:
    (said,) = in_a_job("on_ranks python it", SLURM_NNODES=str(nodes), SLURM_NTASKS_PER_NODE=str(tasks))
    assert said.startswith(f"{ranks} ranks: bash") and said.endswith(" rank python it")


@pytest.mark.parametrize("path", sorted((slurm.PROJECT / "slurm").glob("*.s*")), ids=lambda path: path.name)
def test_the_files_are_right(path: Path) -> None:
    """Bash can read them, and everything is explained in its head and in the README."""
    subprocess.run(["bash", "-n", path], check=True)
    assert f"`{path.name}`" in (slurm.PROJECT / "slurm/README.md").read_text()
    if path.suffix == ".sbatch":
        assert f"slurm/{path.name}" in path.read_text().split("#SBATCH")[0]


SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> calls.txt
[[ $* == *refused* ]] && { echo "sbatch: error: Invalid account" >&2; exit 1; }
echo "17;cluster"
"""


@pytest.fixture
def submitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the project's, with an sbatch that takes notes."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/array.sbatch").touch()
    (tmp_path / "slurm/site.sh").write_text("echo with site settings >> calls.txt\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(SBATCH)
    (tmp_path / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_large_studies_are_several_arrays(submitting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [f"run_{i}" for i in range(array.TASKS + 2)]
    array.submit(Path("my study.yaml"), ["train.lr=1"], runs, submitting / "out", ranks=3, at_once=4)
    calls = (submitting / "calls.txt").read_text().splitlines()
    assert calls[::2] == ["with site settings"] * 2
    assert "--array=1-1000%4 --ntasks-per-node=3 --job-name=out" in calls[1]
    assert "--array=1-2%4 " in calls[3]
    names = sorted((submitting / "out").glob("array_*.txt"))
    assert [line for path in names for line in path.read_text().splitlines()] == runs
    assert calls[1].endswith(f"slurm/array.sbatch {names[0]} my study.yaml train.lr=1")
    assert capsys.readouterr().out.count("job array 17: ") == 2


def test_what_keeps_a_study_from_being_submitted(submitting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem() -> str:
        with pytest.raises(array.ConfigError) as raised:
            array.submit(Path("study.yaml"), ["name=refused"], ["a"], submitting / "out", 1, 0)
        return str(raised.value)

    assert problem() == "sbatch refused the job array: sbatch: error: Invalid account"
    (submitting / "slurm/array.sbatch").unlink()
    assert "there is no slurm/array.sbatch here; start it in the project's folder" in problem()
    monkeypatch.setenv("PATH", str(submitting))
    assert "there is no sbatch in PATH" in problem()
