"""Rounds as time, for systems that are not here: slow uplinks, unreliable clients.

    T_round = T_dl (streams + rho uplinks N) + T_comp        T_dl = 1, rho = T_ul / T_dl
    T_comp  = T_min + H_N / mu                               H_N = 1 + 1/2 + ... + 1/N

N clients take part in a round, whose computing times are shifted exponentials: T_comp is the expected slowest one, the
same for all methods however much they compute (`parallel` user-centric: as many times as much as there are streams).
The server sends `streams` models in a round, a client `uplinks` vectors of a model's size. Both may change on the way,
as clusters split or weights are made: metrics.csv has those of the evaluated rounds, and the rounds between them count
as the next one of them. summary.json has the last one's. A special round, of gradients, is not counted.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..schedule import expected
from ..volumes import COSTS
from .runs import ReportError, Run


class System(NamedTuple):
    """A system's parameters, in units of the time that one model takes to all clients."""

    rho: float  # an uplink's time
    tmin: float  # the least computing time
    mu: float  # the rate of what comes on top

    def of(self, run: Run) -> float:
        """T_round of a run at its end"""
        return float(self._round(run, *told(run)[0]))

    def elapsed(self, run: Run) -> np.ndarray:
        """The time at each evaluation of a run"""
        sent = [run.curve(name) for name in COSTS]
        streams, uplinks = (np.where(np.isnan(x), last, x) for x, last in zip(sent, told(run)[0], strict=True))
        return np.cumsum(np.diff(run.rounds, prepend=0) * self._round(run, streams, uplinks))

    def _round(self, run: Run, streams: Any, uplinks: Any) -> Any:
        clients = participants(run)
        harmonic = sum(1 / i for i in range(1, clients + 1))
        return streams + self.rho * uplinks * clients + self.tmin + harmonic / self.mu

    def __str__(self) -> str:
        return f"rho = {self.rho:g}, tmin = {self.tmin:g}, mu = {self.mu:g}"


def told(run: Run) -> tuple[tuple[float, float], bool]:
    """A run's streams and uplinks at its end, by its summary or else its last evaluation, and whether these tell them
    (else they are 1)."""
    for source in (run.summary, *run.rows[-1:]):
        found = [source.get(name) for name in COSTS]
        match [float(v) for v in found if isinstance(v, int | float) and math.isfinite(v) and v >= 0]:
            case [streams, uplinks]:
                return (streams, uplinks), True
    return (1.0, 1.0), False


def participants(run: Run) -> int:
    """The clients of a round, the expected number where they are drawn one by one; at least one."""
    share = run.settings.get("participation.probability") or run.settings.get("participation.fraction") or 1.0
    clients = run.settings.get("data.clients") or run.summary.get("clients") or 1
    return expected(float(share), int(clients))


def system(text: str) -> System:
    """`rho=4,tmin=1,mu=1`, each exactly once."""
    example = "write for instance --time rho=4,tmin=1,mu=1"
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in System._fields:
            raise ReportError(f"--time {text}: {part!r} is not one of {', '.join(System._fields)}; {example}")
        if name in found:
            raise ReportError(f"--time {text}: {name} is there twice; {example}")
        try:
            found[name] = float(value)
        except ValueError:
            raise ReportError(f"--time {text}: {name} is {value!r}, not a number; {example}") from None
        least = "greater than 0" if name == "mu" else "0 or more"
        if not math.isfinite(found[name]) or found[name] < 0 or (name == "mu" and not found[name]):
            raise ReportError(f"--time {text}: {name} is {value}; it has to be finite and {least}")
    missing = [name for name in System._fields if name not in found]
    if missing:
        raise ReportError(f"--time {text}: {' and '.join(missing)} missing; {example}")
    return System(**found)
