"""The scaling benchmark: which worlds it measures, what it writes, what it draws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import scaling, scaling_report
from mpipfl.launch import mpirun

from .conftest import PROJECT, clean_environment
from .pages import Reader


def started(*arguments: object, ranks: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [mpirun(), "-np", str(ranks), sys.executable, "-m", "benchmarks.scaling", "--quick", *map(str, arguments)],
        cwd=PROJECT, env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ranks_of_nodes", "worlds"),
    [((1,), [1]), ((2,), [1]), ((5,), [1, 2, 4]), ((8,), [1, 2, 4, 7]), ((1, 1, 1), [1, 2]),
     ((5, 4, 4, 4, 4), [1, 4, 8, 16, 20])],
)  # fmt: skip
def test_worlds(ranks_of_nodes: tuple[int, ...], worlds: list[int]) -> None:
    """On one node powers of two, on several the workers of 1, 2, 4 ... of them; always one, and all."""
    nodes = np.repeat(np.cumsum((0, *ranks_of_nodes[:-1])), ranks_of_nodes)
    comm: Any = SimpleNamespace(nodes=nodes, size=len(nodes))
    assert scaling.counts(comm) == worlds


@pytest.mark.timeout(300)
def test_a_series_and_its_picture(tmp_path: Path) -> None:
    """Two worlds in one job, then with clients of uneven size that grow with the workers."""
    files = [tmp_path / "strong.json", tmp_path / "weak.json"]
    for path, more in zip(files, ([], ["--weak", "--sizes", "power_law", "--drawn", 40]), strict=True):
        job = started("--workload", "logreg", *more, "-o", path, ranks=3)
        assert job.returncode == 0, job.stderr
        result = json.loads(path.read_text())
        (rows,) = result["tables"].values()
        assert [row["workers"] for row in rows] == [1, 2]
        assert [row["clients"] for row in rows] == ([1000, 2000] if more else [1000, 1000])
        for row in rows:
            assert len(row["samples"]) == 3
            assert row["training: slowest (s)"] >= row["training: mean (s)"] > 0
            parts = [row[part] for part in ("training: mean (s)", "broadcast (s)", "reduce (s)", "other (s)")]
            assert sum(parts) == pytest.approx(row["a round (s)"], rel=0.5)
            assert all(len(sample["phases"]) == row["workers"] + 1 for sample in row["samples"])
        assert rows[0]["efficiency"] == 1
        rate = rows[1]["client-steps a second"] / rows[0]["client-steps a second"]
        assert rows[1]["efficiency"] == pytest.approx(rate / 2)
    strong, weak = (json.loads(path.read_text())["tables"].popitem()[1][1]["samples"] for path in files)
    assert strong[0]["steps"] == 600  # 100 clients of 60 samples in batches of ten
    assert {sample["steps"] for sample in weak} != {600}
    for picture in (tmp_path / "scaling.html", tmp_path / "scaling.png"):
        assert scaling_report.draw(files, picture) == 0
        assert picture.stat().st_size > 20_000
    page = " ".join(Reader((tmp_path / "scaling.html").read_text()).texts)
    assert page.count("logreg, strong") == 1 and page.count("logreg, weak, power law") == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--workers", "3"), "--workers 3: 2 ranks have 1 to 1 workers"),
        (("--workload", "logreg", "--drawn", "1001"), "--drawn 1001: logreg has 1000 clients"),
        (("--workload", "configs/quickstart.yaml", "--weak"), "a configuration has clients of its own"),
        (("--workload", "leNet"), "--workload leNet: no such file; take logreg, lenet, mlp or"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], why: str) -> None:
    job = started(*arguments, ranks=2)
    assert job.returncode != 0 and why in job.stderr and "Traceback" not in job.stderr
    assert job.stderr.count("benchmarks.scaling: ") == 1


def test_a_file_that_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    assert scaling_report.draw([path], tmp_path / "scaling.html") == 2
    assert f"{path} is not a result of this benchmark" in capsys.readouterr().err
