"""From users' records, as federated sets come in, to samples with natural users: images, texts, next characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from mpipfl.data.samples import Samples, checked_labels, checked_samples, classes_of, from_parts
from mpipfl.data.words import Corpus, TextSource, words_of
from mpipfl.errors import DataError
from mpipfl.section import Count


class Record(NamedTuple):
    """One user's samples in one file."""

    user: str
    x: Any  # images, texts or windows of characters; with y None, running text
    y: Any  # labels or next characters
    test: bool
    where: str  # file and user, for messages


class ByUser(TextSource):
    """What all sources of users' records have in common."""

    content: Literal["images", "text", "characters"] = Field(
        default="images",
        description="images; texts with a label; or characters, whose label is the one that comes next.",
    )
    length: Count = Field(default=80, description="Words or characters kept of each sample; texts and characters only.")
    every: Count = Field(default=10, description="Running text: a sample begins at every so-many-th character.")

    def gathered(self, records: Iterable[Record], root: Path, seed: int) -> Samples:
        """The samples of all records, users numbered in the order of their names."""
        users: list[str] = []
        test: list[bool] = []
        labels: list[Any] = []
        images: list[np.ndarray] = []
        steps: list[int] = []

        def texts() -> Iterator[Iterable[str]]:
            for record in records:
                x, y, own = self._checked(record)
                steps.extend(own)
                users.extend([record.user] * len(y))
                test.extend([record.test] * len(y))
                labels.extend(y)
                if self.content == "images":
                    images.append(pictures(x, record.where))
                else:
                    yield from x if self.content == "characters" else map(words_of, x)

        corpus = Corpus.of(texts())
        if not labels:
            raise DataError("data.source: there are no samples; texts may be shorter than data.source.length.")
        number, classes = numbered(labels)
        who = np.unique(users, return_inverse=True)[1].astype(np.int64)
        is_test = np.array(test) if any(test) else None
        if self.content == "characters":
            where = {"place": np.cumsum(steps), "reach": self.length + 1}
            return self.samples(corpus, number, classes, root, seed, users=who, is_test=is_test, **where)
        if self.content == "text":
            return self.samples(corpus, number, classes, root, seed, users=who, is_test=is_test)
        if len({image.shape[1:] for image in images}) > 1:
            raise DataError(f"data.source: images of several sizes, {sorted({image.shape[1:] for image in images})}.")
        made = from_parts([np.concatenate(images)], [number], classes, users=who)
        made.is_test = is_test
        return made

    def _checked(self, record: Record) -> tuple[Any, list[Any], list[int]]:
        """A record's samples and labels, and of characters how far behind the one before each begins; running text is
        cut into windows."""
        x = record.x
        if self.content != "images" and not all(isinstance(text, str) for text in x):
            raise DataError(f"{record.where}: x must be texts for content={self.content}.")
        if record.y is None:
            each = [windows(text, self.length, self.every) for text in x]
            pairs = [pair for own in each for pair in own]
            steps = [self.every if i else self.length + 1 for own in each for i in range(len(own))]
            return [window for window, _ in pairs], [character for _, character in pairs], steps
        if len(x) != len(record.y):
            raise DataError(f"{record.where}: {len(x)} samples and {len(record.y)} labels; the numbers must be equal.")
        return x, list(record.y), apart(x, self.length + 1) if self.content == "characters" else []


def windows(text: str, length: int, every: int) -> list[tuple[str, str]]:
    """So many characters and the one that follows."""
    return [(text[start : start + length], text[start + length]) for start in range(0, len(text) - length, every)]


def apart(texts: Sequence[str], whole: int) -> list[int]:
    """How far each window of what may be one running text begins behind the one before it: where the two agree by half
    at least, so far as they say, else by a whole window."""
    steps = [whole]
    for before, after in pairwise(texts):
        shifts = range(1, len(before) // 2 + 1)
        steps.append(next((s for s in shifts if before[s:] == after[: len(before) - s]), whole))
    return steps[: len(texts)]


def pictures(x: Any, where: str) -> np.ndarray:
    """Images with channels first; flat ones of a square number of pixels are squares."""
    try:
        images = np.asarray(x, np.uint8 if np.asarray(x).dtype == np.uint8 else np.float32)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: x is no array of numbers ({error}).") from None
    if images.ndim == 2 and (side := round(images.shape[1] ** 0.5)) ** 2 == images.shape[1] and side > 1:
        images = images.reshape(-1, side, side)
    return checked_samples(images, f"{where}: x")


def numbered(labels: list[Any]) -> tuple[np.ndarray, int]:
    """Labels as numbers, and how many classes there are: integers as they are, names in their order."""
    if all(isinstance(label, str) for label in labels):
        names, number = np.unique(labels, return_inverse=True)
        return number.astype(np.int64), len(names)
    try:
        number = checked_labels(np.asarray(labels), len(labels), "data.source: labels")
    except ValueError as error:
        raise DataError(f"data.source: labels are neither all names nor all integers ({error}).") from None
    return number, classes_of(number, "data.source")
