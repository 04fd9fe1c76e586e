"""Networks for sequences with a client axis: the plain ones' values and gradients, one client at a time, whatever the
padding, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from mpipfl.data.words import Vocabulary
from mpipfl.errors import ConfigError
from mpipfl.models import Batched, Model, build, recurrent
from mpipfl.models.recurrent import LastState
from mpipfl.models.sequences import Ids

CLIENTS, BATCH, LENGTH, WORDS, CLASSES = 5, 6, 9, 21, 3
VOCABULARY = Vocabulary(tuple(f"w{i}" for i in range(WORDS - 2)))


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def of(kind: str, **parameters: object) -> nn.Module:
    section = TypeAdapter(Model).validate_python({"kind": kind, **parameters})
    return build(section, (LENGTH,), CLASSES, 0, VOCABULARY)


def bag(**options: object) -> nn.EmbeddingBag:
    return nn.EmbeddingBag(WORDS, 8, mode="mean", padding_idx=0, **options)


# network, whether it is translated layer by layer
NETWORKS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "text": (lambda: of("text", embedding={"size": 8}), True),
    "frozen mean": (lambda: nn.Sequential(Ids(), frozen(bag()), nn.Linear(8, CLASSES)), True),
    "vectors": (
        lambda: nn.Sequential(
            Ids(), nn.Embedding(WORDS, 4, padding_idx=0), nn.Flatten(), nn.Linear(4 * LENGTH, CLASSES)
        ),
        True,
    ),
    "frozen vectors": (
        lambda: nn.Sequential(Ids(), frozen(nn.Embedding(WORDS, 4)), nn.Flatten(), nn.Linear(4 * LENGTH, CLASSES)),
        True,
    ),
    "lstm": (lambda: of("lstm", embedding={"size": 7}, hidden=12), True),
    "one layer of cells": (lambda: of("char_lstm", hidden=33, layers=1), True),
    "lstm on frozen vectors": (
        lambda: nn.Sequential(
            Ids(), LastState(frozen(nn.Embedding(WORDS, 5, padding_idx=0)), 6, 3), nn.Linear(6, CLASSES)
        ),
        True,
    ),
    "frozen cells": (
        lambda: nn.Sequential(
            Ids(), frozen(LastState(nn.Embedding(WORDS, 5, padding_idx=0), 6, 1)), nn.Linear(6, CLASSES)
        ),
        False,
    ),
    "frozen dense": (lambda: nn.Sequential(Ids(), bag(), frozen(nn.Linear(8, 8)), nn.Linear(8, CLASSES)), False),
}  # fmt: skip
KEEPS_PADDING_OUT = ("text", "frozen mean", "lstm", "one layer of cells", "lstm on frozen vectors")


class Case:
    """A network, K weights of it, and a batch of sequences for each: of any length, one of them empty."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(1)
        make, self.translated = NETWORKS[name]
        self.network = make().to(dtype)
        self.batched = Batched(self.network, (LENGTH,))
        self.theta = torch.cat([p.detach().flatten() for p in self.moving()])
        self.theta = self.theta + 0.3 * torch.randn(CLIENTS, self.batched.dimension, dtype=dtype)
        self.x = torch.randint(1, WORDS, (CLIENTS, BATCH, LENGTH)).float()
        self.x[torch.arange(LENGTH) >= torch.randint(1, LENGTH + 1, (CLIENTS, BATCH, 1))] = 0
        self.x[1, 2] = 0
        self.direction = torch.randn(CLIENTS, BATCH, CLASSES, dtype=dtype)

    def moving(self) -> list[nn.Parameter]:
        return [p for p in self.network.parameters() if p.requires_grad]

    def plain(self, k: int) -> tuple[Tensor, Tensor]:
        """Client k's outputs and gradient by the network itself."""
        nn.utils.vector_to_parameters(self.theta[k].clone(), self.moving())
        out = self.network(self.x[k])
        gradient = torch.autograd.grad((out * self.direction[k]).sum(), self.moving())
        return out.detach(), torch.cat([g.flatten() for g in gradient])

    def together(self, first: int = 0, last: int = CLIENTS, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Some clients' outputs and gradients as one computation."""
        parts = [p.requires_grad_() for p in self.batched.split(self.theta[first:last])]
        x = (self.x if x is None else x)[first:last]
        out = self.batched.outputs(parts, self.batched.arrange(x[None])[0])
        gradient = torch.autograd.grad((out * self.direction[first:last]).sum(), parts)
        return out.detach(), self.batched.join(list(gradient))


@pytest.fixture(params=NETWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["own kernels", "one product"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's LSTM for each client, as on CPUs, and with all clients' products in one, as elsewhere."""
    if request.param == "one product":
        monkeypatch.setattr(recurrent, "has_kernel", lambda weight: False)


def test_where_clients_have_kernels_of_their_own() -> None:
    weight = torch.zeros(2)
    assert recurrent.has_kernel(weight) == torch.backends.mkldnn.is_available()
    assert not recurrent.has_kernel(weight.double()) and not recurrent.has_kernel(weight.to("meta"))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_outputs_and_gradients_are_the_plain_networks(
    name: str, dtype: torch.dtype, tolerance: float, kernels: None
) -> None:
    case = Case(name, dtype)
    assert case.batched.translated == case.translated
    out, gradient = case.together()
    for k in range(CLIENTS):
        for mine, plain in zip((out[k], gradient[k]), case.plain(k), strict=True):
            assert mine.shape == plain.shape and mine.dtype == dtype
            assert float((mine - plain).abs().max()) <= tolerance * (1 + float(plain.abs().max())), k


def test_the_same_bits_in_any_company(name: str, kernels: None) -> None:
    case = Case(name)
    out, gradient = case.together()
    for first in range(CLIENTS - 1):
        for last in range(first + 2, CLIENTS + 1):
            mine = case.together(first, last)
            assert torch.equal(mine[0], out[first:last]) and torch.equal(mine[1], gradient[first:last])


@pytest.mark.parametrize("name", KEEPS_PADDING_OUT)
def test_padding_never_changes_a_result(name: str, kernels: None) -> None:
    case = Case(name)
    out, gradient = case.together()
    for more in (1, 7, 40):
        longer = case.together(x=torch.nn.functional.pad(case.x, (0, more)))
        assert torch.equal(longer[0], out)
        assert torch.allclose(longer[1], gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["text", "frozen mean", "vectors", "lstm", "lstm on frozen vectors", "frozen dense"])
def test_several_heads_on_one_base(name: str) -> None:
    """Side by side they say what each says by itself; base and head make theta again."""
    case, draws = Case(name), 3
    base, head = case.batched.divide(case.theta)
    assert torch.equal(case.batched.unite(base, head), case.theta) and case.batched.side_by_side
    heads = head.unsqueeze(1) + torch.randn(CLIENTS, draws, head.shape[1])
    x = case.batched.arrange(case.x[None])[0]
    wide = case.batched.outputs(case.batched.with_heads(base, heads), x).unflatten(2, (draws, CLASSES))
    for draw in range(draws):
        single = case.batched.outputs(case.batched.split(case.batched.unite(base, heads[:, draw])), x)
        assert torch.allclose(wide[:, :, draw], single, atol=1e-5)


@pytest.mark.parametrize("kind", ["text", "lstm"])
def test_glorot_is_for_weights_not_for_vectors(kind: str) -> None:
    """Word vectors stay, padding's zeros among them; an LSTM's weights are four gates of their own."""
    network, plain = (of(kind, init=init).state_dict() for init in ("glorot", "torch"))
    for name, weights in network.items():
        if weights.shape[0] == WORDS:
            assert torch.equal(weights, plain[name]) and not weights[0].any()
        elif weights.dim() == 1:
            assert not weights.any(), name
        else:
            for gate in weights.chunk(4 if "lstm" in name else 1):
                edge = (6 / sum(gate.shape)) ** 0.5
                assert 0.97 * edge < gate.abs().max() <= edge, name


def test_frozen_parameters_are_no_part_of_theta() -> None:
    network = NETWORKS["frozen mean"][0]()
    batched = Batched(network, (LENGTH,))
    assert batched.dimension == batched.initial().numel() == 8 * CLASSES + CLASSES
    assert [part.name for part in batched.layout] == ["2.weight", "2.bias"] and batched.head == range(2)
    with pytest.raises(ConfigError, match="no parameters to train"):
        Batched(frozen(network), (LENGTH,))


def test_the_lstm_of_the_paper(kernels: None) -> None:
    """4 gates of 256 cells, inputs of 50 and 256, two biases each; the same bits among others at that size too."""
    NETWORKS["large"] = (lambda: of("lstm"), True)
    case = Case("large")
    assert case.batched.dimension == WORDS * 50 + 1024 * (50 + 256 + 2 + 2 * 256 + 2) + 257 * CLASSES
    out, gradient = case.together()
    for first, last in ((0, 2), (2, 5)):
        mine = case.together(first, last)
        assert torch.equal(mine[0], out[first:last]) and torch.equal(mine[1], gradient[first:last])


@pytest.mark.parametrize("name", KEEPS_PADDING_OUT)
def test_a_text_of_padding_alone_is_zero(name: str, kernels: None) -> None:
    case = Case(name)
    out, _ = case.together(x=torch.zeros_like(case.x))
    bias = case.batched.split(case.theta)[-1]
    assert torch.equal(out, bias.unsqueeze(1).expand_as(out))


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_what_is_not_plain_is_not_translated(option: dict[str, object]) -> None:
    assert not Batched(nn.Sequential(Ids(), bag(**option), nn.Linear(8, CLASSES)), (LENGTH,)).translated


def test_who_reads_what() -> None:
    section = TypeAdapter(Model).validate_python("text")
    with pytest.raises(ConfigError, match=r"model.kind=text reads texts; the source has samples of \(1, 28, 28\)"):
        build(section, (1, 28, 28), CLASSES, 0)
    with pytest.raises(ConfigError, match=r"model.kind=mlp takes numbers; the source has texts: take text"):
        of("mlp")
    assert Batched(of("text"), (LENGTH,)).dimension == WORDS * 50 + 50 * CLASSES + CLASSES
