"""The program as a user meets it: its switches, its messages, and the folder that it leaves."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpipfl import cli
from mpipfl.config import dump, load
from mpipfl.data.partition import Partition
from mpipfl.launch import without_ranks
from mpipfl.run import main

from .conftest import Run, clean_environment, command
from .suite import SMALL, config, content

ROUNDS, CLIENTS = SMALL["rounds"], SMALL["data"]["clients"]
PARAMETERS = 784 * 12 + 12 + 12 * 6 + 6


def written(folder: Path, method: str = "fedavg") -> Path:
    """A configuration file of the small experiment, whose run goes beside it."""
    path = folder / f"{method}.yaml"
    path.write_text(dump(config({"algorithm": {"kind": method}}, folder)))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole run on three ranks: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    done = subprocess.run(
        command(written(folder), np=3), env=clean_environment(), capture_output=True, text=True, timeout=120, check=True
    )
    return folder / "run", done.stdout


# ---------------------------------------------------------------------- what is said


def test_help(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    for part in ("usage: mpipfl run", "mpirun -np 3", "--resume", "--overwrite", "--dry-run", "exit codes: 0 finished"):
        assert part in done.stdout
    assert done.stderr == ""


def test_no_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "mpipfl: name a configuration, for instance configs/quickstart.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [None, 3])
def test_dry_run_tells_the_plan(ranks: int | None, run: Run, tmp_path: Path) -> None:
    done = run(written(tmp_path), "--dry-run", np=ranks)
    assert done.returncode == 0
    assert "7 clients in 2 group(s)\n" in done.stdout and f"mlp, {PARAMETERS:,} parameters" in done.stdout
    table = re.findall(r"^ +(\d+)  cpu +(server|\d+) ", done.stdout, re.M)
    assert [int(rank) for rank, _ in table] == list(range(ranks or 1))
    assert sum(int(clients) for _, clients in table if clients != "server") == CLIENTS
    assert (table[0][1] == "server") == (ranks is not None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("warm", "said"),
    [
        ("{rounds: 4}", "selffl on glyphs, 4 of fedavg, then 2 rounds"),
        ("{run: RUN}", "selffl on glyphs, from RUN, 2 rounds"),
    ],
)
def test_dry_run_tells_where_the_model_comes_from(
    warm: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = f"algorithm={{kind: selffl, warm_start: {warm}}}".replace("RUN", str(tmp_path / "before"))
    said = said.replace("RUN", str(tmp_path / "before"))
    if "run" in warm:
        assert main([str(written(tmp_path)), "name=before", "algorithm=fedavg", "rounds=1"]) == 0
    assert main([str(written(tmp_path)), "rounds=2", method, "--dry-run"]) == 0
    assert f"run: {said}\n" in capsys.readouterr().out and not (tmp_path / "run").exists()


def test_n_starts_ranks(run: Run, tmp_path: Path) -> None:
    done = run(written(tmp_path), "rounds=1", "-n", 2)
    assert (done.returncode, json.loads((tmp_path / "run/summary.json").read_text())["ranks"]) == (0, 2)


def test_n_must_be_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["x.yaml", "-n", "0"]) == 2
    assert "mpipfl: -n 0: at least one rank is needed" in capsys.readouterr().err


@pytest.mark.parametrize("switch", [["-n", "2"], ["-n2"], ["--ranks", "2"], ["--ranks=2"]], ids=" ".join)
def test_n_is_for_the_launcher_alone(switch: list[str]) -> None:
    assert without_ranks(["c.yaml", *switch, "name=-n2x", "--resume"]) == ["c.yaml", "name=-n2x", "--resume"]


def test_data_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("MPIPFL_DATA", str(tmp_path / "empty"))
    emnist = ["data.source={kind: emnist, download: false}", "data.partition=iid"]
    assert main([str(written(tmp_path)), *emnist]) == 3
    said = capsys.readouterr().err
    assert said.count("mpipfl: EMNIST is not complete in ") == said.count("mpipfl:") == 1
    for part in (f"{tmp_path}/empty/EMNIST/raw", f"EMNIST('{tmp_path}/empty', split='byclass', download=True)",
                 "MPIPFL_DATA", "data.source=glyphs needs no download"):  # fmt: skip
        assert part in said


# ---------------------------------------------------------------------- a name that is taken


def test_a_run_is_not_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path))
    assert main([path, "rounds=1"]) == 0
    before = (tmp_path / "run/summary.json").read_bytes()
    assert main([path, "rounds=2"]) == 2
    assert f"{tmp_path}/run holds a run already; go on with it (--resume), replace it (--overwrite)" in (
        capsys.readouterr().err
    )
    assert (tmp_path / "run/summary.json").read_bytes() == before
    assert main([path, "rounds=2", "train.lr=0.1", "--overwrite"]) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 2


def test_whether_a_run_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts: by the exit code, and nothing is trained."""
    path = str(written(tmp_path))
    for rounds, code in ((2, 1), (2, 0), (3, 1)):
        assert main([path, f"rounds={rounds}", "--finished"]) == code
        assert capsys.readouterr().out == f"{tmp_path}/run is {'not ' if code else ''}finished\n"
        assert main([path, "rounds=2", "--resume"]) == 0
        capsys.readouterr()
    assert main(["nothing.yaml", "--finished"]) == 2


def test_a_finished_run_stays_as_it_is(finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert main([str(folder.parent / "fedavg.yaml"), "--resume"]) == 0
    assert f"{folder} is finished: all 4 rounds are done" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.lr=0.1"], "was made with other settings: train.lr was 0.05, is 0.1. Resume with the same ones, or"),
        (
            ["seed=1", "algorithm.weights=equal"],
            "other settings: algorithm.weights was samples, is equal, seed was 0, is",
        ),
        (["rounds=3"], "has done 4 rounds already; resume with rounds=4 or more, not 3"),
    ],
)
def test_resume_needs_the_same_settings(
    overrides: list[str], message: str, finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(finished[0].parent / "fedavg.yaml"), "--resume", *overrides]) == 2
    assert message in capsys.readouterr().err


def test_resume_without_a_run_starts_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path)), "rounds=1", "--resume"]) == 0
    assert f"{tmp_path}/run holds no run yet: starting at round 0" in capsys.readouterr().out


# ---------------------------------------------------------------------- the folder


def test_the_folder_holds_what_it_promises(finished: tuple[Path, str]) -> None:
    folder, said = finished
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "partition.h5", "metrics.csv", "history.h5", "summary.json", "checkpoints", "log.txt",
    }  # fmt: skip
    assert load(folder / "config.yaml") == load(folder.parent / "fedavg.yaml")
    for line in ("run: fedavg, 7 clients, mlp", "2 worker(s)", "round 4/4  global "):
        assert line in said and line in (folder / "log.txt").read_text()


def test_the_partition_can_be_read(finished: tuple[Path, str]) -> None:
    made = Partition.read(finished[0] / "partition.h5")
    assert made.clients == CLIENTS and made.bounds[-1, 3] == len(made.index) == SMALL["data"]["samples"]
    assert len(set(made.index.tolist())) == len(made.index)
    assert made.rotation.tolist() == (90 * made.group).tolist()


def test_the_tables_agree(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    history, n_test = content(folder / "history.h5"), Partition.read(folder / "partition.h5").n_test
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert history["round"].tolist() == [int(row["round"]) for row in rows] == [0, 2, 4]
    names = [f"{kind}/{part}{what}" for kind in ("personal", "global") for part in ("", "validation_")
             for what in ("accuracy", "loss")]  # fmt: skip
    names += [f"{kind}/{what}" for kind in ("personal", "global") for what in ("precision", "recall", "f1")]
    last = {f"confusion/{kind}" for kind in ("personal", "global")}
    assert set(history) - last == {"round", "clients", "n_train", "n_test", "streams", "uplinks", *names}
    assert all(history[name].shape == (3, CLIENTS) for name in names)
    assert all(history[name].tolist() == [float(row[name]) for row in rows] for name in ("streams", "uplinks"))
    for row, accuracy in zip(rows, history["global/accuracy"], strict=True):
        assert float(row["global_accuracy_mean"]) == pytest.approx(accuracy.mean(), abs=1e-12)
        assert float(row["global_accuracy_weighted"]) == pytest.approx((accuracy * n_test).sum() / n_test.sum())
        assert float(row["global_accuracy_worst"]) == accuracy.min()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["last"] == {key: pytest.approx(float(value)) for key, value in rows[-1].items()}
    best = max(range(3), key=lambda r: history["global/validation_accuracy"][r].mean())
    assert summary["best_global"]["round"] == history["round"][best]
    assert (summary["rounds"], summary["clients"], summary["ranks"]) == (ROUNDS, CLIENTS, 3)
    assert summary["samples"] > 0 and len(summary["bytes_per_rank"]) == 3


def test_checkpoints_hold_the_states(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = finished
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == [f"round_0000{r}.h5" for r in range(5)]
    with h5py.File(folder / "checkpoints/round_00000.h5") as file:
        assert file.attrs["round"] == 0 and file.attrs["config"] == load(folder / "config.yaml").digest
        assert file["server/theta"].shape == (PARAMETERS,) and file["server/theta"].dtype == np.float32
    assert main([str(written(tmp_path, "local")), "rounds=3", "checkpoint.every=2", "checkpoint.keep=1"]) == 0
    kept = {path.name: content(path) for path in (tmp_path / "run/checkpoints").iterdir()}
    assert sorted(kept) == ["round_00000.h5", "round_00003.h5"]
    assert kept["round_00003.h5"]["clients/theta"].shape == (CLIENTS, PARAMETERS)


# ---------------------------------------------------------------------- the short command


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--help"], 0), (["ruin"], 2)], ids=str)
def test_the_short_command(
    arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mpipfl", *arguments])
    assert cli.main() == code
    said = capsys.readouterr()
    assert "mpipfl run " in (said.err if code else said.out) and "mpipfl report" in said.err + said.out
