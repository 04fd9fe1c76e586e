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
those that failed are listed, and tried again with --retry; folders of other settings (of a trial with fewer samples,
say) are left out and told. At the end one line for each combination: means over seeds; with -o and --tables the report
of the runs that are done, one for each kind of data. On a Slurm cluster, --slurm submits them as a job array (see
slurm/README.md).
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from . import array, launch, report
from .config import nearest
from .errors import UserError
from .experiment import INTERRUPTED
from .history import KINDS
from .lock import BusyError
from .study import Point, points, study_of

Job = subprocess.Popen[bytes]

# column -> which round's row of summary.json, and what of it
ACCURACIES = {
    "last": ("last", "accuracy_mean"),
    "weighted": ("last", "accuracy_weighted"),
    "worst 10 %": ("last", "accuracy_worst10"),
    "top 10 % by samples": ("last", "accuracy_top10"),
    "least 10 % by samples": ("last", "accuracy_least10"),
    "best on validation": ("best", "accuracy_mean"),
}
ERRORS = {"last": ("last", "error_mean")}


def run(point: Point, running: set[Job]) -> bool:
    """One run, from where it is to its end; what it says goes into its folder. Whether it went well."""
    point.folder.mkdir(parents=True, exist_ok=True)
    if point.start is not None and not (point.start / "summary.json").exists():
        reason = f"{point.start}, which it begins with, is not done; see its failed.txt"
        (point.folder / "failed.txt").write_text(reason + "\n", encoding="utf-8")
        return False
    command = [sys.executable, "-m", "mpipfl.run", str(point.study.base), *point.overrides, "--resume"]
    (point.folder / "failed.txt").unlink(missing_ok=True)
    with open(point.folder / "output.txt", "ab") as output:
        job = subprocess.Popen(
            [*launch.launcher(point.study.ranks), *command],
            env=launch.environment() | {"MPIPFL_PROGRESS": "lines"}, stdout=output, stderr=output,
            start_new_session=True,  # a terminal's Ctrl-C is for the study, which asks its runs to end
        )  # fmt: skip
        running.add(job)
        code = job.wait()
        running.discard(job)
    if code in (INTERRUPTED, -signal.SIGUSR1):
        raise KeyboardInterrupt
    if code == BusyError.code:  # somebody else is at it: neither done nor failed
        return False
    said = (point.folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    if code:
        reasons = [line for line in said if line.startswith("mpipfl:")] or said
        (point.folder / "failed.txt").write_text(f"exit code {code}: {(reasons or [''])[-1]}\n", encoding="utf-8")
    elif point.state != "done":  # a launcher that could not start its ranks, or that lost a node
        text = "; its launcher's last words: " + said[-1] if said else ""
        (point.folder / "failed.txt").write_text(f"exit code 0, but not finished{text}\n", encoding="utf-8")
    return code == 0 and point.state == "done"


def run_all(todo: Sequence[Point], side_by_side: int) -> bool:
    """All runs, some at a time; False where an interruption ended that. Signals that ask for an end are passed on."""
    running: set[Job] = set()
    asked = False

    def stop(number: int, frame: object) -> None:
        nonlocal asked
        for job in list(running):
            job.send_signal(signal.SIGUSR1)
        if not asked:
            asked = True
            raise KeyboardInterrupt

    def one(point: Point) -> str:
        start = time.perf_counter()
        failed = f"FAILED, see {point.folder / 'failed.txt'}"
        ended = "done" if run(point, running) else failed if point.state == "failed" else "is trained elsewhere"
        return f"{point.name}: {ended} ({time.perf_counter() - start:.0f} s)"

    for asking in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(asking, stop)
    with ThreadPoolExecutor(side_by_side) as pool:
        results = [pool.submit(one, point) for point in todo]
        try:
            for number, future in enumerate(as_completed(results), 1):
                print(f"{number}/{len(todo)} {future.result()}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            return False
    return True


def submit(study: Path, overrides: Sequence[str], todo: Sequence[Point], at_once: int) -> int:
    try:
        if todo:
            first = todo[0]
            names = [point.name for point in todo]
            array.submit(study, overrides, names, first.folder.parent, first.study.ranks, at_once)
    except UserError as error:
        print(f"mpipfl: {error}", file=sys.stderr)
        return error.code
    return 0


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


def report_all(all_points: Sequence[Point], output: Path | None, tables: Path | None) -> int:
    """The report of the runs that are done, where it is asked for: one for each kind of data among them, as runs on
    other data cannot be compared; it begins where they do, without the runs made for that. The exit code of making
    them."""
    groups: dict[str, list[Point]] = {}
    for point in all_points:
        if point.state == "done" and not point.begins:
            data = point.config.data
            groups.setdefault(data.model_dump_json(), []).append(point)
    code = 0
    for group in groups.values():
        words: list[str] = []
        if output is not None:
            words += [
                "-o",
                str(output.with_name("_".join([output.stem, *apart(group, groups.values())]) + output.suffix)),
            ]
        if tables is not None:
            words += ["--tables", str(tables.joinpath(*apart(group, groups.values())))]
        code = (report.main([*(str(point.folder) for point in group), *words]) if words else 0) or code
    return code


def apart(group: Sequence[Point], groups: Collection[Sequence[Point]]) -> list[str]:
    """The choices that tell a group of runs from the others; none where there is one group only."""
    if len(groups) == 1:
        return []
    axes = zip(*(point.choices for point in group), strict=True)
    constant = [names[0] if len(set(names)) == 1 else None for names in axes]
    everywhere = [{point.choices[i] for one in groups for point in one} for i in range(len(constant))]
    return [name for name, names in zip(constant, everywhere, strict=True) if name is not None and len(names) > 1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "mpipfl sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="a YAML file; see jobs/")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings for all runs")
    parser.add_argument("--dry-run", action="store_true", help="check every run's settings and list them")
    parser.add_argument("--retry", action="store_true", help="try the runs again that failed")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="a report of the done runs, in one HTML file")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="the report's tables as Markdown, CSV and LaTeX")
    parser.add_argument(
        "--runs", type=int, metavar="N", help="how many runs side by side (default: 1; with --slurm: all)"
    )
    parser.add_argument(
        "--only", metavar="NAME", help="just the run of this name, or those of a pattern ('*_s0'), also if they failed"
    )
    parser.add_argument("--slurm", action="store_true", help="submit the runs as a job array; see slurm/README.md")
    options = parser.parse_intermixed_args(argv)
    if options.runs is not None and options.runs < 1:
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
    if options.only is not None:
        chosen = [point for point in every if fnmatchcase(point.name, options.only)]
        needed = {point.start for point in chosen if point.state != "done"}
        every = [point for point in every if point in chosen or point.folder in needed]
        if not chosen:
            near = nearest(options.only, names)
            print(f"mpipfl: --only {options.only}: no run of this name in {options.study}{near}", file=sys.stderr)
            return 2
    again = options.retry or options.only is not None
    todo = [p for p in every if p.state in ("new", "begun") or (p.state == "failed" and again)]
    print(f"{len(every)} runs: {', '.join(f'{len([p for p in every if p.state == s])} {s}' for s in STATES)}")
    if options.dry_run:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a long list may be cut short by `| head`
        print("\n".join(f"{point.state:<7} {point.folder}  {' '.join(point.overrides)}" for point in every))
        return 0
    stages = [s for s in ([p for p in todo if p.begins], [p for p in todo if not p.begins]) if s]
    if options.slurm:
        if len(stages) == 2:
            print(f"{len(stages[1])} begin with the models of others: give the command again when those are done")
        return submit(options.study, options.overrides, stages[0] if stages else [], options.runs or 0)
    if not all(run_all(stage, options.runs or 1) for stage in stages):
        print("interrupted; start the study again to go on", file=sys.stderr)
        return INTERRUPTED
    Console(width=None if sys.stdout.isatty() else 120).print(table(every))
    reported = report_all(every, options.output, options.tables)
    other = [point for point in every if point.state == "other"]
    for point in other:
        print(
            f"left out: {point.folder} has other settings: {point.difference}; delete it, or move it", file=sys.stderr
        )
    failed = [point for point in every if point.state == "failed"]
    for point in failed:
        reason = (point.folder / "failed.txt").read_text(encoding="utf-8").strip()
        print(f"failed: {point.folder}: {reason}", file=sys.stderr)
    return 1 if failed or other else reported


STATES = ("done", "failed", "begun", "new", "other")

if __name__ == "__main__":
    sys.exit(main())
