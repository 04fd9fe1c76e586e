"""Two traps of Self-FL, and how a run that is in one is told.

**Collapse.** The estimates feed on the steps they choose: with a small `smoothing` from a cold start, tiny moves make a
tiny sigma_0², that makes l = 1, that makes tinier moves. `collapsed` in history.h5 is the share of active clients that
(8) allows one step only. Start warm (`warm_start`) or take smoothing 1; `floor`, beyond the paper, keeps l from falling
below it.

**Runaway.** With n of M clients active, (10) sets a client ahead of theta by 1 / (n - 1) of the way that theta has come
since the client's last round, M / n rounds ago. That is a momentum of (a M / n - 1) / (n - 1): none with the default
a = n / M, but 3/4 with five of twenty clients and a = 1, which may let theta run away. Take a smaller `smoothing`, or
`others: all`, which divides by M - 1.
"""

from __future__ import annotations

import numpy as np

COLLAPSED = 0.9  # share of clients with one step that deserves a remark
RUNAWAY = 0.7  # momentum that does
MILD = 0.25  # momentum that does no harm


def collapse(shares: np.ndarray) -> list[str]:
    """By the share of clients that (8) allowed one step, in each round."""
    late = shares[-50:]
    if len(late) < 10 or late.mean() < COLLAPSED:
        return []
    return [
        f"selffl: in the last {len(late)} rounds (8) gave {100 * late.mean():.0f} % of the active clients one step "
        f"only, the estimates have collapsed; try algorithm.smoothing=1, a warm_start, or algorithm.floor=5"
    ]


def runaway(a: float, steps: np.ndarray) -> list[str]:
    """By the smoothing and the clients' steps (R, M), NaN where they were not active."""
    n, population = (~np.isnan(steps)).sum() / max(1, len(steps)), steps.shape[1]
    if n <= 1 or (momentum := (a * population / n - 1) / (n - 1)) < RUNAWAY:
        return []
    less = (MILD * (n - 1) + 1) * n / population
    return [
        f"selffl: with {n:.0f} of {population} clients active the start (10) works like a momentum of {momentum:.2f}, "
        f"the models may run away; try algorithm.smoothing={less:.1g} or algorithm.others=all"
    ]
