"""The server's half of Self-FL: the variance between clients, and the averages that it weighs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .base import col, columnwise
from .uncertainty import squared

if TYPE_CHECKING:
    from ..federation import Federation


class Server(NamedTuple):
    theta: Tensor  # θ, the global model (d)
    sigma2_0: Tensor  # σ̂₀², one number, float64
    w: Tensor  # w_m as last heard of each client (M), zero before; float64
    cluster: Tensor  # each cluster's latest mean (clusters, d), no rows at client level
    cluster_w: Tensor  # and its weight (clusters), float64


def variance_between(server: Server, x: Tensor, fl: Federation) -> Server:
    """sigma_0²: the variance of the active clients' models, summed over coordinates, shifted by theta"""
    far, one = x - server.theta, torch.ones(len(x)).to(server.sigma2_0)

    def variance(old: Server, sums: Any) -> Server:
        mean = sums.far / sums.n
        return old._replace(sigma2_0=(sums.square / sums.n - mean.square().sum()).clamp(min=0))

    return fl.aggregate(variance, server, far=far, square=squared(far), n=one)


def average(server: Server, x: Tensor, weight: Tensor, a: float, fl: Federation) -> Server:
    """(11), smoothed"""

    @columnwise
    def mean(old: Server, sums: Any) -> Server:
        return old._replace(theta=(1 - a) * old.theta + a * sums.theta / sums.w)

    return fl.aggregate(mean, server, theta=(weight, x), w=weight)


def average_of_clusters(server: Server, x: Tensor, weight: Tensor, cluster: Tensor, a: float, fl: Federation) -> Server:
    """(11) within each cluster, then over the clusters' latest means, smoothed"""

    def mean(old: Server, sums: Any) -> Server:
        here = sums.n > 0
        models = torch.where(col(here), sums.theta / col(sums.w), old.cluster)
        heard = torch.where(here, sums.w / sums.n, old.cluster_w)
        return old._replace(
            theta=(1 - a) * old.theta + a * heard @ models / heard.sum(), cluster=models, cluster_w=heard
        )

    member = torch.nn.functional.one_hot(cluster, len(server.cluster)).double()
    one = torch.ones_like(weight)
    return fl.aggregate(mean, server, theta=(member * col(weight), x), w=(member * col(weight), one), n=(member, one))
