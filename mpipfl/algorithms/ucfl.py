"""User-centric federated learning: every client's model is a mixture made for it, sent in as few streams as needed.

Before training, or from the model that some rounds of FedAvg made (`weights: {at_round: 20}`), client i returns its
full gradient g_i at the common model and the variance of the gradients g_i^k of K random parts of its data:

    sigma_i² = 1/K Σ_k |g_i^k - g_i|²                                                                   (10)
    w_ij     = n_j exp(-|g_i - g_j|² / (2 sigma_i sigma_j)), rows scaled to sum to 1                     (9)

The size of the parts is a temperature: few big ones have small variances, W is near the identity and learning local;
many small ones make it FedAvg. From several values of `parts` the one whose streams are told apart best is taken (the
greatest silhouette), which is for `stream_weights: group`: where rows are used as they are, larger parts than that are
better, and a study over them is decided on validation data (`jobs/emnist_parts.yaml`). At the start all gradients
point much the same way; after some rounds of FedAvg what is left is what clients disagree in, and W tells groups apart
better. Then in every round

    theta_i <- Σ_j w_ij SGD(theta_j)                                                                     (8)

With fewer streams than clients, k-means on the rows of W gives k clusters; a client gets its cluster's model, whose row
of weights is the mean of the clients' rows (11), or FedAvg over the cluster (`stream_weights: group`). `auto` takes the
k = 2 .. m that maximises s_k - `price` k, s_k the silhouette score of k clusters (12); one stream if none is positive.

`parallel` is (13): every client also trains every other stream's model, and a stream averages what was trained from it;
computation and uplinks are as many times as much.

Everything is personal, there is no global model. Of clients that are not active nobody gets anything: the weights are
scaled to sum to 1 over the active ones, and a stream of whose weight they have less than a millionth keeps its model.
A client whose one part is all of its data has the variance 0. One below a millionth of the clients' median (there, or
with identical samples) counts as so much, and such a client's row is the identity's; that is remarked upon, and so are
weights that are nearly the identity or nearly FedAvg's all over. Clusters of such rows mean nothing.

A newcomer gets the stream whose model has the least loss on its training data; where every client has a stream of its
own, one of their models.

Reference: Mestoukirdi, Zecchin, Gesbert, Li: User-Centric Federated Learning: Trading off Wireless Resources for
Personalization, 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..section import Count, Natural, NonNegative, Section
from . import streams
from .base import Algorithm, Facts, Models, Past, Traffic, col, columnwise
from .parts import Cut, Variance
from .streams import Found
from .uncertainty import squared

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation

ALONE, UNIFORM = 1.05, 0.95  # collaborators that are remarked upon: so few, or this share of FedAvg's
ACTIVE = 1e-6  # of a stream's weight: with less of it in the round, a mean would be of strangers alone, and inexact
MOST = 10_000  # clients: a table of all pairs has 0.8 GB, and there are several


class Server(NamedTuple):
    weight: Tensor  # W (m, m), float64
    cluster: Tensor  # each client's stream (m)
    row: Tensor  # each stream's weights of all clients (k, m), float64; no rows where every client has its own
    theta: Tensor  # each stream's model (k, d)


class Stream(NamedTuple):
    theta: Tensor  # one model (d), or several (k, d)


class Client(NamedTuple):
    theta: Tensor  # θ_i (d)


class Weights(Section):
    """Of which model's gradients the weights are made"""

    at_round: Natural = Field(0, description="that of so many rounds of FedAvg; 0: the initial one")


class UCFL(Algorithm):
    """User-centric: a mixture of models for each client, in few streams"""

    kind: Literal["ucfl"] = "ucfl"
    learns_globally: ClassVar[bool] = False
    learns_personally: ClassVar[bool] = True
    variance: Variance = Field(Variance(part="1/3"), description="whose gradients' variance scales distances")
    streams: Literal["all", "auto"] | Count = Field("all", description="models sent in a round")
    stream_weights: Literal["centroid", "group"] = Field("centroid", description="mean row of a cluster, or its FedAvg")
    price: NonNegative = Field(0.0, description="lambda in (12), of a stream; with auto")
    parallel: bool = Field(False, description="train every stream's model at every client")
    weights: Weights = Field(Weights(), description="of which model's gradients they are made")

    def fits_run(self, clients: int, rounds: int) -> None:
        if clients > MOST:
            raise ValueError(f"data.clients: ucfl compares all pairs of clients, {clients} are more than {MOST}")
        if isinstance(self.streams, int) and self.streams > clients:
            raise ValueError(f"algorithm.streams: {self.streams} is more than data.clients, {clients}")
        if self.stream_weights == "group" and self.streams in ("all", clients) and clients > 1:
            raise ValueError(
                "algorithm.stream_weights: with group and a stream for each client, clients learn alone; take "
                "streams: auto, fewer of them, stream_weights: centroid, or algorithm: local"
            )
        if self.weights.at_round >= rounds:
            raise ValueError(
                f"algorithm.weights.at_round: {self.weights.at_round} is not before the last of {rounds} rounds; take "
                f"{rounds - 1} or less, or more rounds"
            )

    def server(self, theta: Tensor, facts: Facts) -> Server:
        n = facts.samples.to(theta.device)
        return Server((n / n.sum()).repeat(len(n), 1), torch.zeros_like(n).long(), n[None], theta[None])

    def client(self, theta: Tensor, facts: Facts) -> Client:
        return Client(theta)

    # ------------------------------------------------------------------ the special round

    @property
    def prepares_after(self) -> int:
        return self.weights.at_round

    def prepare(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:
        theta = server.theta[0]
        g = cohort.mean_grad(theta)
        delta = streams.distances(fl.gram(g.float()))
        cuts = self.variance.cuts(cohort.n_train.cpu().numpy().astype(np.int64))
        sigma2 = fl.gather(torch.stack([variances(theta, g, cut, cohort) for cut in cuts], 1))
        samples, seed = fl.gather(cohort.n_train), cohort.seed % 2**32

        def found(_: Found, sums: Any) -> Found:
            return streams.best(delta, sigma2, samples, self.streams, self.price, seed, cohort.beat)

        fedavg = Found(server.weight, 0 * samples, server.cluster, samples * torch.nan)  # if all clients are left out
        best = fl.aggregate(found, fedavg, n=torch.ones_like(cohort.n_train))  # on rank 0, and from there everywhere
        row = best.weight[:0]
        if self.parallel or int(best.cluster.max()) + 1 < len(samples):
            row = streams.stream_rows(best.weight, best.cluster, samples, self.stream_weights)
        fl.tell(
            W=best.weight, delta=delta, sigma2=best.sigma2, silhouette=best.silhouette, cluster=best.cluster,
            collaborators=streams.collaborators(best.weight), row=row, samples=samples,
        )  # fmt: skip
        return Server(best.weight, best.cluster, row, theta.repeat(len(row), 1)), Client(theta.expand_as(clients.theta))

    # ------------------------------------------------------------------ a round

    def round(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:
        if len(server.row) == 0:
            w = server.weight[cohort.clients][:, fl.everyone]
            return server, Client(fl.mix(w / w.sum(1, keepdim=True), cohort.descend(clients.theta)))  # (8)
        share = server.row[:, cohort.clients].T  # of each client in each stream (m, k)
        if self.parallel and len(server.row) > 1:
            models = [
                self.average(theta, share[:, k], cohort.descend(theta, stream=f"stream {k}"), fl)  # (13)
                for k, theta in enumerate(server.theta)
            ]
            server = server._replace(theta=torch.stack(models))
        else:
            theta = cohort.descend(self.streams_of(server, cohort))
            server = server._replace(theta=self.average(server.theta, share, theta, fl))
        return server, clients

    def average(self, stream: Tensor, share: Tensor, theta: Tensor, fl: Federation) -> Tensor:
        """The average of one stream (d), share (m), or of all (k, d), share (m, k); with hardly any weight it stays."""

        @columnwise
        def mean(old: Stream, sums: Any) -> Stream:
            n = sums.n.unsqueeze(-1)
            return Stream(torch.where(n > ACTIVE, sums.theta / n, old.theta))

        return fl.aggregate(
            mean, Stream(stream), theta=(share, theta), n=(share, torch.ones(len(share)).to(share))
        ).theta

    def streams_of(self, server: Server, cohort: Cohort) -> Tensor:
        """Each client's stream's model (m, d)"""
        return server.theta[server.cluster[cohort.clients]]

    def arrive(
        self, server: Server, clients: Client, past: Past, cohort: Cohort, fl: Federation
    ) -> tuple[Server, Client]:
        models = server.theta if len(server.row) else (old.theta for old in past.clients)
        theta, least, nearest = clients.theta, torch.full_like(cohort.n_train, torch.inf), cohort.n_train.long() * 0
        for k, model in enumerate(models):
            loss = cohort.loss(model)
            nearer = loss < least
            theta, least = torch.where(col(nearer), model, theta), torch.where(nearer, loss, least)
            nearest = torch.where(nearer, k, nearest)
        fl.tell(nearest=fl.gather(nearest))
        return server._replace(row=server.row[:0], theta=server.theta[:0]), Client(theta)

    def newcomer(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        return clients

    def models(self, server: Server, clients: Client, cohort: Cohort) -> Models:
        own = len(server.row) == 0
        return Models(globally=None, personal=clients.theta if own else self.streams_of(server, cohort))

    def traffic(self, server: Server, active: int) -> Traffic:
        k = len(server.row) or active
        return Traffic(streams=k if self.parallel else min(k, active), uplinks=k if self.parallel else 1)

    def remarks(self, series: dict[str, np.ndarray]) -> list[str]:
        """Weights that say nothing."""
        if len(series.get("W", ())) < 2:
            return []
        found, n = series["collaborators"], series["samples"] / series["samples"].sum()
        most = float(np.exp(-(n * np.log(n)).sum()))
        own = len(series["row"]) in (0, len(found))
        so = "clients learn alone" if own else "clusters of their rows mean nothing"
        if found.max() < ALONE:
            return [f"ucfl: the weights are nearly the identity, {so}; take smaller parts (variance)"]
        still = streams.floored(torch.from_numpy(series["sigma2"])).numpy() > series["sigma2"]
        if alone := int((still & (found < ALONE)).sum()):
            return [
                f"ucfl: {alone} of {len(found)} clients have no variance, as their data is one part, all alike or left "
                f"out: {'they learn alone, and nobody from them' if own else so}; take smaller parts (variance)"
            ]
        if found.min() > UNIFORM * most:
            return [
                "ucfl: every row of weights is nearly FedAvg's; take larger parts (variance), or a model whose "
                "gradients tell clients apart (model.init=glorot)"
            ]
        return []


def variances(theta: Tensor, g: Tensor, cut: Cut, cohort: Cohort) -> Tensor:
    """sigma_i² (10); exactly 0 of a part that is all of a client's data, and of a client that is left out"""
    total = torch.zeros_like(cohort.n_train)
    for part in cohort.parts(*cut):
        size = torch.tensor([len(places) for places in part]).to(total)
        far = squared(cohort.mean_grad(theta, part) - g)  # a client without such a part has NaN
        counts = (size > 0) & (size < cohort.n_train) & far.isfinite()
        total += far.where(counts, torch.zeros_like(far))
    return total / torch.from_numpy(cut.parts).to(total)
