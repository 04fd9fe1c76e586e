"""The report: numbers by hand, files that are broken, runs that cannot be compared, and a page that stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from mpipfl import report
from mpipfl.comm import MPI, Comm
from mpipfl.report import across, classes, contents
from mpipfl.report.clock import System, system, told
from mpipfl.report.compare import Figure
from mpipfl.report.page import page
from mpipfl.report.runs import read

from . import folders
from .folders import compared, rising, three, write
from .pages import checked
from .suite import config, train

NAN = float("nan")
METHODS = {"fedavg": {"kind": "fedavg"}, "local": {"kind": "local"}, "selffl": {"kind": "selffl", "smoothing": 1.0}}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Small runs as they really are: three methods, two seeds."""
    folder = tmp_path_factory.mktemp("real")
    made = []
    for name, method in METHODS.items():
        for seed in (0, 1):
            changes = {"algorithm": method, "rounds": 3, "seed": seed, "name": f"{name}_s{seed}"}
            train(config(changes, folder), Comm(MPI.COMM_SELF))
            made.append(folder / f"{name}_s{seed}")
    return made


# ---------------------------------------------------------------------- the command


def test_the_table_on_the_terminal(real: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = json.loads((real[0] / "summary.json").read_text())["last"]
    assert report.main([str(real[0]), str(real[0])]) == 0
    shown = capsys.readouterr().out
    assert shown.count("global") == 2 and f"{100 * last['global_accuracy_mean']:.1f}" in shown
    (tmp_path / "config.yaml").touch()
    for path, problem in ((tmp_path / "none", "it is not a run's folder"), (tmp_path, "it has not finished")):
        assert report.main([str(real[0]), str(path)]) == 2
        assert f"mpipfl: {path} has no summary.json: {problem}" in capsys.readouterr().err


def test_everything_in_one_file(real: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "report.html"
    times = ["rho=4,tmin=1,mu=1", "rho=1,tmin=1,mu=10"]
    arguments = [*map(str, real), "-o", str(out), "--tables", str(tmp_path / "tables")]
    arguments += [word for time in times for word in ("--time", time)]
    assert report.main(arguments) == 0
    said = capsys.readouterr()
    assert f"{out}: 6 runs" in said.out and said.err == ""
    html = out.read_text(encoding="utf-8")
    assert html == page(compared(*real), [system(time) for time in times])  # the same every time
    reader = checked(html)
    assert reader.seen.count("svg") > 6
    for part in ("Quantum of improvement", "Fairness", "Every client", "rho = 4, tmin = 1, mu = 1", "l_max", "mpi4py"):
        assert part in html, part
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    stems = ("results", "classes", "improvement", "fairness", "clients", "settings", "costs", "phases")
    assert names == {f"{stem}.{ending}" for stem in stems for ending in ("md", "csv", "tex")}
    mean = np.mean([json.loads((p / "summary.json").read_text())["last"]["personal_accuracy_mean"] for p in real[4:]])
    row = next(r for r in folders.read_csv(tmp_path / "tables/results.csv") if r["method"] == "selffl")
    assert (row["model"], row["runs"], float(row["mean"])) == ("personal", "2", pytest.approx(100 * mean, abs=0.051))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rho=4,tmin=1", "mu missing"),
        ("rho=4,tmin=1,mu=0", "mu is 0; it has to be finite and greater than 0"),
        ("rho=-1,tmin=1,mu=1", "rho is -1"),
        ("rho=nan,tmin=1,mu=1", "rho is nan"),
        ("rho=4,tmin=inf,mu=1", "tmin is inf"),
        ("rho=4,tmin=1,mu=x", "mu is 'x', not a number"),
        ("rho=4,tmin=1,mu=1,nu=2", "'nu=2' is not one of rho, tmin, mu"),
        ("rho=4,rho=4,tmin=1,mu=1", "rho is there twice"),
        ("", "is not one of rho"),
    ],
)
def test_a_wrong_system(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path), "-o", str(tmp_path / "r.html"), "--time", text]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mpipfl: ") and said in error and error.count("\n") == 1


def test_what_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [str(path) for path in three(tmp_path / "runs")]
    (tmp_path / "file").touch()
    monkeypatch.setattr("mpipfl.report.page.page", lambda *_: "")
    assert report.main([*runs, "-o", str(tmp_path / "file" / "report.html")]) == 2
    assert report.main([*runs, "--tables", str(tmp_path / "file")]) == 2
    assert report.main([*runs, "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("cannot be written: ") == 3
    assert report.main([*runs, "--time", "rho=1,tmin=1,mu=1"]) == 2
    assert "--time draws a picture: it needs -o" in capsys.readouterr().err


# ---------------------------------------------------------------------- the numbers


def test_improvement_by_hand(tmp_path: Path) -> None:
    """QoI of ditto: 0.1, -0.3, 0, 0.2; its accuracies 0.9, 0.5, 0.7, 0.6."""
    table = contents.improvement(compared(*three(tmp_path)))
    assert table is not None
    rows = dict(zip(("local", "fedavg", "ditto"), table.texts(), strict=True))
    assert rows["ditto"][1:] == ["1", "50.0", "25.0", "15.0", "15.0", "-30.0", "-30.0", "67.5"]
    assert rows["local"][1:4] == ["1", "0.0", "50.0"]  # the second and third client do better with FedAvg
    assert rows["fedavg"][4:6] == ["none", "none"]


def test_improvement_over_seeds_by_hand(tmp_path: Path) -> None:
    """With seed 1 the baselines are 0.1 better, so QoI are 0, -0.4, -0.1 and 0.1."""
    comparison = compared(*three(tmp_path, seeds=(0, 1)))
    line = next(line for line in comparison.lines if line.method == "ditto")
    np.testing.assert_allclose(comparison.improvement(line)[1], [0, -0.4, -0.1, 0.1], atol=1e-12)
    table = contents.improvement(comparison)
    assert table is not None
    row = next(row for row in table.texts() if row[0] == "ditto")
    assert row[1:] == ["2", "37.5 ± 12.5", "37.5 ± 12.5", "12.5 ± 2.5", "12.5 ± 2.5",
                       "-27.5 ± 2.5", "-27.5 ± 2.5", "67.5 ± 0.0"]  # fmt: skip


def test_fairness_by_hand(tmp_path: Path) -> None:
    comparison = compared(*three(tmp_path))
    line = next(line for line in comparison.lines if line.method == "ditto")
    figures = contents.fairness_of(comparison, line)
    jain = figures["accuracy"]["jain"], figures["QoI of the improved"]["jain"]
    assert [f and f.mean for f in jain] == pytest.approx([2.7**2 / (4 * (0.81 + 0.25 + 0.49 + 0.36)), 0.09 / 0.1])
    assert figures["|QoI| of the worsened"]["variance"] == Figure(0.0, None)
    table = contents.fairness_table(comparison)
    assert table is not None
    assert [row[2:] for row in table.texts() if row[:2] == ["fedavg", "QoI of the improved"]] == [["none"] * 4]


def test_what_improvement_needs_is_said(tmp_path: Path) -> None:
    paths = three(tmp_path)
    html = page(compared(paths[1], paths[2]))
    checked(html)
    assert "The quantum of improvement needs a finished run of <code>local</code> on the same data" in html
    assert contents.improvement(compared(*paths[1:])) is None


def test_baselines_are_those_whose_settings_are_nearest(tmp_path: Path) -> None:
    paths = three(tmp_path)
    other = write(tmp_path / "other", "fedavg", np.ones((2, 4)), train={"lr": 0.1})
    comparison = compared(other, *paths)
    ditto = next(run for run in comparison.runs if run.method == "ditto")
    near = comparison.baseline("fedavg", ditto)
    assert near is not None and near.path == paths[1]


def test_results_by_hand(tmp_path: Path) -> None:
    table = contents.results(compared(*three(tmp_path, seeds=(0, 1))))
    rows = {(row[0], row[1]): row[2:] for row in table.texts()}
    assert set(rows) == {("local", "personal"), ("fedavg", "global"), ("ditto", "personal"), ("ditto", "global")}
    # fedavg: means 0.575 and 0.675, worst 0.1 and 0.2, the largest client 0.1 and 0.2
    assert rows["fedavg", "global"][:6] == ["2", "62.5 ± 5.0", "62.5 ± 5.0", "15.0 ± 5.0", "15.0 ± 5.0", "15.0 ± 5.0"]
    best = {(table.rows[i][0], table.rows[i][1]) for i, j in table.best() if table.columns[j].head == "mean"}
    assert best == {("ditto", "personal"), ("fedavg", "global"), ("ditto", "global")}


def test_macro_figures_by_hand(tmp_path: Path) -> None:
    """F1 of ten clients; the worst tenth is the least."""
    paths = [write(tmp_path / f"ditto_s{seed}", "ditto", rising(2, 10, 0.5), seed=seed) for seed in (0, 1)]
    for path, shift in zip(paths, (0.0, 0.2), strict=True):
        f1 = np.stack([np.zeros(10), shift + np.linspace(0.1, 0.55, 10)])
        folders.rewrite_history(path, global__f1=f1)
        rows = folders.read_csv(path / "metrics.csv")
        for name in ("precision", "recall", "f1"):
            rows[-1] |= {f"{kind}_{name}_mean": str(f1[-1].mean()) for kind in ("personal", "global")}
        (path / "metrics.csv").write_text(
            "\n".join([",".join(rows[-1]), *(",".join(row.get(k, "nan") for k in rows[-1]) for row in rows)]) + "\n"
        )
    table = classes.macro_table(compared(*paths))
    assert table is not None
    assert table.texts()[0][2:] == ["2", *["42.5 ± 10.0"] * 3, "20.0 ± 10.0"]
    assert classes.macro_table(compared(write(tmp_path / "old", "ditto", rising(2, 4, 0.5)))) is None


def test_false_accepts_by_hand(tmp_path: Path) -> None:
    """Two clients, four negatives and four positives. The baseline rejects one positive at 1/2, and accepts two
    negatives; ditto's personal models, where they reject one, accept one, its global one none."""
    label = np.array([[1, 1, 0, 0, -1], [1, 1, 0, 0, -1]])
    scores = {
        "baseline": [[0.9, 0.4, 0.75, 0.2, NAN], [0.8, 0.7, 0.72, 0.1, NAN]],
        "personal": [[0.9, 0.3, 0.7, 0.1, NAN], [0.6, 0.5, 0.4, 0.1, NAN]],
        "global": [[0.9, 0.1, 0.2, 0.1, NAN], [0.6, 0.5, 0.2, 0.1, NAN]],
    }
    average = write(tmp_path / "fedavg", "fedavg", rising(2, 2, 0.5))
    both = write(tmp_path / "ditto", "ditto", rising(2, 2, 0.5), rising(2, 2, 0.4))
    folders.rewrite_history(average, scores__label=label, scores__global=np.array(scores["baseline"]))
    folders.rewrite_history(
        both, scores__label=label, scores__personal=np.array(scores["personal"]),
        scores__global=np.array(scores["global"]),
    )  # fmt: skip
    table = classes.false_accepts_table(compared(average, both))
    assert table is not None
    rows = [["ditto", "personal", "1", "25.00", "50.00", "0.500"], ["ditto", "global", "1", "0.00", "50.00", "0.000"]]
    assert table.texts() == rows
    assert "False accepts" in page(compared(average, both))
    assert classes.false_accepts_table(compared(both)) is None


def test_costs_by_hand(tmp_path: Path) -> None:
    table = contents.costs(compared(*three(tmp_path)))
    assert table.texts()[0] == ["local", "3", "12.5", "0.500", "1.0", "1.0", "1.0", "300", "2.0"]
    assert contents.phases(compared(*three(tmp_path / "b"))).texts()[1] == ["local", "train", "0.50", "1.00", "2.00"]


def test_time_by_hand(tmp_path: Path) -> None:
    """Two of four clients a round: H_2 = 1.5, so 1 (s + 4 u 2) + 1 + 1.5 / 2."""
    clock = system("rho=4, tmin=1, mu=2")
    assert clock == System(4, 1, 2)
    plain, full = (write(tmp_path / name, "ditto", rising(3, 4, 0.5), more=more)
                   for name, more in (("plain", {}), ("told", {"streams": 3, "uplinks": 2})))  # fmt: skip
    assert (told(read(plain)), clock.of(read(plain))) == (((1, 1), False), 1 + 8 + 1.75)
    assert (told(read(full)), clock.of(read(full))) == (((3, 2), True), 3 + 16 + 1.75)
    html = page(compared(plain), [clock, System(1, 1, 2)])
    checked(html)
    assert "One stream and one uplink are taken for ditto: the summaries do not tell them" in html
    told_here = page(compared(full), [clock, System(1, 1, 2)])
    for cell in ("3", "2", "20.8", "8.8"):  # streams, uplinks, and a round's time in both systems
        assert re.search(f"<td[^>]*>{re.escape(cell)}</td>", told_here), cell
    for axes in ("rho = 4, tmin = 1, mu = 2", "rho = 1, tmin = 1, mu = 2"):  # two panels and the table's head
        assert told_here.count(axes) == 3


def test_time_adds_up_what_rounds_cost_by_then(tmp_path: Path) -> None:
    """As clusters split, or weights are made; what is not told is as at the end. H_4 = 25/12."""
    path = write(tmp_path / "a", "ucfl", rising(4, 4, 0.5), more={"streams": 4, "uplinks": 1})
    rows = (path / "metrics.csv").read_text(encoding="utf-8").splitlines()
    told_then = ["streams", "1.0", "1.0", "nan", "3.0"]
    (path / "metrics.csv").write_text("".join(f"{row},{n}\n" for row, n in zip(rows, told_then, strict=True)))
    clock, run = System(2, 1, 1), read(path)
    run.settings["participation.fraction"] = 1.0
    rest = 8 + 1 + 25 / 12
    assert clock.elapsed(run) == pytest.approx([0, 1 + rest, 5 + 2 * rest, 8 + 3 * rest])
    assert clock.of(run) == pytest.approx(4 + rest)
    run.rows[:] = run.rows[::2] + run.rows[3:]  # evaluations in rounds 0, 2 and 3
    assert clock.elapsed(run) == pytest.approx([0, 8 + 2 * rest, 11 + 3 * rest])
    del run.summary["streams"]  # it goes on
    run.rows[-1]["uplinks"] = 1.0
    assert told(run) == ((3, 1), True)


def test_results_against_a_setting(tmp_path: Path) -> None:
    """Lines that differ in one number are a course; two values of it are too few, and words are none."""
    paths = [
        write(tmp_path / f"{method}_{c}_{seed}", method, rising(3, 4, c, seed), seed=seed,
              participation={"fraction": c})
        for method in ("fedavg", "ditto") for c in (0.5, 0.1, 1.0) for seed in (0, 1)
    ]  # fmt: skip
    (found,) = across.courses(compared(*paths)).items()
    assert found[0] == "participation.fraction"
    assert [(c.label, [x for x, _ in c.points]) for c in found[1]] == [
        ("fedavg", [0.1, 0.5, 1.0]), ("ditto", [0.1, 0.5, 1.0]),
    ]  # fmt: skip
    assert ("participation.fraction", True) in [(k, "<svg" in v) for k, v in across.pictures(compared(*paths))]
    assert across.courses(compared(*paths[:4])) == {}
