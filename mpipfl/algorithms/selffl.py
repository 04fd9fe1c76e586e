"""Self-FL: uncertainty decides where a client starts, how long it trains and how much it counts.

sigma_m² is client m's own uncertainty, sigma_0² that between clients, w_m = 1 / (sigma_0² + sigma_m²), and S_m the sum
of w_k over the others. In round t each active client

    starts from   theta - w_m / S_m (theta_m - theta)                                the others' mean         (10)
    trains        l steps, with (1 - eta / sigma_m²)^l = S_m / (1 / sigma_m² + S_m)                           (8)
    and keeps     theta_m, where it ends; sigma_m² is the variance of its theta_m over the rounds it was active in

The server takes sigma_0² as the variance of the active clients' theta_m, and with it

    theta <- (1 - a) theta + a Σ w_m theta_m / Σ w_m                                                          (11)

where a is the activity rate |active| / M unless `smoothing` says otherwise. Global is theta, personal are the theta_m;
a client that was never active uses theta. Scalars travel in the buffers of the vectors.

**Where (8) has no answer** (`rule_used` in history.h5): sigma_m² is unknown before a client's second active round, and
while it is zero; the median of the known ones, or 1 without any, stands in for it in the weights, and l is `l_max`
(rule 1). With eta >= sigma_m², l is 1, the value it goes to as sigma_m² falls to eta (rule 2). Otherwise (8) holds,
rounded and kept between 1 and `l_max` (rule 0; -1 stands for fixed steps). A client's first start is theta: there is
nothing of it in theta that (10) could remove.

**Mini-batches** of B samples give gradients of less variance: `step_rule: minibatch` puts eta / B for eta in (8),
`gradient` takes (8) as printed.

The estimates can collapse, and the start can run away: `selffl_traps.py` says when, and what helps.

**Clusters** (`level: cluster`): the server keeps each cluster's latest mean, and averages over all clusters in each
round, those without an active client too: theta_c = Σ_{m in c} w_m theta_m / Σ w_m, with the mean of its w_m as weight.
Clusters are the data's groups, or `clusters` classes of equal size by w_m as last heard.

**A newcomer** starts from theta in each of its rounds, as there is nothing of it in theta that (10) could remove, and
trains l steps by (8), where the others are the run's clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from ..section import Count, Fraction, NonNegative, Positive
from .base import Algorithm, Facts, Models, blocks, col
from .selffl_server import Server, average, average_of_clusters, variance_between
from .selffl_traps import collapse, runaway
from .uncertainty import BY_EQUATION, local_steps, observe

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..federation import Federation


class Client(NamedTuple):
    theta: Tensor  # θ_m, the personal model (d)
    mean: Tensor  # of the client's models over its active rounds (d), float64
    sigma2: Tensor  # σ_m², their variance summed over coordinates, one number, float64
    seen: Tensor  # active rounds, one number


class SelfFL(Algorithm):
    """Uncertainty decides where a client starts, how long it trains and how much it counts"""

    kind: Literal["selffl"] = "selffl"
    learns_personally: ClassVar[bool] = True
    l_max: Count = Field(40, description="most local steps")
    floor: Count = Field(1, description="least local steps; more than 1 is beyond the paper")
    step_rule: Literal["minibatch", "gradient"] = Field("minibatch", description="eta / batch, or eta, in (8)")
    others: Literal["active", "all"] = Field("active", description="whom the sum over others runs over")
    smoothing: Fraction | None = Field(None, description="a; the activity rate without it")
    start: Literal["uncertainty", "global"] = Field("uncertainty", description="(10), or theta")
    steps: Literal["uncertainty", "fixed"] = Field("uncertainty", description="(8), or train.steps or train.epochs")
    weights: Literal["uncertainty", "samples", "equal"] = Field("uncertainty", description="w_m in (11), or other ones")
    level: Literal["client", "cluster"] = Field("client", description="what the server averages over")
    clusters: Count | None = Field(None, description="cluster level: classes by w_m; the data's groups without it")
    uncertainty: Literal["estimated", "given"] = Field("estimated", description="from the models, or the two below")
    sigma2_0: NonNegative | None = Field(None, description="given: variance between clients")
    variance: Positive | None = Field(None, description="given: of one observation; sigma_m² is variance / n_m")

    @model_validator(mode="after")
    def _consistent(self) -> SelfFL:
        if self.uncertainty == "given" and (self.sigma2_0 is None or self.variance is None):
            raise ValueError("uncertainty=given needs sigma2_0 and variance")
        if self.floor > self.l_max:
            raise ValueError(f"floor is {self.floor}, more than l_max, {self.l_max}")
        return self

    def server(self, theta: Tensor, facts: Facts) -> Server:
        number = theta.new_tensor(self.sigma2_0 or 0.0, dtype=torch.float64)
        clusters = 0 if self.level == "client" else self.clusters or facts.groups
        w = number.new_zeros(facts.clients)
        return Server(theta, number, w, theta.repeat(clusters, 1), number.new_zeros(clusters))

    def client(self, theta: Tensor, facts: Facts) -> Client:
        number = theta.new_zeros((), dtype=torch.float64)
        return Client(theta, torch.zeros_like(theta, dtype=torch.float64), number, number.long())

    def round(self, server: Server, clients: Any, cohort: Cohort, fl: Federation) -> tuple[Server, Any]:
        sigma2, known = self.uncertainties(clients, cohort, fl)
        w = 1 / (server.sigma2_0 + sigma2)
        rest = self.sum_of_others(w, server, fl)  # S_m
        steps, rule = self.lengths(sigma2, known, rest, cohort)
        theta = cohort.descend(self.starts(server, clients, w / rest), steps=steps.cpu().numpy())

        clients, x = self.keep(clients, theta, cohort)
        if self.uncertainty == "estimated":
            server = variance_between(server, x, fl)
        sigma2, _ = self.uncertainties(clients, cohort, fl)
        w = 1 / (server.sigma2_0 + sigma2)
        server = server._replace(w=fl.update(server.w, w))
        server = self.average(server, x, w, cohort, fl)

        fl.record(sigma2_m=sigma2, weight=w, steps=steps, rule_used=rule)
        short = (steps == 1) & (rule == BY_EQUATION)
        fl.tell(sigma2_0=server.sigma2_0, collapsed=fl.share(short.double()) / max(1, len(fl.everyone)))
        return server, clients

    def newcomer(self, server: Server, clients: Any, cohort: Cohort, fl: Federation) -> Any:
        sigma2, known = self.uncertainties(clients, cohort, fl)
        steps, rule = self.lengths(sigma2, known, server.w.sum().expand_as(sigma2), cohort)
        theta = cohort.descend(server.theta, steps=steps.cpu().numpy())
        fl.record(sigma2_m=sigma2, steps=steps, rule_used=rule)
        return self.keep(clients, theta, cohort)[0]

    # ------------------------------------------------------------------ at the clients

    def latest(self, clients: Any) -> Tensor:
        """The models that (10), (11) and the uncertainties speak of."""
        return clients.theta  # type: ignore[no-any-return]

    def keep(self, clients: Any, theta: Tensor, cohort: Cohort) -> tuple[Any, Tensor]:
        """The clients after training to theta, and the models that speak for them."""
        new = observe(clients.mean, clients.sigma2, clients.seen, theta)
        return Client(theta, *new), theta

    def uncertainties(self, clients: Any, cohort: Cohort, fl: Federation) -> tuple[Tensor, Tensor]:
        """sigma_m², and where it is known; the median of the known ones stands in where it is not."""
        if self.uncertainty == "given":
            return (self.variance or 0.0) / cohort.n_train, torch.ones_like(cohort.n_train, dtype=torch.bool)
        known = (clients.seen >= 2) & (clients.sigma2 > 0)
        median = fl.gather(torch.where(known, clients.sigma2, torch.nan)).nanmedian().nan_to_num(1.0)
        return torch.where(known, clients.sigma2, median), known

    def sum_of_others(self, w: Tensor, server: Server, fl: Federation) -> Tensor:
        """S_m; zero for a client that is alone"""
        total = fl.share(w) if self.others == "active" else fl.update(server.w, w).sum()
        return (total - w).clamp(min=0)

    def starts(self, server: Server, clients: Any, part: Tensor) -> Tensor:
        """(10), with part = w_m / S_m"""
        own = self.latest(clients)
        if self.start == "global":
            return server.theta.expand_as(own)
        part = torch.where((clients.seen > 0) & part.isfinite(), part, 0.0)
        starts = torch.empty_like(own)
        for some in blocks(own):
            theta = server.theta[some]
            starts[:, some] = theta - col(part) * (own[:, some].double() - theta)
        return starts

    def lengths(self, sigma2: Tensor, known: Tensor, rest: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """l by (8), and which rule gave it"""
        if self.steps == "fixed":
            fixed = torch.tensor(cohort.steps_for().tolist(), dtype=torch.int64, device=sigma2.device)
            return fixed, torch.full_like(fixed, -1)
        eta = cohort.train.lr / (cohort.train.batch if self.step_rule == "minibatch" else 1)
        return local_steps(sigma2, known, rest, eta, self.floor, self.l_max)

    # ------------------------------------------------------------------ at the server

    def average(self, server: Server, x: Tensor, w: Tensor, cohort: Cohort, fl: Federation) -> Server:
        """(11), smoothed; at cluster level over the clusters' latest means"""
        a = self.smoothing or len(fl.everyone) / fl.population
        weight = w if self.weights == "uncertainty" else cohort.counted(self.weights)
        if self.level == "client":
            return average(server, x, weight, a, fl)
        return average_of_clusters(server, x, weight, self.cluster_of(server, cohort), a, fl)

    def cluster_of(self, server: Server, cohort: Cohort) -> Tensor:
        """Each client's cluster: its group, or its place among all by w_m"""
        if self.clusters is None:
            return cohort.group
        place = server.w.argsort(stable=True).argsort()
        return (place * self.clusters // len(place))[cohort.clients]

    def models(self, server: Server, clients: Any, cohort: Cohort) -> Models:
        return Models(globally=server.theta, personal=torch.where(col(clients.seen > 0), clients.theta, server.theta))

    def remarks(self, series: dict[str, np.ndarray]) -> list[str]:
        """The traps, where a run is in one."""
        found = [] if self.floor > 1 else collapse(series.get("collapsed", np.zeros(0)))
        if self.smoothing and self.start == "uncertainty" and self.others == "active" and self.level == "client":
            found += runaway(self.smoothing, series.get("steps", np.zeros((0, 1))))
        return found
