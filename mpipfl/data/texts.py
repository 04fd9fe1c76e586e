"""A source for texts in folders: `<folder>/{train,test}/<label>/*.txt`, as questions of Stack Overflow by their tag."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from mpipfl.data.places import find
from mpipfl.data.samples import Samples
from mpipfl.data.words import Corpus, TextSource, words_of
from mpipfl.errors import DataError

LAYOUT = "<folder>/train/<label>/*.txt and, if there are any, <folder>/test/<label>/*.txt"


class Texts(TextSource):
    """Texts in folders by label, such as Stack Overflow's questions by tag."""

    kind: Literal["texts"] = "texts"
    folder: Path = Field(
        default=Path("stackoverflow"), description=f"Under data.root or the working directory: {LAYOUT}."
    )

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        folder = find("data.source.folder", self.folder, root, "train")
        parts = [part for part in ("train", "test") if (folder / part).is_dir()]
        labels = sorted({path.name for part in parts for path in (folder / part).iterdir() if path.is_dir()})
        files = [
            (path, part) for part in parts for label in labels for path in sorted((folder / part / label).glob("*.txt"))
        ]
        if len(labels) < 2 or not files:
            raise DataError(
                f"data.source.folder: {folder} has {len(files)} texts under {len(labels)} labels; two labels or more "
                f"are needed, laid out as {LAYOUT}."
            )
        number = {label: i for i, label in enumerate(labels)}
        is_test = np.array([part == "test" for _, part in files]) if len(parts) > 1 else None
        corpus = Corpus.of(words_of(read(path)) for path, _ in files)
        numbers = [number[path.parent.name] for path, _ in files]
        return self.samples(corpus, numbers, len(labels), root, seed, is_test=is_test)


def read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a text in UTF-8 ({error}); convert it or delete it.") from error
    if not text.strip():
        raise DataError(f"{path} is empty; delete it.")
    return text
