"""What it costs that ranks can die: `mpirun --with-ft ulfm -np 3 python -m benchmarks.survival [--quick] [-o FILE]`.

Rounds of LeNet-5, FedAvg (no client state) and SCAFFOLD (a vector per client), each with its parts timed by themselves
in turns with it: the votes on a step, sending the copies, a checkpoint. The goals are 3 % of a round for votes and
copies, and 5 % for a checkpoint.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

from mpipfl import process
from mpipfl.comm import Comm
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder

from . import common, wire
from .common import Row
from .workloads import ROUNDS, Workload

VOTES = 3  # a round: its training, its evaluation, its checkpoint


def main() -> int:
    options = common.options(__doc__).parse_args()
    comm = Comm()
    process.tune(1)
    try:
        work = next(work for work in ROUNDS if work.model == "lenet5")
        rows = [costs(comm, work, method, 3 if options.quick else 9) for method in ("fedavg", "scaffold")]
        if comm.is_server:
            title = f"LeNet-5 on {comm.size} ranks, seconds"
            common.publish("survival", {title: rows}, options.output, {"survives": comm.survives})
        return comm.finish(0)
    except Exception:
        traceback.print_exc()
        comm.abort(1)


def costs(comm: Comm, work: Workload, method: str, repeats: int) -> Row:
    """A method's line."""
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(comm.text(mine if comm.is_server else None))
        config, plan = common.experiment(work, algorithm={"kind": method})
        experiment = Experiment(config, plan, comm, RunFolder(folder), Reporter(False, 1, work.name))
        hosting = experiment.hosting
        rows, nobody = hosting.states.take(hosting.hosted), np.empty(0, dtype=np.int64)
        found = wire.race(comm, repeats, {
            "round": lambda: experiment.step("train", experiment.train),
            "votes": lambda: [comm.agree() for _ in range(VOTES)],
            "copies": lambda: hosting.change(hosting.everyone, hosting.home, nobody, rows),
            "checkpoint": lambda: experiment.step("checkpoint", experiment.save),
        })  # fmt: skip
        comm.barrier()
    survival = (found["votes"] + found["copies"]) / found["round"]
    saving = found["checkpoint"] / found["round"]
    return {
        "method": method,
        "state of a client (KB)": hosting.states.width / 1e3,
        **{f"{name} (s)": seconds for name, seconds in found.items()},
        "votes and copies": f"{100 * survival:.2f} %",
        "< 3 %": common.verdict(survival < 0.03),
        "a checkpoint": f"{100 * saving:.2f} %",
        "< 5 %": common.verdict(saving < 0.05),
    }


if __name__ == "__main__":
    sys.exit(main())
