"""The one evaluation protocol: all clients (or a sample, always the same), each model kept apart by kind, each client's
own data.

`global` is the model the server makes, `personal` the one a client would use. Where a method makes no personal models,
its clients use the global one, and the personal figures are the global ones; where it makes no global model, the
global figures are NaN. Test data is only ever reported; choices are made on validation data. Precision, recall and F1
are macro averages over each client's test data. Where the source knows the best models, `error` is the mean
|theta - best| over their coordinates.

The last evaluation also keeps, where it is small enough, what single samples were taken for: `confusion/<kind>`
(clients, true class, predicted class), and with two classes `scores/<kind>`, the probability of the second one for each
test sample, beside `scores/label` (-1 and NaN behind a client's last sample).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .algorithms import Algorithm
from .cohort import Cohort, Score
from .detection import margin
from .elementwise import sigmoid
from .federation import Federation
from .metrics import macro
from .models.batched import cross_entropy

PARTS = {"test": "", "validation": "validation_"}
MARKS = ("precision", "recall", "f1")
TOGETHER = 1024  # clients that a rank evaluates at a time
SMALL = 1 << 21  # numbers of all clients together


class Found(NamedTuple):
    """An evaluation, on every rank."""

    scores: dict[str, np.ndarray]  # a number per client (N) by `<kind>/<name>`
    samples: dict[str, dict[str, np.ndarray]]  # what the last evaluation keeps, by group and name


def evaluate(
    algorithm: Algorithm,
    server: Any,
    some: Iterable[tuple[Any, Cohort]],
    fl: Federation,
    classes: int,
    best: dict[str, np.ndarray] | None = None,
    last: bool = False,
) -> Found:
    """The figures of the round's clients; `some` are those hosted here with their states, a few at a time. Every rank
    must call."""
    parts = [judge(algorithm, server, clients, cohort, classes, best, len(fl.listed) if last else 0)
             for clients, cohort in some]  # fmt: skip
    table = fl.table(torch.cat([torch.stack(list(columns.values()), 1) for columns, _ in parts]))
    scores = {name: table[:, i].copy() for i, name in enumerate(parts[0][0])}
    kept: dict[str, dict[str, np.ndarray]] = {"confusion": {}, "scores": {}} if last else {}
    for group, name in parts[0][1]:
        value = fl.table(torch.cat([samples[group, name] for _, samples in parts]))
        kept[group][name] = value.astype(np.int32 if group == "confusion" else np.float32)
    return Found(scores, kept)


def judge(
    algorithm: Algorithm,
    server: Any,
    clients: Any,
    cohort: Cohort,
    classes: int,
    best: dict[str, np.ndarray] | None,
    listed: int,
) -> tuple[dict[str, Tensor], dict[tuple[str, str], Tensor]]:
    """A cohort's figures by `<kind>/<name>`, and in the last evaluation, of so many clients, what is kept of single
    samples."""
    made = algorithm.models(server, clients, cohort)
    models = {kind: m for kind, m in (("personal", made.personal), ("global", made.globally)) if m is not None}
    scored = {(kind, part): cohort.evaluate(theta, part) for kind, theta in models.items() for part in PARTS}
    labels, missing = cohort.labels(), torch.full_like(cohort.n_train, torch.nan)
    by_classes = cohort.model.loss is cross_entropy
    marks = {kind: by_class(labels, scored[kind, "test"].said, classes) for kind in models if by_classes}

    columns: dict[str, Tensor] = {}
    for kind, used in (("personal", "personal" if "personal" in models else "global"), ("global", "global")):
        for part, prefix in PARTS.items():
            score = scored.get((used, part))
            columns[f"{kind}/{prefix}accuracy"] = missing if score is None else score.accuracy
            columns[f"{kind}/{prefix}loss"] = missing if score is None else score.loss
        for name in MARKS if by_classes else ():
            columns[f"{kind}/{name}"] = marks[used][name] if used in marks else missing
        if best is not None and used in models:
            truth = torch.from_numpy(best[kind][cohort.clients]).to(missing.device)
            columns[f"{kind}/error"] = (models[used].double() - truth).abs().mean(1)
    return columns, of_samples(labels, models, scored, cohort, classes, listed) if listed and by_classes else {}


def by_class(labels: Tensor, said: Tensor, classes: int) -> dict[str, Tensor]:
    """Macro precision, recall and F1 (m) of each client."""
    counts = [counted(one, classes).cpu().numpy() for one in (labels.where(labels == said, -1), labels, said)]
    return {name: torch.from_numpy(value).to(labels.device) for name, value in macro(*counts).items()}


def counted(value: Tensor, classes: int) -> Tensor:
    """How often each of 0 .. classes - 1 is in each row (m, classes); anything else is not counted."""
    place = torch.where((value >= 0) & (value < classes), value, classes).long()
    place += torch.arange(len(value), device=value.device)[:, None] * (classes + 1)
    return torch.bincount(place.flatten(), minlength=len(value) * (classes + 1)).view(len(value), classes + 1)[
        :, :classes
    ]


def of_samples(
    labels: Tensor,
    models: dict[str, Tensor],
    scored: dict[tuple[str, str], Score],
    cohort: Cohort,
    classes: int,
    listed: int,
) -> dict[tuple[str, str], Tensor]:
    """Confusion matrices, and scores of two classes, where those of so many clients are small enough."""
    kept: dict[tuple[str, str], Tensor] = {}
    if listed * classes**2 <= SMALL:
        for kind in models:
            said = scored[kind, "test"].said
            pair = torch.where((labels >= 0) & (said < classes), labels * classes + said, -1)
            kept["confusion", kind] = counted(pair, classes**2).view(len(pair), classes, classes)
    if classes == 2 and listed * labels.shape[1] <= SMALL:
        kept |= {("scores", kind): sigmoid(cohort.scores(theta, margin)) for kind, theta in models.items()}
        kept["scores", "label"] = labels
    return kept
