"""Whole runs on texts: the same bits at any number of ranks and in any cohort, with every network that reads, and by
methods that take it whole or as base and head.

Each number of ranks has two of the networks: `text` and `lstm` at 1 and 5, those with frozen vectors at 2 and 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpipfl.comm import Comm

from .suite import METHODS, config, content, train
from .test_suite import RANKS, at_three, same_as_alone

pytestmark = pytest.mark.mpi

LEARNED, GLOVE = {"kind": "learned", "size": 4}, {"kind": "glove", "path": "v.txt"}
RUNS: dict[str, dict[str, Any]] = {
    "text": {"model": {"kind": "text", "embedding": LEARNED}, "algorithm": METHODS["pfedvem"]},
    "frozen": {"model": {"kind": "text", "embedding": GLOVE}, "algorithm": METHODS["fedrep"]},
    "lstm": {
        "model": {"kind": "lstm", "embedding": LEARNED, "hidden": 5, "init": "glorot"},
        "algorithm": METHODS["fedavg"],
    },
    "lstm-frozen": {
        "model": {"kind": "lstm", "embedding": GLOVE, "hidden": 3, "layers": 1},
        "algorithm": METHODS["fedper"],
    },
}
HERE = [name for place, name in enumerate(RUNS) if (place + RANKS // 2) % 2 == 0]


def lay(folder: Path) -> None:
    """14 users with some texts each, and vectors for some of their words."""
    draw = np.random.default_rng(0)
    data = {}
    for user in range(14):
        count = int(draw.integers(2, 7))
        texts = [" ".join(f"w{w}" for w in draw.integers(0, 40, draw.integers(1, 8))) for _ in range(count)]
        data[f"u{user}"] = {"x": texts, "y": draw.integers(0, 2, count).tolist()}
    counts = [len(own["y"]) for own in data.values()]
    (folder / "texts.json").write_text(json.dumps({"users": [*data], "num_samples": counts, "user_data": data}))
    vectors = [f"w{w} " + " ".join(f"{x:.3f}" for x in draw.standard_normal(6)) for w in range(0, 40, 2)]
    (folder / "v.txt").write_text("\n".join(vectors))


def settings(folder: Path, run: str) -> dict[str, Any]:
    source = {"kind": "leaf", "path": "texts.json", "content": "text", "length": 5, "vocabulary": 30}
    return RUNS[run] | {
        "rounds": 2, "data.root": str(folder), "data.source": source, "data.partition": {"kind": "pooled"},
        "data.clients": 4, "data.shift": {"kind": "none"}, "train.batch": 4, "checkpoint.every": 2,
    }  # fmt: skip


@pytest.fixture(scope="module")
def data(comm: Comm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") if comm.is_server else None
    if folder is not None:
        lay(folder)
    return Path(comm.text(None if folder is None else str(folder)))


@pytest.mark.parametrize("run", HERE)
def test_bits_do_not_depend_on_ranks_or_cohorts(run: str, comm: Comm, alone: Comm, data: Path) -> None:
    same_as_alone(settings(data, run), comm, alone, data / run, train__cohort=2)


@at_three
def test_frozen_vectors_do_not_travel(comm: Comm, data: Path) -> None:
    """Nor are they in a checkpoint: 6 numbers to 2 classes are all there is."""
    run = settings(data, "frozen") | {"algorithm": METHODS["fedavg"], "rounds": 1, "checkpoint.every": 1}
    last = train(config(run, data / "short"), comm)
    resumed = train(config(run | {"rounds": 2}, data / "short"), comm, resume=True)
    if comm.is_server:
        first = content(data / "short/run/checkpoints/round_00000.h5")
        assert last["server/theta"].shape == resumed["server/theta"].shape == (6 * 2 + 2,)
        assert not np.array_equal(first["server/theta"], last["server/theta"])
        assert not np.array_equal(resumed["server/theta"], last["server/theta"])
