"""A source that needs no download: characters drawn from the fonts that ship with matplotlib.

Each client is a writer with a hand of its own (font, slant, pen, size, place, dirt), and each sample differs a little
from the next. An image depends on (seed, index, client) alone, so it is the same in whatever batch, rank or order it
is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from mpipfl.data.fonts import CONTOUR, SCALE, SIDE, fonts, stencils
from mpipfl.data.keyed import generator
from mpipfl.data.samples import Samples
from mpipfl.section import NonNegative, Number, Section

CHUNK = 256  # images drawn at a time: the intermediate arrays stay in cache
PER_CLIENT = 500
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Sines come from a table, so that no vectorised library function can round differently at an array's end.
SINE = np.sin(np.arange(256) * (2 * np.pi / 256)).astype(np.float32)


class Glyphs(Section):
    """62 characters drawn from fonts that ship with a dependency; needs no download."""

    kind: Literal["glyphs"] = "glyphs"
    classes: Annotated[int, Number] = Field(default=62, ge=1, le=62, description="The first so many of 0-9, A-Z, a-z.")
    noise: NonNegative = Field(default=1.0, le=4, description="Dirt on the images; 0 is none.")
    distortion: NonNegative = Field(
        default=1.0, le=4, description="How much samples of one writer differ; 0 is not at all."
    )
    variety: NonNegative = Field(
        default=1.0, le=4, description="How much the writers' hands differ; 0 leaves only the fonts."
    )

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        count = samples or PER_CLIENT * clients
        labels = generator(seed, "glyphs: labels").permutation(np.arange(count) % self.classes)
        return GlyphSamples(
            labels=labels.astype(np.int64),
            classes=self.classes,
            shape=(1, SIDE, SIDE),
            dtype=np.dtype(np.uint8),
            mean=0.16,
            std=0.26,
            users=np.arange(count, dtype=np.int64) % clients,
            section=self,
            seed=seed,
        )


class Hand(NamedTuple):
    """One client's way of writing, as a map from image to stencil coordinates and a pen."""

    font: Path
    slant: float
    turn: float
    width: float
    height: float
    right: float
    down: float
    ink: np.ndarray  # (256,) float32: a stencil's value -> grey
    noise: float


def hand(section: Glyphs, seed: int, client: int) -> Hand:
    """The writer that this client is."""
    draw = generator(seed, "glyphs: writer", client)
    font = fonts()[int(draw.integers(len(fonts())))]
    slant, turn, width, height, right, down, pen = section.variety * draw.uniform(-1, 1, 7)
    noise = section.noise * draw.uniform(0.5, 1.5)
    # A low threshold on the blurred stencil draws a thick line, a high one a thin line.
    threshold = CONTOUR * (1 - 0.3 * float(np.clip(pen, -2, 2)))
    ink = np.clip((np.arange(256) - threshold) * 4 + 128, 0, 255).astype(np.float32)
    width, height = np.exp(0.15 * width), np.exp(0.15 * height)
    return Hand(font, 0.25 * slant, 0.12 * turn, width, height, 1.5 * right, 1.5 * down, ink, 30 * noise)


class GlyphSamples(Samples):
    """Images that are drawn when they are read."""

    def __init__(self, section: Glyphs, seed: int, **fields: object) -> None:
        super().__init__(**fields)  # type: ignore[arg-type]
        self.section, self.seed = section, seed

    def read(self, indices: np.ndarray, client: int) -> np.ndarray:
        out = np.empty((len(indices), *self.shape), np.uint8)
        writer = hand(self.section, self.seed, client)
        stencil = stencils(writer.font)
        key = generator(self.seed, "glyphs: samples").integers(2**64, dtype=np.uint64)
        for start in range(0, len(indices), CHUNK):
            chunk = np.asarray(indices[start : start + CHUNK], np.int64)
            keys = mixed(key + chunk.astype(np.uint64) * GOLDEN)
            out[start : start + CHUNK, 0] = drawn(writer, stencil[self.labels[chunk]], keys, self.section.distortion)
        return out


def drawn(writer: Hand, stencil: np.ndarray, keys: np.ndarray, distortion: float) -> np.ndarray:
    """One image (n, 28, 28) per stencil (n, 84, 84) and key (n,).

    The image's pixel p shows the stencil at A (p - offset) + waves(p): writer and sample each add to A and offset, and
    the waves bend lines gently.
    """
    words = hashed(keys, 11)
    jitter = (words[:, :8] >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - 1  # in [-1, 1)
    jitter *= np.float32(distortion)
    slant, turn, width, height, right, down, bend_x, bend_y = jitter.T[:, :, None]
    grid = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    x, y = grid - (writer.right + 1.25 * right), grid - (writer.down + 1.25 * down)  # (n, 28) each
    turn = writer.turn + 0.1 * turn
    waves = SINE[((words[:, 8:10, None] >> np.uint64(56)) + WAVE) & np.uint64(255)]  # (n, 2, 28)
    across = SCALE * ((writer.slant + 0.13 * slant + turn) * y + 0.8 * bend_x * waves[:, 0])
    along = SCALE * (-turn * x + 0.8 * bend_y * waves[:, 1])
    x, y = x * (SCALE * (writer.width + 0.1 * width)), y * (SCALE * (writer.height + 0.1 * height))

    edge = stencil.shape[-1]
    column = np.clip(x[:, None, :] + across[:, :, None] + edge // 2, 0, edge - 1).astype(np.int32)
    row = np.clip(y[:, :, None] + along[:, None, :] + edge // 2, 0, edge - 1).astype(np.int32)
    row *= edge
    row += column
    row += (np.arange(len(keys), dtype=np.int32) * edge * edge)[:, None, None]
    image = writer.ink[stencil.reshape(-1)[row]]
    image *= (0.75 + 0.25 * (words[:, 10] >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))[:, None, None]

    dirt = hashed(keys ^ GOLDEN, SIDE * SIDE // 8).astype("<u8", copy=False).view(np.int8)  # eight pixels a word
    image += dirt.reshape(image.shape) * np.float32(writer.noise / 64)
    return np.clip(image, 0, 255, out=image).astype(np.uint8)


def mixed(words: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64: a random-looking word for each word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def hashed(keys: np.ndarray, count: int) -> np.ndarray:
    """`count` random words for each key: (n, count), a function of the key alone."""
    return mixed(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


WAVE = (np.arange(SIDE) * 256 // SIDE).astype(np.uint64)  # one period over the image
