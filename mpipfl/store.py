"""The clients' samples as the network takes them: all from the start, or a client's made when it is at work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .data.partition import PARTS

Make = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # clients -> their samples and labels, one after the other


@dataclass(frozen=True, eq=False)
class Store:
    """Samples in client order, of each client train then validation then test. With `make`, those of some clients only:
    the others' take no memory until they are asked for."""

    x: Tensor  # (T, *shape), fewer where `place` says that clients share them
    y: Tensor  # (T)
    bounds: np.ndarray  # (M, 4): of all samples there are, start, end of train, end of validation, end
    group: np.ndarray  # (M): the true group of the data's shift
    place: Tensor | None = None  # (T): where in x each sample is, where that is not in order
    make: Make | None = None
    clients: np.ndarray | None = None  # whose samples are here (sorted); None for all
    whole: Store | None = None  # what this is a part of
    said: Tensor | None = None  # (T, classes): what a network says of each sample, where that is known

    def of(self, clients: np.ndarray) -> Store:
        """A store that has the samples of these clients."""
        here = np.unique(clients)
        if self.make is None or (self.clients is not None and np.isin(here, self.clients).all()):
            return self
        x, y = (torch.from_numpy(values).to(self.x.device) for values in self.make(here))
        return replace(self, x=x, y=y, clients=here, whole=self.whole or self)

    def seen(self, clients: np.ndarray, x: Tensor) -> Store:
        """These clients (sorted) with other samples for training, one for each they have, and none besides."""
        bounds = np.concatenate([self.bounds[:, :2], self.bounds[:, [1, 1]]], 1)
        y = self.y[self._training(clients)]
        return replace(self, x=x, y=y, bounds=bounds, clients=clients, place=None, make=None, whole=self.whole or self)

    def heard(self, clients: np.ndarray, said: Tensor) -> Store:
        """The same samples, with what is said of those clients' (sorted) training samples, one after the other."""
        whole = said.new_zeros(len(self.y), *said.shape[1:])
        whole[self._training(clients)] = said
        return replace(self, said=whole)

    def _training(self, clients: np.ndarray) -> Tensor:
        """Where the clients' training samples are."""
        start, samples = self.part("train", clients)
        ends = np.cumsum(samples)
        own = np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - (ends - samples), samples)
        return torch.from_numpy(own).to(self.y.device)

    def inputs(self, where: Tensor) -> Tensor:
        return self.x.index_select(0, where if self.place is None else self.place[where])

    def part(self, name: str, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the clients' part starts and how long it is."""
        column = PARTS.index(name)
        start, end = self.bounds[clients, column], self.bounds[clients, column + 1]
        return start - self._ahead(clients), end - start

    def _ahead(self, clients: np.ndarray) -> np.ndarray | int:
        """How many samples in front of each client's are not here."""
        if self.clients is None:
            return 0
        first, end = self.bounds[self.clients, 0], self.bounds[self.clients, 3]
        begin = np.cumsum(end - first) - (end - first)
        return (first - begin)[np.searchsorted(self.clients, clients)]

    def longest(self, name: str) -> int:
        """The most samples that any client has in a part, be they here or not."""
        return (self.whole or self)._longest[PARTS.index(name)]

    @cached_property
    def _longest(self) -> list[int]:
        return [int((self.bounds[:, i + 1] - self.bounds[:, i]).max()) for i in range(len(PARTS))]
