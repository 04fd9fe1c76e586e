"""PersFL: every client's own best teacher, distilled into a student of its own.

Stage 1 is FedAvg. After each of its rounds, and after the last one, a client looks at the new global model with its
validation data, and keeps the one with the least cross-entropy over all rounds: its optimal teacher O_k. With `teacher:
last` it takes the last one, as does a client without validation data, whose student stays its teacher.

Stage 2 is local, in closing rounds after those of the configuration. The student A_k starts from O_k and descends

    (1 - lambda) CE(A_k(x), y) + lambda T² KL(softmax(O_k(x) / T) || softmax(A_k(x) / T))

for every pair (lambda, T) of a grid, `points` of them in a closing round; the pair with the best validation accuracy is
kept (of equals the one with the least loss, then the first). All pairs see the same batches. lambda = 0 is fine-tuning
from the teacher.

`distill: ce` (PersFL-GD) has the cross-entropy between the softened outputs in place of KL. `direction: forward` has
the teacher first, as written above, `reverse` the student: KL(A || O). With p the student's and q the teacher's
softened outputs, the gradients with respect to the student's logits are

    forward, KL and CE:  T (p - q)                 they differ by the teacher's entropy, a constant, so they train alike
    reverse KL:          T p (r - Σ p r), r = log p - log q              reverse CE:  the same with r = -log q

The published figures of PersFL and PersFL-GD differ, so their code cannot have had both as forward.

A newcomer of a finished run picks its teacher among the stored global models, on its validation data, and distils it.

Personal are the students (in stage 1 the teachers), global is FedAvg's model. A student is trained wherever a worker
has room: the grid is shared out over all ranks.

Reference: Divi, Farrukh, Celik: Unifying Distillation with Personalization in Federated Learning, 2021.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..section import Count, NonNegative, Positive
from .base import Facts, Models, Nothing, Past
from .fedavg import FedAvg, Server

if TYPE_CHECKING:
    from ..cohort import Cohort
    from ..data.federated import Data
    from ..federation import Federation
    from ..minibatch import MiniBatch

LAMBDAS = tuple(i / 20 for i in range(20))
TEMPERATURES = (1.0, 5.0, 9.0, 13.0, 17.0, 21.0, 25.0)
NEVER = torch.finfo(torch.float64).max  # the loss of a teacher that nobody has looked at


class Client(NamedTuple):
    teacher: Tensor  # O_k (d)
    loss: Tensor  # its cross-entropy on validation data, float64
    round: Tensor  # when the server made it
    student: Tensor  # A_k (d), the teacher until stage 2
    chosen: Tensor  # place in the grid of its lambda and T; -1 before stage 2, or where no student could be judged
    grid: Tensor  # validation accuracy (less 1e-9 of the loss) on the grid (G), float64; -1 where there is none


class PersFL(FedAvg):
    """Each client's best teacher of all rounds, distilled into a student of its own"""

    kind: Literal["persfl"] = "persfl"  # type: ignore[assignment]
    learns_personally: ClassVar[bool] = True
    lambdas: tuple[Annotated[NonNegative, Field(le=1)], ...] = Field(LAMBDAS, min_length=1, description="of the grid")
    temperatures: tuple[Positive, ...] = Field(TEMPERATURES, min_length=1, description="T of the grid")
    distill: Literal["kl", "ce"] = Field("kl", description="divergence or cross-entropy between softened outputs")
    direction: Literal["forward", "reverse"] = Field("forward", description="forward: the teacher first")
    teacher: Literal["optimal", "last"] = Field("optimal", description="the best on validation data, or the last")
    student_epochs: Count = Field(5, description="passes over the data for a student")
    student_lr: Positive | None = Field(None, description="train.lr without it")
    points: Count = Field(28, description="pairs of the grid that a closing round works off")

    def fits(self, data: Data) -> None:
        if not data.split.validation:
            raise ValueError("data.split.validation: persfl chooses teachers on validation data, and there is none")

    @property
    def pairs(self) -> np.ndarray:
        """The grid (G, 2): lambda, T"""
        return np.array(list(itertools.product(self.lambdas, self.temperatures)))

    @property
    def closing_rounds(self) -> int:
        return -(-len(self.pairs) // self.points)

    def client(self, theta: Tensor, facts: Facts) -> Client:
        number = theta.new_zeros((), dtype=torch.float64)
        none = torch.full((len(self.pairs),), -1, dtype=torch.float64, device=theta.device)
        return Client(theta, number + NEVER, number.long(), theta, number.long() - 1, none)

    def round(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> tuple[Server, Client]:  # type: ignore[override]
        if fl.round <= fl.rounds:
            server, _ = super().round(server, Nothing(), cohort, fl)
            return server, self.taught(server, clients, cohort, fl.round)
        if fl.round == fl.rounds + 1:  # who was not in the last round looks at its model now
            clients = self.taught(server, clients, cohort, fl.rounds)
        return server, self.distilled(clients, cohort, fl)

    def arrive(  # type: ignore[override]
        self, server: Server, clients: Client, past: Past, cohort: Cohort, fl: Federation
    ) -> tuple[Server, Client]:
        for round, kept in past.servers:
            clients = self.taught(kept, clients, cohort, round)
        return server, clients

    def newcomer(self, server: Server, clients: Client, cohort: Cohort, fl: Federation) -> Client:  # type: ignore[override]
        return self.distilled(clients, cohort, fl) if fl.round > fl.rounds else clients

    def taught(self, server: Server, clients: Client, cohort: Cohort, round: int) -> Client:
        """The teachers after a look at this round's model. Who cannot judge, without validation data, takes it."""
        loss = cohort.loss(server.theta, "validation").nan_to_num(NEVER)
        better = (loss < clients.loss) | (clients.loss == NEVER) | (self.teacher == "last")
        teacher = torch.where(better[:, None], server.theta, clients.teacher)
        return clients._replace(
            teacher=teacher, student=teacher,
            loss=torch.where(better, loss, clients.loss), round=torch.where(better, round, clients.round),
        )  # fmt: skip

    # ------------------------------------------------------------------ stage 2

    def distilled(self, clients: Client, cohort: Cohort, fl: Federation) -> Client:
        """The students of this closing round's part of the grid, where they are better than those so far."""
        first = (fl.round - fl.rounds - 1) * self.points
        pairs = self.pairs[first : first + self.points]

        def student(who: np.ndarray, pair: np.ndarray, teacher: Tensor) -> tuple[Tensor, Tensor]:
            many = cohort.at(who, fl.rounds + 1)  # the same batches in every closing round
            theta = self.train_student(many, teacher, torch.from_numpy(pairs[pair]).to(teacher))
            return worth(many, theta), theta

        value, place, theta = fl.spread(student, clients.teacher, len(pairs))
        best = value.gather(1, place[:, None])[:, 0]
        before = torch.where(clients.chosen >= 0, worth(cohort, clients.student), -torch.inf)
        better = best > before
        grid = clients.grid.clone()
        grid[:, first : first + len(pairs)] = value.nan_to_num(-1, neginf=-1)
        return clients._replace(
            student=torch.where(better[:, None], theta, clients.student),
            chosen=torch.where(better, first + place, clients.chosen),
            grid=grid,
        )

    def train_student(self, cohort: Cohort, teacher: Tensor, pairs: Tensor) -> Tensor:
        """A_k for each row's teacher, lambda and T"""

        def slope(batch: MiniBatch, logits: Tensor) -> Tensor:
            lam, t = (column.view(-1, 1, 1) for column in batch.take(pairs).unbind(1))
            soft = torch.log_softmax(batch.heard / t, 2)
            apart = softened(torch.log_softmax(logits / t, 2), soft, self.distill, self.direction)
            return (1 - lam) * batch.surprise(logits) + lam * t * apart * batch.data.weight.unsqueeze(2)

        pupils = cohort.listening(teacher)
        return pupils.descend(teacher, epochs=self.student_epochs, lr=self.student_lr, slope=slope, stream="student")

    # ------------------------------------------------------------------ what is seen

    def models(self, server: Server, clients: Client, cohort: Cohort) -> Models:  # type: ignore[override]
        return Models(globally=server.theta, personal=clients.student)

    def findings(self, server: Any, clients: Client) -> dict[str, Tensor]:
        chosen = clients.chosen.cpu()
        pairs = torch.from_numpy(self.pairs)[chosen].where((chosen >= 0)[:, None], torch.nan)
        loss = clients.loss.where(clients.loss < NEVER, torch.nan)
        return {
            "teacher_round": clients.round, "teacher_loss": loss, "chosen": clients.chosen,
            "grid_accuracy": clients.grid, "lambda": pairs[:, 0], "T": pairs[:, 1],
        }  # fmt: skip


def softened(log_p: Tensor, log_q: Tensor, distill: str, direction: str) -> Tensor:
    """T times the gradient, with respect to the student's logits, of the loss between softened outputs."""
    p = log_p.exp()
    if direction == "forward":
        return p - log_q.exp()
    r = log_p - log_q if distill == "kl" else -log_q
    return p * (r - (p * r).sum(2, keepdim=True))


def worth(cohort: Cohort, theta: Tensor) -> Tensor:
    """Accuracy first, then loss, both on validation data, as one number."""
    score = cohort.evaluate(theta, "validation")
    return score.accuracy - 1e-9 * score.loss
