"""Figures over clients, from one number per client, and over the samples of one client.

NaN marks a client without data and is left out. What has no value (a mean over nobody) is None or NaN as each function
says; tables show it as "none".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


def over_clients(values: np.ndarray, n_test: np.ndarray, n_train: np.ndarray) -> dict[str, float]:
    """What a round's accuracies say.

    mean      Σ_k a_k / M                      weighted  Σ_k n_k a_k / Σ_k n_k    (n_k test samples)
    std       sqrt(Σ_k (a_k - mean)^2 / M)     worst     min_k a_k
    worst10   mean of the ceil(M / 10) least accuracies
    top10     mean accuracy of the ceil(M / 10) clients with most training samples (ties by client order)
    least10   the same for those with fewest training samples
    """
    there = ~np.isnan(values)
    a, n = values[there], n_test[there]
    if not len(a):
        return dict.fromkeys(("mean", "weighted", "std", "worst", "worst10", "top10", "least10"), float("nan"))
    tenth = -(-len(a) // 10)
    return {
        "mean": mean(a),
        "weighted": float((a * n).sum() / n.sum()),
        "std": float(a.std()),
        "worst": float(a.min()),
        "worst10": float(np.sort(a)[:tenth].mean()),
        "top10": float(a[np.argsort(-n_train[there], kind="stable")[:tenth]].mean()),
        "least10": float(a[np.argsort(n_train[there], kind="stable")[:tenth]].mean()),
    }


def mean(values: np.ndarray) -> float:
    """The mean over clients that have a number."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else float("nan")


# ---------------------------------------------------------------------- is personalizing worth it?


def quantum_of_improvement(personal: np.ndarray, general: np.ndarray, local: np.ndarray) -> np.ndarray:
    """QoI_k = P_k - max(G_k, L_k): what client k gains over the better of FedAvg's global model (G) and of learning
    alone (L). NaN where one of the three is missing. Differences within rounding (1e-12) are zero."""
    gain = personal - np.maximum(general, local)
    return np.where(np.abs(gain) < 1e-12, 0.0, gain)


def improvement(qoi: np.ndarray) -> dict[str, float | None]:
    """Performance, from every client's QoI. M clients, improved {k: QoI_k > 0}, worsened {k: QoI_k < 0}.

    PUI  100 |improved| / M                  PUD  100 |worsened| / M                 per cent of all clients
    MPI  median of QoI over the improved     MPD  median of QoI over the worsened    (negative)
    API  mean of QoI over the improved       APD  mean of QoI over the worsened      (negative)

    None where there is nobody to speak of.
    """
    there = qoi[~np.isnan(qoi)]
    up, down = there[there > 0], there[there < 0]
    return {
        "PUI": 100 * len(up) / len(there) if len(there) else None,
        "PUD": 100 * len(down) / len(there) if len(there) else None,
        "MPI": float(np.median(up)) if len(up) else None,
        "API": float(up.mean()) if len(up) else None,
        "MPD": float(np.median(down)) if len(down) else None,
        "APD": float(down.mean()) if len(down) else None,
    }


def fairness(values: np.ndarray) -> dict[str, float | None]:
    """How equal n numbers x_k >= 0 are (accuracies; QoI of the improved; |QoI| of the worsened).

    variance  Σ_k (x_k - mean)^2 / n                     0 where all are equal
    cosine    Σ_k x_k / (sqrt(n) sqrt(Σ_k x_k^2))        with the equal vector; 1 where all are equal
    entropy   -Σ_k p_k ln p_k, p_k = x_k / Σ_j x_j       of the shares; ln n where all are equal
    jain      (Σ_k x_k)^2 / (n Σ_k x_k^2)                1 where all are equal, 1 / n where one has everything

    None for an empty set, and, but for the variance, where all are zero: shares of nothing are not defined.
    """
    x = values[~np.isnan(values)]
    if (x < 0).any():
        raise ValueError("fairness is defined for numbers that are not negative")
    if not len(x):
        return dict.fromkeys(("variance", "cosine", "entropy", "jain"))
    figures: dict[str, float | None] = {"variance": float(x.var()), "cosine": None, "entropy": None, "jain": None}
    if x.any():
        x = x / x.max()  # none of the three depends on the scale; squares of tiny numbers would vanish
        total, square = float(x.sum()), float((x * x).sum())
        share = x[x > 0] / total
        figures["cosine"] = total / math.sqrt(len(x) * square)
        figures["entropy"] = max(0.0, float(-(share * np.log(share)).sum()))
        figures["jain"] = total**2 / (len(x) * square)
    return figures


def fairness_apart(qoi: np.ndarray) -> dict[str, dict[str, float | None]]:
    """Fairness of the QoI of the improved, and of |QoI| of the worsened: QoI itself may be negative."""
    return {"improved": fairness(qoi[qoi > 0]), "worsened": fairness(-qoi[qoi < 0])}


# ---------------------------------------------------------------------- one client's samples


def macro(hit: np.ndarray, true: np.ndarray, said: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall and F1, averaged over classes with equal weight, from counts (..., classes) of the samples that
    are of a class and taken for it, that are of it, and that are taken for it. With a confusion matrix C (row: true
    class, column: predicted class) these are C_cc, Σ_p C_cp and Σ_r C_rc.

    precision_c = hit_c / said_c      recall_c = hit_c / true_c      F1_c = 2 hit_c / (true_c + said_c)

    Over the classes that occur, as truth or as prediction; 0 / 0 counts as 0 there. NaN without samples.
    """
    occur = ((true > 0) | (said > 0)).sum(-1)
    parts = {"precision": (hit, said), "recall": (hit, true), "f1": (2 * hit, true + said)}
    with np.errstate(invalid="ignore"):
        return {name: (above / np.maximum(below, 1)).sum(-1) / occur for name, (above, below) in parts.items()}


class Point(NamedTuple):
    """A threshold, and what a detector does there."""

    threshold: float  # scores from here on are accepted
    rejects: int  # positives taken for negatives
    accepts: int  # negatives taken for positives


class FalseAccepts(NamedTuple):
    """What a model and its baseline do where both reject about as many positives."""

    model: Point
    baseline: Point
    rate: float | None  # the model's false accepts / negatives
    baseline_rate: float | None
    relative: float | None  # the model's false accepts / the baseline's


def false_accepts_at(
    scores: np.ndarray, labels: np.ndarray, baseline_scores: np.ndarray, baseline_threshold: float = 0.5
) -> FalseAccepts:
    """For two classes (label 1: to be accepted): the model's false accepts relative to the baseline's, where both
    reject about as many positives: as many as the baseline at `baseline_threshold`.

    A score s is accepted at threshold t if s >= t, one that is not a number never. So

    FR(t) = |{positives: s < t}|        FA(t) = |{negatives: s >= t}|

    Both stand where `point` says, so that a model like its baseline has a relative figure of 1. The rates are None
    without negatives; `relative` is None ("NA") too where the baseline has no false accepts, or nothing is to be
    accepted.
    """
    scores, labels, baseline_scores = np.asarray(scores, float), np.asarray(labels), np.asarray(baseline_scores, float)
    if not len(scores) == len(labels) == len(baseline_scores) or not np.isin(labels, (0, 1)).all():
        raise ValueError("scores, labels and baseline_scores are as long as each other, and labels are 0 or 1")
    wake = labels == 1
    target = int(wake.sum() - (baseline_scores[wake] >= baseline_threshold).sum())
    model, baseline = (point(s[wake], s[~wake], target) for s in (scores, baseline_scores))
    rate, before = (one.accepts / (~wake).sum() if (~wake).any() else None for one in (model, baseline))
    known = wake.any() and baseline.accepts
    return FalseAccepts(model, baseline, rate, before, model.accepts / baseline.accepts if known else None)


def point(positive: np.ndarray, negative: np.ndarray, target: int) -> Point:
    """Where FR is closest to the target; of two equally close ones where it is less, which does not flatter, and of
    thresholds with that FR the highest: the score of the least positive that is accepted, infinity if none is."""
    accepted = np.sort(positive[~np.isnan(positive)])
    below = np.searchsorted(accepted, accepted, side="left")  # accepted scores below each
    thresholds = np.append(accepted, np.inf)
    rejects = len(positive) - len(accepted) + np.append(below, len(accepted))
    best = np.lexsort((rejects, np.abs(rejects - target)))[0]  # the last key counts first
    return Point(float(thresholds[best]), int(rejects[best]), int((negative >= thresholds[best]).sum()))
