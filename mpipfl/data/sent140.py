"""The source for Sentiment140: tweets with the feeling their emoticon showed, by user, in the original CSV layout."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from mpipfl.data.places import find
from mpipfl.data.samples import Samples
from mpipfl.data.words import Corpus, TextSource, words_of
from mpipfl.errors import DataError
from mpipfl.section import Count

COLUMNS = ("label", "id", "date", "query", "user", "text")
FEELING = {"0": 0, "4": 1}
NAMES = re.compile(r"https?://\S+|www\.\S+|@\w+")  # addresses and whom a tweet is for say nothing about feelings


class Sent140(TextSource):
    """Sentiment140: tweets that are sad (0) or glad (1), with their users."""

    kind: Literal["sent140"] = "sent140"
    path: Path = Field(
        default=Path("sent140/training.1600000.processed.noemoticon.csv"),
        description="The CSV file, relative to data.root or the working directory, in UTF-8 or latin-1: "
        f"{', '.join(COLUMNS)}.",
    )
    length: Count = Field(default=25, description="Words kept of each tweet; shorter ones are filled up.")

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        path = find("data.source.path", self.path, root)
        labels: list[int] = []
        users: list[str] = []

        def tweets() -> Iterator[list[str]]:
            for label, user, text in rows(path):
                labels.append(label)
                users.append(user)
                yield words_of(NAMES.sub(" ", text))

        corpus = Corpus.of(tweets())
        return self.samples(corpus, labels, 2, root, seed, users=np.unique(users, return_inverse=True)[1])


def rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Label, user and text of each line."""
    count = 0
    with path.open("rb") as file:
        lines = csv.reader(decoded(line) for line in file)
        try:
            for row in lines:
                count += 1
                if len(row) != len(COLUMNS) or row[0] not in FEELING:
                    found = f"{len(row)} columns" if len(row) != len(COLUMNS) else f"label {row[0][:20]!r}"
                    raise DataError(
                        f"{path}, line {lines.line_num}: {found}; expected {', '.join(COLUMNS)} with label 0 or 4."
                    )
                yield FEELING[row[0]], row[4], row[5]
        except csv.Error as error:
            raise DataError(f"{path}, line {lines.line_num}: not a line of CSV ({error}).") from error
    if not count:
        raise DataError(f"{path} is empty.")


def decoded(line: bytes) -> str:
    """The original is latin-1, samples of it that others have made are UTF-8, which says so itself."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")
