"""Histories whose rows are bound in volumes: nothing that is read in the end differs, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpipfl import checkpoint, verify, volumes
from mpipfl.comm import Comm
from mpipfl.config import Config, dump
from mpipfl.history import KINDS, History, all_series
from mpipfl.report.runs import read as read_run
from mpipfl.run import main
from mpipfl.runfolder import RunFolder

from .suite import METHODS, config, content, rewound, train

ALWAYS = {"checkpoint.history_megabytes": 1e-6}  # every checkpoint binds the rows since the one before
SERIES = ["selffl", "pfedvem", "ucfl-streams"]  # methods that record rounds, and what they found once


def settings(folder: Path, method: str = "selffl", **more: Any) -> Config:
    return config({"algorithm": METHODS[method], "rounds": 6} | more, folder)


def tables(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in ("metrics.csv", "history.h5")]


def bound(run: Path) -> list[tuple[int, ...]]:
    return [tuple(map(int, path.stem.split("_")[1:])) for path in sorted((run / "volumes").glob("rounds_*.h5"))]


@pytest.mark.mpi
@pytest.mark.parametrize("method", SERIES)
def test_they_change_no_table(method: str, comm: Comm, alone: Comm, together_path: Path) -> None:
    train(settings(together_path / "bound", method, **ALWAYS), comm)
    if comm.is_server:
        train(settings(together_path / "one", method), alone)
        assert bound(together_path / "bound/run")[-1][1] == 6
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
        assert bound(whole.folder) == [(0, 0), (1, 2), (3, 4), (5, 6)]
        assert bound(again.folder) == [(0, 0), (1, 2), (3, 3), (4, 6)]


@pytest.fixture
def run(alone: Comm, tmp_path: Path) -> Path:
    """A finished run with a volume for each of rounds 0 to 6."""
    made = settings(tmp_path, **ALWAYS)
    train(made, alone)
    return made.folder


def volume(run: Path, round: int) -> Path:
    return run / f"volumes/rounds_{round:05d}_{round:05d}.h5"


def damaged(run: Path) -> dict[str, str]:
    return {found.name: found.problem for found in verify.findings(run) if found.problem}


def test_checkpoints_carry_only_what_is_new(run: Path, alone: Comm, tmp_path: Path) -> None:
    train(settings(tmp_path / "other", **{"checkpoint.history_megabytes": 1}), alone)
    for round in (2, 6):
        held = content(checkpoint.path_of(run, round))
        assert [name for name in held if name.startswith("history/") and "confusion" not in name] == []
        assert held["volumes/rounds"].tolist() == [[n, n] for n in range(round + 1)]
        with h5py.File(checkpoint.path_of(run, round)) as file:
            assert len(file["figures"]) == round // 2 + 1
    other = content(checkpoint.path_of(tmp_path / "other/run", 6))
    assert len(other["history/personal/accuracy"]) == 4 and "volumes/rounds" not in other


@pytest.fixture
def half(run: Path) -> Path:
    """A run as it is found while it runs, or after a kill: history.h5 names the volumes that have the rows."""
    whole, _ = all_series(run)
    with h5py.File(checkpoint.path_of(run, 3)) as file:
        record = checkpoint.read_history(file)
    for round in (4, 5, 6):
        checkpoint.path_of(run, round).unlink()
    half = History(whole["n_train"], whole["n_test"], clients=whole["clients"])
    half.restore(record)
    half.write(run)
    (run / "summary.json").unlink()
    return run


def test_half_a_run_is_read_whole(half: Path, alone: Comm, tmp_path: Path) -> None:
    train(settings(tmp_path / "whole"), alone)
    whole, _ = all_series(tmp_path / "whole/run")
    found, lost = all_series(half)
    assert lost == []
    assert found["round"].tolist() == [0, 2]
    assert found["selffl/round"].tolist() == [1, 2, 3]
    for name, values in found.items():
        assert values.tobytes() == whole[name][: len(values)].tobytes(), name
    (half / "metrics.csv").rename(half / "metrics.old")
    assert [row["round"] for row in read_run(half).rows] == [0, 2]
    (half / "metrics.old").rename(half / "metrics.csv")
    assert damaged(half) == {}


def test_a_series_of_a_newer_version(tmp_path: Path) -> None:
    """It is NaN for the rows of before, also for those that are bound; and the other way round."""
    history = History(np.ones(2), np.ones(2))
    old = {f"{kind}/accuracy": np.array([0.5, 1.0]) for kind in KINDS}
    history.append(0, old)
    history = history.bound(0, history.bind(tmp_path, 0))
    history.append(1, old | {"personal/f1": np.ones(2), "streams": np.float64(3)})
    history = history.bound(1, history.bind(tmp_path, 1))
    history.append(2, old)
    paths, lost = volumes.sound(tmp_path, history.volumes)
    history.write(tmp_path, paths)
    found, _ = all_series(tmp_path)
    assert lost == [] and found["round"].tolist() == [0, 1, 2]
    nothing = [np.nan, np.nan]
    np.testing.assert_array_equal(found["personal/f1"], [nothing, [1, 1], nothing])
    np.testing.assert_array_equal(found["streams"], [np.nan, 3, np.nan])
    assert History.of(found | {"n_train": np.ones(2), "n_test": np.ones(2)}).figures[1]["streams"] == 3


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "damaged": (lambda path: path.write_bytes(path.read_bytes()[:-7] + b"damaged"), "is damaged: its content does not"),
    "empty": (lambda path: path.write_bytes(b""), "is not a volume, or its beginning is damaged"),
    "missing": (lambda path: path.unlink(), "cannot be read ("),
    "another's": (lambda path: shutil.copy(volume(path.parents[1], 1), path), "is another run's"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_lost_volume_costs_its_rows_only(
    harm: str, half: Path, alone: Comm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training goes on, everything else is there, and what is not is said: on resuming and at the end."""
    train(settings(tmp_path / "whole"), alone)
    whole, _ = all_series(tmp_path / "whole/run")
    do, problem = HARM[harm]
    do(volume(half, 2))
    name = "volumes/rounds_00002_00002.h5"
    assert set(damaged(half)) == {name, "history.h5"} and problem in damaged(half)[name]
    assert [found for found in read_run(half).problems if found.startswith(f"{name} {problem}")]
    path = tmp_path / "config.yaml"
    path.write_text(dump(settings(half.parent, **ALWAYS)))
    assert main([str(path), "--resume"]) == 6
    said = capsys.readouterr().out
    assert f"{name} {problem}" in said and "; its rows of the histories are lost" in said
    assert f"NOT SAVED: {name} {problem}" in said and "; history.h5 lacks its rows" in said
    assert checkpoint.newest(half) == (6, [])
    assert (half / "metrics.csv").read_bytes() == (tmp_path / "whole/run/metrics.csv").read_bytes()
    found, lost = all_series(half)
    assert lost == []
    assert found["round"].tolist() == [0, 4, 6]
    assert found["personal/loss"].tobytes() == whole["personal/loss"][whole["round"] != 2].tobytes()
    assert found["selffl/round"].tolist() == [1, 3, 4, 5, 6]
    assert set(damaged(half)) == {name}
    assert main([str(path), "--resume"]) == 0  # it is finished


def test_not_finished_before_all_rows_are_in_one_file(half: Path, alone: Comm) -> None:
    """An earlier end's summary is no proof."""
    config = settings(half.parent, **ALWAYS, rounds=3)
    folder = RunFolder(half)
    (half / "summary.json").write_text(json.dumps({"rounds": 3}))
    assert not folder.finished(config, 3)
    train(config, alone, resume=True)
    assert folder.finished(config, 3)


def test_no_room_for_a_volume(alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows stay in memory, the checkpoint has them, and the next volume takes them."""
    write = History.bind

    def fails(self: History, folder: Path, round: int) -> bytes:
        if round in (2, 3):
            raise OSError(28, "No space left on device")
        return write(self, folder, round)

    train(settings(tmp_path / "one"), alone)
    monkeypatch.setattr(History, "bind", fails)
    made = settings(tmp_path, **ALWAYS)
    train(made, alone)
    assert bound(made.folder) == [(0, 0), (1, 1), (2, 4), (5, 5), (6, 6)]
    assert content(checkpoint.path_of(made.folder, 3))["history/round"].tolist() == [2]
    assert tables(made.folder) == tables(tmp_path / "one/run")


def test_more_rounds_after_the_end(run: Path, alone: Comm, tmp_path: Path) -> None:
    """The end had found something once; what the new end finds replaces it."""
    train(settings(run.parent, **ALWAYS, rounds=8), alone, resume=True)
    train(settings(tmp_path / "one", rounds=8), alone)
    (found, _), (other, _) = all_series(run), all_series(tmp_path / "one/run")
    assert set(found) == set(other)
    for name, values in found.items():
        assert np.array_equal(values, other[name], equal_nan=values.dtype.kind == "f"), name
