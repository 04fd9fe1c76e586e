"""Runs that detect a wake word, and runs of LSTM cells: the same bits at any number of ranks, exact resume, idle ranks.

Each number of ranks has its share: at 2 the bits of `wakeword`, at 3 resume, at 5 more ranks than clients.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpipfl import detection, world
from mpipfl.comm import Comm
from mpipfl.models import build

from .data.sounds import SMALL, lay
from .suite import METHODS, config, content, differing, rewound, train
from .test_suite import RANKS, same_as_alone
from .test_text_runs import lay as lay_texts
from .test_text_runs import settings as text_settings

pytestmark = pytest.mark.mpi
DITTO = METHODS["ditto"] | {"warm_start": {"rounds": 2}}


def at(ranks: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(ranks != RANKS, reason=f"once is enough: at {ranks} ranks")


@pytest.fixture(scope="module")
def data(comm: Comm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") if comm.is_server else None
    if folder is not None:
        lay_texts(lay(folder))
    return Path(comm.text(None if folder is None else str(folder)))


def settings(data: Path, name: str) -> dict[str, Any]:
    if name == "lstm":
        return text_settings(data, "lstm") | {"checkpoint.every": 1, "data.split": {"validation": 0, "test": 0.2}}
    return {
        "rounds": 2, "data.root": str(data), "data.source": SMALL | {"cache": str(data / "cache")}, "data.clients": 3,
        "data.partition": {"kind": "iid"}, "data.shift": {"kind": "none"}, "data.samples": None,
        "model": {"kind": "wakeword", "size": "small", "init": "glorot"}, "algorithm": DITTO,
        "train": {"batch": 8, "lr": 0.05, "momentum": 0.0}, "data.split": {"validation": 0, "test": 0.4},
    }  # fmt: skip


@at(2)
def test_bits_do_not_depend_on_ranks_or_cohorts(comm: Comm, alone: Comm, data: Path, together_path: Path) -> None:
    """Each side makes its spectrograms itself; what is detected is the same to the bit too."""
    mine = settings(data, "wakeword")
    other = SMALL | {"cache": str(data / "other")}
    same_as_alone(mine, comm, alone, together_path, train__cohort=2, data__source=other)


@at(5)
@pytest.mark.parametrize("name", ["lstm", "wakeword"])
def test_more_ranks_than_clients(name: str, comm: Comm, alone: Comm, data: Path, together_path: Path) -> None:
    same_as_alone(settings(data, name) | {"data.clients": 2}, comm, alone, together_path)


@at(3)
@pytest.mark.parametrize("name", ["lstm", "wakeword"])
def test_resume_gives_the_same_bits(name: str, comm: Comm, alone: Comm, data: Path, together_path: Path) -> None:
    whole = config(settings(data, name), together_path / "whole")
    undisturbed = train(whole, comm)
    if comm.is_server:
        assert differing(undisturbed, train(rewound(whole, together_path / "killed", 1), alone, resume=True)) == []
        assert any(key.startswith("history/detection") for key in undisturbed) == (name == "wakeword")
        if name == "wakeword":
            files = [together_path / folder / "run/detection.csv" for folder in ("whole", "killed")]
            assert files[0].read_bytes() == files[1].read_bytes()


@at(1)
def test_what_is_detected(alone: Comm, data: Path, tmp_path: Path) -> None:
    """The scores are those of the plain network with each checkpoint's weights, and the figures those of the scores."""
    run = config(settings(data, "wakeword"), tmp_path)
    last = train(run, alone)
    first = content(run.folder / "checkpoints/round_00000.h5")
    plan = world.plan(run)
    store = world.store(plan, alone, torch.device("cpu"))
    network = build(run.model, plan.samples.shape, 2, 0)
    heard = {name: last[f"history/detection/{name}"] for name in ("label", "state", "baseline", "global", "personal")}
    states = plan.samples.states
    assert states is not None
    for client in range(3):
        _, _, start, end = plan.partition.bounds[client]
        mine = {name: values[client, : end - start] for name, values in heard.items()}
        assert all(np.isnan(values[client, end - start :]).all() for values in heard.values())
        index = plan.partition.index[start:end]
        assert (mine["label"] == plan.samples.labels[index]).all() and (mine["state"] == states[index]).all()
        for name, theta in (("baseline", first["server/theta"]), ("global", last["server/theta"]),
                            ("personal", last["clients/v"][client])):  # fmt: skip
            torch.nn.utils.vector_to_parameters(torch.from_numpy(theta), network.parameters())
            with torch.no_grad():
                out = network(store.x[start:end]).double().numpy()
            np.testing.assert_allclose(mine[name], out[:, 1] - out[:, 0], atol=1e-4)
    with open(run.folder / "detection.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["device"], row["state"]) for row in rows] == [
        (model, device, state) for model in ("global", "personal") for device in "AB"
        for state in ("normal", "playback", "alarm", "*")
    ]  # fmt: skip
    cells = detection.cells(heard, np.array([0, 0, 1]), SMALL_STATES)
    assert [row["false_accepts"] for row in rows] == [str(cell.false_accepts) for cell in cells]
    tested = plan.partition.n_test
    every = {row["device"]: int(row["positives"]) + int(row["negatives"]) for row in rows if row["state"] == "*"}
    assert every == {"A": tested[0] + tested[1], "B": tested[2]}


SMALL_STATES = ("normal", "playback", "alarm")


@at(1)
def test_without_a_warm_start_there_is_nothing_to_compare_with(alone: Comm, data: Path, tmp_path: Path) -> None:
    run = config(settings(data, "wakeword") | {"algorithm": {"kind": "fedavg"}, "rounds": 1}, tmp_path)
    assert not any("detection" in key for key in train(run, alone))
    assert not (run.folder / "detection.csv").exists()


# ---------------------------------------------------------------------- figures from lists of scores

NAN = float("nan")


def of(model: list[float], baseline: list[float], labels: list[int]) -> detection.Cell:
    return detection.cell("global", "A", "normal", np.array(model), np.array(labels), np.array(baseline))


@at(1)
@pytest.mark.parametrize(
    ("model", "baseline", "labels", "rejects", "accepts"),
    [
        # the baseline rejects one of three and accepts two of three; the model, at 2, one and one
        ([3, 2, -1, 2, 1, -4], [1, 1, -1, 1, 1, -1], [1, 1, 1, 0, 0, 0], (1, 1, 1.0), (1, 2, 0.5)),
        # as good as the baseline, which at 2 accepts one of the two it accepts at 0
        ([4, 2, -1, 2, 1, -4], [4, 2, -1, 2, 1, -4], [1, 1, 1, 0, 0, 0], (1, 1, 1.0), (1, 1, 1.0)),
        # ties: two positives share a score, so that none or two can be rejected: none is, and all negatives pass
        ([3, 2, 2, 2, 2, 2], [1, 1, -1, 1, 1, -1], [1, 1, 1, 0, 0, 0], (0, 1, 0.0), (3, 2, 1.5)),
        # a positive and a negative share a score: both are accepted
        ([3, 2, 1, 2, 2, 0], [1, 1, -1, 1, 0, -1], [1, 1, 1, 0, 0, 0], (1, 1, 1.0), (2, 1, 2.0)),
        # no negatives
        ([3, 2, 1], [1, 1, -1], [1, 1, 1], (1, 1, 1.0), (0, 0, None)),
        # no positives: nothing can be rejected, so everything is, which says nothing
        ([3, 2, 1], [1, 1, -1], [0, 0, 0], (0, 0, None), (0, 0, None)),
        # a baseline without a fault
        ([3, -2], [1, -1], [1, 0], (0, 0, None), (0, 0, None)),
    ],
)
def test_figures_by_hand(model: Any, baseline: Any, labels: Any, rejects: Any, accepts: Any) -> None:
    found = of(model, baseline, labels)
    assert (found.false_rejects, found.baseline_false_rejects, found.relative_false_rejects) == rejects
    assert (found.false_accepts, found.baseline_false_accepts, found.relative_false_accepts) == accepts
    assert (found.positives, found.negatives) == (sum(labels), len(labels) - sum(labels))


@at(1)
def test_figures_by_trying_every_threshold() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        labels = (draw.random(30) < 0.4).astype(int)
        model, baseline = draw.integers(-5, 6, (2, 30)) + 2.0 * labels
        found = of(list(model), list(baseline), list(labels))
        rejected = sum(baseline[labels == 1] < 0)
        tried = [
            (abs(sum(model[labels == 1] < t) - rejected), sum(model[labels == 1] < t), sum(model[labels == 0] >= t))
            for t in np.arange(-8, 10, 0.5)
        ]
        assert (found.false_rejects, found.false_accepts) == min(tried)[1:]


@at(1)
def test_cells_are_devices_and_states(tmp_path: Path) -> None:
    """Three clients, two devices; nobody is tested with an alarm on device B."""
    series = {
        "label": np.array([[1, 0, 0], [1, 0, NAN], [1, 0, NAN]]),
        "state": np.array([[0, 0, 2], [0, 2, NAN], [0, 0, NAN]]),
        "baseline": np.array([[1, 1, 1], [1, 1, NAN], [-1, -1, NAN]]),
        "global": np.array([[9, 3, 1], [4, 5, NAN], [2, 3, NAN]]),
    }
    cells = detection.cells(series, np.array([0, 0, 1]), ("normal", "playback", "alarm"))
    figures = [(c.device, c.state, c.positives, c.negatives, c.false_accepts, c.relative_false_accepts) for c in cells]
    assert figures == [
        ("A", "normal", 2, 1, 0, 0.0), ("A", "alarm", 0, 2, 0, None), ("A", "*", 2, 3, 1, 1 / 3),
        ("B", "normal", 1, 1, 0, None), ("B", "*", 1, 1, 0, None),
    ]  # fmt: skip
    detection.write(tmp_path, cells)
    lines = (tmp_path / "detection.csv").read_text().splitlines()
    assert lines[0].split(",")[:3] == ["model", "device", "state"] and lines[4].endswith(",NA")
