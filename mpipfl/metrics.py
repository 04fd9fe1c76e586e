"""Figures over clients, from one number per client. NaN marks a client without data and is left out."""

from __future__ import annotations

import numpy as np


def over_clients(values: np.ndarray, n_test: np.ndarray, n_train: np.ndarray) -> dict[str, float]:
    """What a round's accuracies say.

    mean      Σ_k a_k / M                      weighted  Σ_k n_k a_k / Σ_k n_k    (n_k test samples)
    std       sqrt(Σ_k (a_k - mean)^2 / M)     worst     min_k a_k
    worst10   mean of the ceil(M / 10) least accuracies
    top10     mean accuracy of the ceil(M / 10) clients with most training samples (ties by client order)
    """
    there = ~np.isnan(values)
    a, n = values[there], n_test[there]
    if not len(a):
        return dict.fromkeys(("mean", "weighted", "std", "worst", "worst10", "top10"), float("nan"))
    tenth = -(-len(a) // 10)
    return {
        "mean": mean(a),
        "weighted": float((a * n).sum() / n.sum()),
        "std": float(a.std()),
        "worst": float(a.min()),
        "worst10": float(np.sort(a)[:tenth].mean()),
        "top10": float(a[np.argsort(-n_train[there], kind="stable")[:tenth]].mean()),
    }


def mean(values: np.ndarray) -> float:
    """The mean over clients that have a number."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else float("nan")
