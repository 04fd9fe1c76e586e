"""Run a study: `python -m mpipfl.sweep jobs/STUDY.yaml`.

A study is a base configuration, axes of named settings, and seeds; every combination is a run of its own:

    name: fmnist_skew                  # the runs' folders are <output>/<name>/<one name an axis>_s<seed>
    base: configs/fmnist_skew.yaml
    ranks: 3                           # for mpirun
    output: runs
    set: {rounds: 100}                 # for all runs
    axes:
      method:                          # each choice is some overrides, key.path: value
        fedavg: {algorithm: fedavg}
        ditto: {algorithm: {kind: ditto, lambda: 0.1}}
      participation.fraction: [0.1, 0.5]     # or the values of one key
    special:                           # more overrides for the combinations that have all of these choices
      ditto 0.5: {algorithm.lambda: 1}
    seeds: [0, 1, 2]
    start: {algorithm: fedavg, rounds: 200}    # a run made first, with each seed (and each of the axes' choices of data
                                   # and model), whose model all others begin with: their algorithm.warm_start

Runs that are done are skipped, those that stopped in the middle go on, so a study can be started again at any time;
those that failed are listed, and tried again with --retry. At the end one line for each combination: means over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from rich.console import Console
from rich.table import Table

from .config import load, read
from .errors import ConfigError, UserError
from .experiment import INTERRUPTED
from .history import KINDS
from .launch import environment, mpirun
from .section import Count, Natural, Section

# column -> which round's row of summary.json, and what of it
ACCURACIES = {
    "last": ("last", "accuracy_mean"),
    "weighted": ("last", "accuracy_weighted"),
    "worst 10 %": ("last", "accuracy_worst10"),
    "top 10 % by samples": ("last", "accuracy_top10"),
    "best on validation": ("best", "accuracy_mean"),
}
ERRORS = {"last": ("last", "error_mean")}


class Study(Section):
    """A base configuration, axes and seeds"""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.+=,-]*$", description="of the study")
    base: Path = Field(description="the configuration to vary")
    ranks: Count = Field(1, description="ranks of each run")
    output: Path = Field(Path("runs"), description="where the study's folder goes")
    set: dict[str, Any] = Field(default_factory=dict, description="overrides for all runs")
    axes: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict, description="choices by axis")
    special: dict[str, dict[str, Any]] = Field(default_factory=dict, description="overrides by names of choices")
    start: dict[str, Any] | None = Field(None, description="overrides of a run whose model all others begin with")
    seeds: tuple[Natural, ...] = Field((0,), min_length=1, description="each combination runs with each of them")

    @field_validator("axes", mode="before")
    @classmethod
    def _values(cls, axes: Any) -> Any:
        """`key: [a, b]` is short for the choices `a: {key: a}` and `b: {key: b}`."""
        if not isinstance(axes, dict):
            return axes
        return {
            key: {str(value): {key: value} for value in choices} if isinstance(choices, list) else choices
            for key, choices in axes.items()
        }

    @model_validator(mode="after")
    def _known_choices(self) -> Study:
        known = [name for choices in self.axes.values() for name in choices]
        for names in self.special:
            unknown = [name for name in names.split() if name not in known]
            if unknown or not names.split():
                raise ValueError(f"special: {names!r} is not made of choices; known: {', '.join(known)}")
        return self

    def settings(self, combination: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        """The overrides of a combination of choices, those special to it last."""
        names = {name for name, _ in combination}
        special = [more for words, more in self.special.items() if names >= set(words.split())]
        every = [*(overrides for _, overrides in combination), *special]
        return {key: value for overrides in every for key, value in overrides.items()}


class Point(NamedTuple):
    """One run of a study."""

    study: Study
    choices: tuple[str, ...]
    seed: int
    settings: dict[str, Any]
    more: tuple[str, ...] = ()  # overrides of the command line
    start: Path | None = None  # the run whose model it begins with

    @property
    def name(self) -> str:
        return "_".join([*self.choices, f"s{self.seed}"])

    @property
    def folder(self) -> Path:
        return self.study.output / self.study.name / self.name

    @property
    def overrides(self) -> list[str]:
        own = {"name": self.name, "output": str(self.study.output / self.study.name), "seed": self.seed}
        return [f"{key}={written(value)}" for key, value in (self.study.set | self.settings | own).items()] + [
            *self.more
        ]

    @property
    def state(self) -> str:
        """done, failed, begun or new"""
        if (self.folder / "summary.json").exists():
            return "done"
        if (self.folder / "failed.txt").exists():
            return "failed"
        return "begun" if (self.folder / "config.yaml").exists() else "new"


def written(value: Any) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...").strip()


def study_of(path: Path) -> Study:
    try:
        return Study.model_validate(read(path))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'the study'}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"{path}: " + "\n  ".join(lines)) from None


def points(study: Study, more: Sequence[str] = ()) -> Iterator[Point]:
    """Every combination with every seed, its settings checked; runs that others begin with come before them."""
    starts: set[str] = set()
    for combination in itertools.product(*(choices.items() for choices in study.axes.values())):
        for seed in study.seeds:
            point = Point(study, tuple(name for name, _ in combination), seed, study.settings(combination), tuple(more))
            if study.start is not None:
                start = start_of(study, combination, seed, tuple(more))
                if start.name not in starts:
                    load(study.base, start.overrides)
                    yield start
                starts.add(start.name)
                begin = {"algorithm.warm_start": {"run": str(start.folder)}}
                point = point._replace(settings=point.settings | begin, start=start.folder)
            load(study.base, point.overrides)
            yield point


def start_of(
    study: Study, combination: Sequence[tuple[str, dict[str, Any]]], seed: int, more: tuple[str, ...]
) -> Point:
    """The run that a combination begins with: on the same data, with the same network."""
    assert study.start is not None
    every = [
        (name, {key: value for key, value in own.items() if key.split(".")[0] in ("data", "model")})
        for name, own in combination
    ]
    alike = [(name, own) for name, own in every if own]
    return Point(study, ("start", *(name for name, _ in alike)), seed, study.settings(alike) | study.start, more)


def run(point: Point) -> bool:
    """One run, from where it is to its end; what it says goes into its folder. Whether it went well."""
    point.folder.mkdir(parents=True, exist_ok=True)
    if point.start is not None and not (point.start / "summary.json").exists():
        reason = f"{point.start}, which it begins with, is not done; see its failed.txt"
        (point.folder / "failed.txt").write_text(reason + "\n", encoding="utf-8")
        return False
    launcher = [mpirun(), "-np", str(point.study.ranks)] if point.study.ranks > 1 else []
    command = [*launcher, sys.executable, "-m", "mpipfl.run", str(point.study.base), *point.overrides, "--resume"]
    (point.folder / "failed.txt").unlink(missing_ok=True)
    with open(point.folder / "output.txt", "ab") as output:
        code = subprocess.run(
            command, env=environment() | {"MPIPFL_PROGRESS": "lines"}, stdout=output, stderr=output
        ).returncode
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        said = (point.folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        reasons = [line for line in said if line.startswith("mpipfl:")] or said
        (point.folder / "failed.txt").write_text(f"exit code {code}: {(reasons or [''])[-1]}\n", encoding="utf-8")
    return code == 0


def run_all(todo: Sequence[Point], side_by_side: int) -> bool:
    """All runs, some at a time; False where an interruption ended that."""

    def one(point: Point) -> str:
        start = time.perf_counter()
        ended = "done" if run(point) else f"FAILED, see {point.folder / 'failed.txt'}"
        return f"{point.name}: {ended} ({time.perf_counter() - start:.0f} s)"

    with ThreadPoolExecutor(side_by_side) as pool:
        running = [pool.submit(one, point) for point in todo]
        try:
            for number, future in enumerate(as_completed(running), 1):
                print(f"{number}/{len(todo)} {future.result()}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            return False
    return True


def table(all_points: Sequence[Point]) -> Table:
    """Means over seeds, with their standard error where there are several."""
    by_choice: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for point in all_points:
        if point.state == "done":
            summary = json.loads((point.folder / "summary.json").read_text(encoding="utf-8"))
            by_choice.setdefault(point.choices, []).append(summary)
    known = [s["last"].get("global_error_mean") is not None for all in by_choice.values() for s in all]
    columns = ERRORS if known and all(known) else ACCURACIES
    what = "error to the best models" if columns is ERRORS else "test accuracy over all clients, %"
    result = Table(title=f"{what}: mean over seeds ± standard error")
    for head in ("run", "model", "seeds", *columns):
        result.add_column(head, justify="left" if head in ("run", "model") else "right")
    for choices, summaries in by_choice.items():
        for kind in KINDS:
            rows = {"last": [s["last"] for s in summaries], "best": [s[f"best_{kind}"] or {} for s in summaries]}
            figures = [[row.get(f"{kind}_{name}") for row in rows[when]] for when, name in columns.values()]
            if any(value is not None for value in figures[0]) and not (kind == "personal" and alike(rows["last"])):
                scale = 1 if columns is ERRORS else 100
                result.add_row(
                    " ".join(choices) or "base", kind, str(len(summaries)), *(spread(f, scale) for f in figures)
                )
    return result


def alike(rows: list[dict[str, Any]]) -> bool:
    """Whether the clients use the global model."""
    return all(row["personal_loss_mean"] == row["global_loss_mean"] for row in rows)


def spread(values: Sequence[float | None], scale: float = 100) -> str:
    """Mean ± standard error."""
    found = scale * np.array([value for value in values if value is not None])
    if not len(found):
        return "–"
    digits = 1 if scale == 100 else 4
    error = f" ± {found.std(ddof=1) / np.sqrt(len(found)):.{digits}f}" if len(found) > 1 else ""
    return f"{found.mean():.{digits}f}{error}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "mpipfl sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="a YAML file; see jobs/")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings for all runs")
    parser.add_argument("--dry-run", action="store_true", help="check every run's settings and list them")
    parser.add_argument("--retry", action="store_true", help="try the runs again that failed")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how many runs side by side")
    options = parser.parse_intermixed_args(argv)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least 1")
    own = [word for word in options.overrides if word.partition("=")[0] in ("name", "output", "seed")]
    if own:
        parser.error(f"{own[0]}: the study itself says this (its keys name, output and seeds); change it there")
    try:
        every = list(points(study_of(options.study), options.overrides))
    except UserError as error:
        print(f"mpipfl: {error}", file=sys.stderr)
        return error.code
    names = [point.name for point in every]
    if len(set(names)) < len(names):
        print("mpipfl: two runs of the study have the same name; name the choices of its axes apart", file=sys.stderr)
        return 2
    todo = [p for p in every if p.state in ("new", "begun") or (p.state == "failed" and options.retry)]
    print(f"{len(every)} runs: {', '.join(f'{len([p for p in every if p.state == s])} {s}' for s in STATES)}")
    if options.dry_run:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a long list may be cut short by `| head`
        print("\n".join(f"{point.state:<7} {point.folder}  {' '.join(point.overrides)}" for point in every))
        return 0
    stages = [p for p in todo if p.start is None], [p for p in todo if p.start is not None]
    if not all(run_all(stage, options.runs) for stage in stages if stage):
        print("interrupted; start the study again to go on", file=sys.stderr)
        return INTERRUPTED
    Console(width=None if sys.stdout.isatty() else 120).print(table(every))
    failed = [point for point in every if point.state == "failed"]
    for point in failed:
        reason = (point.folder / "failed.txt").read_text(encoding="utf-8").strip()
        print(f"failed: {point.folder}: {reason}", file=sys.stderr)
    return 1 if failed else 0


STATES = ("done", "failed", "begun", "new")

if __name__ == "__main__":
    sys.exit(main())
