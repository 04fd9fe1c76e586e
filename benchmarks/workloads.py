"""What the benchmarks train: networks, random images of MNIST's shape or random texts like tweets, and the figures they
are held against."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mpipfl.data.words import Vocabulary
from mpipfl.models.language import LSTM
from mpipfl.models.networks import MLP, LeNet5, Logistic, build

SHAPE, CLASSES = (1, 28, 28), 10
WORDS, VOCABULARY = 25, Vocabulary(tuple(f"w{i}" for i in range(5000)))  # of a text, of all texts
SECTIONS: dict[str, Any] = {"logistic": Logistic(), "mlp": MLP(), "lenet5": LeNet5(), "lstm": LSTM()}


class Workload(NamedTuple):
    """Clients with so many samples each, `drawn` of them a round, one epoch of SGD."""

    name: str
    model: str
    clients: int
    drawn: int
    samples: int
    batch: int
    lr: float
    momentum: float
    goal: float  # times the hand-written loop
    needed: float = 0.0  # times the loop, that the fastest other framework reaches
    framework: str = ""

    @property
    def steps(self) -> int:
        """Client-steps of a round."""
        return self.drawn * -(-self.samples // self.batch)

    @property
    def reads(self) -> bool:
        """Whether samples are texts."""
        return self.model == "lstm"

    @property
    def shape(self) -> tuple[int, ...]:
        return (WORDS,) if self.reads else SHAPE

    def network(self) -> nn.Module:
        return build(SECTIONS[self.model], self.shape, CLASSES, 0, VOCABULARY if self.reads else None)

    def data(self, count: int | None = None) -> tuple[Tensor, Tensor]:
        """All clients' samples, client after client, or so many."""
        draw = np.random.default_rng(0)
        count = self.clients * self.samples if count is None else count
        if self.reads:
            x = draw.integers(1, VOCABULARY.size, (count, WORDS)).astype(np.float32)
            x[np.arange(WORDS) >= draw.integers(5, WORDS + 1, (count, 1))] = 0
        else:
            x = draw.standard_normal((count, *SHAPE), dtype=np.float32)
        return torch.from_numpy(x), torch.from_numpy(draw.integers(0, CLASSES, count))


# One core, no communication.
ENGINE = (
    Workload("logistic-10", "logistic", 100, 100, 60, 10, 0.03, 0.0, 4.0),
    Workload("mlp-20", "mlp", 64, 64, 200, 20, 0.01, 0.0, 1.6),
    Workload("lenet5-10", "lenet5", 32, 32, 100, 10, 0.01, 0.0, 2.0),
    Workload("lenet5-64", "lenet5", 32, 32, 512, 64, 0.01, 0.9, 1.6),
    Workload("lstm-10", "lstm", 16, 16, 20, 10, 0.3, 0.0, 1.0),
)

# Whole rounds. Goals and frameworks' figures are shares of the DataLoader loop measured beside them on the development
# machine: 6,200, 241 and 3,500 client-steps a second.
ROUNDS = (
    Workload("logreg", "logistic", 1000, 100, 60, 10, 0.03, 0.0, 40_000 / 6_200, 13_600 / 6_200, "fedjax"),
    Workload("lenet", "lenet5", 20, 20, 512, 64, 0.01, 0.9, 780 / 241, 506 / 241, "pfl-research"),
    Workload("mlp", "mlp", 100, 100, 200, 20, 0.01, 0.0, 12_000 / 3_500, 8_200 / 3_500, "fedjax"),
)

# As many clients as configs/emnist_covshift.yaml has, with fewer samples (about 800 there).
MIXED = Workload("mix", "lenet5", 100, 100, 512, 64, 0.01, 0.9, 0.0)

WORKLOADS = {work.name: work for work in (*ENGINE, *ROUNDS)}


def flops(work: Workload) -> int:
    """Operations of one sample's forward and backward pass in convolutions, linear layers and LSTM cells, a
    multiply-add being two: the output, the weights' gradient and, behind the first layer, the input's gradient cost the
    same each."""
    costs: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if isinstance(module, nn.LSTM):
            costs.append(2 * WORDS * sum(p.numel() for name, p in module.named_parameters() if "weight" in name))
        elif isinstance(module, nn.Embedding):
            costs.append(0)
        else:
            weight = module.weight
            assert isinstance(weight, Tensor)
            costs.append(2 * output[0].numel() * weight[0].numel())

    network = work.network()
    counted = nn.Linear | nn.Conv2d | nn.LSTM | nn.Embedding
    hooks = [layer.register_forward_hook(count) for layer in network.modules() if isinstance(layer, counted)]
    with torch.no_grad():
        network(torch.zeros(1, *work.shape))
    for hook in hooks:
        hook.remove()
    return 3 * sum(costs) - costs[0]
