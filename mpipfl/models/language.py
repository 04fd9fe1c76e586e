"""The networks that read: words or characters as vectors, and what is made of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from ..data.words import PADDING, Vocabulary
from ..section import Count
from .networks import Reader
from .recurrent import LastState
from .sequences import Ids
from .vectors import Embedding, Learned


class Text(Reader):
    """The mean of a text's word vectors, and a dense layer."""

    kind: Literal["text"] = "text"
    embedding: Embedding = Field(Learned(), description="the words' vectors")

    def build(self, vocabulary: Vocabulary, classes: int) -> nn.Module:
        table, frozen = self.embedding.table(vocabulary), self.embedding.frozen
        words = nn.EmbeddingBag.from_pretrained(table, frozen, mode="mean", padding_idx=PADDING)
        return nn.Sequential(Ids(), words, nn.Linear(table.shape[1], classes))


class Recurrent(Reader):
    """What networks of LSTM cells have in common."""

    embedding: Embedding = Field(Learned(), description="the words' vectors")
    hidden: Count = Field(256, description="cells in a layer")
    layers: Count = Field(2, description="layers of cells")

    def build(self, vocabulary: Vocabulary, classes: int) -> nn.Module:
        table, frozen = self.embedding.table(vocabulary), self.embedding.frozen
        words = nn.Embedding.from_pretrained(table, frozen, padding_idx=PADDING)
        return nn.Sequential(Ids(), LastState(words, self.hidden, self.layers), nn.Linear(self.hidden, classes))


class LSTM(Recurrent):
    """Word vectors, layers of LSTM cells, and a dense layer on the state after the last word."""

    kind: Literal["lstm"] = "lstm"


class CharLSTM(Recurrent):
    """The next character from those before it: short learned vectors, LSTM cells, a dense layer."""

    kind: Literal["char_lstm"] = "char_lstm"
    embedding: Embedding = Field(Learned(size=8), description="the characters' vectors")
