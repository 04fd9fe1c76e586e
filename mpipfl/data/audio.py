"""A source for spoken words in wav files: a wake word against all others, heard through devices, as spectrograms.

A sample is one take of a clip: as it sounds in one of the states (`devices.py`), through the device of the client that
holds it. All takes of a clip go to the same client and part. Spectrograms are made when a client's samples are first
read, a few clips at a time, and kept in `cache`, a file for each client: a few bytes a sample stay in memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from mpipfl.data.devices import NAMES, STATES, Chain, State, chain, recorded, with_background
from mpipfl.data.kept import kept
from mpipfl.data.keyed import generator
from mpipfl.data.places import find
from mpipfl.data.samples import Samples
from mpipfl.data.shifts import blocks
from mpipfl.data.spectrograms import filters, frames, log_mel
from mpipfl.data.waves import read_wave
from mpipfl.errors import DataError
from mpipfl.section import Count, Number, Positive, Section

if TYPE_CHECKING:
    import torch

CHUNK = 64  # samples made at a time
SIGNAL = 1  # of what makes spectrograms of files: a higher number makes them anew that are kept
LISTS = ("validation_list.txt", "testing_list.txt")


class Audio(Section):
    """Spoken words in wav files, as log-mel spectrograms: a wake word against the others, through seeded devices."""

    kind: Literal["audio"] = "audio"
    folder: Path = Field(default=Path("speech_commands"), description="Under data.root or the working directory.")
    pattern: str = Field(
        default="<label>/<speaker>_nohash_<take>.wav",
        description="How files are named below the folder: <label>, <speaker>, <take>, * for anything; 16-bit PCM.",
    )
    wake: str | None = Field(default=None, description="The label that is class 1, all others are 0; else all classes.")
    devices: Annotated[int, Number] = Field(
        default=5, ge=0, le=len(NAMES), description="Device types, dealt to blocks of clients; 0: the clean sound."
    )
    states: tuple[State, ...] = Field(default=STATES, min_length=1, description="Each clip is heard in all of these,")
    repeats: Count = Field(default=1, description="and so many times in each, with other noise.")
    rate: Annotated[int, Number] = Field(default=16_000, ge=2000, description="Samples a second; files are resampled.")
    seconds: Positive = Field(default=1.0, le=60, description="Clips are cut or padded to this length.")
    window: Positive = Field(default=0.025, description="Seconds of a spectrogram's window,")
    hop: Positive = Field(default=0.01, description="and from one window to the next.")
    mels: Count = Field(default=40, description="Mel bands.")
    cache: Path = Field(default=Path("~/.cache/mpipfl/spectrograms"), description="Made anew when deleted.")

    @field_validator("pattern")
    @classmethod
    def _names(cls, value: str) -> str:
        names = re.findall(r"<(.*?)>", value)
        if names.count("label") != 1 or len(set(names)) < len(names) or not set(names) <= {"label", "speaker", "take"}:
            raise ValueError("has <label> once, and <speaker> and <take> once or not at all")
        return value

    @field_validator("wake", mode="before")
    @classmethod
    def _a_digit(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("states")
    @classmethod
    def _once(cls, value: tuple[State, ...]) -> tuple[State, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a state twice; repeats=2 hears clips twice")
        return value

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        folder = find("data.source.folder", self.folder, root, ".")
        if self.devices > clients:
            raise DataError(
                f"data.source.devices is {self.devices}, but there are only {clients} clients; a client has one device."
            )
        files, labels, speakers = self._listed(folder)
        takes = len(self.states) * self.repeats
        names = sorted(set(labels))
        if len(names) < 2 or (self.wake is not None and self.wake not in names):
            wanted = "two labels or more are" if len(names) < 2 else f"{self.wake!r}, data.source.wake, is"
            some = ", ".join(names[:10]) + (f" ... ({len(names):,} labels)" if len(names) > 10 else "")
            raise DataError(f"{folder} has clips of {some}; {wanted} needed.")
        number = np.array([name == self.wake for name in labels] if self.wake else [names.index(n) for n in labels])
        _, window, hop = self._lengths()
        if hop < 1 or window < 2:
            key, value, least = ("hop", self.hop, 1) if hop < 1 else ("window", self.window, 2)
            raise DataError(f"data.source.{key}={value:g} s is less than {least} of {self.rate:,} samples a second.")
        shape = (1, self.mels, frames(*self._lengths()))
        if shape[2] < 1:
            raise DataError(f"data.source: a clip of {self.seconds:g} s is shorter than a window of {self.window:g} s.")
        filters(self.rate, self._lengths()[1], self.mels)  # complains now, not in the middle of the work
        return AudioSamples(
            labels=np.repeat(number.astype(np.int64), takes),
            classes=2 if self.wake else len(names),
            shape=shape,
            dtype=np.dtype(np.float32),
            users=None if speakers is None else np.repeat(np.unique(speakers, return_inverse=True)[1], takes),
            division=None if (parts := published(folder, files)) is None else np.repeat(parts, takes),
            takes=takes,
            states=np.tile(np.repeat(np.arange(len(self.states)), self.repeats), len(files)) if self.wake else None,
            groups=blocks(clients, self.devices) if self.devices else None,
            section=self, folder=folder, files=files, seed=seed,
        )  # fmt: skip

    def _lengths(self) -> tuple[int, int, int]:
        """A clip, a window and a hop in samples."""
        return tuple(round(seconds * self.rate) for seconds in (self.seconds, self.window, self.hop))  # type: ignore[return-value]

    def _listed(self, folder: Path) -> tuple[list[str], list[str], list[str] | None]:
        """The files that are named by the pattern, their labels and, where it has them, their speakers."""
        known = {"*": "[^/]*", "<label>": r"(?P<label>[^/_][^/]*?)"}
        known |= {f"<{name}>": f"(?P<{name}>[^/]+?)" for name in ("speaker", "take")}
        pieces = re.split(r"(\*|<\w+>)", self.pattern)
        pattern = re.compile("".join(known.get(piece, re.escape(piece)) for piece in pieces), re.IGNORECASE)
        waves = (path for path in folder.rglob("*") if path.suffix.lower() == ".wav")
        every = sorted(path.relative_to(folder).as_posix() for path in waves)
        found = [match for file in every if (match := pattern.fullmatch(file))]
        if not found:
            there = f"for instance {every[0]}" if every else "and no other wav files"
            raise DataError(f"{folder} has no files named {self.pattern}, {there}; set data.source.pattern or folder.")
        speakers = [match["speaker"] for match in found] if "<speaker>" in self.pattern else None
        return [match[0] for match in found], [match["label"] for match in found], speakers


class AudioSamples(Samples):
    """Spectrograms that are made when they are first read."""

    def __init__(self, section: Audio, folder: Path, files: list[str], seed: int, **fields: object) -> None:
        super().__init__(**fields)  # type: ignore[arg-type]
        self.section, self.folder, self.files, self.seed = section, folder, files, seed

    def read(self, indices: np.ndarray, client: int) -> np.ndarray:
        device = None if self.groups is None else int(self.groups[client])
        path = self.section.cache.expanduser() / f"{self._key(indices, device)}.npy"
        return kept(path, (len(indices), *self.shape), self.dtype, lambda: self._made(indices, device))

    def _key(self, indices: np.ndarray, device: int | None) -> str:
        """What a client's spectrograms depend on, as a name: settings, seed and device, which samples, of which
        files."""
        settings = self.section.model_dump(mode="json", exclude={"cache", "folder", "devices", "wake"})
        total = hashlib.sha256(json.dumps([SIGNAL, settings, self.seed, device]).encode())
        total.update(np.ascontiguousarray(indices, "<i8").tobytes())
        for clip in np.unique(indices // self.takes):
            path = self.folder / self.files[clip]
            try:
                about = path.stat()
            except OSError as error:
                raise DataError(f"{path} cannot be read ({error.strerror}).") from None
            total.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
        return total.hexdigest()[:32]

    def _made(self, indices: np.ndarray, device: int | None) -> Iterator[np.ndarray]:
        rate, (samples, window, hop) = self.section.rate, self.section._lengths()
        through = None if device is None else chain(self.seed, device, samples, rate)
        for start in range(0, len(indices), CHUNK):
            sounds = self._heard(indices[start : start + CHUNK], through)
            yield log_mel(sounds, rate, window, hop, self.section.mels)[:, None].float().numpy()

    def _heard(self, indices: np.ndarray, through: Chain | None) -> torch.Tensor:
        """What the device hands on: (n, samples), float64."""
        rate, (samples, *_) = self.section.rate, self.section._lengths()
        clips, place = np.unique(indices // self.takes, return_inverse=True)
        voices = [read_wave(self.folder / self.files[clip], rate, samples) for clip in clips]
        sounds, noise = np.empty((2, len(indices), samples))
        for row, index in enumerate(indices):
            draw = generator(self.seed, "audio: take", int(index))
            state = self.section.states[index % self.takes // self.section.repeats]
            sounds[row] = with_background(voices[place[row]], state, draw, rate)
            noise[row] = draw.standard_normal(samples)
        import torch

        clean = torch.from_numpy(sounds)
        return clean if through is None else recorded(through, clean, torch.from_numpy(noise))


def published(folder: Path, files: list[str]) -> np.ndarray | None:
    """Each file's part by the lists that lie in the folder, of whose speakers none is in two parts; else None."""
    if not all((folder / name).is_file() for name in LISTS):
        return None
    parts = np.zeros(len(files), np.int64)
    place = {file: i for i, file in enumerate(files)}
    for number, name in enumerate(LISTS, 1):
        lines = (folder / name).read_text(encoding="utf-8", errors="replace").split()
        parts[[place[line] for line in lines if line in place]] = number
    return parts
