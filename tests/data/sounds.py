"""Wav files for tests: short tones, one pitch for each label."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np


def write_wave(path: Path, sound: np.ndarray, rate: int = 2000, channels: int = 1, width: int = 2) -> Path:
    """`sound` in [-1, 1), interleaved where there are several channels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        numbers = np.round(np.asarray(sound) * 32768).clip(-32768, 32767).astype("<i2")
        file.writeframes(numbers.tobytes() if width == 2 else bytes(width * len(sound)))
    return path


def tone(pitch: float, seconds: float = 0.4, rate: int = 2000, seed: int = 0) -> np.ndarray:
    time = np.arange(round(seconds * rate)) / rate
    return 0.3 * np.sin(2 * np.pi * pitch * time) + 0.02 * np.random.default_rng(seed).standard_normal(len(time))


def lay(folder: Path, labels: tuple[str, ...] = ("no", "yes"), speakers: int = 3, takes: int = 4) -> Path:
    """<label>_<speaker>_<take>.wav, as Free Spoken Digits are named."""
    for number, label in enumerate(labels):
        for speaker in range(speakers):
            for take in range(takes):
                sound = tone(150 * (number + 1) + 10 * speaker, seed=take)
                write_wave(folder / "words" / f"{label}_s{speaker}_{take}.wav", sound)
    return folder


SMALL = {
    "kind": "audio", "folder": "words", "pattern": "<label>_<speaker>_<take>.wav", "wake": "yes", "devices": 2,
    "rate": 2000, "seconds": 0.5, "window": 0.064, "hop": 0.028, "mels": 16,
}  # fmt: skip
