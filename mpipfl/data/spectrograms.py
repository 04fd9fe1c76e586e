"""Log-mel spectrograms in PyTorch: how strong which pitch is, and when.

    P_tf   = |Σ_n hann_n x_{t hop + n} e^{-2πi fn / window}|²          hann_n = (1 - cos(2πn / window)) / 2
    L_tm   = ln(Σ_f M_mf P_tf + 1e-6)
    S      = (L - mean L) / std L                                      over the whole clip

M is a bank of triangles, whose tops are equally spaced in mel(f) = 2595 log10(1 + f / 700) between 60 Hz and half the
rate: M_mf rises from 0 to 1 between the tops m - 1 and m, and falls to 0 at m + 1. There is no padding: t counts the
windows that lie in the clip. The last line takes the loudness out; a clip of silence becomes zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpipfl.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

LOWEST = 60.0  # Hz
FLOOR = 1e-6


def log_mel(waves: Tensor, rate: int, window: int, hop: int, mels: int) -> Tensor:
    """S (n, mels, frames) of waves (n, samples)."""
    import torch

    hann = torch.hann_window(window, periodic=True, dtype=waves.dtype)
    power = torch.fft.rfft(waves.unfold(1, window, hop) * hann).abs().square()  # (n, frames, bins)
    bank = torch.from_numpy(filters(rate, window, mels)).to(waves.dtype)
    log = torch.log(power @ bank.T + FLOOR).transpose(1, 2)
    spread = log.std((1, 2), correction=0, keepdim=True)
    return (log - log.mean((1, 2), keepdim=True)) / spread.clamp(min=FLOOR)


def filters(rate: int, window: int, mels: int) -> np.ndarray:
    """M (mels, bins), float64."""
    lowest, highest = (2595 * np.log10(1 + pitch / 700) for pitch in (LOWEST, rate / 2))
    tops = 700 * (10 ** (np.linspace(lowest, highest, mels + 2) / 2595) - 1)
    bins = np.arange(window // 2 + 1) * rate / window
    left, top, right = (tops[i : i + mels, None] for i in range(3))
    bank = np.clip(np.minimum((bins - left) / (top - left), (right - bins) / (right - top)), 0, None)
    if not bank.any(1).all():
        raise DataError(
            f"data.source.mels={mels} are too many for windows of {window} samples: between some of them there is no "
            f"frequency. Take fewer, or a longer data.source.window."
        )
    return bank


def frames(samples: int, window: int, hop: int) -> int:
    return 1 + (samples - window) // hop
