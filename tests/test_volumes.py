"""Histories whose rows are bound in volumes: nothing that is read in the end differs, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpipfl import checkpoint, verify
from mpipfl.comm import Comm
from mpipfl.config import Config
from mpipfl.history import History, all_series, volume
from mpipfl.report.runs import read as read_run

from .suite import METHODS, config, content, rewound, train

ALWAYS = {"checkpoint.history_megabytes": 1e-6}  # every checkpoint binds the rows since the one before
SERIES = ["selffl", "pfedvem", "ucfl-streams"]  # methods that record rounds, and what they found once


def settings(folder: Path, method: str = "selffl", **more: Any) -> Config:
    return config({"algorithm": METHODS[method], "rounds": 6} | more, folder)


def tables(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in ("metrics.csv", "history.h5")]


def bound(run: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("round_")) for path in (run / "volumes").glob("round_*.h5"))


@pytest.mark.mpi
@pytest.mark.parametrize("method", SERIES)
def test_they_change_no_table(method: str, comm: Comm, alone: Comm, together_path: Path) -> None:
    train(settings(together_path / "bound", method, **ALWAYS), comm)
    if comm.is_server:
        train(settings(together_path / "one", method), alone)
        assert bound(together_path / "bound/run")[-1] == 6
        assert not (together_path / "one/run/volumes").exists()
        assert tables(together_path / "bound/run") == tables(together_path / "one/run")


@pytest.mark.mpi
def test_a_resumed_run_goes_on_with_them(comm: Comm, alone: Comm, together_path: Path) -> None:
    whole = settings(together_path / "whole", **ALWAYS, checkpoint__every=2)
    train(whole, comm)
    if comm.is_server:
        rewound(whole, together_path / "killed", 2)
    comm.barrier()
    again = settings(together_path / "killed", **ALWAYS, checkpoint__every=3)
    train(again, comm, resume=True)
    if comm.is_server:
        assert tables(again.folder) == tables(whole.folder)
        assert bound(whole.folder) == [0, 2, 4, 6] and bound(again.folder) == [0, 2, 3, 6]


@pytest.fixture
def run(alone: Comm, tmp_path: Path) -> Path:
    """A finished run with a volume for each of rounds 0 to 6."""
    made = settings(tmp_path, **ALWAYS)
    train(made, alone)
    return made.folder


def test_checkpoints_carry_only_what_is_new(run: Path, alone: Comm, tmp_path: Path) -> None:
    train(settings(tmp_path / "other", **{"checkpoint.history_megabytes": 1}), alone)
    for round in (2, 6):
        held = content(checkpoint.path_of(run, round))
        assert [name for name in held if name.startswith("history/") and "confusion" not in name] == []
        assert held["volumes/round"].tolist() == list(range(round + 1))
        with h5py.File(checkpoint.path_of(run, round)) as file:
            assert len(file["figures"]) == round // 2 + 1
    other = content(checkpoint.path_of(tmp_path / "other/run", 6))
    assert len(other["history/personal/accuracy"]) == 4 and "volumes/round" not in other


def test_half_a_run_is_read_whole(run: Path, alone: Comm, tmp_path: Path) -> None:
    """As it is found while it runs, or after a kill: history.h5 has the last rows, the volumes the others."""
    whole = all_series(run)
    for round in (4, 5, 6):
        checkpoint.path_of(run, round).unlink()
    half = History(whole["n_train"], whole["n_test"], clients=whole["clients"])
    half.volumes = [0, 1, 2, 3]
    half.write(run)
    found = all_series(run)
    assert found["round"].tolist() == [0, 2]
    assert found["selffl/round"].tolist() == [1, 2, 3]
    for name, values in found.items():
        assert values.tobytes() == whole[name][: len(values)].tobytes(), name
    (run / "summary.json").unlink()
    (run / "metrics.csv").unlink()
    read = read_run(run)
    assert [row["round"] for row in read.rows] == [0, 2]
    assert {found.name: found.problem for found in verify.findings(run) if found.problem} == {}


def test_a_damaged_volume_takes_the_checkpoints_that_need_it(run: Path, alone: Comm) -> None:
    before = tables(run)
    path = volume(run, 4)
    path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    newest, lines = checkpoint.newest(run)
    assert newest == 3 and len(lines) == 3
    assert "needs volumes/round_00004.h5, which is damaged: its content does not match its checksum" in lines[0]
    assert {found.name for found in verify.findings(run) if found.problem} >= {"volumes/round_00004.h5"}
    train(settings(run.parent, **ALWAYS), alone, resume=True)
    assert tables(run) == before
    assert checkpoint.newest(run) == (6, [])


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_missing_or_empty_volume(harm: Any, run: Path) -> None:
    harm(volume(run, 0))
    assert checkpoint.newest(run)[0] is None


def test_a_volume_of_another_run(run: Path, alone: Comm, tmp_path: Path) -> None:
    other = settings(tmp_path / "other", **ALWAYS, seed=1)
    train(other, alone)
    volume(run, 6).write_bytes(volume(other.folder, 6).read_bytes())
    problem = checkpoint.fault(checkpoint.path_of(run, 6))
    assert problem is not None and "needs volumes/round_00006.h5, which is another run's" in problem


def test_no_room_for_a_volume(alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows stay in memory, the checkpoint has them, and the next volume takes them."""
    write = History.write_volume

    def fails(self: History, folder: Path, round: int) -> None:
        if round in (2, 3):
            raise OSError(28, "No space left on device")
        write(self, folder, round)

    train(settings(tmp_path / "one"), alone)
    monkeypatch.setattr(History, "write_volume", fails)
    made = settings(tmp_path, **ALWAYS)
    train(made, alone)
    assert bound(made.folder) == [0, 1, 4, 5, 6]
    assert content(checkpoint.path_of(made.folder, 3))["history/round"].tolist() == [2]
    assert tables(made.folder) == tables(tmp_path / "one/run")


def test_more_rounds_after_the_end(run: Path, alone: Comm, tmp_path: Path) -> None:
    """The end had found something once; what the new end finds replaces it."""
    train(settings(run.parent, **ALWAYS, rounds=8), alone, resume=True)
    train(settings(tmp_path / "one", rounds=8), alone)
    found, other = all_series(run), all_series(tmp_path / "one/run")
    assert set(found) == set(other)
    for name, values in found.items():
        assert np.array_equal(values, other[name], equal_nan=values.dtype.kind == "f"), name
