"""Sounds from wav files: read, resampled, cut or padded to one length."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from math import gcd
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mpipfl.errors import DataError

PCM, EXTENSIBLE = 1, 0xFFFE  # formats; the latter names another one further on
RATES = 1000, 384_000  # samples a second that are believed


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
        with path.open("rb") as file:
            found = dict(chunks(file))
        kind, channels, own, *_, bits = struct.unpack_from("<HHIIHH", found[b"fmt "])
        if kind == EXTENSIBLE:
            (kind,) = struct.unpack_from("<H", found[b"fmt "], 24)
        promised, data = struct.unpack("<I", found[b"promised"])[0], found[b"data"]
    except KeyError as error:
        raise broken(path, f"it has no {error.args[0].decode()!r} part") from None
    except (OSError, ValueError, struct.error) as error:
        raise broken(path, str(error) if isinstance(error, OSError | ValueError) else "it ends too soon") from None
    if kind != PCM:
        raise broken(path, f"its format is number {kind}")
    if bits != 16:
        raise DataError(f"{path} has {bits} bits a sample; convert it to 16-bit PCM.")
    if not channels or not RATES[0] <= own <= RATES[1]:
        raise broken(path, f"it has {channels} channels of {own:,} samples a second")
    samples, held = promised // (2 * channels), len(data) // (2 * channels)
    if not samples or held < samples:
        raise DataError(f"{path} holds {held:,} of {samples:,} samples: it is empty or cut off. Fetch it again.")
    sound = np.frombuffer(data[: 2 * channels * samples], "<i2").astype(np.float32)
    return sound.reshape(-1, channels).mean(1) / np.float32(32768), own


def chunks(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """The parts of a wav file that tell its format and its sound, and how long the sound is said to be."""
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise ValueError("it does not begin as one")
    while len(head := file.read(8)) == 8:
        name, size = head[:4], int.from_bytes(head[4:], "little")
        if name in (b"fmt ", b"data"):
            yield name, file.read(size)
            file.seek(size % 2, os.SEEK_CUR)
        else:
            file.seek(size + size % 2, os.SEEK_CUR)
        if name == b"data":
            yield b"promised", head[4:]
            return


def broken(path: Path, reason: str) -> DataError:
    return DataError(f"{path} cannot be read as a wav file ({reason}); convert it to 16-bit PCM.")
