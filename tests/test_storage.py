"""Disks that fill up, vanish or turn read-only under a run: it trains on, says so, and nothing good is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mpipfl import checkpoint
from mpipfl.config import dump
from mpipfl.progress import Reporter
from mpipfl.run import main

from .suite import config, content, differing


def written(folder: Path, output: Path, **changes: object) -> str:
    path = folder / "config.yaml"
    path.write_text(dump(config({"algorithm": "ditto", "rounds": 6} | changes, output)))
    return str(path)


@pytest.fixture
def at_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, Callable[[], object]]], None]:
    """Things that happen at the end of rounds, before their checkpoints."""
    report = Reporter.round

    def happen(deeds: dict[int, Callable[[], object]]) -> None:
        def round(self: Reporter, number: int, note: str, evaluated: bool) -> None:
            deeds.pop(number, lambda: None)()
            report(self, number, note, evaluated)

        monkeypatch.setattr(Reporter, "round", round)

    return happen


AtRounds = Callable[[dict[int, Callable[[], object]]], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own for the run's folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no rights to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def remount(disk: Path, how: str) -> Callable[[], object]:
    return lambda: subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def last(run: Path) -> dict[str, np.ndarray]:
    return content(checkpoint.path_of(run, 6))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([written(folder, folder)]) == 0
    return last(folder / "run")


def test_read_only_to_the_end(
    disk: Path,
    tmp_path: Path,
    at_rounds: AtRounds,
    undisturbed: dict[str, np.ndarray],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = written(tmp_path, tmp_path)
    at_rounds({4: remount(disk, "ro")})
    assert main([path]) == 6
    said = capsys.readouterr()
    for round in (4, 5, 6):
        assert said.out.count(f"NOT SAVED: round {round}: no checkpoint could be written") == 1
    assert "Read-only file system" in said.out and "Traceback" not in said.err
    assert checkpoint.newest(disk) == (3, [])
    remount(disk, "rw")()
    assert main([path, "--resume"]) == 0
    assert "resuming from" in capsys.readouterr().out
    assert differing(last(disk), undisturbed) == []
    assert not list(disk.glob("**/.*"))


def test_read_only_for_a_while(
    disk: Path, tmp_path: Path, at_rounds: AtRounds, undisturbed: dict[str, np.ndarray]
) -> None:
    at_rounds({3: remount(disk, "ro"), 5: remount(disk, "rw")})
    assert main([written(tmp_path, tmp_path)]) == 0
    assert checkpoint.rounds(disk) == [0, 1, 2, 5, 6]
    assert differing(last(disk), undisturbed) == []


def test_a_folder_that_vanishes(tmp_path: Path, at_rounds: AtRounds, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is put in its place that would look like a run and could not be resumed."""
    at_rounds({3: lambda: shutil.rmtree(tmp_path / "run")})
    assert main([written(tmp_path, tmp_path)]) == 6
    said = capsys.readouterr().out
    assert [said.count(f"NOT SAVED: round {round}: ") for round in (2, 3, 4, 5, 6)] == [0, 1, 1, 1, 1]
    assert not (tmp_path / "run").exists()


def test_checkpoints_that_vanish(tmp_path: Path, at_rounds: AtRounds, undisturbed: dict[str, np.ndarray]) -> None:
    """All state is in memory: the next checkpoint has everything."""
    at_rounds({3: lambda: shutil.rmtree(tmp_path / "run/checkpoints")})
    assert main([written(tmp_path, tmp_path)]) == 0
    assert checkpoint.rounds(tmp_path / "run") == [3, 4, 5, 6]
    assert differing(last(tmp_path / "run"), undisturbed) == []


@pytest.mark.parametrize(
    ("keep", "keep_every", "kept"), [(1, 0, [0, 6]), (2, 0, [0, 5, 6]), (1, 2, [0, 2, 4, 6]), (2, 4, [0, 4, 5, 6])]
)
def test_which_checkpoints_stay(keep: int, keep_every: int, kept: list[int], tmp_path: Path) -> None:
    for round in range(7):
        path = checkpoint.path_of(tmp_path, round)
        path.parent.mkdir(exist_ok=True)
        path.touch()
        checkpoint.prune(tmp_path, keep, round, keep_every)
    assert checkpoint.rounds(tmp_path) == kept


def test_a_run_keeps_more(tmp_path: Path) -> None:
    assert main([written(tmp_path, tmp_path, **{"checkpoint.keep": 1, "checkpoint.keep_every": 4})]) == 0
    assert checkpoint.rounds(tmp_path / "run") == [0, 4, 6]


def test_the_newest_of_thousands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is read than the newest ones, down to the first that is whole."""
    (tmp_path / "checkpoints").mkdir()
    for round in range(5000):
        checkpoint.path_of(tmp_path, round).touch()
    for name in ("round_99999.h5.tmp", ".round_05000.h5.77", "round_x.h5", "notes.txt"):
        (tmp_path / "checkpoints" / name).touch()
    read: list[Path] = []

    def fault(path: Path) -> str | None:
        read.append(path)
        return None if path == checkpoint.path_of(tmp_path, 4997) else "is damaged"

    monkeypatch.setattr(checkpoint, "fault", fault)
    round, passed = checkpoint.newest(tmp_path)
    assert (round, len(passed)) == (4997, 2)
    assert read == [checkpoint.path_of(tmp_path, r) for r in (4999, 4998, 4997)]
