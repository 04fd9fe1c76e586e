"""User-centric weights from gradients, and the few streams that stand for all of their rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FLOOR = 1e-6  # of the median variance: a smaller one counts as so much
LOOKED = 64  # clusters up to which they are scored where their number is not to be chosen
FEW = 1_000  # clients of whom that takes a minute or less

Beat = Callable[[], bool]  # a sign of life; whether to go on


class Grouping(NamedTuple):
    """Clients in k clusters."""

    cluster: Tensor  # (m)
    silhouette: Tensor  # score of k clusters at place k - 1 (m): NaN for one and those not looked at, 0 for m


class Found(NamedTuple):
    """What is made of the clients' gradients."""

    weight: Tensor  # W (m, m)
    sigma2: Tensor  # the variances it was made with (m)
    cluster: Tensor
    silhouette: Tensor


def best(
    delta: Tensor, sigma2: Tensor, samples: Tensor, streams: int | str, price: float, seed: int, beat: Beat
) -> Found:
    """Of several variances of each client (m, choices) those whose weights are told apart best, the first of equals."""
    tried = []
    for one in sigma2.T:
        weight = mixing(delta, one, samples)
        tried.append(Found(weight, one, *group(weight, streams, price, seed, beat)))
    return max(tried, key=lambda found: float(found.silhouette.nan_to_num(-1).max()))


def distances(gram: Tensor) -> Tensor:
    """Delta_ij = |g_i - g_j|² from inner products"""
    square = gram.diagonal()
    return (square[:, None] + square - 2 * gram).clamp(min=0).fill_diagonal_(0)


def floored(sigma2: Tensor) -> Tensor:
    """Variances, none smaller than a millionth of the median of those that are not zero."""
    seen = sigma2[sigma2 > 0]
    return sigma2.clamp(min=float(FLOOR * seen.median()) if len(seen) else torch.finfo(torch.float64).tiny)


def mixing(delta: Tensor, sigma2: Tensor, samples: Tensor) -> Tensor:
    """w_ij = n_j exp(-Delta_ij / (2 sigma_i sigma_j)) / Σ_j' ...                                            (9)"""
    sigma = floored(sigma2).sqrt()
    return torch.softmax(samples.log() - delta / (2 * sigma[:, None] * sigma), 1)


def collaborators(weight: Tensor) -> Tensor:
    """exp(entropy) of each row: how many clients it is spread over"""
    return torch.exp(-torch.special.xlogy(weight, weight).sum(1))


def group(weight: Tensor, streams: int | str, price: float, seed: int, beat: Beat = lambda: True) -> Grouping:
    """K-means on the rows: k clusters, or as many as maximise silhouette - price * k (one, where no score is positive;
    `all`: every client by itself). `auto` scores all k, which takes minutes with hundreds of clients; else it is the
    given one and, with FEW clients, those up to LOOKED."""
    from sklearn.metrics import silhouette_score  # a third of the program's start, for those who need it
    from threadpoolctl import threadpool_limits

    rows, m = weight.cpu().numpy(), len(weight)
    labels = {1: np.zeros(m, dtype=np.int64), m: np.arange(m)}
    score = np.full(m, np.nan)
    if m > 1:
        score[m - 1] = 0
    with threadpool_limits(1):  # several threads add in the order in which they end
        for k in range(2, m):
            if not (streams in ("auto", k) or (k <= LOOKED and m <= FEW)):
                continue
            if not beat():
                break  # the round is given up, and what is made here
            labels[k] = clusters(rows, k, seed)
            beat()
            score[k - 1] = silhouette_score(rows, labels[k]) if len(np.unique(labels[k])) > 1 else 0
    k = m
    if streams == "auto":
        worth = np.nan_to_num(score[1:]) - price * np.arange(2, m + 1)
        k = int(np.argmax(worth)) + 2 if worth.max(initial=0) > 0 else 1
    elif streams != "all":
        k = int(streams)
    return Grouping(torch.from_numpy(labels.get(k, labels[1])).long(), torch.from_numpy(score))


def clusters(rows: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Each row's cluster, numbered in order of appearance."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer different rows than clusters
        found = KMeans(k, n_init=10, random_state=seed).fit_predict(rows)
    _, first, label = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[label]


def stream_rows(weight: Tensor, cluster: Tensor, samples: Tensor, by: str) -> Tensor:
    """A row of weights (m) for each stream: the mean of its clients' rows (11), or FedAvg's within its cluster."""
    member = torch.nn.functional.one_hot(cluster).double().T.to(weight.device)
    rows = member @ weight if by == "centroid" else member * samples
    return rows / rows.sum(1, keepdim=True)
