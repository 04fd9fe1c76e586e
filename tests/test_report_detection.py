"""The report of runs that detect a wake word, and of runs that begin with another."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpipfl.report import files
from mpipfl.report.detection import table

from .folders import compared, of_detection, read_csv, rewrite_history, rising, write
from .pages import checked

GROUPS = np.array([0, 0, 1, 2])
STATES = ["normal", "playback", "alarm"]


def run(folder: Path, seed: int = 0, method: str = "ditto", **series: np.ndarray) -> Path:
    """A run of four clients with three types of devices."""
    path = write(
        folder / f"{method}_s{seed}", method, rising(2, 4, 0.6), rising(2, 4, 0.5), seed=seed, groups=GROUPS,
        data={"source": {"kind": "audio", "states": STATES}},
        algorithm={"kind": method, "warm_start": {"run": f"{folder}/start_s{seed}"}},
    )  # fmt: skip
    rewrite_history(path, **{f"detection__{name}": values for name, values in (of_detection(4) | series).items()})
    return path


def test_the_table_and_the_pictures(tmp_path: Path) -> None:
    """The global model accepts what the baseline accepts; the personal one nothing that it should not."""
    silent = of_detection(4)
    silent["baseline"][3] = [1, -1, 1, -1, 1, 1]  # device C: false accepts of the baseline with an alarm alone
    comparison = compared(run(tmp_path, baseline=silent["baseline"]), run(tmp_path, method="fedavg"))
    files(comparison, tmp_path / "report.html", tmp_path / "tables", [])
    rows = read_csv(tmp_path / "tables/detection.csv")
    ditto = {(row["model"], row["device"]): [row[name] for name in (*STATES, "all states", "false rejects")]
             for row in rows if row["method"].startswith("ditto")}  # fmt: skip
    assert ditto == {
        **{("global", device): ["1.00"] * 4 + ["NA"] for device in "AB"},
        **{("personal", device): ["0.00"] * 4 + ["NA"] for device in "AB"},
        ("global", "C"): ["NA", "NA", "1.00", "3.00", "NA"],
        ("personal", "C"): ["NA", "NA", "0.00", "0.00", "NA"],
    }
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    checked(html)
    assert "False accepts of the wake word" in html and "relative false accepts, personal model" in html
    assert "No bar, as the baseline has no false accepts (global): C normal, C playback." in html


def test_seeds_that_begin_with_their_own_start_are_one_line(tmp_path: Path) -> None:
    (line,) = compared(run(tmp_path), run(tmp_path, seed=1)).lines
    assert line.seeds == (0, 1)
    made = table(compared(run(tmp_path / "again"), run(tmp_path / "again", seed=1)))
    assert made is not None and made.texts()[0][3] == "1.00 ± 0.00"


def test_what_is_not_there(tmp_path: Path) -> None:
    """Runs that do not detect have no table; without partition.h5 the devices are not known, which is said."""
    plain = write(tmp_path / "plain", "fedavg", rising(2, 4, 0.5))
    assert table(compared(plain)) is None
    path = run(tmp_path)
    (path / "partition.h5").unlink()
    comparison = compared(path)
    assert table(comparison) is None
    files(comparison, tmp_path / "report.html", None, [])
    assert "not drawn, as partition.h5 does not tell the devices" in (tmp_path / "report.html").read_text()
