"""The cost model of a round: against closed forms, plain loops and the engine; its commands and their mistakes."""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from benchmarks import model, model_check, model_workers
from benchmarks.model import Node
from benchmarks.model_ask import network_of, on, scenario
from benchmarks.model_calibrate import trial
from benchmarks.model_messages import Link, Machine, collective, everywhere, halving, in_parts, tree, vote
from benchmarks.model_round import TERMS, costs, rows_written, seconds, server_memory
from benchmarks.model_units import Calibration, fit, read
from benchmarks.model_workers import Network, Task, batched, level, loads, population, swept, trained
from benchmarks.workloads import ROUNDS, flops
from mpipfl import slices
from mpipfl.cohort import Cohort
from mpipfl.comm import MPI, Comm
from mpipfl.data.sizes import Sized
from mpipfl.descent import SGD
from mpipfl.lanes import Lanes
from mpipfl.launch import mpirun
from mpipfl.placement import place

from .conftest import PROJECT, clean_environment
from .pages import checked

INSIDE = {"call": 5e-5, "message": 1e-6, "byte": 1e-10}
UNITS: dict[str, dict[str, float]] = {
    "choosing clients": {"once": 1e-4, "client": 1e-8, "drawn": 1e-8, "placed": 1e-6},
    "bookkeeping": {"once": 1e-4},
    "history": {"once": 1e-4, "client": 1e-7},
    "own sums": {"once": 1e-4, "number": 1e-9, "vector": 1e-9},
    "server": {"once": 1e-4, "number": 1e-9},
    "evaluation": {"once": 1e-4, "client": 1e-6},
    "checkpoint": {"once": 1e-2, "byte": 1e-9, "past": 1e-9},
    "memory": {"program": 3e8},
    "yardstick": {"once": 1e-2},
    "broadcast": INSIDE,
    "broadcast, work": INSIDE,
    "reduce": INSIDE | {"byte": 4e-10},
    "reduce, work": INSIDE | {"byte": 4e-10},
    "vote": INSIDE | {"byte": 0.0},
    "vote, work": INSIDE | {"byte": 0.0},
}
STEP = {"clients": 1e-4, "cohorts": 1e-3, "steps": 5e-4, "rows": 1e-4}
NETWORK = Network("mlp", 79_510, 20, 8, STEP, STEP | {"rows": 1e-6})
CALIBRATION = Calibration(UNITS, {"mlp": NETWORK, "lenet": NETWORK._replace(name="lenet", batch=64)})
ARITHMETIC = dict.fromkeys(STEP, 0.0) | {"rows": 1e-3}


def task(**changes: Any) -> Task:
    return Task(NETWORK, 100, 100, 200)._replace(**changes)


# ---------------------------------------------------------------------- messages


def test_one_rank_sends_nothing() -> None:
    machine = on(Node(), CALIBRATION)
    for cost in (collective(machine, 1, "reduce", 1e6), vote(machine, 1), everywhere(machine, 1, 1e6)):
        assert cost == (0, 0)
    found = costs(task(), machine, 1)
    assert [found[term].path for term in ("reduce", "broadcast", "votes", "imbalance")] == [0, 0, 0, 0]


def test_a_reduction_by_hand() -> None:
    """12 workers on nodes of four are three nodes: a server and four workers make three levels within a node, three
    nodes make two. What adding takes, 3e-10 a byte, comes to the network's own 1 / 25e9."""
    machine, size = on(Node(gpus=4, net=25e9, latency=2e-6), CALIBRATION), 8e6
    within, across = 1e-6 + size * 4e-10, 2e-6 + size * (1 / 25e9 + 3e-10)
    reduced = collective(machine, 13, "reduce", size)
    assert reduced.path == pytest.approx(5e-5 + 3 * within + 2 * across)
    assert reduced.total == pytest.approx(13 * 5e-5 + 12 * within)
    sent = collective(machine, 13, "broadcast", size)
    assert sent.path == pytest.approx(5e-5 + 3 * (1e-6 + size * 1e-10) + 2 * (2e-6 + size / 25e9))


@pytest.mark.parametrize(("ranks", "within", "across"), [(2, 1, 0), (5, 3, 0), (6, 3, 1), (9, 3, 1), (4097, 3, 10)])
def test_levels(ranks: int, within: int, across: int) -> None:
    machine = on(Node(gpus=4), CALIBRATION)
    inside, outside = Link(1e-6, 1e-10), machine.network
    assert machine.levels(ranks, "broadcast") == [inside] * within + [outside] * across


def test_halving_moves_a_vector_at_most_once() -> None:
    """Σ n / 2^i over the levels is n (1 - 1/p), and a message at every level."""
    links = [Link(1e-6, 1e-9)] * 5
    assert halving(1e9, links) == pytest.approx((1 - 1 / 32) + 5e-6)
    assert tree(1e9, links) == pytest.approx(5 + 5e-6)


def test_long_vectors_in_parts() -> None:
    """On two ranks each gets half of the sums, of a chunk after the other; all bytes but a rank's own are added."""
    machine, size = on(Node(), CALIBRATION), 8e8
    reduced = in_parts(machine, 2, "reduce", size, 4)
    assert reduced.path == pytest.approx(4 * (5e-5 + 1e-6) + size / 2 * 4e-10)
    assert reduced.total == pytest.approx(4 * (2 * 5e-5 + 2 * 1e-6) + size * 4e-10)
    assert in_parts(machine, 1, "reduce", size, 4) == (0, 0)


def test_what_sharing_the_servers_step_gains() -> None:
    """25 million numbers on 1,025 ranks: eight levels across nodes, each of the whole vector, or halves of halves."""
    large = task(network=NETWORK._replace(dimension=25_000_000))
    shared, alone = (costs(large, on(Node(), CALIBRATION, whole), 1025) for whole in (False, True))
    assert shared["reduce"].path < alone["reduce"].path / 5
    assert shared["broadcast"].path < alone["broadcast"].path / 5
    assert shared["server"].path < alone["server"].path / 5
    small = task()
    assert costs(small, on(Node(), CALIBRATION), 1025) == costs(small, on(Node(), CALIBRATION, True), 1025)
    assert server_memory(large, on(Node(), CALIBRATION)) < server_memory(large, on(Node(), CALIBRATION, True)) - 300e6


# ---------------------------------------------------------------------- workers


def stepped(steps: list[int], width: int) -> tuple[int, int, int]:
    """Cohorts, steps and rows of one worker, step by step."""
    left, cohorts, count, rows = sorted(steps, reverse=True), 0, 0, 0
    while left:
        group, left, cohorts = left[:width], left[width:], cohorts + 1
        for number in range(group[0]):
            count, rows = count + 1, rows + max(2, sum(number < own for own in group))
    return cohorts, count, rows


def seated(steps: list[int], width: int) -> tuple[int, int, int]:
    """The same in lanes: whoever is done makes room for the next, the longest first."""
    waiting, busy, begins, count, rows = sorted(steps, reverse=True), list[int](), 0, 0, 0
    lanes = len(Lanes(np.arange(len(steps)), np.array(waiting), width).length) if steps else 0
    while waiting or busy:
        room = lanes - len(busy)
        begins += bool(room and waiting)
        busy, waiting = busy + waiting[:room], waiting[room:]
        count, rows = count + 1, rows + max(2, len(busy))
        busy = [left - 1 for left in busy if left > 1]
    return begins, count, rows


@pytest.mark.parametrize(("counted", "plain"), [(trained, seated), (batched, stepped)])
def test_matrices_step_by_step(counted: Any, plain: Any) -> None:
    draw = np.random.default_rng(0)
    for workers, width in ((1, 2), (3, 4), (5, 8)):
        steps, hosts = draw.integers(1, 20, 23), draw.integers(0, workers, 23)
        found = counted(steps, hosts, workers, width)
        for worker in range(workers):
            expected = plain(steps[hosts == worker].tolist(), width)
            assert tuple(int(count[worker]) for count in found[1:]) == expected
        assert found.clients.tolist() == np.bincount(hosts, minlength=workers).tolist()


def test_the_engine_does_what_the_model_counts(alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and rows of training, bites and samples of an evaluation, as Cohort makes them."""
    sizes = Sized(sizes="power_law")
    work = ROUNDS[0]._replace(clients=9, drawn=9, samples=40)
    experiment = trial(work, 9, alone, tmp_path, sizes)
    experiment.width = 4
    seen: list[int] = []
    sgd_step = SGD.step
    monkeypatch.setattr(SGD, "step", lambda self, step, *more: (seen.append(step.active), sgd_step(self, step, *more)))
    cohort: Cohort = experiment.cohort(np.arange(9), round=1)
    cohort.descend(experiment.server.theta)
    network = NETWORK._replace(batch=work.batch, width=4)
    (training,), evaluation = loads(task(network=network, clients=9, drawn=9, samples=40, sizes=sizes), 1)
    assert (training.steps[0], training.rows[0]) == (len(seen), sum(max(2, active) for active in seen))

    looked: list[tuple[int, int]] = []
    outputs = experiment.plan.model.outputs

    def look(self: object, parts: list[Tensor], x: Tensor, *more: Any) -> Tensor:
        logits = outputs(parts, x, *more)
        looked.append((logits.shape[0], logits.shape[1]))
        return logits

    monkeypatch.setattr(type(experiment.plan.model), "outputs", look)
    cohort.evaluate(experiment.server.theta)
    assert evaluation.steps[0] == len(looked)
    assert evaluation.rows[0] == sum(rows * bite for rows, bite in looked)


def test_imbalance_is_the_placements() -> None:
    """Of a power law: the heaviest first, each to whoever has least, in a plain loop; a client alone has a twin."""
    sizes, workers = Sized(sizes="power_law"), 6
    network = NETWORK._replace(training=ARITHMETIC)
    one = task(network=network, sizes=sizes)
    steps = population(100, 100, 200, sizes, 0.2, 20, range(1, 6)).steps
    queue: list[tuple[int, int, int, list[int]]] = [(0, 0, worker, []) for worker in range(workers)]
    for own in sorted(steps.tolist(), reverse=True):
        load, count, worker, clients = heapq.heappop(queue)
        heapq.heappush(queue, (load + own, count + 1, worker, [*clients, own]))
    rows = np.array([seated(clients, network.width)[2] for *_, clients in queue])
    free = UNITS | {"own sums": {"once": 0.0, "number": 0.0, "vector": 0.0}}
    found = costs(one, Machine(free), workers + 1)
    assert found["training"].path == pytest.approx(1e-3 * rows.mean())
    assert found["imbalance"].path == pytest.approx(1e-3 * (rows.max() - rows.mean()))
    assert found["imbalance"].path > 0.5 * found["training"].path  # the largest client has a fifth of all


def test_many_clients_are_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not placed one by one comes out as if it were."""
    draw = np.random.default_rng(0)
    for steps in (draw.integers(1, 9, 5_000), np.append(draw.integers(1, 9, 5_000), 9_000)):
        placed = batched(steps, place(steps, list(range(7))), 7, 8)
        for exact, smooth in zip(placed, level(steps, 7, 8), strict=True):
            assert smooth.max() == pytest.approx(exact.max(), rel=0.05)
            assert smooth.sum() == pytest.approx(exact.sum(), rel=0.05)
    tested = draw.integers(1, 300, 5_000)
    exact, smooth = swept(tested, place(tested, list(range(7))), 7, 8), swept(tested, None, 7, 8)
    assert smooth.rows.sum() == pytest.approx(exact.rows.sum(), rel=0.05)
    before = costs(task(clients=4_000, drawn=2_000), on(Node(), CALIBRATION), 9)
    monkeypatch.setattr(model_workers, "PLACED", 10)
    after = costs(task(clients=4_000, drawn=2_000), on(Node(), CALIBRATION), 9)
    assert seconds(after) == pytest.approx(seconds(before), rel=0.05)


# ---------------------------------------------------------------------- whole rounds


def test_twice_the_speed_halves_the_training() -> None:
    once, twice = (
        costs(task(network=network_of("mlp", Node(speed=speed), CALIBRATION)), on(Node(), CALIBRATION), 9)
        for speed in (1e4, 2e4)
    )
    assert once["training"].total == pytest.approx(100 * 10 / 1e4)  # client-steps
    assert twice["training"].path == pytest.approx(once["training"].path / 2)
    assert twice["reduce"] == once["reduce"]
    by_flops = network_of("mlp", Node(speed=1e12, flops=True), CALIBRATION)
    assert by_flops.training["rows"] == pytest.approx(flops(ROUNDS[2]) * 20 / 1e12)


def test_a_dense_network_is_to_the_mlp_as_their_numbers_are() -> None:
    large = network_of(10 * NETWORK.dimension, Node(), CALIBRATION)
    assert large.dimension == 795_100
    assert large.training == STEP | {"rows": pytest.approx(1e-3), "clients": pytest.approx(1e-3)}


def test_a_round_is_the_sum_of_its_terms_and_scales() -> None:
    machine = on(Node(), CALIBRATION)
    found = costs(task(), machine, 9)
    assert tuple(found) == TERMS and seconds(found) == pytest.approx(sum(cost.path for cost in found.values()))
    never = costs(task(evaluate_every=0, checkpoint_every=0), machine, 9)
    assert never["evaluation"] == never["history"] == never["checkpoint"] == (0, 0)
    twice = costs(task(evaluate_every=10), machine, 9)
    assert twice["evaluation"].path == pytest.approx(found["evaluation"].path / 2)
    streams = costs(task(models=3), machine, 9)
    n = NETWORK.dimension
    assert streams["broadcast"].path - found["broadcast"].path == pytest.approx(8 * n * 1e-10 * 3 + 8 * n / 25e9)
    one = scenario(task(), machine, [2, 9, 101])  # with 101, a client each
    assert one.points[0].efficiency == pytest.approx(1)
    assert one.points[1].efficiency == pytest.approx(one.points[0].seconds / (8 * one.points[1].seconds))
    assert one.fastest.seconds == min(point.seconds for point in one.points)
    assert one.limited is not None and (one.limited.ranks, one.limited.limit) == (101, "small cohorts")


def test_memory_of_the_server() -> None:
    """Without clients' histories a model in three forms of four bytes is left, and sums and means of eight: of a chunk
    where the step goes in slices."""
    machine = on(Node(), CALIBRATION)
    large, nothing = (task(network=NETWORK._replace(dimension=d)) for d in (25_000_000, 0))
    assert server_memory(large, machine) - server_memory(nothing, machine) == 12 * 25e6 + 16 * slices.WORK
    alone = on(Node(), CALIBRATION, True)
    assert server_memory(large, alone) - server_memory(nothing, alone) == 28 * 25e6
    twice = server_memory(task(rounds=200), machine) - server_memory(task(), machine)
    assert twice == 2 * 14 * 8 * 100 * (100 / 5)  # clients' figures in 20 evaluations, and once more to be written
    many, more = (server_memory(task(clients=1_000_000, rounds=rounds), machine) for rounds in (100, 1000))
    assert many == more  # as they are in volumes


def test_a_checkpoint_does_not_grow_with_the_rounds() -> None:
    """Unless all rows until then fit in. 14 figures of 8 bytes a client, an evaluation every 5th round."""
    row, few, many = 14 * 8, task(clients=100), task(clients=1_000_000)
    assert rows_written(few) == row * 100 * 21 / 2
    for rounds in (100, 1000):  # two evaluations make a volume; all are written once more at the end
        once = 2 + (1 + rounds / 5) / (rounds / 10)
        assert rows_written(many._replace(rounds=rounds)) == pytest.approx(row * 1e6 * once / 2)
    some = task(clients=100_000)
    assert rows_written(some) == pytest.approx(32e6 + row * 1e5 * (2 + 21 / 10) / 2)


def test_fit_finds_the_units() -> None:
    counts = [{"once": 1.0, "client": float(n), "nothing": 0.0} for n in (1, 10, 1000)]
    found = fit(counts, [2e-3 + 3e-6 * n for n in (1, 10, 1000)])
    assert found == {"once": pytest.approx(2e-3), "client": pytest.approx(3e-6), "nothing": 0}


# ---------------------------------------------------------------------- the commands


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--node", "gpus=x"], "--node: 'gpus=x': a whole number from 1 on is meant; write gpus=4"),
        (["--node", "gpus=1.5"], "--node: 'gpus=1.5': a whole number"),
        (["--node", "net=25"], "--node: 'net=25': a positive number with GB/s or MB/s or Gb/s is meant"),
        (["--node", "latency=0us"], "--node: 'latency=0us': a positive number with ns or us or ms is meant"),
        (["--node", "speed=-3"], "write speed=20000 or speed=5TFLOP/s"),
        (["--node", "cores=4"], "--node: 'cores=4': gpus, net, latency and speed are known"),
        (["--model", "resnet"], "--model: 'resnet': logistic, mlp, lenet or a number of parameters is meant"),
        (["--clients", "10,0"], "--clients: '0': a whole number from 1 on is meant"),
        (["--report", "curves.pdf"], "--report: 'curves.pdf': an .html or a .png file is meant"),
        (["nowhere.json"], "nowhere.json is not a calibration; python -m benchmarks.model --calibrate makes one"),
        (["--check", "nowhere.json"], "nowhere.json is not a calibration"),
    ],
)
def test_mistakes(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = model.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr().err
    assert code == 2 and why in said and said.count("\n") == 1 and said.startswith("benchmarks.model: ")


def test_words() -> None:
    assert model.node("gpus=8,net=200Gb/s,latency=1500ns,speed=2e4") == Node(8, 25e9, 1.5e-6, 2e4, False)
    assert model.node("speed=5TFLOP/s") == Node(speed=5e12, flops=True)
    assert model.model("25e6") == 25_000_000


@pytest.mark.timeout(300)
def test_calibrate_check_and_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On two ranks; then a round on this one, in its least form; then curves of what was measured."""
    path, result, page = tmp_path / "here.json", tmp_path / "checked.json", tmp_path / "model.html"
    job = subprocess.run(
        [mpirun(), "-np", "2", sys.executable, "-m", "benchmarks.model_calibrate", "--quick", "-o", str(path)],
        cwd=PROJECT, env=clean_environment(), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    calibration = read(path)
    assert calibration.units.keys() == UNITS.keys()
    assert {name: some.keys() for name, some in calibration.units.items()} == {
        name: some.keys() for name, some in UNITS.items()
    }
    assert all(cost >= 0 for some in calibration.units.values() for cost in some.values())
    assert all(network.training["rows"] + network.training["steps"] > 0 for network in calibration.networks.values())

    kept = tmp_path / "aggregate.json"
    how = ["--quick", "--numbers", "2e6", "--clients", "1", "-o", str(kept), str(path)]
    job = subprocess.run(
        [mpirun(), "-np", "2", sys.executable, "-m", "benchmarks.aggregate", *how],
        cwd=PROJECT, env=clean_environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    ((slices, alone),) = json.loads(kept.read_text())["tables"].values()
    assert (slices["the server's step"], alone["the server's step"]) == ("in slices", "on rank 0")
    assert slices["of all ranks"] > 0 and alone["of all ranks"] > 0

    model_check.checked(Comm(MPI.COMM_SELF), path, [1], True, result)
    tables = json.loads(result.read_text())["tables"]
    pairs = tables["1 rank(s), CPU ms of a round: predicted, measured"][0]["samples"]["pairs"]
    assert pairs.keys() == {*model_check.TERMS, "the slowest worker's training", "whole"}
    assert all(took > 0 for _, took in pairs.values())
    assert 0.1 < pairs["whole"][0] / pairs["whole"][1] < 10
    assert len(tables["how far predictions are off, %"]) == 2

    capsys.readouterr()
    wanted = [str(path), "--model", "logistic", "--clients", "100,1e5", "--drawn", "1000", "--report", str(page)]
    assert model.main(wanted) == 0
    said = capsys.readouterr().out
    assert "4,096 ranks" in said and "100,000" in said and "limited first" in said
    assert "limited first" in " ".join(checked(page.read_text()).texts)
    assert page.stat().st_size > 20_000
