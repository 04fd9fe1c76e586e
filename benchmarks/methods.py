"""What a method's round costs in FedRep's: `python -m benchmarks.methods [--quick] [-o FILE]`.

Whole rounds on one core, without evaluation and checkpoints, in turns: FedRep, and pFedVEM with as many passes for the
head and one for the base, its head by full batches (the default) and by FedRep's mini-batches.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpipfl import process
from mpipfl.comm import Comm
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder

from . import common
from .common import Row, middle
from .workloads import Workload

WORK = (
    Workload("logistic-10", "logistic", 40, 40, 60, 10, 0.03, 0.0, 0.0),
    Workload("mlp-20", "mlp", 20, 20, 200, 20, 0.01, 0.0, 0.0),
    Workload("lenet5-64", "lenet5", 6, 6, 512, 64, 0.01, 0.9, 0.0),
)
METHODS: dict[str, dict[str, Any]] = {
    "fedrep": {"kind": "fedrep", "head_epochs": 10},
    "pfedvem": {"kind": "pfedvem", "head_epochs": 10},
    "pfedvem, mini-batches": {"kind": "pfedvem", "head_epochs": 10},
}
MOST = 3.0  # times a FedRep round


def main() -> None:
    options = common.options(__doc__).parse_args()
    process.tune(1)
    rows = [row(work, 3 if options.quick else 9) for work in WORK]
    common.publish("methods", {"a round, seconds": rows}, options.output, {"most": MOST})


def row(work: Workload, repeats: int) -> Row:
    """One workload's line, the methods in turns."""
    runners = {name: runner(name, work) for name in METHODS}
    found: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(repeats):
        for name, run in runners.items():
            found[name].append(common.seconds(run, time.process_time))
    ratios = {
        name: [mine / theirs for mine, theirs in zip(values, found["fedrep"], strict=True)]
        for name, values in found.items()
        if name != "fedrep"
    }
    return {
        "workload": work.name,
        **{name: middle(values) for name, values in found.items()},
        **{f"{name} / fedrep": f"{middle(values):.2f} ({common.spread(values)})" for name, values in ratios.items()},
        **{f"{name} <= {MOST:g}": common.verdict(middle(values) <= MOST) for name, values in ratios.items()},
        "samples": found,
    }


def runner(name: str, work: Workload) -> Callable[[], None]:
    """A round of the method, ready to run."""
    method = METHODS[name] | ({"head_batch": work.batch} if "mini" in name else {})
    config, plan = common.experiment(work, algorithm=method)
    folder = RunFolder(Path(tempfile.gettempdir()))
    experiment = Experiment(config, plan, Comm(), folder, Reporter(False, 1, work.name))

    def go() -> None:
        experiment.step("train", experiment.train)

    go()
    return go


if __name__ == "__main__":
    main()
