"""Sounds from wav files: read, resampled, cut or padded to one length."""

from __future__ import annotations

import wave
from math import gcd
from pathlib import Path

import numpy as np

from mpipfl.errors import DataError


def read_wave(path: Path, rate: int, samples: int) -> np.ndarray:
    """(samples,) float32 in [-1, 1): the middle of a long sound, a short one between silence."""
    sound, own = pcm(path)
    if own != rate:
        from scipy.signal import resample_poly  # takes a second to import

        common = gcd(own, rate)
        sound = resample_poly(sound, rate // common, own // common).astype(np.float32)
    spare = len(sound) - samples
    if spare >= 0:
        return sound[spare // 2 : spare // 2 + samples]
    return np.pad(sound, (-spare // 2, -spare - -spare // 2))


def pcm(path: Path) -> tuple[np.ndarray, int]:
    """A file's sound as float32, the mean of its channels, and its rate."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, own = file.getnchannels(), file.getsampwidth(), file.getframerate()
            promised, data = file.getnframes(), file.readframes(file.getnframes())
    except (OSError, wave.Error, EOFError, ValueError) as error:
        reason = str(error) or "it ends too soon"
        raise DataError(f"{path} cannot be read as a wav file ({reason}); convert it to 16-bit PCM.") from None
    if width != 2:
        raise DataError(f"{path} has {8 * width} bits a sample; convert it to 16-bit PCM.")
    if not promised or len(data) < promised * channels * width:
        held = len(data) // (channels * width)
        raise DataError(f"{path} holds {held:,} of {promised:,} samples: it is empty or cut off. Fetch it again.")
    sound = np.frombuffer(data, "<i2").astype(np.float32).reshape(-1, channels).mean(1) / np.float32(32768)
    return sound, own
