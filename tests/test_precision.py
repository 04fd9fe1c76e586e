"""Forward and backward passes in bfloat16: near float32's gradients, with every promise about bits kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mpipfl.cohort import Cohort, Store
from mpipfl.comm import Comm
from mpipfl.config import Train
from mpipfl.models import Batched, build
from mpipfl.models.networks import CNN, MLP, LeNet5, Logistic

from .suite import config, differing, train

SIZES = np.array([40, 9, 70, 23])
SECTIONS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "logistic": (Logistic(), (1, 12, 12)),
    "mlp": (MLP(hidden=(30,)), (1, 12, 12)),
    "lenet5": (LeNet5(), (1, 28, 28)),
    "cnn": (CNN(), (3, 32, 32)),
}


def cohort(section: Any, shape: tuple[int, ...], precision: torch.dtype, width: int = 4) -> Cohort:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(int(SIZES.sum()), *shape, generator=draw)
    y = torch.randint(0, 5, (len(x),), generator=draw)
    ends = np.cumsum(SIZES)
    bounds = np.stack([ends - SIZES, ends - 2, ends - 1, ends], 1)
    store = Store(x, y, bounds, np.zeros(len(SIZES), dtype=np.int64))
    model = Batched(build(section, shape, 5, 0), shape, precision)
    return Cohort(np.arange(len(SIZES)), store, model, Train(batch=8, lr=0.02, momentum=0.5), 0, 1, width)


def plain(cohort: Cohort, client: int, theta: torch.Tensor) -> torch.Tensor:
    """The gradient of one client's loss by PyTorch's own autocast."""
    network, store = cohort.model.network, cohort.store
    torch.nn.utils.vector_to_parameters(theta, network.parameters())
    start, samples = (int(part[0]) for part in store.part("train", np.array([client])))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = network(store.x[start : start + samples])
    loss = F.cross_entropy(outputs.float(), store.y[start : start + samples])
    found = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([g.reshape(-1) for g in found]).detach()


@pytest.mark.parametrize("network", SECTIONS)
def test_gradients_are_as_near_to_float32_as_autocasts(network: str) -> None:
    """A bfloat16 has 8 bits; what is lost by that, with maxima and ReLUs that flip, is measured on plain networks."""
    fine, coarse = (cohort(*SECTIONS[network], precision) for precision in (torch.float32, torch.bfloat16))
    theta = fine.model.initial()
    exact, got = fine.grad(theta), coarse.grad(theta)
    torches = torch.stack([plain(fine, k, theta) for k in range(len(SIZES))])
    assert got.dtype == torch.float32
    assert 0 < (got - exact).norm() < 2 * (torches - exact).norm() < 0.3 * exact.norm()


@pytest.mark.parametrize("network", SECTIONS)
def test_training_follows_float32_and_does_not_depend_on_company(network: str) -> None:
    fine, coarse = (cohort(*SECTIONS[network], precision) for precision in (torch.float32, torch.bfloat16))
    theta = fine.model.initial()
    moved, near = fine.descend(theta), coarse.descend(theta)
    assert near.dtype == torch.float32
    assert ((near - moved).norm(dim=1) < 0.15 * (moved - theta).norm(dim=1)).all()
    for width in (2, 3):
        assert torch.equal(cohort(*SECTIONS[network], torch.bfloat16, width).descend(theta), near)


def test_models_are_judged_in_float32() -> None:
    fine, coarse = (cohort(*SECTIONS["lenet5"], precision) for precision in (torch.float32, torch.bfloat16))
    theta = fine.model.initial()
    assert torch.equal(fine.evaluate(theta, "train").loss, coarse.evaluate(theta, "train").loss)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["fedavg", "pfedvem"])
def test_a_run_is_the_same_at_any_number_of_ranks(kind: str, comm: Comm, alone: Comm, together_path: Path) -> None:
    settings = {"algorithm": {"kind": kind}, "train.precision": "bfloat16", "rounds": 2}
    together = train(config(settings, together_path / "together"), comm)
    if comm.is_server:
        single = train(config(settings, together_path / "alone", train__cohort=5), alone)
        assert differing(together, single) == []
        other = train(config(settings | {"train.precision": "float32"}, together_path / "float32"), alone)
        assert "server/theta" not in other or differing(single, other)
