"""`run --verify`: a whole run is whole, and each kind of damage is found in the file that has it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpipfl import verify
from mpipfl.config import dump
from mpipfl.run import main

from .folders import rewrite_history
from .suite import config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    path = folder / "config.yaml"
    path.write_text(dump(config({"algorithm": "ditto"}, folder)))
    assert main([str(path)]) == 0
    return folder / "run"


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 4
    path.write_bytes(data)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def more(path: Path) -> None:
    """A table whose last line is there twice."""
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")


def damaged(folder: Path) -> dict[str, str]:
    return {found.name: found.problem for found in verify.findings(folder) if found.problem is not None}


def test_a_whole_run(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--verify", str(copied)]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = {str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file()} - {"log.txt"}
    assert {line.split()[1] for line in lines[:-1]} == files
    assert all(line.startswith("whole ") for line in lines[:-1])
    assert lines[-1] == f"{copied}: everything is whole; --resume begins at round 4"


def test_an_unfinished_run_is_whole(copied: Path) -> None:
    for name in ("summary.json", "metrics.csv", "history.h5"):
        (copied / name).unlink()
    (copied / "checkpoints/.round_00005.h5.77").write_bytes(b"half")
    assert damaged(copied) == {}
    remarks = {found.name: found.remark for found in verify.findings(copied)}
    assert "has not got so far" in remarks["metrics.csv"]
    assert "can be deleted" in remarks["checkpoints/.round_00005.h5.77"]


def test_histories_older_or_newer_than_the_checkpoint(copied: Path) -> None:
    (copied / "checkpoints/round_00004.h5").unlink()
    assert damaged(copied) == {}


@pytest.mark.parametrize(
    ("harm", "name", "problem"),
    [
        (lambda run: flip(run / "checkpoints/round_00004.h5", 0.7), "checkpoints/round_00004.h5", "checksum"),
        (lambda run: more(run / "metrics.csv"), "metrics.csv", "is not what history.h5 says"),
        (lambda run: edit(run / "config.yaml", "seed: 0", "seed: 1"), "checkpoints/round_00000.h5", "other settings"),
        (lambda run: edit(run / "config.yaml", "seed: 0", "seed: x"), "config.yaml", "seed: 'x'"),
        (lambda run: (run / "partition.h5").write_bytes(b"x"), "partition.h5", "cannot be read"),
        (lambda run: (run / "history.h5").write_bytes(b"x"), "history.h5", "cannot be read"),
        (lambda run: rewrite_history(run, personal__loss=np.ones((3, 7))), "history.h5", "personal/loss is not what"),
        (lambda run: rewrite_history(run, global__loss=None), "history.h5", "has no global/loss"),
        (lambda run: edit(run / "metrics.csv", "\n2,", "\n3,"), "metrics.csv", "not what history.h5 says"),
        (lambda run: (run / "metrics.csv").write_bytes(b"\xff\xfe"), "metrics.csv", "cannot be read"),
        (lambda run: (run / "summary.json").write_text("{"), "summary.json", "cannot be read"),
        (lambda run: (run / "summary.json").write_text("[]"), "summary.json", "cannot be read"),
    ],
)  # fmt: skip
def test_damage(harm: Callable[[Path], object], name: str, problem: str, copied: Path) -> None:
    harm(copied)
    assert problem in damaged(copied)[name]
    assert verify.verify(copied) == 5


def test_a_changed_partition(copied: Path) -> None:
    with h5py.File(copied / "partition.h5", "r+") as file:
        file["clients/3/train"][0] += 1
    assert list(damaged(copied)) == ["partition.h5"]


def test_another_summary(copied: Path) -> None:
    summary = json.loads((copied / "summary.json").read_text())
    summary["last"]["personal_accuracy_mean"] += 1e-9
    (copied / "summary.json").write_text(json.dumps(summary))
    assert damaged(copied) == {"summary.json": "its last round is not the one of history.h5"}


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--verify", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().out
