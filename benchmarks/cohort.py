"""The engine on one core against the loop one writes by hand: `python -m benchmarks.cohort [--quick] [-o FILE]`.

Both train the same clients with the same network for one epoch, in turns, and are timed in CPU seconds. The loop runs
twice: here, in a process tuned as mpipfl tunes itself, and in a process of its own that is not. The faster of the two
is what the engine is compared with.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from mpipfl import process, world
from mpipfl.cohort import Cohort
from mpipfl.comm import Comm

from . import common, loop
from .common import Row, middle
from .workloads import ENGINE, Workload, flops

WIDTHS = (2, 4, 8, 16, 32)


def main() -> None:
    options = common.options(__doc__).parse_args()
    process.tune(1)
    repeats = 3 if options.quick else 11
    peak = common.peak()
    rows = [row(work, repeats, peak) for work in ENGINE]
    title = f"client-steps a second of one core (matrix products: {peak:.0f} GFLOP/s)"
    common.publish("cohort", {title: rows}, options.output, {"repeats": repeats, "peak_gflops": peak})


def row(work: Workload, repeats: int, peak: float) -> Row:
    """One workload's line in the table."""
    with loop.untuned(work, "process_time") as untuned:
        auto, engines = cohorts(work)
        runners = {"loop": loop.passes(work, time.process_time), "loop, untuned": untuned, **engines}
        found: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(repeats):
            for name, run in runners.items():
                found[name].append(work.steps / run())
    best = max(("loop", "loop, untuned"), key=lambda name: middle(found[name]))
    ratios = [mine / theirs for mine, theirs in zip(found["auto"], found[best], strict=True)]
    work_rate = middle(found["auto"]) * flops(work) * work.batch / 1e9
    return {
        "workload": work.name,
        "auto width": auto,
        **{name: middle(rates) for name, rates in found.items()},
        "compared with": best,
        "times the loop": middle(ratios),
        "spread": common.spread(ratios),
        "goal": work.goal,
        "verdict": common.verdict(middle(ratios) >= work.goal),
        "GFLOP/s": work_rate,
        "share of peak": f"{100 * work_rate / peak:.0f} %",
        "samples": found,
    }


def cohorts(work: Workload) -> tuple[int, dict[str, Callable[[], float]]]:
    """The automatic width, and the engine at that and at fixed widths as functions that give a pass's seconds."""
    config, plan = common.experiment(work)
    store, theta = world.store(plan, Comm(), torch.device("cpu")), plan.model.initial()
    auto = world.width(config, store, plan.model, theta)

    def runner(width: int) -> Callable[[], float]:
        cohort = Cohort(np.arange(work.drawn), store, plan.model, config.train, 0, 1, width)
        cohort.descend(theta, steps=1)
        return lambda: common.seconds(lambda: cohort.descend(theta), time.process_time)

    return auto, {"auto": runner(auto), **{f"width {width}": runner(width) for width in WIDTHS}}


if __name__ == "__main__":
    main()
