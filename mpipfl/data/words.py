"""From texts to samples of a fixed number of token ids: cleaning, words, and a vocabulary made of training texts only.

Ids are 0 for padding, 1 for a word outside the vocabulary, then the words from the most frequent one on. A source reads
its texts before it is known which of them are for training; `TextSamples.fitted` makes the vocabulary once the clients'
division is settled, from the training texts of all clients, so validation and test texts never have a say in it.

The engine keeps samples as float32, which has every integer up to 2^24: ids travel as such numbers, exactly, and the
embedding makes integers of them again.
"""

from __future__ import annotations

import html
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from mpipfl.data.samples import ArraySamples, Samples
from mpipfl.errors import DataError
from mpipfl.section import Count, Section

PADDING, UNKNOWN, FIRST = 0, 1, 2
MOST = 2**24 - FIRST  # words whose ids float32 holds

MARKUP = re.compile(r"<!--.*?-->|</?[a-zA-Z!][^<>]*>", re.S)
CONTRACTED = r"n't|'(?:s|re|ve|ll|m|d)"  # words of their own in the Penn Treebank, and so in GloVe's files
APART = re.compile(rf"(?<=[^\W_])({CONTRACTED})(?![^\W_])")
WORD = re.compile(rf"(?<!\S)(?:{CONTRACTED})(?!\S)|[^\W_]+(?:'[^\W_]+)*")


def words_of(text: str) -> list[str]:
    """Lower-case words; markup and punctuation are removed, entities (&lt;) are resolved. "Don't" is do and n't, "it's"
    is it and 's; other apostrophes join (oclock)."""
    text = html.unescape(MARKUP.sub(" ", text)).lower().replace("’", "'")
    words = WORD.findall(APART.sub(r" \1 ", text))
    return [word if word.startswith(("'", "n't")) else word.replace("'", "") for word in words]


class Vocabulary(NamedTuple):
    """What token ids stand for, and what a network needs to find or draw the words' vectors."""

    words: tuple[str, ...]  # id - 2 is the place in here
    root: Path = Path()  # where files are looked for
    seed: int = 0

    @property
    def size(self) -> int:
        """How many ids there are."""
        return FIRST + len(self.words)


class Corpus(NamedTuple):
    """Texts as one array of word numbers."""

    words: list[str]  # every word that occurs
    numbers: np.ndarray  # (all words of all texts) int32: places in `words`
    lengths: np.ndarray  # (N) int64: words of each text

    @classmethod
    def of(cls, texts: Iterable[Iterable[str]]) -> Corpus:
        """Read the texts' words one after the other."""
        number: dict[str, int] = {}
        numbers, lengths = array("i"), array("q")
        for text in texts:
            before = len(numbers)
            numbers.extend([number.setdefault(word, len(number)) for word in text])
            lengths.append(len(numbers) - before)
        return cls(list(number), np.array(numbers, np.int32), np.array(lengths, np.int64))

    def frequent(self, texts: np.ndarray, most: int) -> list[int]:
        """The numbers of the most frequent words of some texts, those that are equally frequent by the alphabet."""
        chosen = np.zeros(len(self.lengths), bool)
        chosen[texts] = True
        counts = np.bincount(self.numbers[np.repeat(chosen, self.lengths)], minlength=len(self.words))
        found = np.flatnonzero(counts).tolist()
        return sorted(found, key=lambda number: (-counts[number], self.words[number]))[:most]

    def encoded(self, frequent: list[int], length: int) -> np.ndarray:
        """(N, length) int32: the ids of each text's first words, filled up with padding."""
        ids = np.full(len(self.words), UNKNOWN, np.int32)
        ids[frequent] = FIRST + np.arange(len(frequent))
        out = np.full((len(self.lengths), length), PADDING, np.int32)
        out[self.lengths == 0, 0] = UNKNOWN  # a text without words says at least that
        text = np.repeat(np.arange(len(self.lengths)), self.lengths)
        place = np.arange(len(self.numbers)) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        kept = place < length
        out[text[kept], place[kept]] = ids[self.numbers[kept]]
        return out


@dataclass(eq=False, kw_only=True)
class TextSamples(Samples):
    """Texts before their vocabulary is made."""

    corpus: Corpus
    most: int  # words in the vocabulary
    root: Path
    seed: int

    def fitted(self, train: np.ndarray) -> Samples:
        frequent = self.corpus.frequent(train, self.most)
        if not frequent:
            raise DataError("data.source: the training texts hold no words at all; is this the right data?")
        vocabulary = Vocabulary(tuple(self.corpus.words[number] for number in frequent), self.root, self.seed)
        return ArraySamples(
            labels=self.labels, classes=self.classes, shape=self.shape, dtype=self.dtype, users=self.users,
            is_test=self.is_test, place=self.place, reach=self.reach, vocabulary=vocabulary,
            parts=[self.corpus.encoded(frequent, self.shape[0])],
        )  # fmt: skip


class TextSource(Section):
    """What all sources of texts have in common."""

    vocabulary: Annotated[Count, Field(le=MOST)] = Field(
        default=10_000, description="So many words, the most frequent of all clients' training texts."
    )
    length: Count = Field(default=250, description="Words kept of each text; shorter ones are filled up.")

    def samples(self, corpus: Corpus, labels: Any, classes: int, root: Path, seed: int, **more: Any) -> TextSamples:
        """Samples of a corpus; `more` are fields of Samples."""
        return TextSamples(
            labels=np.asarray(labels, np.int64), classes=classes, shape=(self.length,), dtype=np.dtype(np.int32),
            corpus=corpus, most=self.vocabulary, root=root, seed=seed, **more,
        )  # fmt: skip
