"""Where samples come from: the public image sets, most through torchvision, texts, sounds, arrays, drawn characters.

A source is its section of the configuration; `open` finds, if need be downloads, and reads it. A set that can be had
in no way is reported with the places searched and the command that fetches it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from mpipfl.data.arrays import Arrays
from mpipfl.data.audio import Audio
from mpipfl.data.download import fetch
from mpipfl.data.gaussian import Gaussian
from mpipfl.data.glyphs import Glyphs
from mpipfl.data.leaf import Leaf, Shakespeare, Tff
from mpipfl.data.samples import ArraySamples, Samples, checked_labels, checked_samples, from_parts, mapped
from mpipfl.data.sent140 import Sent140
from mpipfl.data.sun397 import Sun397
from mpipfl.data.synthetic import Synthetic
from mpipfl.data.texts import Texts
from mpipfl.data.torchvision_import import datasets
from mpipfl.errors import DataError
from mpipfl.section import Section

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # EMNIST ByClass' labels


class Torchvision(Section):
    """An image set that torchvision knows how to find, download and read."""

    download: bool = Field(default=True, description="Download the set if it is not under data.root.")

    dataset: ClassVar[str]  # the class in torchvision.datasets
    folder: ClassVar[str]  # where torchvision keeps it under the root
    count: ClassVar[int] = 10  # classes
    mean: ClassVar[float | tuple[float, ...]]
    std: ClassVar[float | tuple[float, ...]]

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        train, test = (self._load(root, part) for part in (True, False))
        images = [self._images(np.asarray(part.data)) for part in (train, test)]
        labels = [self._labels(np.asarray(part.targets, np.int64)) for part in (train, test)]
        for part, own in zip(images, labels, strict=True):
            where = f"{root / self.folder}: labels"
            if checked_labels(own, len(part), where).max() >= self._classes():
                raise DataError(f"{where}: found {own.max()}; {self.dataset} has labels 0 to {self._classes() - 1}.")
        return from_parts(images, labels, self._classes(), self.mean, self.std)

    def _load(self, root: Path, train: bool) -> Any:
        """Read from disk; after a failure because nothing is there, download and read again."""
        make = getattr(datasets(), self.dataset)
        try:
            return make(str(root), train=train, **self._arguments())
        except Exception as error:  # of many kinds when a file is damaged
            if not str(error).startswith("Dataset not found"):
                raise DataError(
                    f"{self.dataset} in {root / self.folder} is damaged ({error or type(error).__name__}). "
                    f"Delete the folder and fetch the set again: {self._command(root)}"
                ) from error
        reason = "data.source.download is false"
        if self.download:
            try:
                return fetch(make, root, train=train, **self._arguments())
            except Exception as error:
                reason = f"the download failed: {error or type(error).__name__}"
        raise DataError(
            f"{self.dataset} is not complete in {self._places(root)}, and {reason}.\n"
            f"Fetch it where there is a network:  {self._command(root)}\n"
            f"or point data.root (or MPIPFL_DATA) at a copy. data.source=glyphs needs no download."
        )

    def _arguments(self) -> dict[str, str]:
        return {}

    def _classes(self) -> int:
        return self.count

    def _images(self, images: np.ndarray) -> np.ndarray:
        """(N, H, W) as (N, 1, H, W)."""
        return images[:, None]

    def _labels(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def _places(self, root: Path) -> str:
        return str(root / self.folder)

    def _command(self, root: Path) -> str:
        arguments = "".join(f", {name}='{value}'" for name, value in self._arguments().items())
        call = f"{self.dataset}('{root}'{arguments}, download=True)"
        return f'python -c "from torchvision.datasets import {self.dataset}; {call}"'


class Mnist(Torchvision):
    """MNIST: 70,000 handwritten digits, 28x28 grey."""

    kind: Literal["mnist"] = "mnist"
    dataset, folder, mean, std = "MNIST", "MNIST/raw", 0.1307, 0.3081


class FashionMnist(Torchvision):
    """FashionMNIST: 70,000 pictures of clothes in 10 classes, 28x28 grey."""

    kind: Literal["fashion_mnist"] = "fashion_mnist"
    dataset, folder, mean, std = "FashionMNIST", "FashionMNIST/raw", 0.2860, 0.3530


class Emnist(Torchvision):
    """EMNIST: handwritten digits and letters, 28x28 grey."""

    kind: Literal["emnist"] = "emnist"
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = Field(
        default="byclass",
        description="byclass: 62 classes; bymerge, balanced: 47; letters: 26, both cases as one; digits, mnist: 10.",
    )
    only: str | None = Field(
        default=None, min_length=2, description="byclass: these characters alone, for instance abcdefghij, in order."
    )
    dataset, folder, mean, std = "EMNIST", "EMNIST/raw", 0.1736, 0.3317

    @model_validator(mode="after")
    def _characters(self) -> Emnist:
        if self.only is not None and (self.split != "byclass" or not set(self.only) <= set(CHARACTERS)):
            raise ValueError(f"only={self.only!r} takes digits and letters, with split=byclass; split is {self.split}")
        if self.only is not None and len(set(self.only)) < len(self.only):
            raise ValueError(f"only={self.only!r} names a character twice")
        return self

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        found = super().open(root, seed, clients, samples)
        if self.only is None:
            return found
        assert isinstance(found, ArraySamples)
        wanted = np.array([CHARACTERS.index(c) for c in self.only])
        ends = np.cumsum([len(part) for part in found.parts])
        labels = np.split(found.labels, ends[:-1])
        kept = [np.flatnonzero(np.isin(own, wanted)) for own in labels]
        place = np.full(len(CHARACTERS), -1)
        place[wanted] = np.arange(len(wanted))
        images = [part[rows] for part, rows in zip(found.parts, kept, strict=True)]
        new = [place[own[rows]] for own, rows in zip(labels, kept, strict=True)]
        return from_parts(images, new, len(wanted), self.mean, self.std)

    def _arguments(self) -> dict[str, str]:
        return {"split": self.split}

    def _classes(self) -> int:
        return {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26}.get(self.split, 10)

    def _images(self, images: np.ndarray) -> np.ndarray:
        """Stored with rows and columns exchanged; upright here."""
        return images.transpose(0, 2, 1)[:, None]

    def _labels(self, labels: np.ndarray) -> np.ndarray:
        """The letters split counts from 1."""
        return labels - 1 if self.split == "letters" else labels

    def _places(self, root: Path) -> str:
        return f"{root / self.folder} (emnist-{self.split}-train-images-idx3-ubyte and its three fellows)"


class Cifar10(Torchvision):
    """CIFAR-10: 60,000 colour photographs in 10 classes, 32x32; also from cifar10/{x,y}_{train,test}.npy."""

    kind: Literal["cifar10"] = "cifar10"
    dataset, folder = "CIFAR10", "cifar-10-batches-py"
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        if (root / self.folder).is_dir() or not (root / "cifar10/x_train.npy").is_file():
            return super().open(root, seed, clients, samples)
        images, labels = [], []
        for part in ("train", "test"):
            x, y = (mapped(root / f"cifar10/{key}_{part}.npy") for key in "xy")
            images.append(checked_samples(x, str(root / f"cifar10/x_{part}.npy")))
            labels.append(checked_labels(y, len(x), str(root / f"cifar10/y_{part}.npy")))
            if images[-1].shape[1:] != (3, 32, 32) or x.dtype != np.uint8 or labels[-1].max() > 9:
                raise DataError(f"{root}/cifar10/{{x,y}}_{part}.npy: expected uint8 (N, 32, 32, 3) and labels 0 to 9.")
        return from_parts(images, labels, 10, self.mean, self.std)

    def _images(self, images: np.ndarray) -> np.ndarray:
        return images.transpose(0, 3, 1, 2)

    def _places(self, root: Path) -> str:
        return f"{root / self.folder} nor {root}/cifar10/{{x,y}}_{{train,test}}.npy"


class Cifar100(Torchvision):
    """CIFAR-100: 60,000 colour photographs in 100 classes, or in their 20 superclasses, 32x32.

    With labels: coarse the task is the superclasses; the fine classes stay known as their subclasses, five of each, for
    data.partition=superclasses. The original files are pickles: torchvision opens them only if their checksums are the
    published ones.
    """

    kind: Literal["cifar100"] = "cifar100"
    labels: Literal["fine", "coarse"] = Field(default="fine", description="fine: 100 classes; coarse: 20 superclasses.")
    dataset, folder, count = "CIFAR100", "cifar-100-python", 100
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        found = super().open(root, seed, clients, samples)
        if self.labels == "fine":
            return found
        return replace(found, labels=SUPERCLASS[found.labels], subclasses=found.labels, classes=20)

    def _images(self, images: np.ndarray) -> np.ndarray:
        return images.transpose(0, 3, 1, 2)


# The superclass of each fine class, both in alphabetical order. torchvision does not pass on the file's own coarse
# labels, and reading them again would mean a pickle.
SUPERCLASS = np.array([
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
])  # fmt: skip


Source = Annotated[
    Mnist
    | FashionMnist
    | Emnist
    | Cifar10
    | Cifar100
    | Sun397
    | Arrays
    | Texts
    | Sent140
    | Leaf
    | Tff
    | Shakespeare
    | Audio
    | Glyphs
    | Gaussian
    | Synthetic,
    Field(discriminator="kind", description="Where the samples come from."),
]
