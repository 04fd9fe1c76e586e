"""The one evaluation protocol: all clients, each model kept apart by kind, each client's own data.

`global` is the model the server makes, `personal` the one a client would use. Where a method makes no personal models,
its clients use the global one, and the personal figures are the global ones; where it makes no global model, the
global figures are NaN. Test data is only ever reported; choices are made on validation data. Where the source knows the
best models, `error` is the mean |theta - best| over their coordinates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .algorithms import Algorithm
from .cohort import Cohort
from .federation import Federation

PARTS = {"test": "", "validation": "validation_"}


def evaluate(
    algorithm: Algorithm,
    server: Any,
    clients: Any,
    cohort: Cohort,
    fl: Federation,
    best: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Accuracy and loss of every client (M) by name, on every rank."""
    made = algorithm.models(server, clients, cohort)
    names, columns = [], []
    for part, prefix in PARTS.items():
        general = scores(cohort, made.globally, part)
        personal = general if made.personal is None else scores(cohort, made.personal, part)
        for kind, (accuracy, loss) in (("personal", personal), ("global", general)):
            names += [f"{kind}/{prefix}accuracy", f"{kind}/{prefix}loss"]
            columns += [accuracy, loss]
    for kind, theta in (("personal", made.personal), ("global", made.globally)):
        theta = made.globally if theta is None else theta
        if best is not None and theta is not None:
            truth = torch.from_numpy(best[kind][cohort.clients]).to(theta.device)
            names.append(f"{kind}/error")
            columns.append((theta.double() - truth).abs().mean(1))
    table = fl.table(torch.stack(columns, 1))
    return {name: table[:, i].copy() for i, name in enumerate(names)}


def scores(cohort: Cohort, theta: Tensor | None, part: str) -> tuple[Tensor, Tensor]:
    if theta is None:
        missing = torch.full((len(cohort),), torch.nan, dtype=torch.float64, device=cohort.device)
        return missing, missing
    return cohort.evaluate(theta, part)
