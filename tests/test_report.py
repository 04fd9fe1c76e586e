"""The report: numbers by hand, files that are broken, runs that cannot be compared, and a page that stands alone."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from mpipfl import report
from mpipfl.comm import MPI, Comm
from mpipfl.report import contents, own, own_panels
from mpipfl.report.clock import System, system
from mpipfl.report.compare import Comparison, Figure, compare
from mpipfl.report.page import page
from mpipfl.report.runs import Run, read
from mpipfl.report.tables import Column, Settings, Table

from . import folders
from .folders import rising, write
from .suite import config, train

NAN = float("nan")
VOID = {"meta", "br", "link", "img", "input", "hr"}
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


class Reader(HTMLParser):
    """Checks that what is opened is closed, and keeps addresses and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("href", "src", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.texts.append(data)


def checked(html: str) -> Reader:
    """A page that is well-formed, loads nothing, and has no NaN among its texts and its numbers."""
    reader = Reader(html)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in reader.addresses)
    assert "http" not in html and "@import" not in html and "<link" not in html
    assert not re.search(r"\b(nan|NaN|inf)\b", re.sub(r"base64,[^\"]*|<script>.*</script>", "", html, flags=re.S))
    return reader


def compared(*paths: Path) -> Comparison:
    return compare([read(path) for path in paths])


def three(folder: Path, seeds: tuple[int, ...] = (0,), **changes: object) -> list[Path]:
    """local, fedavg and ditto of four clients, whose QoI with seed 0 are 0.1, -0.3, 0 and 0.2."""
    local, average = np.array([[0.8, 0.1, 0.2, 0.4]]), np.array([[0.7, 0.8, 0.7, 0.1]])
    ditto = np.array([[0.9, 0.5, 0.7, 0.6]])
    made = []
    for seed in seeds:
        more = {"seed": seed, **changes}
        both = [np.concatenate([0 * a, a + 0.1 * seed]) for a in (local, average, ditto)]
        both[2][1] -= 0.1 * seed  # with seed 1 ditto stays where it is
        made += [
            write(folder / f"local_s{seed}", "local", both[0], np.full((2, 4), NAN), **more),  # type: ignore[arg-type]
            write(folder / f"fedavg_s{seed}", "fedavg", both[1], **more),  # type: ignore[arg-type]
            write(folder / f"ditto_s{seed}", "ditto", both[2], both[1], **more),  # type: ignore[arg-type]
        ]
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
    arguments = [*map(str, real), "-o", str(out), "--tables", str(tmp_path / "tables"), "--time", "rho=4,tmin=1,mu=1"]
    assert report.main(arguments) == 0
    said = capsys.readouterr()
    assert f"{out}: 6 runs" in said.out and said.err == ""
    html = out.read_text(encoding="utf-8")
    assert html == page(compared(*real), system("rho=4,tmin=1,mu=1"))  # the same every time
    reader = checked(html)
    assert reader.seen.count("svg") > 6
    for part in ("Quantum of improvement", "Fairness", "Every client", "rho = 4, tmin = 1, mu = 1", "l_max", "mpi4py"):
        assert part in html, part
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    stems = ("results", "improvement", "fairness", "clients", "settings", "costs", "phases")
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


def test_costs_by_hand(tmp_path: Path) -> None:
    table = contents.costs(compared(*three(tmp_path)))
    assert table.texts()[0] == ["local", "3", "12.5", "0.500", "1.0", "1.0", "1.0", "300", "2.0"]
    assert contents.phases(compared(*three(tmp_path / "b"))).texts()[1] == ["local", "train", "0.50", "1.00", "2.00"]


def test_time_by_hand(tmp_path: Path) -> None:
    """Two of four clients a round: H_2 = 1.5, so 1 (s + 4 u 2) + 1 + 1.5 / 2."""
    clock = system("rho=4, tmin=1, mu=2")
    assert clock == System(4, 1, 2)
    plain, told = (write(tmp_path / name, "ditto", rising(3, 4, 0.5), more=more)
                   for name, more in (("plain", {}), ("told", {"streams": 3, "uplinks": 2})))  # fmt: skip
    assert clock.of(read(plain)) == (1 + 8 + 1.75, False)
    assert clock.of(read(told)) == (3 + 16 + 1.75, True)
    html = page(compared(plain), clock)
    checked(html)
    assert "One stream and one uplink are taken for ditto: the summaries do not tell them" in html


# ---------------------------------------------------------------------- tables

TABLE = Table(
    "t", "A title", [Column("method"), Column("100 %", 1, "high", 100), Column("loss", 2, "low"), Column("own")],
    [["a_b", Figure(0.5, 0.0123), 1.0, Settings({"mu": "1"})],
     ["c|d", Figure(0.75), 1.004, None],
     ["<e>", None, NAN, "x & y"]],
    "a caption",
)  # fmt: skip


def test_markdown() -> None:
    assert TABLE.markdown() == (
        "| method | 100 % | loss | own |\n| --- | ---: | ---: | --- |\n| a_b | 50.0 ± 1.2 | **1.00** | mu = 1 |\n"
        "| c\\|d | **75.0** | **1.00** | none |\n| <e> | none | none | x & y |\n"
    )


def test_csv() -> None:
    assert TABLE.csv() == (
        "method,100 %,100 % error,loss,own\na_b,50.0,1.2,1.00,mu = 1\nc|d,75.0,,1.00,none\n<e>,none,,none,x & y\n"
    )


def test_latex() -> None:
    assert TABLE.latex() == (
        "\\begin{tabular}{lrrl}\n\\toprule\nmethod & 100 \\% & loss & own \\\\\n\\midrule\n"
        "a\\_b & 50.0 $\\pm$ 1.2 & \\textbf{1.00} & mu = 1 \\\\\n"
        "c\\textbar{}d & \\textbf{75.0} & \\textbf{1.00} & none \\\\\n<e> & none & none & x \\& y \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def test_html_table() -> None:
    html = TABLE.html()
    Reader(html)
    assert '<td class=n data-v="0.5">50.0 ± 1.2</td>' in html and "<td>mu = <b>1</b></td>" in html
    assert "&lt;e&gt;" in html and "x &amp; y" in html and "<td class=n>none</td>" in html


def test_a_league_of_one_has_no_best() -> None:
    two = Table("t", "", TABLE.columns, TABLE.rows[:2], "", ["a", "b"])
    assert two.best() == set() and len(TABLE.best()) == 3


# ---------------------------------------------------------------------- what can be compared


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


def test_names_are_escaped(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "<script>alert(1)</script>", rising(3, 4, 0.5), name="<b>")
    html = page(compared(path))
    checked(html)
    assert "<script>alert" not in html and "&lt;script&gt;" in html


# ---------------------------------------------------------------------- the methods' own pictures

GROUPS = np.arange(12) % 3
OWN = {
    "selffl": folders.of_selffl(6, 12),
    "selffl_augmented": folders.of_selffl(6, 12),
    "ifca": {"round": np.arange(1, 7), "cluster": np.where(np.arange(72).reshape(6, 12) % 5 == 0, NAN, 1.0)},
    "cfl": {"round": np.arange(1, 7), "cluster": np.tile(GROUPS, (6, 1))},
    "fedfomo": {"round": np.arange(1, 7), "helpers": np.ones((6, 12))},
    "ucfl": folders.of_ucfl(12, GROUPS),
    "pfedvem": {"round": np.arange(1, 7), "tau": np.tile(np.linspace(1, 9, 12), (6, 1))},
    "persfl": folders.of_persfl(12),
}


def drawn(tmp_path: Path, method: str, series: dict[str, np.ndarray]) -> tuple[str, list[str]]:
    path = write(tmp_path / method, method, rising(7, 12, 0.6), rising(7, 12, 0.5), own=series, groups=GROUPS)
    average = write(tmp_path / "fedavg", "fedavg", rising(7, 12, 0.5), groups=GROUPS)
    ((_, picture, said),) = own.pictures(compared(path, average))
    return picture or "", said


@pytest.mark.parametrize("method", sorted(own.REGISTRY))
def test_methods_draw(method: str, tmp_path: Path) -> None:
    picture, said = drawn(tmp_path, method, OWN[method])
    Reader(picture)
    assert all(panel.title in picture for panel in own.REGISTRY[method])
    assert not any("drawn" in sentence for sentence in said), said


@pytest.mark.parametrize("method", sorted(own.REGISTRY))
def test_what_a_method_did_not_record_is_said(method: str, tmp_path: Path) -> None:
    _, said = drawn(tmp_path, method, {})
    needing = [panel for panel in own.REGISTRY[method] if panel.needs]
    assert len([sentence for sentence in said if "not drawn" in sentence]) == len(needing)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    picture, said = drawn(tmp_path, "selffl", OWN["selffl"] | {"round": np.arange(3), "sigma2_0": np.ones((6, 2, 2))})
    assert any("cannot be drawn" in sentence for sentence in said) and "local steps l in the last round" in picture


@pytest.mark.parametrize(("spread", "said"), [(0.1, True), (0.2, False)])
def test_equal_confidences_are_noticed(spread: float, said: bool, tmp_path: Path) -> None:
    """A uniform spread s around 1 has the coefficient of variation s / sqrt(12), here 3 % and 6 %."""
    tau = np.tile(np.linspace(1 - spread / 2, 1 + spread / 2, 12), (6, 1))
    _, sentences = drawn(tmp_path, "pfedvem", {"round": np.arange(1, 7), "tau": tau})
    assert any("weighting by them does nothing" in sentence for sentence in sentences) == said


def test_clusters_are_as_last_heard(tmp_path: Path) -> None:
    class Axes:
        lines: dict[str, list[int]] = {}  # noqa: RUF012

        def plot(self, x: np.ndarray, y: np.ndarray, label: str, **_: object) -> None:
            self.lines[label] = y.tolist()

        def __getattr__(self, name: str):
            return lambda *_, **__: None

    cluster = np.array([[0, NAN, 1], [NAN, 1, NAN], [1, NAN, NAN]])
    run: Run = read(three(tmp_path)[0])
    own_panels.clusters(Axes(), own_panels.Scene(run, {"round": np.arange(3), "cluster": cluster}, "", None, ""))
    assert Axes.lines == {"0": [1, 1, 0], "1": [1, 2, 3]}


def test_distances_to_the_best_models_are_drawn(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "ditto", np.full((3, 4), NAN))
    folders.rewrite_history(path, personal__error=np.ones((3, 4)), global__error=np.full((3, 4), 2.0))
    (path / "metrics.csv").unlink()
    html = page(compared(path))
    checked(html)
    assert "mean distance to the best model" in html and "1.00000" in html and "mean accuracy, %" not in html
