"""Letters and digits as stencils, drawn once per font with Pillow from the font files inside matplotlib.

A stencil is a character drawn large and blurred. Cutting it at a high or a low level then gives a thin or a thick line,
so one stencil serves every pen.
"""

from __future__ import annotations

import importlib.util
import string
from functools import lru_cache
from pathlib import Path

import numpy as np

from mpipfl.errors import DataError

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
SIDE = 28  # an image's side in pixels
SCALE = 3  # stencil pixels per image pixel
CONTOUR = 105  # the stencil's value where the font's own contour lies, about
CAPITAL = 16 * SCALE  # height of a capital letter in the stencil
WITHOUT_LETTERS = (
    "cmsy",
    "cmex",
    "cmmi",
    "STIXNonUni",
    "STIXSiz",
    "LastResort",
    "DejaVuSansDisplay",
    "DejaVuSerifDisplay",
)


@lru_cache
def fonts() -> tuple[Path, ...]:
    """The fonts that have letters and digits, by name."""
    found = importlib.util.find_spec("matplotlib")  # does not import it
    places = list(found.submodule_search_locations or []) if found else []
    paths = [path for place in places for path in Path(place, "mpl-data/fonts/ttf").glob("*.ttf")]
    chosen = sorted((path for path in paths if not path.name.startswith(WITHOUT_LETTERS)), key=lambda path: path.name)
    if not chosen:
        raise DataError("data.source=glyphs draws from matplotlib's fonts, which are not here: pip install matplotlib.")
    return tuple(chosen)


@lru_cache(maxsize=64)
def stencils(font: Path) -> np.ndarray:
    """(62, 84, 84) uint8: every character on a common base line, in the middle from left to right."""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    edge = SIDE * SCALE
    _, top, _, bottom = ImageFont.truetype(str(font), 100).getbbox("H")
    letters = ImageFont.truetype(str(font), round(100 * CAPITAL / (bottom - top)))
    out = np.zeros((len(CHARACTERS), edge, edge), np.uint8)
    for number, character in enumerate(CHARACTERS):
        picture = Image.new("L", (edge, edge))
        left, _, right, _ = letters.getbbox(character, anchor="ls")
        place = ((edge - left - right) / 2, (edge + CAPITAL) / 2 - SCALE)  # a little up: some letters go below the line
        ImageDraw.Draw(picture).text(place, character, fill=255, font=letters, anchor="ls")
        blurred = np.asarray(picture.filter(ImageFilter.GaussianBlur(SCALE * 0.6)))
        out[number, 1:-1, 1:-1] = blurred[1:-1, 1:-1]  # an empty border, for what lies outside
    return out
