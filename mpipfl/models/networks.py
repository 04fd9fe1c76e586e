"""The networks of the papers, as plain PyTorch, and a user's own by import path.

Each section builds one `nn.Module` for the data's input shape and classes; the client axis is added in `batched`.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from typing import Any, Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from ..data.words import Vocabulary
from ..errors import ConfigError
from ..section import Count, Positive, Section
from .batched import Deviation, Residual

Shape = tuple[int, ...]
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


class Network(Section):
    """What every network has."""

    init: Literal["torch", "glorot"] = Field(
        "torch", description="PyTorch's initial weights; or Glorot-uniform, bias 0, word vectors as they are"
    )


class Logistic(Network):
    """Multinomial logistic regression: one linear layer on the flattened input."""

    kind: Literal["logistic"] = "logistic"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(numel(shape), classes))


class MLP(Network):
    """Hidden dense layers with ReLU; by default one of 100, on MNIST the papers' 784-100-10."""

    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Count, ...] = Field((100,), description="width of each hidden layer")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        widths = [numel(shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


class LeNet5(Network):
    """LeNet-5: convolutions of 6 and 16 channels, 5x5, each pooled; dense 120-84."""

    kind: Literal["lenet5"] = "lenet5"
    activation: Literal["relu", "tanh"] = Field("relu", description="tanh is the original's")
    pooling: Literal["max", "average"] = Field("max", description="average is the original's")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, height, width = images(shape, self.kind, 16)
        act = ACTIVATIONS[self.activation]
        pool = nn.MaxPool2d if self.pooling == "max" else nn.AvgPool2d
        padding = 2 if min(height, width) <= 28 else 0  # MNIST's 28 x 28 is padded to the paper's 32 x 32
        features = nn.Sequential(
            *(nn.Conv2d(channels, 6, 5, padding=padding), act(), pool(2)),
            *(nn.Conv2d(6, 16, 5), act(), pool(2)),
            nn.Flatten(),
        )
        dense = (nn.Linear(flat(features, shape), 120), act(), nn.Linear(120, 84), act(), nn.Linear(84, classes))
        return nn.Sequential(*features, *dense)


class CNN(Network):
    """Two 5x5 convolutions, pooled, and dense 120-84; on CIFAR-10 the PersFL paper's 400-120-84-10."""

    kind: Literal["cnn"] = "cnn"
    channels: tuple[Count, Count] = Field((6, 16), description="channels of the two convolutions")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, _, _ = images(shape, self.kind, 16)
        first, second = self.channels
        features = nn.Sequential(
            *(nn.Conv2d(channels, first, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        )
        dense = (
            nn.Linear(flat(features, shape), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )
        return nn.Sequential(*features, *dense)


class CNN6(Network):
    """Six layers without batch statistics: four 3x3 convolutions, each pooled, dense 256-100-classes.

    After the last convolution the mean over the image is taken, so the dense layers have the same size for any images:
    on CIFAR-100's 32x32 and on SUN397's 64x64. With 20 classes and the default channels there are 416,136 parameters.
    """

    kind: Literal["cnn6"] = "cnn6"
    channels: tuple[Count, Count, Count, Count] = Field((32, 64, 128, 256), description="of the four convolutions")
    hidden: Count = Field(100, description="width of the dense layer before the last")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, _, _ = images(shape, self.kind, 16)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise((channels, *self.channels)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.channels[-1], self.hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, classes))


class ResNet(Network):
    """A residual network with group normalisation: a 3x3 convolution, then `blocks` residual blocks for each width.

    A block is two 3x3 convolutions, each normalised; the first one of a new width halves the image, and a 1x1
    convolution brings its input there. The mean over the image, and a dense layer. With 10 classes and the default
    channels there are 11.2 million parameters (as in ResNet-18), with [96, 192, 384, 768] 25.1 million.
    """

    kind: Literal["resnet"] = "resnet"
    channels: tuple[Count, ...] = Field((64, 128, 256, 512), min_length=1, description="widths, from the image on")
    blocks: Count = Field(2, description="residual blocks of each width")
    groups: Count = Field(32, description="of the normalisation; each of the channels is a multiple")

    @model_validator(mode="after")
    def _groups_fit(self) -> ResNet:
        odd = [width for width in self.channels if width % self.groups]
        if odd:
            raise ValueError(f"groups: {self.groups} groups do not divide {odd[0]} channels evenly")
        return self

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, _, _ = images(shape, self.kind, 2 ** (len(self.channels) - 1))
        layers = [*self.convolution(channels, self.channels[0], 3), nn.ReLU()]
        before = self.channels[0]
        for stage, width in enumerate(self.channels):
            for block in range(self.blocks):
                stride = 2 if stage and not block else 1
                body = nn.Sequential(
                    *self.convolution(before, width, 3, stride), nn.ReLU(), *self.convolution(width, width, 3)
                )
                same = before == width and stride == 1
                way = None if same else nn.Sequential(*self.convolution(before, width, 1, stride))
                layers += [Residual(body, way), nn.ReLU()]
                before = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))

    def convolution(self, before: int, width: int, size: int, stride: int = 1) -> list[nn.Module]:
        """Without a bias: the normalisation has one."""
        plain = nn.Conv2d(before, width, size, stride, padding=size // 2, bias=False)
        return [plain, nn.GroupNorm(self.groups, width)]


class WakeWord(Network):
    """Eleven layers of 3x3 convolutions and max-pooling on a spectrogram, and a dense output; 3 million parameters."""

    kind: Literal["wakeword"] = "wakeword"
    size: Literal["full", "small"] = Field("full", description="small has 1/200 of the parameters")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        before, _, _ = images(shape, self.kind, 16)
        layers: list[nn.Module] = []
        for part in WAKEWORD[self.size]:
            for channels in part:
                layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
                before = channels
            layers.append(nn.MaxPool2d(2))
        features = nn.Sequential(*layers[:-1], nn.Flatten())  # nothing is pooled after the last convolution
        return nn.Sequential(*features, nn.Linear(flat(features, shape), classes))


# channels of the convolutions between two poolings
WAKEWORD = {
    "full": ((64,), (128,), (256, 256), (256, 256), (384,)),
    "small": ((6,), (12,), (16, 16), (16, 16), (24,)),
}


class Location(Network):
    """One number for each of the inputs, their mean under Gaussian noise: loss |x - theta|^2 / (2 variance)."""

    kind: Literal["location"] = "location"
    variance: Positive = Field(0.1, description="of one observation")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        if len(shape) != 1:
            raise ConfigError(f"model.kind=location takes rows of numbers, as data.source=gaussian has, not {shape}")
        network = nn.Sequential(Deviation(shape[0]))
        network.loss = self.loss  # type: ignore[assignment]
        return network

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return outputs.square().sum(1) / (2 * self.variance)


class Imported(Network):
    """Your own nn.Module by import path, `kind: package.module:Class`, with its `args`."""

    kind: str = Field("package.module:Class", pattern=r"^[\w.]+:\w+$")
    args: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the class")

    @field_validator("args")
    @classmethod
    def _names(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dict(value)

    def build(self, shape: Shape, classes: int) -> nn.Module:
        path, name = self.kind.split(":")
        try:
            make = getattr(importlib.import_module(path), name)
        except Exception as error:  # whatever a user's module may raise
            raise ConfigError(
                f"model.kind: cannot import {self.kind!r} ({type(error).__name__}: {error}); it must be importable "
                f"from the folder you start in"
            ) from None
        if not callable(make):
            raise ConfigError(f"model.kind: {self.kind} is a {type(make).__name__}; name a class, or a function")
        offered = {"shape": shape, "classes": classes, "num_classes": classes}
        takes = inspect.signature(make).parameters
        try:
            network = make(**{k: v for k, v in offered.items() if k in takes}, **self.args)
        except Exception as error:  # a user's class again
            raise ConfigError(
                f"model.args: {self.kind} cannot be made with {self.args} ({type(error).__name__}: {error})"
            ) from None
        if not isinstance(network, nn.Module):
            raise ConfigError(f"model.kind: {self.kind} makes a {type(network).__name__}, not a torch.nn.Module")
        return network


class Reader(Network):
    """The base of networks that read sequences of token ids."""

    def build(self, vocabulary: Vocabulary, classes: int) -> nn.Module:
        raise NotImplementedError


def build(section: Any, shape: Shape, classes: int, seed: int, vocabulary: Vocabulary | None = None) -> nn.Module:
    """The section's network with its seeded initial weights; its output is checked on one sample."""
    reads = isinstance(section, Reader)
    if reads and vocabulary is None:
        raise ConfigError(f"model.kind={section.kind} reads texts; the source has samples of {shape}: take mlp, lenet5")
    if vocabulary is not None and not reads and not isinstance(section, Imported):
        raise ConfigError(f"model.kind={section.kind} takes numbers; the source has texts: take text or lstm")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = section.build(vocabulary if reads else shape, classes)
        if section.init == "glorot":
            network.apply(glorot)
    try:
        with torch.no_grad():
            out = tuple(network(torch.zeros(2, *shape)).shape)
    except Exception as error:
        raise ConfigError(
            f"model.kind={section.kind} does not take the data's samples of shape {shape}: {error}"
        ) from None
    if out != (2, classes):
        raise ConfigError(f"model.kind={section.kind} gives outputs of shape {out[1:]}; the data has {classes} classes")
    return network


def glorot(layer: nn.Module) -> None:
    """Glorot-uniform weights, those of recurrent cells gate by gate, and zero biases, where a layer has such. Word
    vectors are no weights of a sum, and what is frozen stays as it is."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return
    for name, weights in layer.named_parameters(recurse=False):
        if not weights.requires_grad:
            continue
        if weights.dim() > 1:
            gates = max(1, len(weights) // layer.hidden_size) if isinstance(layer, nn.RNNBase) else 1
            for gate in weights.data.chunk(gates):
                nn.init.xavier_uniform_(gate)
        elif name.startswith("bias"):
            nn.init.zeros_(weights)


def numel(shape: Shape) -> int:
    return int(torch.Size(shape).numel())


def images(shape: Shape, kind: str, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"model.kind={kind} needs images of {least} x {least} or more; samples are {shape}: take logistic or mlp"
        )
    channels, height, width = shape
    return channels, height, width


def flat(features: nn.Module, shape: Shape) -> int:
    """How many numbers the convolutions leave of one sample."""
    with torch.no_grad():
        return features(torch.zeros(1, *shape)).shape[1]
