"""Run folders with known figures, written without training: what the report's tests read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mpipfl.data.partition import Partition
from mpipfl.files import hdf5, whole
from mpipfl.history import History
from mpipfl.report.compare import Comparison, compare
from mpipfl.report.runs import read
from mpipfl.runfolder import plain

PHASES = {name: {"min": 0.5, "mean": 1.0, "max": 2.0} for name in ("broadcast", "train", "reduce")}


def settings(method: str, seed: int, clients: int, rounds: int, **changes: Any) -> dict[str, Any]:
    """A configuration, as far as the report looks at it; changes by section."""
    values: dict[str, Any] = {
        "name": f"{method}_s{seed}", "seed": seed, "rounds": rounds,
        "data": {"source": {"kind": "glyphs", "classes": 6}, "clients": clients, "partition": {"kind": "iid"}},
        "model": {"kind": "mlp", "hidden": [12]}, "train": {"batch": 8, "lr": 0.05},
        "participation": {"fraction": 0.5}, "algorithm": {"kind": method},
    }  # fmt: skip
    if method == "persfl":
        values["algorithm"] |= {"lambdas": [0.0, 0.25, 0.5, 0.75, 0.95], "temperatures": [1.0, 5.0]}
    return {
        key: {**values.get(key, {}), **new} if isinstance(new, dict) else new for key, new in (values | changes).items()
    }


def write(
    path: Path,
    method: str,
    personal: np.ndarray,
    general: np.ndarray | None = None,
    seed: int = 0,
    own: dict[str, np.ndarray] | None = None,
    groups: np.ndarray | None = None,
    more: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A finished run with these accuracies (rounds x clients); without `general` the global model is the personal one.
    Client k has 10 (k + 1) training samples, 4 for validation and 10 for testing; what is validated is what is tested.
    """
    rounds, clients = personal.shape
    general = personal if general is None else general
    path.mkdir(parents=True)
    config = settings(method, seed, clients, rounds - 1, **changes)
    head = "# mpipfl run\n# 2026-01-02 03:04:05; mpipfl 0.1.0, python 3.11, torch 2\n"
    (path / "config.yaml").write_text(head + yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    n_train = 10 * np.arange(1, clients + 1)
    ends = np.cumsum(np.stack([n_train, np.full(clients, 4), np.full(clients, 10)], 1)).reshape(clients, 3)
    bounds = np.concatenate([np.append(0, ends[:-1, 2])[:, None], ends], 1)
    order = np.random.default_rng(seed).permutation(bounds[-1, 3])
    group = np.zeros(clients, int) if groups is None else groups
    Partition(order, bounds, group, 0 * group).write(path / "partition.h5")
    history = History(n_train, np.full(clients, 10))
    for r in range(rounds):
        both = {"personal": personal[r], "global": general[r]}
        history.append(r, {f"{kind}/{part}{what}": a if what == "accuracy" else 1 - a for kind, a in both.items()
                           for part in ("", "validation_") for what in ("accuracy", "loss")})  # fmt: skip
    for name, values in (own or {}).items():
        history.rows[f"{method}/{name}"] = list(values)
    history.write(path)
    summary = {
        "name": config["name"], "rounds": rounds - 1, "clients": clients, "last": history.figures[-1], "seconds": 12.5,
        "seconds_per_round": 0.5, "ranks": 3, "phases_seconds": PHASES, "peak_memory_mb": [100.0, 300.0, 200.0],
        "bytes_per_rank": [1_000_000, 500_000, 500_000],
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(plain(summary | (more or {}))), encoding="utf-8")
    return path


def rising(rounds: int, clients: int, top: float, seed: int = 0) -> np.ndarray:
    """Accuracies that rise to about `top`, other ones for each client."""
    random = np.random.default_rng(seed)
    course = 1 - np.exp(-np.arange(rounds) / max(1, rounds / 5))
    return np.clip(course[:, None] * (top + 0.1 * random.standard_normal(clients)), 0, 1)


def of_selffl(rounds: int, clients: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    active = np.where(random.random((rounds, clients)) < 0.5, 1.0, np.nan)
    return {
        "round": np.arange(1, rounds + 1), "sigma2_0": random.random(rounds) + 1,
        "sigma2_m": active * random.random((rounds, clients)), "weight": active,
        "steps": active * random.integers(1, 40, (rounds, clients)),
        "rule_used": active * random.integers(0, 3, (rounds, clients)),
    }  # fmt: skip


def of_ucfl(clients: int, groups: np.ndarray) -> dict[str, np.ndarray]:
    mixing = (groups[:, None] == groups) + 0.05
    mixing /= mixing.sum(1, keepdims=True)
    return {"W": mixing, "delta": 1 - mixing, "sigma2": np.ones(clients), "cluster": groups,
            "silhouette": np.append(np.nan, np.linspace(0.5, 0, clients - 1)),
            "collaborators": np.linspace(1, 4, clients)}  # fmt: skip


def of_persfl(clients: int) -> dict[str, np.ndarray]:
    accuracy = np.random.default_rng(4).random((clients, 10))
    return {"teacher_round": np.arange(clients), "teacher_loss": np.ones(clients), "grid_accuracy": accuracy,
            "chosen": accuracy.argmax(1)}  # fmt: skip


def of_detection(clients: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Six test samples a client, two in each state, a positive before a negative; the baseline accepts all of them, and
    so does the global model; the personal one tells them apart."""
    label = np.tile([1.0, 0.0], (clients, 3))
    return {"label": label, "state": np.tile([0.0, 0, 1, 1, 2, 2], (clients, 1)), "baseline": 2 - label,
            "global": 2 - label, "personal": label + shift}  # fmt: skip


def rewrite_history(path: Path, **changes: np.ndarray | None) -> None:
    """Replace data sets of history.h5 by name (`__` for `/`); None leaves one out."""
    from .suite import content

    held: dict[str, Any] = content(path / "history.h5") | {n.replace("__", "/"): v for n, v in changes.items()}
    with whole(path / "history.h5") as temporary, hdf5(temporary) as file:
        for name, values in held.items():
            if values is not None:
                file[name] = values


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def compared(*paths: Path) -> Comparison:
    return compare([read(path) for path in paths])


def three(folder: Path, seeds: tuple[int, ...] = (0,), **changes: object) -> list[Path]:
    """local, fedavg and ditto of four clients, whose QoI with seed 0 are 0.1, -0.3, 0 and 0.2."""
    local, average = np.array([[0.8, 0.1, 0.2, 0.4]]), np.array([[0.7, 0.8, 0.7, 0.1]])
    ditto = np.array([[0.9, 0.5, 0.7, 0.6]])
    made = []
    for seed in seeds:
        more = {"seed": seed, **changes}
        both = [np.concatenate([0 * a, a + 0.1 * seed]) for a in (local, average, ditto)]
        both[2][1] -= 0.1 * seed  # with seed 1 ditto stays where it is
        made += [
            write(folder / f"local_s{seed}", "local", both[0], np.full((2, 4), np.nan), **more),  # type: ignore[arg-type]
            write(folder / f"fedavg_s{seed}", "fedavg", both[1], **more),  # type: ignore[arg-type]
            write(folder / f"ditto_s{seed}", "ditto", both[2], both[1], **more),  # type: ignore[arg-type]
        ]
    return made
