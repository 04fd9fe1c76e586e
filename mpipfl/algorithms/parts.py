"""How a client's data is cut into the parts whose gradients vary."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from ..section import Count, Number, Section


class Variance(Section):
    """The parts of a client's data whose gradients give its variance"""

    part: Annotated[int | float | str | None, Number] = Field(
        None, description="size of a part: samples (100), or a fraction (1/3, 0.25)"
    )
    parts: Count | tuple[Count, ...] | None = Field(None, description="K, or several of which the best is taken")
    draws: Literal["partition", "independent"] = Field("partition", description="parts make up the data, or each drawn")

    @field_validator("part")
    @classmethod
    def _a_size(cls, value: int | float | str | None) -> int | float | None:
        if value is None:
            return None
        try:
            size = Fraction(value)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise ValueError("is neither a number nor a fraction such as 1/3") from None
        if not (0 < size < 1 or (size >= 1 and size.denominator == 1)):
            raise ValueError("is neither a number of samples (1, 2 ...) nor a fraction below 1")
        return int(size) if size >= 1 else float(size)

    @model_validator(mode="after")
    def _one_way(self) -> Variance:
        if (self.part is None) == (self.parts is None):
            raise ValueError("give part or parts, one of them")
        if self.parts == ():
            raise ValueError("parts: name at least one number")
        return self

    def counts(self, samples: np.ndarray) -> list[np.ndarray]:
        """How many parts each client has (m), for each choice."""
        if self.part is None:
            choices = self.parts if isinstance(self.parts, tuple) else (self.parts,)
            wanted = [np.full(len(samples), k) for k in choices]
        else:
            share = float(self.part)
            wanted = [np.full(len(samples), round(1 / share)) if share < 1 else np.rint(samples / share)]
        return [np.clip(k, 1, samples).astype(np.int64) for k in wanted]
