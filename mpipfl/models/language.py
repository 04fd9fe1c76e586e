"""The networks that read: words or characters as vectors, and what is made of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from torch import nn

from ..data.words import PADDING, Vocabulary
from ..section import Count, Section
from .networks import Reader
from .sequences import Ids


class Learned(Section):
    """Vectors that are learned with the network."""

    kind: Literal["learned"] = "learned"
    size: Count = Field(50, description="numbers in a vector")

    def fill(self, layer: Any, vocabulary: Vocabulary) -> Any:
        return layer


class Text(Reader):
    """The mean of a text's word vectors, and a dense layer."""

    kind: Literal["text"] = "text"
    embedding: Learned = Field(Learned(), description="the words' vectors")

    def build(self, vocabulary: Vocabulary, classes: int) -> nn.Module:
        words = nn.EmbeddingBag(vocabulary.size, self.embedding.size, mode="mean", padding_idx=PADDING)
        return nn.Sequential(Ids(), words, nn.Linear(self.embedding.size, classes))
