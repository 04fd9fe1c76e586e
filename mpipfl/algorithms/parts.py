"""How a client's data is cut into the parts whose gradients vary."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator, model_validator

from ..section import Count, Number, Section

MOST = 10**9  # samples, and parts


class Cut(NamedTuple):
    """How each client's data is cut."""

    parts: np.ndarray  # K of each client (m)
    size: np.ndarray | None  # samples of a part that is drawn by itself (m); None for parts that make up the data


class Variance(Section):
    """The parts of a client's data whose gradients give its variance"""

    part: Annotated[int | float | str | None, Number] = Field(
        None, description="size of a part: samples (100), or a fraction (1/3, 0.25); parts have nearly that size"
    )
    parts: Count | tuple[Count, ...] | None = Field(None, description="K, or several of which the best is taken")
    draws: Literal["partition", "independent"] = Field("partition", description="parts make up the data, or each drawn")

    @field_validator("part")
    @classmethod
    def _a_size(cls, value: int | float | str | None) -> int | float | None:
        if value is None:
            return None
        try:
            size = Fraction(value if "/" in str(value) else float(value))  # not the many digits of 1e99999999
        except (ValueError, ZeroDivisionError, OverflowError):
            raise ValueError("is neither a number nor a fraction such as 1/3") from None
        if not (Fraction(1, MOST) <= size < 1 or (1 <= size <= MOST and size.denominator == 1)):
            raise ValueError("is neither a number of samples (1, 2 ... 1e9) nor a fraction below 1 (1e-9 or more)")
        if float(size) == 1 and str(value) != "1":
            raise ValueError("is it one sample or all of them? Write 1 for parts of one sample, or a fraction below 1")
        return int(size) if size >= 1 else float(size)

    @model_validator(mode="after")
    def _one_way(self) -> Variance:
        if (self.part is None) == (self.parts is None):
            raise ValueError("give part or parts, one of them")
        if self.parts == ():
            raise ValueError("parts: name at least one number")
        if self.part is not None and 0.5 < float(self.part) < 1 and self.draws == "partition":
            raise ValueError(f"part: {self.part:g} of the data cannot be cut twice; take 1/2 or less")
        return self

    def cuts(self, samples: np.ndarray) -> list[Cut]:
        """The parts of clients with so many samples (m), for each choice."""
        if self.part is None:
            choices = self.parts if isinstance(self.parts, tuple) else (self.parts,)
            return [self._cut(np.full(len(samples), k), samples / k, samples) for k in choices]
        part = float(self.part)
        if part < 1:
            return [self._cut(np.full(len(samples), 1 / part), part * samples, samples)]
        return [self._cut(samples / part, np.full(len(samples), part), samples)]

    def _cut(self, count: np.ndarray, size: np.ndarray, samples: np.ndarray) -> Cut:
        count, size = (np.clip(np.rint(x), 1, samples).astype(np.int64) for x in (count, size))
        return Cut(count, size if self.draws == "independent" else None)
