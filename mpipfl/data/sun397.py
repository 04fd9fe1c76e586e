"""SUN397: photographs of scenes, by three superclasses with many subclasses each.

Two archives of the data set's site belong in one folder, unpacked:

    SUN397/ClassName.txt                               the categories, one a line: /a/abbey
    SUN397/a/abbey/sun_*.jpg                           the photographs
    SUN397/hierarchy_three_levels/three_levels.xlsx    which categories are indoor, outdoor natural, outdoor man-made

The second is the site's hierarchy_three_levels.zip; its sheet SUN397 has a column for each superclass. Categories that
are in two superclasses are left out. The photographs that a run needs are decoded once, cropped to their middle square,
made small (a minute or two for 15,000), and kept as one .npy file beside the originals.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from mpipfl.data.kept import kept
from mpipfl.data.keyed import generator
from mpipfl.data.samples import ArraySamples, Samples
from mpipfl.data.spreadsheet import read_sheet
from mpipfl.errors import DataError
from mpipfl.section import Count, Number, Section

SUPERCLASSES = ("indoor", "outdoor, natural", "outdoor, man-made")
HIERARCHY = "hierarchy_three_levels/three_levels.xlsx"
SITE = "http://vision.princeton.edu/projects/2010/SUN"


class Sun397(Section):
    """SUN397: photographs of scenes in 3 superclasses, so many subclasses of each, 64x64.

    Which subclasses, and which of their images, follows from the seed; 80/20 is data.split with test: 0.2. The folder
    is data.root/SUN397 with ClassName.txt, the folders a to y, and hierarchy_three_levels/three_levels.xlsx.
    """

    kind: Literal["sun397"] = "sun397"
    subclasses: Count = Field(default=50, description="Subclasses of each superclass.")
    images: Count = Field(default=100, description="Images of each subclass; every one of the set's has 100 or more.")
    side: Annotated[int, Number] = Field(default=64, ge=8, le=512, description="Images are side x side.")

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        folder = root / "SUN397"
        draw = generator(seed, "sun397")
        files: list[Path] = []
        for superclass, categories in enumerate(read_hierarchy(folder)):
            if len(categories) < self.subclasses:
                raise DataError(
                    f"{folder}: '{SUPERCLASSES[superclass]}' has {len(categories)} categories of its own, "
                    f"{self.subclasses} were asked for; lower data.source.subclasses."
                )
            for place in draw.permutation(len(categories))[: self.subclasses]:
                files += self._chosen(folder, categories[place], draw)
        subclasses = np.repeat(np.arange(3 * self.subclasses), self.images)
        pictures = small(folder, files, self.side)
        return ArraySamples(
            labels=subclasses // self.subclasses, classes=3, shape=(3, self.side, self.side),
            dtype=pictures.dtype, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),  # customary, from ImageNet
            subclasses=subclasses, parts=[pictures.transpose(0, 3, 1, 2)],
        )  # fmt: skip

    def _chosen(self, folder: Path, category: str, draw: np.random.Generator) -> list[Path]:
        found = sorted((folder / category).glob("sun_*.jpg"))
        if len(found) < self.images:
            raise DataError(
                f"{folder / category} has {len(found)} images sun_*.jpg, {self.images} were asked for; unpack "
                f"SUN397.tar.gz again, or lower data.source.images."
            )
        return [found[place] for place in np.sort(draw.permutation(len(found))[: self.images])]


def read_hierarchy(folder: Path) -> list[list[str]]:
    """The categories of each superclass, as folders below `folder`, in alphabetical order."""
    names, table = folder / "ClassName.txt", folder / HIERARCHY
    for path, archive in ((names, "SUN397.tar.gz"), (table, "hierarchy_three_levels.zip")):
        if not path.is_file():
            raise DataError(
                f"SUN397 is not complete: there is no {path}. Fetch {SITE}/{archive} and unpack it there, or point "
                f"data.root (or MPIPFL_DATA) at a copy. data.source=glyphs needs no download."
            )
    try:
        known = {line.strip().strip("/") for line in names.read_text(encoding="utf-8").splitlines() if line.strip()}
        rows = [[cell.strip() for cell in row] for row in read_sheet(table, "SUN397")]
        head = next(row for row in rows if "category" in row)  # a line of titles may stand above it
        places = [head.index(name) for name in ("category", *SUPERCLASSES)]
        marks = [[row[place] for place in places] for row in rows[rows.index(head) + 1 :] if len(row) > max(places)]
        members = [(row[0].strip("'/ "), [float(mark or 0) == 1 for mark in row[1:]]) for row in marks if row[0]]
    except Exception as error:  # a foreign file can fail in any way
        raise DataError(
            f"{folder}: ClassName.txt or {HIERARCHY} cannot be read ({str(error) or 'no row of column names'}); "
            f"unpack the originals again."
        ) from error
    sole = [(name, own.index(True)) for name, own in members if sum(own) == 1 and name in known]
    return [sorted(name for name, own in sole if own == superclass) for superclass in range(3)]


def small(folder: Path, files: list[Path], side: int) -> np.ndarray:
    """(N, side, side, 3) uint8, decoded once and, where possible, kept beside the originals."""
    listing = "\n".join(str(file.relative_to(folder)) for file in files)
    path = folder / f"mpipfl_{side}_{hashlib.sha256(listing.encode()).hexdigest()[:16]}.npy"
    return kept(path, (len(files), side, side, 3), np.dtype(np.uint8), lambda: (decoded(f, side)[None] for f in files))


def decoded(file: Path, side: int) -> np.ndarray:
    """The middle square of a photograph, made small."""
    from PIL import Image

    try:
        with Image.open(file, formats=["JPEG"]) as image:
            image.draft("RGB", (2 * side, 2 * side))  # decodes a large photograph at a fraction of its size
            edge = min(image.size)
            left, top = (image.width - edge) // 2, (image.height - edge) // 2
            square = image.convert("RGB").crop((left, top, left + edge, top + edge))
            return np.asarray(square.resize((side, side), Image.Resampling.BICUBIC))
    except Exception as error:  # of many kinds when a file is damaged
        raise DataError(f"{file} cannot be read as a JPEG image ({error}); unpack SUN397.tar.gz again.") from error
