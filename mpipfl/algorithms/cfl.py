"""CFL: a cluster of clients is split where they pull a stationary model apart.

With the round's clients of a cluster c, their updates Δ_i = SGD(theta_c, F_i) - theta_c and weights p_i = n_i / Σ n:

    split c  if  |Σ_i p_i Δ_i| < eps1  and  max_i |Δ_i| > eps2                                     (31), (32)
    into the two parts that are least alike,
        min over (c1, c2) of  α = max_{i in c1, j in c2} <Δ_i, Δ_j> / (|Δ_i| |Δ_j|)                 (19)
    unless  sqrt((1 - α) / 2) <= gamma_max                                                         (33)
    theta_c <- theta_c + Σ_i p_i Δ_i          over the clients of c, of each part by itself after a split

All norms and similarities come from one `gram` of the updates. With `relative`, eps1 and eps2 are fractions of the
greatest |Σ p_i Δ_i| of any round so far (the paper suggests a tenth for eps1). A client that was not in the round of a
split stays in the part with the round's first client: the paper has all clients in every round.

Each client's cluster is in history.h5, round by round: the tree of splits. The cluster's model counts as the global one
of its clients. A newcomer joins the cluster whose model has the least loss on its training data: the updates by which
the paper would send it down the tree are not kept.

Reference: Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization
under Privacy Constraints, IEEE TNNLS 2020 (algorithms 1 and 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ..section import Count, Natural, NonNegative
from .base import Algorithm, Facts, Models, Nothing, Past, Traffic, columnwise

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


SAME = 1e-7  # what rounding alone makes of sqrt((1 - α) / 2) for equal updates


class Server(NamedTuple):
    theta: Tensor  # θ_c, one row for each cluster there may ever be (clusters, d)
    cluster: Tensor  # every client's cluster (M)
    clusters: Tensor  # how many there are, one number
    sent: Tensor  # how many there were before the last round
    peak: Tensor  # the greatest |Σ p_i Δ_i| so far, one number, float64


class CFL(Algorithm):
    """Clusters of clients, split where their updates disagree"""

    kind: Literal["cfl"] = "cfl"
    eps1: NonNegative = Field(0.4, description="a cluster is stationary where its mean update is shorter")
    eps2: NonNegative = Field(1.6, description="and is split where some client's update is longer")
    relative: bool = Field(False, description="eps1 and eps2 are fractions of the greatest mean update so far")
    gamma_max: NonNegative = Field(0.0, description="no split where sqrt((1 - similarity) / 2) is not greater")
    warm_up: Natural = Field(0, description="rounds before the first split")
    clusters: Count = Field(10, description="at most so many clusters")

    def server(self, theta: Tensor, facts: Facts) -> Server:
        together = torch.zeros(facts.clients, dtype=torch.int64, device=theta.device)
        peak = torch.zeros((), dtype=torch.float64, device=theta.device)
        one = together.new_ones(())
        return Server(theta.repeat(min(self.clusters, facts.clients), 1), together, one, one.clone(), peak)

    def round(self, server: Server, clients: Nothing, cohort: Cohort, fl: Federation) -> tuple[Server, Nothing]:
        before = server.theta[server.cluster[cohort.clients]]
        update = cohort.descend(before) - before  # Δ_i
        grown, parent = self.split(server, fl.gram(update), fl.gather(cohort.n_train), fl)

        @columnwise
        def average(old: Server, sums: Any) -> Server:
            mean = torch.where(sums.n > 0, sums.theta / sums.n, 0.0)
            return grown._replace(theta=old.theta[parent] + mean)

        n = cohort.n_train[:, None]
        member = torch.nn.functional.one_hot(grown.cluster[cohort.clients], len(server.theta)) * n  # A: (m, clusters)
        fl.tell(cluster=grown.cluster)
        return fl.aggregate(average, server, theta=(member, update), n=(member, torch.ones_like(n))), clients

    def split(self, server: Server, gram: Tensor, n: Tensor, fl: Federation) -> tuple[Server, Tensor]:
        """The clusters after this round, and for each the one whose model it starts from."""
        cluster, count, peak = server.cluster.clone(), int(server.clusters), server.peak
        parent = torch.arange(len(server.theta), device=cluster.device)
        everyone = torch.from_numpy(fl.everyone).to(cluster.device)
        here = [torch.nonzero(server.cluster[everyone] == c)[:, 0] for c in range(count)]
        mean = [length(gram[rows][:, rows], n[rows] / n[rows].sum()) for rows in here]
        peak = torch.stack([peak, *(one for one, rows in zip(mean, here, strict=True) if len(rows))]).max()
        unit = peak if self.relative else torch.ones_like(peak)
        for c, rows in enumerate(here):
            if len(rows) < 2 or count == len(parent) or fl.round <= self.warm_up:
                continue
            inner = gram[rows][:, rows]
            stationary, torn = (
                mean[c] < self.eps1 * unit,
                inner.diagonal().max().sqrt() > self.eps2 * unit,
            )  # (31), (32)
            if stationary and torn:
                apart, alike = bipartition(similarity(inner))
                if ((1 - alike) / 2) ** 0.5 > max(self.gamma_max, SAME):  # (33)
                    cluster[everyone[rows[apart]]], parent[count] = count, c
                    count += 1
        after = torch.tensor(count, device=cluster.device)
        return Server(server.theta, cluster, after, server.clusters, peak), parent

    def arrive(
        self, server: Server, clients: Nothing, past: Past, cohort: Cohort, fl: Federation
    ) -> tuple[Server, Nothing]:
        loss = torch.stack([cohort.loss(theta) for theta in server.theta[: int(server.clusters)]], 1)
        cluster = fl.gather(loss.argmin(1))
        fl.tell(joined=cluster)
        return server._replace(cluster=cluster), clients

    def models(self, server: Server, clients: Nothing, cohort: Cohort) -> Models:
        return Models(globally=server.theta[server.cluster[cohort.clients]], personal=None)

    def traffic(self, server: Server, active: int) -> Traffic:
        return Traffic(streams=min(int(server.sent), active))


def length(gram: Tensor, p: Tensor) -> Tensor:
    """|Σ p_i Δ_i|"""
    return (p @ gram @ p).clamp(min=0).sqrt()


def similarity(gram: Tensor) -> Tensor:
    """<Δ_i, Δ_j> / (|Δ_i| |Δ_j|), zero where one of them is zero."""
    norm = gram.diagonal().sqrt()
    return torch.where((norm[:, None] > 0) & (norm > 0), gram / (norm[:, None] * norm), 0.0).clamp(-1, 1)


def bipartition(alike: Tensor) -> tuple[Tensor, float]:
    """The two parts with the least greatest similarity between them (19): which clients leave the first one's part, and
    that similarity. The weakest edge of a maximum spanning tree (Prim's) is the cut."""
    best, parent = alike[0].clone(), torch.zeros(len(alike), dtype=torch.int64)
    outside = torch.ones(len(alike), dtype=torch.bool, device=alike.device)
    outside[0] = False
    edges: list[tuple[int, float]] = []
    for _ in range(len(alike) - 1):
        new = int(torch.where(outside, best, -torch.inf).argmax())
        edges.append((new, float(best[new])))
        outside[new] = False
        nearer = outside & (alike[new] > best)
        best = torch.where(nearer, alike[new], best)
        parent[nearer.cpu()] = new
    cut, least = min(edges, key=lambda edge: edge[1])
    apart = torch.zeros(len(alike), dtype=torch.bool, device=alike.device)
    apart[cut] = True
    for new, _ in edges:
        apart[new] |= apart[int(parent[new])]
    return apart, least
