"""Runs that cannot be compared, and runs that are not whole: refused or marked, never a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from mpipfl import report
from mpipfl.report import contents
from mpipfl.report.page import page
from mpipfl.report.runs import read

from . import folders
from .folders import compared, rising, three, write
from .pages import checked
from .suite import config


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *paths: Path) -> str:
    assert report.main([*map(str, paths), "-o", str(tmp_path / "report.html")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mpipfl: ") and error.count("\n") == 1 and not (tmp_path / "report.html").exists()
    return error


def test_other_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", "fedavg", rising(3, 4, 0.5))
    b = write(tmp_path / "b", "ditto", rising(3, 4, 0.5), data={"partition": {"kind": "dirichlet"}})
    said = refused(capsys, tmp_path, a, b)
    assert f"{b} cannot be compared with {a}: data.partition.kind is dirichlet, not iid" in said


def test_settings_of_an_older_version(tmp_path: Path) -> None:
    """What a run did not know of has its default: both are one line."""
    paths = [write(tmp_path / str(seed), "fedavg", rising(3, 4, 0.5), seed=seed) for seed in (0, 1)]
    for path, seed in zip(paths, (0, 1), strict=True):
        values = config({"algorithm": "fedavg", "seed": seed}, tmp_path).model_dump(mode="json")
        if seed:
            del values["data"]["split"]["lists"], values["train"]["loss"]
        (path / "config.yaml").write_text(yaml.safe_dump(values))
    (line,) = compared(*paths).lines
    assert line.seeds == (0, 1) and line.runs[1].settings["data.split.lists"] is False


def test_another_partition_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", "fedavg", rising(3, 4, 0.5))
    b = write(tmp_path / "b", "ditto", rising(3, 4, 0.5))
    shutil.copy(write(tmp_path / "c", "ditto", rising(3, 4, 0.5), seed=1) / "partition.h5", b / "partition.h5")
    assert "seed 0 of both, but another partition of the data" in refused(capsys, tmp_path, a, b)


def test_other_seeds_and_repeats_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [*three(tmp_path, seeds=(0, 1))[:-1], write(tmp_path / "again", "fedavg", rising(2, 4, 0.5))]
    comparison = compared(*paths)
    assert [line.label for line in comparison.lines] == ["local", "fedavg (fedavg_s0)", "ditto", "fedavg (again)"]
    notes = "\n".join(comparison.notes)
    assert "again repeats" in notes and "different seeds (local: 0, 1;" in notes
    assert report.main([*map(str, paths), "--tables", str(tmp_path / "tables")]) == 0
    assert "different seeds" in capsys.readouterr().err


def test_lines_of_one_method_are_told_apart(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{mu}_{seed}", "fedprox", rising(3, 4, 0.5), seed=seed, algorithm={"mu": mu})
             for mu in (0.1, 1.0) for seed in (0, 1)]  # fmt: skip
    lines = compared(*paths).lines
    assert [(line.label, line.seeds) for line in lines] == [("fedprox mu=0.1", (0, 1)), ("fedprox mu=1", (0, 1))]
    assert "mu = <b>0.1</b>" in contents.what_was_run(compared(*paths)).html()


def test_what_one_method_alone_has_is_no_difference(tmp_path: Path) -> None:
    """Parameters of a method whose lines agree in them are folded away; one that differs between methods is shown."""
    every = (("fedprox", {"mu": 0.1, "weights": "samples"}), ("ditto", {"lambda": 3.0, "weights": "equal"}))
    comparison = compared(*(write(tmp_path / m, m, rising(3, 4, 0.5), algorithm=own) for m, own in every))
    shown = [str(row[1]) for row in contents.what_was_run(comparison).rows]
    assert shown == ["weights = samples", "weights = equal"]
    assert contents.told(comparison)[1] == {"fedprox: algorithm.mu": 0.1, "ditto: algorithm.lambda": 3.0}
    assert "<dt>ditto: algorithm.lambda</dt><dd>3</dd>" in page(comparison)


# ---------------------------------------------------------------------- runs that are not whole


def test_an_unfinished_run_is_shown_and_marked(tmp_path: Path) -> None:
    paths = three(tmp_path)
    (paths[2] / "summary.json").unlink()
    comparison = compared(*paths)
    html = page(comparison)
    checked(html)
    assert "has no summary.json: it has not finished" in html
    assert "ditto (unfinished, round 1 of 1)" in html
    table = contents.results(comparison)
    assert not any(str(table.rows[i][0]).startswith("ditto") for i, _ in table.best())
    assert len(contents.costs(comparison).rows) == 2


def damaged(path: Path, name: str, content: bytes | None) -> None:
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)


@pytest.mark.parametrize("content", [None, b"", b"garbage, and nothing else", b"half"], ids=str)
@pytest.mark.parametrize("name", ["history.h5", "summary.json", "metrics.csv", "partition.h5"])
def test_damaged_files_are_named(name: str, content: bytes | None, tmp_path: Path) -> None:
    paths = three(tmp_path)
    whole = (paths[2] / name).read_bytes()
    damaged(paths[2], name, whole[: len(whole) // 2] if content == b"half" else content)
    comparison = compared(*paths)
    assert any(str(paths[2]) in note and name in note for note in comparison.notes), comparison.notes
    assert contents.results(comparison).rows and contents.costs(comparison).rows
    if (name, content) == ("history.h5", None):
        checked(page(comparison))


def test_a_run_with_a_summary_only(tmp_path: Path) -> None:
    path = three(tmp_path)[2]
    for name in ("history.h5", "metrics.csv", "partition.h5"):
        (path / name).unlink()
    html = page(compared(path))
    checked(html)
    assert "67.5" in html


def test_what_is_no_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = three(tmp_path)[0]
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert "it is not a run's folder" in refused(capsys, tmp_path, whole, tmp_path / "empty")
    assert "cannot be read" in refused(capsys, tmp_path, whole, tmp_path / "file")
    for text in ("a: [", "[1, 2]", "seed: x", "\0"):
        (whole / "config.yaml").write_text(text)
        assert "config.yaml" in refused(capsys, tmp_path, whole)


def test_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = three(tmp_path)[0]
    for name in ("history.h5", "metrics.csv", "summary.json"):
        (path / name).unlink()
    assert "there is nothing to show" in refused(capsys, tmp_path, path)


def test_series_that_do_not_fit(tmp_path: Path) -> None:
    path = three(tmp_path)[2]
    folders.rewrite_history(path, personal__accuracy=np.ones((2, 3)))
    run = read(path)
    assert run.series == {} and "personal/accuracy has the shape (2, 3), not (2, 4)" in run.problems[0]


@pytest.mark.parametrize("streams", [np.ones((3, 4)), np.ones(1), np.array([b"a", b"b", b"c"])], ids=["2", "1", "text"])
def test_costs_that_do_not_fit(streams: np.ndarray, tmp_path: Path) -> None:
    """Nothing else is lost, also where history.h5 is all there is."""
    path = three(tmp_path)[2]
    (path / "metrics.csv").unlink()
    folders.rewrite_history(path, streams=streams, uplinks=np.arange(2.0))
    run = read(path)
    assert len(run.rows) == 2 and "personal/accuracy" in run.series and "streams" not in run.series
    assert run.curve("uplinks").tolist() == [0, 1]
    assert streams.dtype.kind == "S" or "streams of the shape" in run.problems[0]


def test_names_are_escaped(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "<script>alert(1)</script>", rising(3, 4, 0.5), name="<b>")
    html = page(compared(path))
    checked(html)
    assert "<script>alert" not in html and "&lt;script&gt;" in html
