"""What is alike for all methods: test data plays no part in training, and parameters that make no sense are refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpipfl import world
from mpipfl.comm import Comm
from mpipfl.errors import ConfigError
from mpipfl.section import nested

from .suite import METHODS, config, train

OF_TEST_DATA = ("accuracy", "loss", "precision", "recall", "f1")
REPORTED = [
    name for kind in ("global", "personal")
    for name in (*(f"history/{kind}/{figure}" for figure in OF_TEST_DATA), f"history/confusion/{kind}")
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *("scaffold", "ditto", "pfedme", "perfedavg-fo", "perfedavg-hf", "fedper", "fedrep"),
        *("pfedbayes", "ifca", "cfl", "fedfomo", "fedfomo-few", "selffl"),
        *("ucfl", "ucfl-parallel", "pfedvem", "persfl"),
    ],
)
def test_test_data_is_only_ever_reported(
    name: str, alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With test samples of NaN, everything else is the same to the last bit: states, validation, choices."""
    settings = {"algorithm": METHODS[name], "rounds": 2}
    clean = train(config(settings, tmp_path / "clean"), alone)
    original = world.store

    def poisoned(*args: Any) -> world.Store:
        store = original(*args)
        for _, _, start, end in store.bounds:
            store.x[start:end], store.y[start:end] = np.nan, 0
        return store

    monkeypatch.setattr(world, "store", poisoned)
    other = train(config(settings, tmp_path / "poisoned"), alone)
    assert np.isnan(other["history/personal/loss"]).all()
    assert not np.isnan(clean["history/personal/loss"]).any()
    assert clean.keys() == other.keys()
    for key in clean.keys() - set(REPORTED):
        assert clean[key].tobytes() == other[key].tobytes(), key


@pytest.mark.parametrize(
    ("name", "streams", "uplinks"),
    [
        *(("fedavg", 1, 1), ("local", 0, 0), ("scaffold", 2, 2), ("pfedbayes", 2, 2), ("oracle", 2, 1), ("ifca", 2, 1)),
        *(("fedfomo", 4, 1), ("selffl", 1, 1), ("selffl-augmented", 2, 2)),
        *(("ucfl", 4, 1), ("ucfl-streams", 2, 1), ("ucfl-parallel", 2, 2)),
    ],
)
def test_what_a_round_costs_is_in_the_summary(
    name: str, streams: int, uplinks: int, alone: Comm, tmp_path: Path
) -> None:
    """And with each evaluation what it costs by then: before its weights ucfl is FedAvg. Four of seven clients are
    active, and nobody sends models to others."""
    settings = config({"algorithm": METHODS[name], "rounds": 2, "evaluate.every": 1}, tmp_path)
    assert settings.participation.expected(settings.data.clients) == 4
    train(settings, alone)
    summary = json.loads((settings.folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["streams"], summary["uplinks"]) == (streams, uplinks)
    with open(settings.folder / "metrics.csv", encoding="utf-8") as file:
        rows = [(float(row["streams"]), float(row["uplinks"])) for row in csv.DictReader(file)]
    assert rows[2] == (streams, uplinks)
    first = {"ucfl": (1, 1), "ucfl-streams": (1, 1), "ucfl-parallel": (1, 1)}.get(name, rows[2])
    assert rows[0] == first
    assert rows[1] == (first if name == "ucfl-streams" else rows[2])  # at_round: 1


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        *(("ditto", "samples"), ("fedper", "samples"), ("ifca", "samples")),
        *(("scaffold", "equal"), ("pfedme", "equal"), ("perfedavg", "equal"), ("fedrep", "equal")),
    ],
)
def test_clients_count_as_in_the_papers(kind: str, weights: str, tmp_path: Path) -> None:
    assert config({"algorithm": kind}, tmp_path).algorithm.weights == weights  # type: ignore[union-attr]


REFUSED: dict[str, dict[str, list[Any]]] = {
    "scaffold": {"server_lr": [0, -1, float("nan")], "weights": ["by luck"]},
    "ditto": {"lambda": [-0.1, float("inf"), "much"], "personal_steps": [0, 1.5], "weights": ["none"]},
    "pfedme": {"lambda": [-1], "inner_steps": [0], "personal_lr": [0], "beta": [0, -1], "weights": [1]},
    "perfedavg": {"alpha": [0, -0.1], "delta": [0], "adapt_steps": [0], "variant": ["second_order"]},
    "fedper": {"weights": ["some"]},
    "fedrep": {"head_epochs": [0, -1], "base_epochs": [0]},
    "pfedbayes": {"zeta": [-1], "rho": [31, -31, float("nan")], "global_lr": [0], "beta": [0]},
    "pfedvem": {
        "draws": [0, 2.5],
        "rho2": [0, -1, float("inf")],
        "sigma": [0, -0.1, float("nan")],
        "heads": ["random"],
        "head_epochs": [0],
        "head_batch": [0, "all"],
        "head_lr": [0, -1],
        "head_optimizer": ["lbfgs"],
        "confidence": ["some", True],
    },
    "ifca": {"k": [0, -1, True, 1.5], "weights": ["none"]},
    "cfl": {"eps1": [-1], "eps2": [-0.5], "gamma_max": [-1], "warm_up": [-1], "clusters": [0], "relative": ["maybe"]},
    "fedfomo": {"epsilon": [-0.1, 1.1, float("nan")], "models": [0, 7, "some"]},
    "ucfl": {
        "streams": [0, -1, "many", 8, True, 1.5],
        "price": [-1, float("inf"), float("nan"), True],
        "weights.at_round": [-1, 0.5],
        "stream_weights": ["mean"],
        "parallel": ["maybe"],
        "variance": [3, "1/3"],
    },
}
CASES = [(kind, key, value) for kind, keys in REFUSED.items() for key, values in keys.items() for value in values]


@pytest.mark.parametrize(("kind", "key", "value"), CASES, ids=lambda v: str(v))
def test_refusals_name_the_key(kind: str, key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        config({"algorithm": {"kind": kind} | nested({key: value})}, tmp_path)
    assert f"algorithm.{key}: " in str(raised.value)
    assert str(value) in str(raised.value)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_key_of_another_method_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.mu: unknown key"):
        config({"algorithm": {"kind": kind, "mu": 1}}, tmp_path)


@pytest.mark.parametrize(
    "legal",
    [
        *({"kind": "ditto", "lambda": 0}, {"kind": "pfedme", "lambda": 0, "beta": 2}, {"kind": "pfedbayes", "zeta": 0}),
        *({"kind": "fedfomo", "epsilon": 0, "models": 6}, {"kind": "fedfomo", "epsilon": 1, "models": "all"}),
        *({"kind": "ifca", "k": 1}, {"kind": "ifca", "k": 20}, {"kind": "cfl", "eps1": 0, "clusters": 1}),
        *({"kind": "ucfl", "streams": 7, "price": 0}, {"kind": "ucfl", "streams": 1, "weights": {"at_round": 3}}),
        *({"kind": "ucfl", "streams": 6, "stream_weights": "group"}, {"kind": "ucfl", "variance": {"parts": 1}}),
        *({"kind": "ucfl", "variance": {"part": v}} for v in (1, 0.001, "1/2", "1e-9", 1_000_000_000)),
        {"kind": "ucfl", "variance": {"part": "99/100", "draws": "independent"}},
        *({"kind": "pfedvem", "draws": 1, "head_epochs": 1, "head_batch": 1, "sigma": 1e-300, "rho2": 1e300},),
    ],
    ids=str,
)
def test_the_last_legal_values(legal: dict[str, Any], tmp_path: Path) -> None:
    config({"algorithm": legal}, tmp_path)
