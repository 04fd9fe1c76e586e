"""Device types: seeded recording chains, and what is heard beside the voice.

What device D makes of a voice x with a background b (`playback`: music-like, `alarm`: tones; none when `normal`):

    y = clip(gain (h * (x + b)) + noise, ±limit)              h: the room's echoes and the microphone's response

The room's impulse response is a unit impulse and, after it, noise that decays by 60 dB within 0.1 to 0.4 seconds; the
microphone's response is a curve through random gains at octaves. All parameters of a chain follow from (seed, device),
background and noise of a recording from (seed, clip, state, take).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from mpipfl.data.keyed import generator

if TYPE_CHECKING:
    from torch import Tensor

NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
State = Literal["normal", "playback", "alarm"]
STATES: tuple[State, ...] = ("normal", "playback", "alarm")
LEVEL = {"playback": (3.0, 15.0), "alarm": (0.0, 12.0)}  # dB by which the voice is louder than the background
QUIET = 0.01  # the least loudness that a background is measured against
TAIL = 0.3  # seconds of the room's echoes


class Chain(NamedTuple):
    """One device's way of recording."""

    filter: Tensor  # spectrum of h, on as many frequencies as a transform of clip and tail has
    gain: float
    noise: float  # standard deviation
    limit: float


def chain(seed: int, device: int, samples: int, rate: int) -> Chain:
    """The chain of a device, for clips of so many samples."""
    draw = generator(seed, "audio: device", device)
    gain, noise, limit = decibels(draw.uniform(-9, 9)), decibels(draw.uniform(-60, -40)), draw.uniform(0.2, 1.0)
    length = samples + int(TAIL * rate)
    length += length % 2
    echo, wet = draw.uniform(0.1, 0.4), draw.uniform(0, 1)
    room = draw.standard_normal(length - samples) * 10 ** (-3 * np.arange(length - samples) / (echo * rate))
    room *= wet / np.sqrt(np.square(room).sum())
    room[0] = 1
    octaves = draw.uniform(-9, 9, 9)  # dB at 31.25, 62.5, ... 8,000 Hz
    pitch = np.log2(np.maximum(np.fft.rfftfreq(length, 1 / rate), 31.25) / 31.25)
    response = decibels(np.interp(pitch, np.arange(9), octaves))
    import torch

    return Chain(torch.from_numpy(np.fft.rfft(room, length) * response), gain, noise, limit)


def recorded(device: Chain, sounds: Tensor, noise: Tensor) -> Tensor:
    """y (n, samples) of sounds (n, samples), voice and background together, and standard normal noise, float64."""
    import torch

    length = 2 * (len(device.filter) - 1)
    heard = torch.fft.irfft(torch.fft.rfft(sounds, length) * device.filter, length)[:, : sounds.shape[1]]
    return (device.gain * heard + device.noise * noise).clamp(-device.limit, device.limit)


def with_background(voice: np.ndarray, state: str, draw: np.random.Generator, rate: int) -> np.ndarray:
    """x + b, float64."""
    if state == "normal":
        return voice.astype(np.float64)
    time = np.arange(len(voice)) / rate
    background = (music if state == "playback" else alarm)(draw, time, rate / 2)
    loudness = max(QUIET, float(np.sqrt(np.square(voice, dtype=np.float64).mean())))
    own = float(np.sqrt(np.square(background).mean()))
    return voice + background * (loudness / max(own, 1e-9) * decibels(-draw.uniform(*LEVEL[state])))


def music(draw: np.random.Generator, time: np.ndarray, highest: float) -> np.ndarray:
    """A chord of three notes with their overtones, in a beat."""
    root, third, beat = 110 * 2 ** draw.uniform(0, 2), draw.choice([3, 4]), draw.uniform(2, 4)
    tones = np.outer(root * 2 ** (np.array([0, third, 7]) / 12), np.arange(1, 5)).ravel()
    phases, start = draw.uniform(0, 2 * np.pi, len(tones)), draw.uniform(0, 2 * np.pi)
    loudness = np.tile(1 / np.arange(1, 5), 3) * (tones < highest)
    return (0.55 + 0.45 * np.sin(2 * np.pi * beat * time + start)) * (
        loudness @ np.sin(2 * np.pi * np.outer(tones, time) + phases[:, None])
    )


def alarm(draw: np.random.Generator, time: np.ndarray, highest: float) -> np.ndarray:
    """Two tones in turn, with pauses."""
    low = draw.uniform(0.15, 0.4) * highest
    turn = (draw.uniform(2, 5) * time + draw.uniform()) % 1
    return np.sin(2 * np.pi * np.where(turn < 0.5, low, 1.25 * low) * time) * (turn % 0.5 < 0.4)


def decibels(value: Any) -> Any:
    """The factor on an amplitude that so many decibels are."""
    return 10 ** (value / 20)
