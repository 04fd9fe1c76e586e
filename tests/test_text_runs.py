"""Whole runs on texts: the same bits at any number of ranks and in any cohort, with every network that reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpipfl.comm import Comm

from .suite import config, content, train
from .test_suite import same_as_alone

pytestmark = pytest.mark.mpi

LEARNED, GLOVE = {"kind": "learned", "size": 6}, {"kind": "glove", "path": "v.txt"}
NETWORKS: dict[str, dict[str, Any]] = {
    "text": {"kind": "text", "embedding": LEARNED},
    "frozen": {"kind": "text", "embedding": GLOVE},
    "lstm": {"kind": "lstm", "embedding": LEARNED, "hidden": 9},
    "lstm-frozen": {"kind": "lstm", "embedding": GLOVE, "hidden": 5, "layers": 1},
}


def lay(folder: Path) -> None:
    """30 users with some texts each, and vectors for some of their words."""
    draw = np.random.default_rng(0)
    data = {}
    for user in range(30):
        count = int(draw.integers(2, 9))
        texts = [" ".join(f"w{w}" for w in draw.integers(0, 40, draw.integers(1, 12))) for _ in range(count)]
        data[f"u{user}"] = {"x": texts, "y": draw.integers(0, 2, count).tolist()}
    counts = [len(own["y"]) for own in data.values()]
    (folder / "texts.json").write_text(json.dumps({"users": [*data], "num_samples": counts, "user_data": data}))
    vectors = [f"w{w} " + " ".join(f"{x:.3f}" for x in draw.standard_normal(6)) for w in range(0, 40, 2)]
    (folder / "v.txt").write_text("\n".join(vectors))


def settings(folder: Path, model: dict[str, Any]) -> dict[str, Any]:
    source = {"kind": "leaf", "path": "texts.json", "content": "text", "length": 9, "vocabulary": 30}
    return {
        "rounds": 2, "data.root": str(folder), "data.source": source, "data.partition": {"kind": "pooled"},
        "data.shift": {"kind": "none"}, "model": model, "algorithm": {"kind": "fedavg"},
    }  # fmt: skip


@pytest.fixture
def data(comm: Comm, together_path: Path) -> Path:
    if comm.is_server:
        lay(together_path)
    comm.barrier()
    return together_path


@pytest.mark.parametrize("name", NETWORKS)
def test_bits_do_not_depend_on_ranks_or_cohorts(name: str, comm: Comm, alone: Comm, data: Path) -> None:
    same_as_alone(settings(data, NETWORKS[name]), comm, alone, data / "runs", train__cohort=5)


def test_frozen_vectors_do_not_travel(comm: Comm, data: Path) -> None:
    """Nor are they in a checkpoint: 6 numbers to 2 classes are all there is."""
    run = settings(data, NETWORKS["frozen"])
    last = train(config(run, data / "short"), comm)
    resumed = train(config(run | {"rounds": 3}, data / "short"), comm, resume=True)
    if comm.is_server:
        first = content(data / "short/run/checkpoints/round_00000.h5")
        assert last["server/theta"].shape == resumed["server/theta"].shape == (6 * 2 + 2,)
        assert not np.array_equal(first["server/theta"], last["server/theta"])
        assert not np.array_equal(resumed["server/theta"], last["server/theta"])
