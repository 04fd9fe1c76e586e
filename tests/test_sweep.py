"""Studies: each combination is a run; what is done is skipped, what failed is listed, what is wrong is said at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpipfl import checkpoint, launch, sweep
from mpipfl.config import dump, load
from mpipfl.lock import Lock
from mpipfl.study import points, study_of, written

from . import folders
from .conftest import PROJECT, clean_environment

STUDY: dict[str, Any] = {
    "name": "study", "base": str(PROJECT / "configs/quickstart.yaml"),
    "set": {"rounds": 1, "data.samples": 300, "data.clients": 4, "model": "logistic", "algorithm": "local"},
    "axes": {
        "method": {
            "fedavg": {"algorithm": "fedavg"},
            "lost": {"data.source": {"kind": "arrays", "path": "/nowhere.npz"}},
        },
        "train.batch": [8, 16],
    },
    "seeds": [0, 3],
}  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write(tmp_path)


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY | {"output": str(folder)} | changes), encoding="utf-8")
    return path


def start(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mpipfl.sweep", *map(str, arguments)],
        env=clean_environment(), timeout=200, capture_output=True, text=True,
    )  # fmt: skip


def test_points_are_combinations(study: Path) -> None:
    every = list(points(study_of(study)))
    assert [p.name for p in every[:3]] == ["fedavg_8_s0", "fedavg_8_s3", "fedavg_16_s0"]
    assert len({p.name for p in every}) == 8
    config = load(STUDY["base"], every[-1].overrides)
    assert (config.seed, config.train.batch, config.data.source.kind, config.model.kind) == (
        3,
        16,
        "arrays",
        "logistic",
    )
    assert config.folder == study.parent / "study/lost_16_s3"


def test_special_settings_go_to_the_combinations_that_have_all_their_choices(tmp_path: Path) -> None:
    study = write(
        tmp_path, axes={"method": {"fedavg": {}, "ditto": {"algorithm": "ditto"}}, "train.batch": [8, 16]},
        special={"ditto": {"train.lr": 0.5}, "ditto 16": {"algorithm.lambda": 7, "train.batch": 17}},
    )  # fmt: skip
    found = {p.name: load(STUDY["base"], p.overrides) for p in points(study_of(study))}
    assert {name: c.train.lr == 0.5 for name, c in found.items() if name.endswith("s0")} == {
        "fedavg_8_s0": False, "fedavg_16_s0": False, "ditto_8_s0": True, "ditto_16_s0": True,
    }  # fmt: skip
    assert [found[f"ditto_{b}_s3"].train.batch for b in (8, 16)] == [8, 17]
    assert getattr(found["ditto_16_s3"].algorithm, "lam", None) == 7


def test_runs_side_by_side_and_errors_to_known_models(tmp_path: Path) -> None:
    study = write(
        tmp_path, base=str(PROJECT / "configs/selffl_gaussian.yaml"), seeds=[0, 1, 2], axes={},
        set={"rounds": 2, "data.clients": 3, "data.source.copies": 2},
    )  # fmt: skip
    ran = start(study, "--runs", 3)
    assert ran.returncode == 0, ran.stderr
    assert "3/3" in ran.stdout
    assert "error to the best models" in ran.stdout
    assert "±" in ran.stdout


@pytest.mark.parametrize(
    "value", [1, 0.5, -4, "fedavg", True, None, [1, 2], {"kind": "ditto", "lambda": 0.1}, "a: b", ""]
)
def test_values_come_back(value: Any) -> None:
    assert yaml.safe_load(written(value)) == value


def test_a_dry_run_runs_nothing(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([str(study), "--dry-run"]) == 0
    assert "8 runs: 0 done, 0 failed, 0 begun, 8 new" in capsys.readouterr().out
    assert not (study.parent / "study").exists()


def test_a_study_from_start_to_end(tmp_path: Path) -> None:
    """A failed run does not stop the others; a second start has nothing to do, --retry tries again."""
    study = write(tmp_path, seeds=[0])
    first = start(study)
    assert first.returncode == 1
    assert "fedavg_8_s0: done" in first.stdout
    assert "lost_16_s0: FAILED" in first.stdout
    assert "exit code 3: mpipfl: data.source.path: no file at /nowhere.npz" in first.stderr
    assert "Traceback" not in first.stderr
    again = start(study, "-o", tmp_path / "report.html", "--tables", tmp_path / "tables")
    assert "4 runs: 2 done, 2 failed" in again.stdout
    assert not re.search(r"^\d+/\d+ ", again.stdout, re.MULTILINE)  # no run is begun
    assert f"{tmp_path / 'report.html'}: 2 runs" in again.stdout
    assert "Results" in (tmp_path / "report.html").read_text() and (tmp_path / "tables/results.csv").is_file()
    write(tmp_path, seeds=[0], axes=STUDY["axes"] | {"method": {"fedavg": {"algorithm": "fedavg"}}})
    assert start(study).returncode == 0
    write(tmp_path, seeds=[0])
    assert "2/2 lost_16_s0: FAILED" in start(study, "--retry").stdout


def test_a_report_for_each_kind_of_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that are done on two splits with two methods: two reports of two lines, named by the split."""
    axes = {"method": {"fedavg": {}, "ditto": {"algorithm": "ditto"}},
            "split": {"iid": {}, "few": {"data.partition": {"kind": "classes", "k": 2}}}}  # fmt: skip
    study, best = write(tmp_path, axes=axes), {"best_personal": None, "best_global": None}
    for point in points(study_of(study)):
        config = load(STUDY["base"], point.overrides)
        method, data = config.algorithm.kind, config.data.model_dump(mode="json")
        folders.write(point.folder, method, folders.rising(2, 4, 0.5), seed=point.seed, data=data, more=best)
        (point.folder / "config.yaml").write_text(dump(config), encoding="utf-8")
    assert sweep.main([str(study), "-o", str(tmp_path / "all.html"), "--tables", str(tmp_path / "tables")]) == 0
    assert capsys.readouterr().out.count(": 4 runs, ") == 2
    assert sorted(p.name for p in tmp_path.glob("*.html")) == ["all_few.html", "all_iid.html"]
    assert len(folders.read_csv(tmp_path / "tables/few/results.csv")) == 2


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_a_signal_is_passed_on_to_the_runs(number: signal.Signals, tmp_path: Path) -> None:
    """They write their checkpoints, and the study goes on from there. A terminal's Ctrl-C is for all in it."""
    study = write(tmp_path, seeds=[0], ranks=2, axes={}, set=STUDY["set"] | {"rounds": 10**6})
    job = subprocess.Popen([sys.executable, "-m", "mpipfl.sweep", str(study)], env=clean_environment(),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           start_new_session=True)  # fmt: skip
    (point,) = points(study_of(study))
    while not any(checkpoint.rounds(point.folder)) and job.poll() is None:  # the first is of round 0
        time.sleep(0.1)
    if number == signal.SIGINT:
        os.killpg(job.pid, number)
    else:
        job.send_signal(number)
    said, problems = job.communicate(timeout=120)
    assert job.returncode == 75, said + problems
    assert point.state == "begun" and checkpoint.rounds(point.folder)[-1] > 0
    assert "stopped by a signal after round" in (point.folder / "output.txt").read_text()
    assert "start the study again to go on" in problems and "Traceback" not in problems


def test_runs_of_other_settings_are_no_runs_of_the_study(tmp_path: Path) -> None:
    """A trial with fewer samples stands in the way, and is told; one with fewer rounds goes on."""
    study = write(tmp_path, seeds=[0, 1], axes={})
    assert start(study, "--only", "s0", "data.samples=200").returncode == 0
    assert start(study, "--only", "s1").returncode == 0
    longer = load(STUDY["base"], [*next(iter(points(study_of(study), ["rounds=2"]))).overrides, "name=s1", "seed=1"])
    (tmp_path / "study/s1/config.yaml").write_text(dump(longer), encoding="utf-8")  # begun to go on, and killed
    ran = start(study, "rounds=2", "-o", tmp_path / "report.html")
    assert ran.returncode == 1
    assert "2 runs: 0 done, 0 failed, 1 begun, 0 new, 1 other" in ran.stdout
    why = "data.samples was 200, is 300; delete it, or move it"
    assert f"left out: {tmp_path}/study/s0 has other settings: {why}" in ran.stderr
    assert checkpoint.rounds(tmp_path / "study/s1")[-1] == 2 and checkpoint.rounds(tmp_path / "study/s0")[-1] == 1
    assert re.search(r"base +│ personal │ +1 │", ran.stdout)
    assert "1 runs in 1 lines" in (tmp_path / "report.html").read_text()


def test_a_launcher_that_only_says_that_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some end with code 0 although a node was lost."""
    monkeypatch.setenv("MPIPFL_LAUNCH", "echo {ranks} ranks")
    study = write(tmp_path, seeds=[0], axes={})
    (point,) = points(study_of(study))
    assert start(study).returncode == 1
    reason = (point.folder / "failed.txt").read_text()
    assert reason.startswith("exit code 0, but not finished; its launcher's last words: 1 ranks")


def test_a_run_that_somebody_else_trains_has_not_failed(tmp_path: Path) -> None:
    study = write(tmp_path, seeds=[0], axes={})
    (point,) = points(study_of(study))
    held = Lock(point.folder)
    ran = start(study)
    held.release()
    assert f"1/1 {point.name}: is trained elsewhere" in ran.stdout and ran.returncode == 0
    assert point.state == "new"


def test_only_one_run(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([str(study), "--only", "fedavg_16_s3", "--dry-run"]) == 0
    assert "1 runs: 0 done" in capsys.readouterr().out
    assert sweep.main([str(study), "--only", "*_s3", "--dry-run"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 5 and all("_s3 " in line for line in listed[1:])
    assert sweep.main([str(study), "--only", "fedavg_16_s4"]) == 2
    assert "--only fedavg_16_s4: no run of this name" in (said := capsys.readouterr().err) and "did you mean" in said


def test_what_starts_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "mpirun", lambda: "mpirun")
    monkeypatch.delenv("MPIPFL_LAUNCH", raising=False)
    assert launch.launcher(1) == launch.PATIENT
    assert launch.launcher(3) == ["mpirun", "-np", "3", *launch.PATIENT]
    monkeypatch.setenv("MPIPFL_LAUNCH", "srun --mpi=pmix -n {ranks} 'a word'")
    assert launch.launcher(2) == ["srun", "--mpi=pmix", "-n", "2", "a word", *launch.PATIENT]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": {"method": {"none": {"algorithm": "nothing"}}}}, "no kind 'nothing'"),
        ({"axes": {"m": {"a": {"train.lrr": 1}}}}, "train.lrr: unknown key"),
        ({"base": "missing.yaml"}, "no such configuration"),
        ({"seeds": []}, "seeds"),
        ({"sedes": [1]}, "sedes"),
        ({"special": {"fedavg 9": {}}}, "'fedavg 9' is not made of choices"),
        ({"axes": {"a": {"x": {}, "x_y": {}}, "b": {"z": {}, "y_z": {}}}}, "the same name"),
    ],
)
def test_wrong_studies(changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([str(write(tmp_path, **changes)), "--dry-run"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("word", ["output=here", "seed=3", "name=mine"])
def test_what_the_study_says_itself_is_not_overridden(
    word: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sweep.main([str(study), word])
    assert ended.value.code == 2
    assert "the study itself says this" in capsys.readouterr().err


def test_the_projects_studies_are_right() -> None:
    for path in sorted((PROJECT / "jobs").glob("*.yaml")):
        study = study_of(path)
        assert list(points(study.model_copy(update={"base": PROJECT / study.base})))


def test_all_begin_with_one_run(tmp_path: Path) -> None:
    """It is made once for each seed and each choice of data or model, before the others; they name it in warm_start."""
    study = write(
        tmp_path, start={"algorithm": "fedavg", "rounds": 5}, special={"many ditto": {"train.lr": 0.5}},
        axes={
            "method": {"fedavg": {"algorithm": "fedavg", "train.lr": 0.2}, "ditto": {"algorithm": "ditto"}},
            "division": {"few": {"data.clients": 3}, "many": {"data.clients": 5, "train.batch": 4}},
        },
    )  # fmt: skip
    every = list(points(study_of(study)))
    assert sorted(p.name for p in every if p.start is None) == [
        f"start_{n}_s{s}" for n in ("few", "many") for s in (0, 3)
    ]
    for place, point in enumerate(every):
        run = load(STUDY["base"], point.overrides)
        if point.start is None:
            assert (run.rounds, run.algorithm.kind, run.train.lr, run.train.batch) == (5, "fedavg", 0.03, 16)
            assert run.data.clients == (3 if "few" in point.name else 5) and run.algorithm.warm_start is None
        else:
            name = f"start_{'few' if 'few' in point.choices else 'many'}_s{point.seed}"
            assert run.rounds == 1 and run.algorithm.warm_start is not None
            assert run.algorithm.warm_start.run == point.start == tmp_path / "study" / name
            assert name in [p.name for p in every[:place]]


def test_one_run_of_a_study_brings_what_it_begins_with(tmp_path: Path) -> None:
    """With rounds of its own; the report begins where the methods do."""
    methods = {"fedavg": {"algorithm": "fedavg"}, "ditto": {"algorithm": "ditto"}}
    study = write(tmp_path, start={"algorithm": "fedavg", "rounds": 2}, axes={"method": methods}, seeds=[0])
    report = tmp_path / "report.html"
    ran = start(study, "--only", "ditto_s0", "-o", report, "rounds=3")
    assert ran.returncode == 0, ran.stderr
    assert "2 runs: 0 done, 0 failed, 0 begun, 2 new" in ran.stdout
    assert checkpoint.rounds(tmp_path / "study/start_s0")[-1] == 2
    assert checkpoint.rounds(tmp_path / "study/ditto_s0")[-1] == 3
    assert not (tmp_path / "study/fedavg_s0").exists()
    html = report.read_text(encoding="utf-8")
    assert "1 runs in 1 lines" in html and "ditto" in html


def test_a_study_cannot_begin_with_a_method_that_has_no_global_model(tmp_path: Path) -> None:
    ran = start(write(tmp_path, start={"algorithm": "local"}, axes={}, seeds=[0]))
    assert ran.returncode == 2 and not (tmp_path / "study").exists()
    assert "mpipfl: start: algorithm=local has no global model for others to begin with; take fedavg" in ran.stderr


def test_nothing_begins_with_a_run_that_is_not_done(tmp_path: Path) -> None:
    study = write(tmp_path, start={"algorithm": "fedavg"}, axes={}, seeds=[0])
    start, point = points(study_of(study))
    assert not sweep.run(point, set()) and point.state == "failed"
    assert f"{start.folder}, which it begins with, is not done" in (point.folder / "failed.txt").read_text()
