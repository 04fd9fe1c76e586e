"""Words as vectors: learned with the network, or taken from a file of pre-trained ones in GloVe's format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from zlib import crc32

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from ..data.keyed import generator
from ..data.places import find
from ..data.words import FIRST, PADDING, Vocabulary
from ..errors import DataError
from ..section import Count, Section


class Learned(Section):
    """Vectors that are learned with the network"""

    kind: Literal["learned"] = "learned"
    size: Count = Field(50, description="numbers in a vector")

    @property
    def frozen(self) -> bool:
        return False

    def table(self, vocabulary: Vocabulary) -> Tensor:
        """(ids, size), zero for padding"""
        table = torch.randn(vocabulary.size, self.size)
        table[PADDING] = 0
        return table


class Glove(Section):
    """Vectors from a text file, a word and its numbers a line; words that are not there get seeded random ones"""

    kind: Literal["glove"] = "glove"
    path: Path = Field(
        Path("glove/glove.6B.50d.txt"), description="the file, relative to data.root or the working directory"
    )
    frozen: bool = Field(True, description="the vectors stay as they are, and do not travel")

    def table(self, vocabulary: Vocabulary) -> Tensor:
        """(ids, size), zero for padding"""
        try:
            path = find("model.embedding.path", self.path, vocabulary.root)
        except DataError as error:
            raise DataError(f"{error} Or learn the vectors: model.embedding={{kind: learned, size: 50}}.") from None
        return torch.from_numpy(read(path, vocabulary)).clone()


def _kind(value: Any) -> Any:
    """A bare word is a kind, and without one the vectors are learned."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": "learned"} | value if isinstance(value, dict) else value


Embedding = Annotated[Annotated[Learned | Glove, Field(discriminator="kind")], BeforeValidator(_kind)]


@lru_cache(maxsize=1)
def read(path: Path, vocabulary: Vocabulary) -> np.ndarray:
    """The vocabulary's vectors (ids, size), read in one pass that keeps no others. A word that is not in the file, and
    the unknown word, get normal numbers as large as the file's, by the seed and the word alone."""
    number = {word: FIRST + place for place, word in enumerate(vocabulary.words)}
    table: np.ndarray | None = None
    found = np.zeros(vocabulary.size, bool)
    for line, size, word, numbers in lines(path):
        table = np.zeros((vocabulary.size, size), np.float32) if table is None else table
        if (row := number.get(word)) is None or found[row]:
            continue
        try:
            table[row] = [float(text) for text in numbers]
        except ValueError:
            table[row] = np.nan
        if not np.isfinite(table[row]).all():
            raise DataError(f"{path}, line {line}: the vector of {word!r} has something else than finite numbers.")
        found[row] = True
    if table is None or not found.any():
        raise DataError(f"{path} has a vector for none of the {len(number)} words; is it the right file?")
    scale = table[found].std()
    for word, row in {"<unknown>": FIRST - 1, **number}.items():
        if not found[row]:
            table[row] = scale * generator(vocabulary.seed, "word vector", crc32(word.encode())).standard_normal(
                table.shape[1]
            )
    return table


def lines(path: Path) -> Iterator[tuple[int, int, str, list[str]]]:
    """Line number, size of a vector, word and its numbers as texts; a word2vec header (count and size) is passed over.
    A few of GloVe's words hold blanks."""
    size = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line, text in enumerate(file, 1):
            fields = text.rstrip().split(" ")
            if line == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue
            size = size or len(fields) - 1
            if size < 2 or len(fields) <= size:
                raise DataError(
                    f"{path}, line {line}: {len(fields)} fields; expected a word and {size or 'its'} numbers, "
                    f"separated by blanks, as in glove.6B.50d.txt."
                )
            yield line, size, " ".join(fields[:-size]), fields[-size:]
