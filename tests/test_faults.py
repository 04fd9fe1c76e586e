"""Killed, interrupted, damaged, full, diverging: a run ends soon with one message, and resumes to the same bits."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from mpipfl import checkpoint, sealed
from mpipfl.config import dump
from mpipfl.run import main

from .conftest import PROGRAM, Run, clean_environment, command, network
from .suite import METHODS, config, content, differing

Job = subprocess.Popen[str]
Results = dict[str, np.ndarray]
ROUNDS = 150  # of a run that is disturbed: some seconds
LONG = {"rounds": ROUNDS, "model": {"kind": "logistic"}, "checkpoint.keep": 3, "evaluate.every": 10}
ENDS = 10.0  # seconds that a failing job may go on for; two is usual


def written(folder: Path, method: str = "fedavg", **changes: object) -> str:
    """A configuration file whose run goes to `folder/run`."""
    path = folder / "config.yaml"
    path.write_text(dump(config({"algorithm": METHODS[method]} | changes, folder)))
    return str(path)


def results(folder: Path) -> Results:
    """What two runs must agree in to the bit."""
    *_, last = sorted((folder / "run/checkpoints").glob("round_*.h5"))
    files = {
        name: np.frombuffer((folder / "run" / name).read_bytes(), np.uint8) for name in ("metrics.csv", "history.h5")
    }
    return content(last) | files | {"last": np.array(last.name)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """The whole run's results, for a method with state on the server (fedavg) or at the clients (local)."""

    @functools.cache
    def run(method: str) -> Results:
        folder = tmp_path_factory.mktemp("undisturbed")
        assert main([written(folder, method, **LONG)]) == 0
        return results(folder)

    return run


# ---------------------------------------------------------------------- jobs


@contextlib.contextmanager
def started(
    folder: Path, *arguments: str, np: int | None, survive: bool = False, program: Sequence[str] = PROGRAM
) -> Iterator[Job]:
    """A job that goes on beside the test, and is gone after it."""
    job = subprocess.Popen(
        command(*arguments, np=np, survive=survive, program=program), cwd=folder, env=clean_environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    family: list[psutil.Process] = []
    try:
        wait_for(folder / "run/config.yaml", job)
        family = [psutil.Process(job.pid), *ranks(job)]
        yield job
    finally:
        kill(family or [psutil.Process(job.pid)])
        job.communicate()


def ranks(job: Job) -> list[psutil.Process]:
    """The job's ranks in order; the job itself without mpirun."""
    children = [p for p in psutil.Process(job.pid).children(recursive=True) if "OMPI_COMM_WORLD_RANK" in p.environ()]
    return sorted(children, key=lambda p: int(p.environ()["OMPI_COMM_WORLD_RANK"])) or [psutil.Process(job.pid)]


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def wait_for(path: Path, job: Job) -> None:
    """Until a file is there, as long as the job is alive."""
    limit = time.monotonic() + 60
    while not path.exists():
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < limit, f"no {path} after a minute"
        time.sleep(0.002)


def at_round(folder: Path, round: int) -> Path:
    return checkpoint.path_of(folder / "run", round)


def complaints(said: str) -> list[str]:
    return [line.strip() for line in said.splitlines() if line.strip().startswith("mpipfl:")]


# ---------------------------------------------------------------------- killed


@pytest.mark.parametrize(("method", "seed", "again"), [("fedavg", 1, None), ("local", 2, 2), ("local", 3, None)])
def test_a_killed_job_resumes_to_the_same_bits(
    method: str, seed: int, again: int | None, undisturbed: Callable[[str], Results], run: Run, tmp_path: Path
) -> None:
    path = written(tmp_path, method, **LONG)
    with started(tmp_path, path, np=3) as job:
        time.sleep(random.Random(seed).uniform(0, 1.2))
        processes = [*ranks(job), psutil.Process(job.pid)]
        kill(random.Random(seed).sample(processes, len(processes)))
        assert job.wait(ENDS) == -signal.SIGKILL
    assert not (tmp_path / "run/summary.json").exists()
    if again is None:
        assert main([path, "--resume"]) == 0
    else:
        assert run(path, "--resume", np=again).returncode == 0
    assert differing(results(tmp_path), undisturbed(method)) == []


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_ends_the_job(rank: int, tmp_path: Path) -> None:
    with started(tmp_path, written(tmp_path, **LONG | {"rounds": 100_000}), np=3) as job:
        wait_for(at_round(tmp_path, 2), job)
        all_ranks = ranks(job)
        all_ranks[rank].kill()
        said, _ = job.communicate(timeout=ENDS)
        assert job.returncode != 0
        assert f"process rank {rank} " in said
        assert psutil.wait_procs(all_ranks, timeout=ENDS)[1] == []


FAILING = network(
    'if os.environ.get("OMPI_COMM_WORLD_RANK") == "2" and Path("run/checkpoints/round_00002.h5").exists():',
    '    Path("raised").write_text(repr(time.time()))',
    "    raise {error}",
)


@pytest.mark.parametrize("error", ["RuntimeError('boom')", "SystemExit('boom')"])
def test_a_rank_that_raises_ends_the_job_with_one_message(error: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING.format(error=error))
    path = written(tmp_path, **LONG | {"rounds": 100_000, "model": {"kind": "failing:Net"}})
    done = run(path, np=3, timeout=60)
    assert time.time() - float((tmp_path / "raised").read_text()) < ENDS
    assert done.returncode != 0
    (complaint,) = complaints(done.stderr)
    assert re.match(rf"mpipfl: rank 2, round \d+(, client \d+(, \d+)*)?: {error.split('(')[0]}: boom", complaint)
    assert "client" in complaint or "SystemExit" in error  # an exit is no exception of a client
    assert "Traceback" not in done.stderr
    assert "boom" in (tmp_path / "run/log.txt").read_text()


# ---------------------------------------------------------------------- interrupted


@pytest.mark.parametrize(
    ("number", "np", "method"),
    [(signal.SIGTERM, None, "local"), (signal.SIGTERM, 3, "fedavg"), (signal.SIGUSR1, 3, "local")],
    ids=["TERM-1", "TERM-3", "USR1-3"],
)
def test_a_signal_ends_the_run_after_the_round(
    number: signal.Signals, np: int | None, method: str, undisturbed: Callable[[str], Results], tmp_path: Path
) -> None:
    """SIGTERM reaches the ranks from Slurm, SIGUSR1 is passed on by mpirun."""
    path = written(tmp_path, method, **LONG | {"checkpoint.every": 1000})
    with started(tmp_path, path, np=np) as job:
        wait_for(at_round(tmp_path, 0), job)
        for process in ranks(job) if number == signal.SIGTERM else [job]:
            process.send_signal(number)
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 75
    (stopped,) = re.findall(r"stopped by a signal after round (\d+); --resume goes on from there", said)
    assert complaints(said) == [] and at_round(tmp_path, int(stopped)).exists()
    assert main([path, "--resume"]) == 0
    assert differing(results(tmp_path), undisturbed(method)) == []


WARM = {"algorithm": METHODS["ditto"] | {"warm_start": {"rounds": ROUNDS}}, "rounds": 3, "checkpoint.every": 1}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a run makes that begins with rounds of FedAvg, without any disturbance."""
    folder = tmp_path_factory.mktemp("warm")
    assert main([written(folder, **LONG | WARM)]) == 0
    return results(folder)


def test_a_signal_during_the_warm_start(warm: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its rounds are saved like all others; the run goes on with them."""
    path = written(tmp_path, **LONG | WARM)
    with started(tmp_path, path, np=3) as job:
        wait_for(checkpoint.path_of(tmp_path / "run/warm_start", 2), job)
        job.send_signal(signal.SIGUSR1)
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 75
    (stopped,) = re.findall(r"stopped by a signal after round (\d+); --resume goes on from there", said)
    assert 2 <= int(stopped) < ROUNDS and not (tmp_path / "run/checkpoints").exists()
    assert main([path, "--resume", "algorithm.warm_start.rounds=5"]) == 2
    assert f"made with other settings: algorithm.warm_start.rounds was {ROUNDS}, is 5" in capsys.readouterr().err
    assert main(["--verify", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert f"whole    warm_start/checkpoints/round_{int(stopped):05d}.h5" in said
    assert f"everything is whole; --resume begins at round {stopped} of warm_start" in said
    assert main([path, "--resume"]) == 0
    assert differing(results(tmp_path), warm) == []


# ---------------------------------------------------------------------- damaged


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert main([written(folder)]) == 0
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of a whole run that has not got to its summary."""
    shutil.copytree(whole / "run", tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    return tmp_path


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << position % 8
    path.write_bytes(data)


def truncate(path: Path, size: int) -> None:
    os.truncate(path, size)


def bytes_of(fraction: float) -> Callable[[Path], int]:
    return lambda path: int(path.stat().st_size * fraction)


DAMAGE = {
    "magic": (flip, lambda path: 3),
    "hash": (flip, lambda path: 40),
    "rest of the user block": (flip, lambda path: 300),
    "HDF5 signature": (flip, lambda path: sealed.USER_BLOCK),
    "last byte": (flip, lambda path: path.stat().st_size - 1),
    **{f"at {place:.3f}": (flip, bytes_of(place)) for place in np.random.default_rng(0).uniform(0, 1, 5)},
    "empty": (truncate, lambda path: 0),
    "beginning only": (truncate, lambda path: 100),
    "half": (truncate, bytes_of(0.5)),
    "almost whole": (truncate, lambda path: path.stat().st_size - 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_passed_over(
    damage: str, copied: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm, place = DAMAGE[damage]
    harm(at_round(copied, 4), place(at_round(copied, 4)))
    assert main([written(copied), "--resume"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"{at_round(copied, 4)} is .*damaged.*; trying the one before it\n", said)
    assert f"resuming from {at_round(copied, 3)}\n" in said
    assert differing(results(copied), results(whole)) == []


def test_a_missing_checkpoint(copied: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at_round(copied, 4).unlink()
    assert main([written(copied), "--resume"]) == 0
    assert f"resuming from {at_round(copied, 3)}\n" in capsys.readouterr().out
    assert differing(results(copied), results(whole)) == []


def test_killed_between_the_last_checkpoint_and_the_tables(copied: Path, whole: Path) -> None:
    for name in ("metrics.csv", "history.h5"):
        (copied / "run" / name).write_bytes(b"older")
    assert main([written(copied), "--resume"]) == 0
    assert differing(results(copied), results(whole)) == []


def test_all_checkpoints_damaged(copied: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (copied / "run/checkpoints").iterdir():
        flip(path, 1000)
    assert main([written(copied), "--resume"]) == 0
    said = capsys.readouterr().out
    assert said.count("is damaged: its content does not match its checksum") == 5
    assert "no whole checkpoint: starting at round 0" in said
    assert differing(results(copied), results(whole)) == []


def test_damaged_checkpoints_do_not_push_out_newer_ones(copied: Path) -> None:
    """Resumed from round 2 as 3 and 4 are damaged, with another checkpoint.every: what is written now must stay."""
    checkpoint.prune(copied / "run", keep=1, newest=2)
    assert checkpoint.rounds(copied / "run") == [0, 2, 3, 4]


# ---------------------------------------------------------------------- no room


def limited(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program with no room for files of more than so many bytes."""
    return subprocess.run(
        command(*arguments), env=clean_environment(), capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip


def test_no_room_at_the_start(tmp_path: Path) -> None:
    done = limited(3000, written(tmp_path))
    assert done.returncode == 3
    (complaint,) = complaints(done.stderr)
    assert "run/partition.h5 cannot be written (" in complaint and "File too large" in complaint
    assert "Traceback" not in done.stderr


def test_a_file_size_limit(tmp_path: Path) -> None:
    """Checkpoints do not fit any more: each failure is said, the older ones stay, and training goes on."""
    path = written(tmp_path, **{"checkpoint.every": 2})
    assert main([path, "rounds=2"]) == 0
    done = limited(at_round(tmp_path, 2).stat().st_size // 2, path, "rounds=6", "--resume")
    assert done.returncode == 6, done.stderr
    for round in (4, 6):
        assert done.stdout.count(f"NOT SAVED: round {round}: no checkpoint could be written to") == 1
    assert done.stdout.count("NOT SAVED") == 2 and complaints(done.stderr) == []
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["round_00000.h5", "round_00002.h5"]
    assert checkpoint.newest(tmp_path / "run") == (2, [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for a few checkpoints."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no rights to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("np", [None, 3])
def test_a_full_disk(np: int | None, small_disk: Path, run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, output=str(small_disk), rounds=12)
    done = run(path, np=np, timeout=60)
    assert done.returncode == 6, done.stderr
    kept = checkpoint.rounds(small_disk / "run")
    assert 0 < len(kept) < 13 and done.stdout.count("NOT SAVED: round ") == 13 - len(kept)
    assert all(checkpoint.fault(at_round(small_disk, round)) is None for round in kept)
    assert "round 12/12" in done.stdout and complaints(done.stderr) == []
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    assert main([path, "--resume"]) == 0
    assert main([written(tmp_path, rounds=12)]) == 0
    assert differing(results(small_disk), results(tmp_path)) == []


def test_the_folder_is_taken_away(tmp_path: Path) -> None:
    with started(tmp_path, written(tmp_path, **LONG | {"rounds": 60}), np=None) as job:
        wait_for(at_round(tmp_path, 2), job)
        (tmp_path / "run").rename(tmp_path / "gone")
        (tmp_path / "run").touch()
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 6
    assert "NOT SAVED: " in said and "Traceback" not in said


def test_nowhere_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path), "output=/proc/nowhere"]) == 1
    (complaint,) = complaints(capsys.readouterr().err)
    assert "/proc/nowhere" in complaint


# ---------------------------------------------------------------------- bad numbers, bad data


@pytest.mark.parametrize("ranks", [None, 3])
def test_divergence_stops_the_run(ranks: int | None, run: Run, tmp_path: Path) -> None:
    done = run(written(tmp_path, train__lr=1e30), np=ranks)
    assert done.returncode == 4
    (complaint,) = complaints(done.stderr)
    assert re.fullmatch(
        r"mpipfl: rank 0, round 1: client \d(, \d)+ diverged: its values are not finite. Lower train.lr \(or the "
        r"method's own .*\), or leave such clients out of a round with nonfinite=skip", complaint,
    )  # fmt: skip


def arrays(folder: Path) -> dict[str, object]:
    """Data of six users; the samples of user 3 are far too large."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(240, 10)).astype(np.float32)
    user = np.arange(240) % 6
    x[user == 3] *= np.float32(1e30)
    np.savez(folder / "users.npz", x=x, y=draw.integers(3, size=240), user=user)
    source = {"kind": "arrays", "path": str(folder / "users.npz")}
    return {
        "data": {"source": source, "partition": "natural", "clients": 6, "shift": {"kind": "none"}},
        "model": {"kind": "logistic"}, "rounds": 6, "participation.fraction": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_diverging_clients_are_left_out(method: str, run: Run, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    settings = arrays(tmp_path) | {"nonfinite": "skip"}
    assert main([written(alone, method, **settings)]) == 0
    done = run(written(together, method, **settings), np=3)
    assert done.returncode == 0
    named = re.findall(r"round (\d+): left out, because its values are not finite: client (.*)\n", done.stdout)
    assert named == [(str(round), "3") for round in range(1, 7)]
    assert all(f"round {round}: left out" in (alone / "run/log.txt").read_text() for round in range(1, 7))
    assert differing(results(alone), results(together)) == []


BAD_DATA = {
    "not an archive": (lambda path: path.write_bytes(b"x" * 100), "cannot be read"),
    "no labels": (lambda path: np.savez(path, x=np.zeros((9, 4), np.float32)), "has no y; it holds"),
    "a pickle": (lambda path: np.savez(path, x=np.array([{}], object), y=[0]), "cannot be read"),
    "NaN": (lambda path: np.savez(path, x=np.full((9, 4), np.nan), y=np.zeros(9, int)), "contains NaN or infinite"),
    "lengths": (lambda path: np.savez(path, x=np.zeros((9, 4)), y=np.zeros(8, int)), "8 entries for 9 samples"),
    "no file": (lambda path: None, "no file at"),
}


@pytest.mark.parametrize("kind", BAD_DATA)
def test_bad_data_is_one_message(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, message = BAD_DATA[kind]
    make(tmp_path / "bad.npz")
    assert main([written(tmp_path), f"data.source={{kind: arrays, path: {tmp_path}/bad.npz}}"]) == 3
    (complaint,) = complaints(capsys.readouterr().err)
    assert message in complaint and "bad.npz" in complaint
    assert not (tmp_path / "run").exists()


def test_bad_data_is_one_message_of_all_ranks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK" + b"x" * 100)
    done = run(written(tmp_path), "data.source={kind: arrays, path: bad.npz}", np=3)
    assert done.returncode == 3
    (complaint,) = complaints(done.stderr)
    assert "bad.npz cannot be read" in complaint and "Traceback" not in done.stderr
