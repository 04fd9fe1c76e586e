"""Random numbers that belong to a purpose, not to a moment.

Every draw is keyed by (seed, purpose, numbers such as the client): the same on every rank, whatever was drawn before.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A fresh counter-based generator for this seed, purpose and numbers."""
    key = np.random.SeedSequence([seed, crc32(purpose.encode()), *numbers])
    return np.random.Generator(np.random.Philox(key))
