"""Networks with a client axis say and learn what the plain ones do, one client at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from mpipfl.descent import add_product
from mpipfl.errors import ConfigError
from mpipfl.models import Batched, Model, build, linear
from mpipfl.models.networks import LeNet5
from mpipfl.models.sequences import Ids
from mpipfl.world import numbers_inside

IMAGE, ROW = (1, 28, 28), (6,)


class Residual(nn.Module):
    """Not a Sequential: goes through torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 4)
        self.out = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.out((x + torch.tanh(self.norm(self.second(x)))).flatten(1))


class Skip(nn.Sequential):
    """A Sequential with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return self[2](x + self[1](self[0](x)))


class Rectified(nn.Linear):
    """A layer that computes something else than the one it is derived from."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def normed() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.GroupNorm(2, 4), nn.SiLU()),
        *(nn.Conv2d(4, 6, (3, 1), dilation=(1, 2), padding="same"), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(24, 8, bias=False), nn.GELU(), nn.Linear(8, 3)),
    )


def activation_twice() -> nn.Module:
    act = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 5), act, nn.Linear(5, 5), act, nn.Linear(5, 3))


def block_twice() -> nn.Module:
    block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    return nn.Sequential(block, block, nn.Linear(6, 3))


def tied() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    network[2].weight = network[0].weight
    return network


def papers(kind: str, **parameters: Any) -> nn.Module:
    return build(TypeAdapter(Model).validate_python({"kind": kind, **parameters}), IMAGE, 10, 0)


# network, one sample's shape, whether it is translated layer by layer (else torch.func)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "logistic": (lambda: papers("logistic"), IMAGE, True),
    "mlp": (lambda: papers("mlp", hidden=[20, 15]), IMAGE, True),
    "lenet5": (lambda: papers("lenet5"), IMAGE, True),
    "lenet5 original": (lambda: papers("lenet5", activation="tanh", pooling="average"), IMAGE, True),
    "cnn": (lambda: papers("cnn", channels=[3, 5]), IMAGE, True),
    "cnn6": (lambda: papers("cnn6", channels=[2, 3, 4, 5], hidden=6), IMAGE, True),
    "wakeword": (lambda: papers("wakeword", size="small"), IMAGE, True),
    "resnet": (lambda: papers("resnet", channels=[4, 6], groups=2), IMAGE, True),
    "group norm, strides, no bias": (normed, (2, 9, 9), True),
    "one layer": (lambda: nn.Linear(6, 3), ROW, True),
    "activation used twice": (activation_twice, ROW, True),
    "block used twice": (block_twice, ROW, True),
    "tied weights": (tied, ROW, True),
    "residual": (Residual, (2, 6, 6), False),
    "own forward": (lambda: Skip(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)), ROW, False),
    "own layer": (lambda: nn.Sequential(Rectified(6, 5), nn.Linear(5, 3)), ROW, False),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), ROW, False),
    "group norm of rows": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)), ROW, False),
    "linear on images": (lambda: nn.Sequential(nn.Linear(6, 2), nn.Flatten(), nn.Linear(24, 3)), (2, 6, 6), False),
    "grouped convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 3)), (2, 6, 6), False
    ),
    "two axes": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (3, 4), False),
}  # fmt: skip
CLIENTS, BATCH = 4, 4


class Case:
    """A network, K weights of it, and a batch for each."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(1)
        make, self.shape, self.translated = NETWORKS[name]
        self.network = make()
        self.batched = Batched(self.network, self.shape)
        spread = 0.3 * torch.randn(CLIENTS, self.batched.dimension) * self.batched.initial().abs().mean()
        self.theta = self.batched.initial() + spread
        self.x = torch.randn(CLIENTS, BATCH, *self.shape)
        self.direction = torch.randn(BATCH, self.plain(0).shape[1])

    def plain(self, k: int) -> Tensor:
        """Client k's outputs by the network itself."""
        nn.utils.vector_to_parameters(self.theta[k].clone(), self.network.parameters())
        return self.network(self.x[k])

    def gradient(self, k: int) -> Tensor:
        loss = (self.plain(k) * self.direction).sum()
        gradient = torch.autograd.grad(loss, list(self.network.parameters()))
        return torch.cat([g.reshape(-1) for g in gradient])


@pytest.fixture(params=NETWORKS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def near(got: Tensor, expected: Tensor) -> bool:
    got, expected = got.detach(), expected.detach()
    return got.shape == expected.shape and float((got - expected).abs().max()) <= 1e-5 * (
        1 + float(expected.abs().max())
    )


@pytest.mark.usefixtures("laid")
def test_outputs_and_gradients_are_the_plain_networks(case: Case) -> None:
    batched = case.batched
    assert batched.translated == case.translated
    parts = [p.requires_grad_() for p in batched.split(case.theta)]
    out = batched.outputs(parts, batched.arrange(case.x[None])[0])
    gradient = batched.join(list(torch.autograd.grad((out * case.direction).sum(), parts)))
    for k in range(CLIENTS):
        assert near(out[k], case.plain(k)), k
        assert near(gradient[k], case.gradient(k)), k


def test_arrange_keeps_steps_apart(case: Case) -> None:
    x = torch.stack([case.x, case.x.flip(1), 2 * case.x])
    arranged, parts = case.batched.arrange(x), case.batched.split(case.theta)
    for s in range(3):
        alone = case.batched.outputs(parts, case.batched.arrange(x[s : s + 1])[0])
        assert near(case.batched.outputs(parts, arranged[s]), alone)


def test_split_and_join_are_inverse(case: Case) -> None:
    parts = case.batched.split(case.theta)
    assert [tuple(p.shape[1:]) for p in parts] == [tuple(p.shape) for p in case.network.parameters()]
    assert all(p.is_contiguous() for p in parts)
    assert torch.equal(case.batched.join(parts), case.theta)
    parts[0].zero_()
    assert case.theta.count_nonzero() == case.theta.numel()  # copies


# ---------------------------------------------------------------------- several heads on one base


class Gated(nn.Module):
    """The last linear layer by name is not the last to be applied."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.first = nn.Linear(5, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x)))


class Scaled(nn.Module):
    """The outputs of a head, divided by their length."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.out(torch.relu(self.first(x))), dim=1)


def last_twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer)


def tied_head() -> nn.Module:
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    network[4].weight = network[2].weight
    return network


ALONE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "not the last": (Gated, ROW, False),
    "normalized": (Scaled, ROW, False),
    "log softmax": (lambda: nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1)), ROW, False),
    "used twice": (last_twice, ROW, True),
    "tied to another": (tied_head, (2, 6, 6), True),
}
ASIDE = NETWORKS | {"rectified": (lambda: nn.Sequential(nn.Linear(6, 5), Rectified(5, 3)), ROW, False)}


@pytest.mark.parametrize("name", [*ASIDE, *ALONE])
def test_several_heads_are_several_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side or not, what they say and their gradients are the plain networks'."""
    monkeypatch.setattr(f"{__name__}.NETWORKS", ASIDE | ALONE)
    case, draws = Case(name), 3
    batched, x = case.batched, case.batched.arrange(case.x[None])[0]
    assert batched.side_by_side == (name not in ALONE)
    base, head = batched.divide(case.theta)
    heads = head.unsqueeze(1) + 0.1 * torch.randn(CLIENTS, draws, head.shape[1])
    before = heads.clone()
    theta = torch.stack([batched.unite(base, heads[:, j]) for j in range(draws)], 1)
    repeated = batched.outputs(batched.split(theta.flatten(0, 1)), batched.repeat(x, CLIENTS, draws))
    said = repeated.unflatten(0, (CLIENTS, draws))
    if name not in ALONE:
        parts = [part.requires_grad_() for part in batched.with_heads(base, heads)]
        assert torch.equal(batched.join_heads([parts[i] for i in batched.head], draws), heads)
        assert torch.equal(batched.join([p for i, p in enumerate(parts) if i not in batched.head] or [base]), base)
        wide = batched.outputs(parts, x).unflatten(2, (draws, -1)).transpose(1, 2)
        assert near(wide, said)
        slopes = torch.autograd.grad((wide * case.direction).sum(), [parts[i] for i in batched.head])
        by_head = batched.join_heads(list(slopes), draws)
    for k in range(CLIENTS):
        for j in range(draws):
            case.theta = theta[:, j]
            assert near(said[k, j], case.plain(k)), (k, j)
            if name not in ALONE:
                assert near(by_head[k, j], batched.divide(case.gradient(k))[1]), (k, j)
    assert torch.equal(heads, before)


def test_initial_is_the_networks_own_weights() -> None:
    network = normed()
    expected = nn.utils.parameters_to_vector(network.parameters())
    batched = Batched(network, (2, 9, 9))
    assert torch.equal(batched.initial(), expected)
    assert batched.dimension == expected.numel()
    assert not batched.initial().requires_grad


def test_images_are_interleaved_by_client() -> None:
    """(S, K, B, C, H, W) becomes (S, B, K * C, H, W): client k's channels are k * C to (k + 1) * C."""
    x = torch.randn(2, 3, 5, 2, 6, 6)
    arranged = Batched(normed(), (2, 6, 6)).arrange(x)
    assert arranged.shape == (2, 5, 6, 6, 6)
    for k in range(3):
        assert torch.equal(arranged[:, :, 2 * k : 2 * k + 2], x[:, k])
    assert arranged[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "head"),
    [("logistic", (0, 2)), ("mlp", (4, 6)), ("lenet5", (8, 10)), ("residual", (5, 7)), ("one layer", (0, 2))],
)
def test_the_head_is_the_last_linear_layer(name: str, head: tuple[int, int]) -> None:
    assert Case(name).batched.head == range(*head)


@pytest.mark.parametrize("shared", [False, True])
def test_what_only_linear_layers_have(shared: bool) -> None:
    """A weight that an embedding shares gets its gradient by autograd, from both."""
    network = nn.Sequential(Ids(), nn.EmbeddingBag(7, 4, mode="mean", padding_idx=0), nn.Linear(4, 7))
    if shared:
        network[2].weight = network[1].weight
    batched = Batched(network, (5,))
    assert batched.translated
    assert batched.products == (frozenset() if shared else {1, 2})


def test_no_linear_layer_no_head() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 6), nn.Flatten())
    assert Batched(network, (2, 6, 6)).head == range(0)


def test_a_frozen_layer_is_no_head() -> None:
    """Where it is frozen in part, the rest is the head."""
    network = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3).requires_grad_(False))
    assert Batched(network, ROW).head == range(0)
    network[1].bias.requires_grad_(True)
    batched = Batched(network, ROW)
    assert batched.head == range(2, 3) and not batched.side_by_side


@pytest.mark.parametrize("name", ["lenet5", "residual"])
def test_a_frozen_base_keeps_its_head(name: str) -> None:
    """What is frozen is in neither base nor head, wherever it stands."""
    make, shape, _ = NETWORKS[name]
    network = make()
    next(network.parameters()).requires_grad_(False)
    batched, whole = Batched(network, shape), Batched(make(), shape)
    base, head = batched.divide(batched.initial())
    assert len(head) == len(whole.divide(whole.initial())[1])
    assert len(base) == whole.dimension - len(head) - next(network.parameters()).numel()
    assert torch.equal(batched.unite(base, head), batched.initial())


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("logistic", 784 * 10 + 10),
        ("lenet5", 156 + 2416 + 48120 + 10164 + 850),  # the paper's 61,706
        ("mlp", 785 * 20 + 21 * 15 + 16 * 10),
    ],
)
def test_dimensions(name: str, numbers: int) -> None:
    assert Case(name).batched.dimension == numbers


@pytest.mark.parametrize(
    ("kind", "shape", "classes", "numbers"),
    [
        ("mlp", (1, 28, 28), 10, 785 * 100 + 101 * 10),  # PersFL on MNIST: 784-100-10
        ("cnn", (3, 32, 32), 10, 76 * 6 + 151 * 16 + 401 * 120 + 121 * 84 + 85 * 10),  # and on CIFAR-10
        ("cnn6", (3, 32, 32), 20, 28 * 32 + 289 * 64 + 577 * 128 + 1153 * 256 + 257 * 100 + 101 * 20),
        ("cnn6", (3, 64, 64), 3, 28 * 32 + 289 * 64 + 577 * 128 + 1153 * 256 + 257 * 100 + 101 * 3),
        ("resnet", (3, 32, 32), 10, 11_173_962),  # as many as ResNet-18 for such images
        # 3,034,242: seven convolutions and four poolings, of 40 mel bands and 98 windows 2 x 6 are left
        ("wakeword", (1, 40, 98), 2, 10 * 64 + 577 * 128 + 1153 * 256 + 2305 * (3 * 256 + 384) + (384 * 12 + 1) * 2),
    ],
)
def test_the_papers_networks(kind: str, shape: tuple[int, ...], classes: int, numbers: int) -> None:
    network = build(TypeAdapter(Model).validate_python(kind), shape, classes, 0)
    batched = Batched(network, shape)
    assert batched.dimension == numbers and batched.translated


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "BatchNorm2d at '1'.*GroupNorm"),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), "Dropout at '1'.*p to 0"),
        (nn.InstanceNorm1d(3, track_running_stats=True), r"buffers \(running_mean"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "no parameters"),
    ],
    ids=["batch norm", "dropout", "buffers", "nothing to train"],
)
def test_refusals(network: nn.Module, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Batched(network, (2,))


def test_groups_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValidationError, match="groups: 32 groups do not divide 48 channels evenly"):
        papers("resnet", channels=[32, 48])


def test_dropout_without_chance_is_taken() -> None:
    Batched(nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.0)), ROW)


@pytest.mark.parametrize("kind", ["logistic", "mlp", "lenet5", "cnn", "cnn6"])
def test_initial_weights_follow_from_the_seed(kind: str) -> None:
    section = TypeAdapter(Model).validate_python(kind)
    weights = []
    for seed in (0, 0, 1):
        torch.rand(3)
        weights.append(Batched(build(section, IMAGE, 10, seed), IMAGE).initial())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_numbers_inside_a_network() -> None:
    """The sample, flattened, a hidden layer, its activation, and the outputs."""
    assert numbers_inside(Batched(papers("mlp", hidden=[20]), IMAGE)) == (2 * 784 + 2 * 20 + 10, 784)


def test_building_leaves_the_random_state() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    papers("mlp")
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("kind", ["lenet5", "cnn", "cnn6", "wakeword"])
@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 8, 28), (3, 15, 15)])
def test_convolutions_need_images(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"model.kind={kind} needs images of 16 x 16 or more.*logistic or mlp"):
        build(TypeAdapter(Model).validate_python(kind), shape, 10, 0)


@pytest.mark.parametrize("kind", ["logistic", "mlp", "lenet5", "cnn", "cnn6", "wakeword"])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32), (1, 28, 28), (2, 20, 31)])
def test_any_image_size(kind: str, shape: tuple[int, ...]) -> None:
    batched = Batched(build(TypeAdapter(Model).validate_python(kind), shape, 7, 0), shape)
    x = torch.zeros(1, 2, 3, *shape)
    out = batched.outputs(batched.split(batched.initial().expand(2, -1)), batched.arrange(x)[0])
    assert out.shape == (2, 3, 7)


def averaging(size: Any, channels: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, channels, 2), nn.AdaptiveAvgPool2d(size), nn.Flatten(), nn.LazyLinear(7))


@pytest.mark.usefixtures("laid")
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: papers("lenet5"), IMAGE),
        (lambda: papers("cnn", channels=[3, 5]), IMAGE),
        (lambda: papers("cnn6", channels=[1, 8, 6, 17], hidden=13), (1, 64, 64)),
        (lambda: papers("wakeword", size="small"), IMAGE),
        (lambda: papers("resnet", channels=[6, 9], groups=3, blocks=1), IMAGE),
        (averaging(1, 17), (2, 9, 9)),
        (averaging((2, 1), 17), (2, 9, 9)),
        (averaging((3, None), 17), (2, 9, 9)),  # windows that overlap
    ],
    ids=["lenet5", "cnn", "cnn6", "wakeword", "resnet", "mean", "mean of windows", "mean of overlapping windows"],
)
def test_bits_do_not_depend_on_companions(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = make()
    expected = network(torch.zeros(1, *shape))
    batched = Batched(network, shape)
    theta = batched.initial() + 0.01 * torch.randn(7, batched.dimension)
    x, direction = torch.randn(7, BATCH, *shape), torch.randn(BATCH, expected.shape[1])
    nn.utils.vector_to_parameters(theta[6].clone(), network.parameters())
    assert batched.translated
    assert near(batched.outputs(batched.split(theta), batched.arrange(x[None])[0])[6], network(x[6]))

    def everything(clients: list[int]) -> Tensor:
        parts = [part.requires_grad_() for part in batched.split(theta[clients])]
        out = batched.outputs(parts, batched.arrange(x[clients][None])[0])
        gradient = batched.join(list(torch.autograd.grad((out * direction).sum(), parts)))
        return torch.cat([out.detach().flatten(1), gradient], dim=1)

    alone = everything(list(range(7)))
    for clients in ([0, 1], [6, 3, 5], [2, 0, 4, 1], [*range(6), 0, 0, 1, 6]):
        assert torch.equal(everything(clients), alone[clients])


@pytest.mark.usefixtures("laid")
@pytest.mark.parametrize("outputs", [3, 5, 10, 17, 33])
@pytest.mark.parametrize("samples", [1, 5, 10, 17])
def test_products_do_not_depend_on_companions(outputs: int, samples: int) -> None:
    """Wherever in memory a client's matrices come to lie: at any multiple of four bytes. The weights' gradient too."""

    def results(clients: list[int]) -> list[Tensor]:
        weight, x = a[clients].clone(), b[clients].requires_grad_()
        y = linear.columns(weight, None, linear.turned(weight, x))
        (slope,) = torch.autograd.grad(y, x, y.detach())
        add_product(weight, y.detach(), x.detach(), 0.1)
        return [y.detach(), slope, weight]

    for inputs in (7, 32, 33, 100, 784):
        a, b = torch.randn(7, outputs, inputs), torch.randn(7, samples, inputs)
        alone = results([*range(7)])
        for clients in ([0, 1], [6, 3, 5], [2, 0, 4, 1]):
            assert all(torch.equal(got, whole[clients]) for got, whole in zip(results(clients), alone, strict=True))


class Fixed(nn.Module):
    """A user's module with sizes of its own."""

    def __init__(self, inputs: int = 6, outputs: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"inputs": 5}, r"does not take the data's samples of shape \(6,\)"),
        ({"outputs": 4}, r"outputs of shape \(4,\); the data has 3 classes"),
    ],
)
def test_an_imported_networks_shapes_are_checked(args: dict[str, int], says: str) -> None:
    section = TypeAdapter(Model).validate_python({"kind": f"{__name__}:Fixed", "args": args})
    with pytest.raises(ConfigError, match=says):
        build(section, ROW, 3, 0)


def test_an_imported_network_is_taken() -> None:
    network = build(TypeAdapter(Model).validate_python(f"{__name__}:Fixed"), ROW, 3, 0)
    assert isinstance(network, Fixed)
    assert not Batched(network, ROW).translated


def test_glorot_weights_are_uniform_with_their_variance_and_biases_zero() -> None:
    network = build(LeNet5(init="glorot"), (1, 28, 28), 10, seed=3)
    for layer in [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]:
        fan_in, fan_out = layer.weight[0].numel(), layer.weight[:, 0].numel()
        edge = (6 / (fan_in + fan_out)) ** 0.5
        assert layer.weight.abs().max() <= edge
        assert layer.weight.var().item() == pytest.approx(edge**2 / 3, rel=0.2)
        assert (layer.bias == 0).all()
    again, other = (next(build(LeNet5(init="glorot"), (1, 28, 28), 10, seed=s).parameters()) for s in (3, 4))
    assert torch.equal(again, next(network.parameters()))
    assert not torch.equal(other, next(network.parameters()))
    assert all((p != 0).any() for p in build(LeNet5(), (1, 28, 28), 10, seed=3).parameters())
