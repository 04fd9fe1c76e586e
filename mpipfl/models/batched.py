"""K copies of one network, with weights of their own, computed together.

A network is written in plain PyTorch. Its parameters, flattened and joined in PyTorch's order, are one vector theta in
R^d; K clients are a matrix Theta (K, d). Frozen parameters (`requires_grad=False`) are no part of it: constants that
all clients share and that never travel. `Batched` gives the K networks' outputs for K batches: an `nn.Sequential` of
known layers is translated layer by layer (linear layers to `baddbmm`, convolutions to one grouped convolution over
K * C channels in channels_last order), any other module runs through torch.func, slower, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import elementwise
from ..errors import ConfigError
from . import company, recurrent, sequences
from .linear import Linear, Use, products
from .mapped import Mapped

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs (n, classes), labels (n)) -> loss of each sample (n)
Step = Callable[[list[Tensor], Tensor], Tensor]  # (all parameters (K, *shape), input) -> output


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


class Part(NamedTuple):
    """One parameter tensor's place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Batched:
    """The client axis for a network: flat vectors in, outputs of K networks out."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...], precision: torch.dtype = torch.float32) -> None:
        refuse(network)
        self.network, self.shape, self.precision = network.train(), shape, precision
        self.loss: Loss = getattr(network, "loss", cross_entropy)  # a network may bring its own
        self.layout: list[Part] = []
        for name, parameter in trained(network):
            start = self.layout[-1].stop if self.layout else 0
            self.layout.append(Part(name, tuple(parameter.shape), start, start + parameter.numel()))
        self.dimension = self.layout[-1].stop
        self.head = head_of(network, self.layout)
        inside = [self.layout[i] for i in self.head]
        self.head_at = (inside[0].start, inside[-1].stop) if inside else (self.dimension, self.dimension)
        steps = translate(network, shape)
        self.translated = steps is not None
        spatial = any(isinstance(module, SPATIAL) for module in network.modules())
        self.images = self.translated and spatial  # else samples are rows, or come as they are
        names = [part.name for part in self.layout]
        self.products = products(network, names) if self.translated else frozenset()
        self.steps = steps or [Mapped(network, names, shape)]

    def divide(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Base and head of vectors (..., d): the head is the last linear layer, the base everything else."""
        start, stop = self.head_at
        return torch.cat([theta[..., :start], theta[..., stop:]], -1), theta[..., start:stop].contiguous()

    def unite(self, base: Tensor, head: Tensor) -> Tensor:
        """The inverse of `divide`; a single base or head (without the client axis) goes with every row."""
        rows = torch.broadcast_shapes(base.shape[:-1], head.shape[:-1])
        base, head = base.expand(*rows, -1), head.expand(*rows, -1)
        start = self.head_at[0]
        return torch.cat([base[..., :start], head, base[..., start:]], -1)

    def initial(self) -> Tensor:
        """The network's own initial weights, as one vector (d)."""
        return torch.cat([p.detach().reshape(-1) for _, p in trained(self.network)]).float()

    def split(self, theta: Tensor) -> list[Tensor]:
        """Theta (K, d) as one contiguous tensor (K, *shape) per parameter: copies."""
        return [part.clone(memory_format=torch.contiguous_format) for part in self.cut(theta)]

    def cut(self, theta: Tensor) -> list[Tensor]:
        """Theta (K, d) as one tensor (K, *shape) per parameter: views."""
        return [theta[:, p.start : p.stop].view(-1, *p.shape) for p in self.layout]

    def join(self, parts: list[Tensor]) -> Tensor:
        """The inverse of `split`."""
        return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)

    def with_heads(self, base: Tensor, heads: Tensor) -> list[Tensor]:
        """Networks with several heads side by side, as one wide last layer: bases (K, b), heads (K, draws, h)."""
        start, stop = self.head_at
        parts = []
        for i, (_, shape, first, last) in enumerate(self.layout):
            if i in self.head:
                wide = heads[..., first - start : last - start]
                parts.append(wide.reshape(len(base), heads.shape[1] * shape[0], *shape[1:]))
            else:
                before = 0 if first < start else stop - start  # numbers of the head, which the base does not have
                part = base[:, first - before : last - before]
                parts.append(part.clone(memory_format=torch.contiguous_format).view(-1, *shape))
        return parts

    @cached_property
    def only_head(self) -> Batched | None:
        """The head as a network of its own, whose samples are what the base makes of them; None where something comes
        after it, it stands elsewhere in the network too, or is all of it."""
        heads = [step for step in self.steps if isinstance(step, Linear) and step.weight in self.head]
        if not self.translated or heads != self.steps[-1:] or len(self.head) == len(self.layout):
            return None
        (last,) = heads
        outputs, inputs = self.layout[last.weight].shape
        head = nn.Sequential(nn.utils.skip_init(nn.Linear, inputs, outputs, bias=last.bias is not None))
        head.loss = self.loss  # type: ignore[assignment]
        return Batched(head, (inputs,), self.precision)

    def features(self, parts: list[Tensor], x: Tensor) -> Tensor:
        """What the base makes of one arranged step (K, B, inputs of the head), in the precision of training."""
        with torch.autocast(x.device.type, self.precision, enabled=self.precision != torch.float32):
            for step in self.steps[:-1]:
                x = step(parts, x)
        return x.float()

    @cached_property
    def side_by_side(self) -> bool:
        """Whether several heads can be one wide layer: not where more than single numbers' functions follow them, or
        where they stand twice in the network. Found by trying."""
        draw = torch.Generator().manual_seed(0)
        count = self.head_at[1] - self.head_at[0]
        base = 0.1 * torch.randn(2, self.dimension - count, generator=draw)
        heads = 0.1 * torch.randn(2, 3, count, generator=draw)
        x = 2 * torch.rand(1, 2, 4, *self.shape, generator=draw)  # as token ids 0 and 1, which every vocabulary has
        with torch.no_grad():
            rows = self.split(self.unite(base.unsqueeze(1), heads).flatten(0, 1))
            expected = self.outputs(rows, self.repeat(self.arrange(x)[0], 2, 3)).unflatten(0, (2, 3))
            try:
                wide = self.outputs(self.with_heads(base, heads), self.arrange(x)[0])
                return torch.allclose(wide.unflatten(2, (3, -1)).transpose(1, 2), expected, rtol=1e-4, atol=1e-6)
            except (RuntimeError, ValueError, TypeError, IndexError):  # whatever sizes a user's module insists on
                return False

    def repeat(self, x: Tensor, clients: int, times: int) -> Tensor:
        """One arranged step with so many copies of each client's samples, as of clients side by side."""
        if self.images:
            by_client = x.permute(0, 2, 3, 1).unflatten(3, (clients, -1))
            return by_client.repeat_interleave(times, 3).flatten(3).permute(0, 3, 1, 2)
        return x.repeat_interleave(times, 0)

    def join_heads(self, parts: list[Tensor], draws: int) -> Tensor:
        """The wide layer's parts as one vector for each head (K, draws, h)."""
        return torch.cat([part.reshape(len(part), draws, -1) for part in parts], 2)

    def arrange(self, x: Tensor) -> Tensor:
        """Batches of steps x clients x samples (S, K, B, *shape) in the order `outputs` takes; index it by step."""
        if self.images:
            steps, clients, batch, channels, height, width = x.shape
            ordered = x.permute(0, 2, 4, 5, 1, 3).contiguous()  # S B H W K C
            return ordered.view(steps, batch, height, width, clients * channels).permute(0, 1, 4, 2, 3)
        return x

    def mixed(self, parts: list[Tensor], x: Tensor, uses: list[Use] | None = None) -> Tensor:
        """`outputs` for training, in its precision: products and convolutions of rounded numbers, the rest in float32
        where PyTorch holds that it matters. The gradients of float32 parts are float32."""
        if self.precision == torch.float32:
            return self.outputs(parts, x, uses)
        with torch.autocast(x.device.type, self.precision):
            return self.outputs(parts, x, uses).float()

    def outputs(self, parts: list[Tensor], x: Tensor, uses: list[Use] | None = None) -> Tensor:
        """What the K networks say to K batches, one arranged step: (K, B, classes). With a list of `uses`, the linear
        layers to be trained are put there, and their parameters get no gradient by autograd."""
        for step in self.steps:
            if uses is not None and self.products and isinstance(step, Linear) and step.trained(parts):
                uses.append(step.use(parts, x))
                x = uses[-1].y.transpose(1, 2)
            else:
                x = step(parts, x)
        return x


class Deviation(nn.Module):
    """How far samples are from one vector, the parameter."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.weight


class Residual(nn.Module):
    """A block and what goes past it, by a way of its own where their shapes differ: body(x) + way(x)"""

    def __init__(self, body: nn.Sequential, way: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.way = body, way or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.way(x)
        return out


def trained(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that are trained and travel; the others are constants that all clients share."""
    yield from ((name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad)


def refuse(network: nn.Module) -> None:
    """Modules whose result is not a function of weights and input alone cannot be trained here."""
    for name, module in network.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"model: {kind} at '{name}' keeps running statistics, which are not parameters and cannot be "
                f"federated; use nn.GroupNorm or nn.LayerNorm in its place"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ConfigError(f"model: {kind} at '{name}' draws random numbers of its own; set its p to 0 or remove it")
    buffers = [name for name, _ in network.named_buffers()]
    if buffers:
        raise ConfigError(f"model: buffers ({', '.join(buffers)}) are not federated; make them parameters or constants")
    if not any(True for _ in trained(network)):
        raise ConfigError("model: the network has no parameters to train")


def head_of(network: nn.Module, layout: list[Part]) -> range:
    """The last linear layer's place in the list of parameters: the head; all before it is the base. What of it is
    frozen is in neither."""
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        return range(0)
    mine = [i for i, part in enumerate(layout) if part.name.startswith(linear[-1] + "." if linear[-1] else "")]
    return range(mine[0], mine[-1] + 1) if mine else range(0)


# ---------------------------------------------------------------------- layer by layer


def in_order(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested Sequentials as they are applied: one that stands there twice comes twice."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for inner in module:
            yield from in_order(inner)
    else:
        yield module


def translate(network: nn.Module, shape: tuple[int, ...]) -> list[Step] | None:
    """The network's layers with a client axis, or None where one of them is not known."""
    place = {id(parameter): i for i, (_, parameter) in enumerate(trained(network))}
    return chain(network, place, images=len(shape) == 3) if len(shape) in (1, 3) else None


def chain(network: nn.Module, place: dict[int, int], images: bool) -> list[Step] | None:
    """Layers one after the other; `place` finds parameters by id."""
    layers = list(in_order(network))
    steps: list[Step] = []
    for i, module in enumerate(layers):
        after = layers[i + 1] if i + 1 < len(layers) else None
        before = layers[i - 1] if i else None
        if isinstance(module, nn.ReLU) and isinstance(after, nn.MaxPool2d):
            continue  # max(relu) = relu(max): applied after pooling, to a quarter of the numbers
        step = layer(module, place, images)
        if step is None:
            return None
        steps.append(step)
        images = images and not isinstance(module, nn.Flatten)
        if isinstance(module, nn.MaxPool2d) and isinstance(before, nn.ReLU):
            steps.append(lambda parts, x: F.relu(x))
    return steps


def layer(module: nn.Module, place: dict[int, int], images: bool) -> Step | None:
    """A layer with a client axis. Images are (B, K * C, H, W), others (K, B, ...)."""
    if not type(module).__module__.startswith("torch.nn.modules.") and type(module) not in OWN:
        return None  # a class derived from a known one may compute something else
    weight, bias = (place.get(id(getattr(module, kind, None))) for kind in ("weight", "bias"))
    if isinstance(module, sequences.Ids):
        return sequences.to_ids
    if isinstance(module, recurrent.LastState):
        return recurrent.translated(module, place)
    if (found := sequences.embedding(module, weight)) is not None:
        return found
    if any(not parameter.requires_grad for parameter in module.parameters()):
        return None
    if isinstance(module, Residual):
        return residual(chain(module.body, place, images), chain(module.way, place, images))
    if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
        return unrolled if images else rows
    if isinstance(module, ELEMENTWISE):
        return lambda parts, x: elementwise.of(module, x)
    if images and isinstance(module, nn.AdaptiveAvgPool2d):
        return adaptive_average(module)
    if images and isinstance(module, POOLING):
        return lambda parts, x: module(x)
    if isinstance(module, Deviation) and weight is not None:
        return lambda parts, x: x - parts[weight].unsqueeze(1)
    if weight is None:
        return None
    if not images:
        return Linear(weight, bias) if isinstance(module, nn.Linear) else None
    if isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros":
        return convolution(module, weight, bias)
    if isinstance(module, nn.GroupNorm) and bias is not None:
        return group_norm(module, weight, bias)
    return None


OWN = (Deviation, Residual, sequences.Ids, recurrent.LastState)
ELEMENTWISE = (
    nn.ReLU | nn.Tanh | nn.Sigmoid | nn.GELU | nn.ELU | nn.SiLU | nn.LeakyReLU | nn.Softplus | nn.Identity | nn.Hardtanh
)
POOLING = nn.MaxPool2d | nn.AvgPool2d
SPATIAL = POOLING | nn.AdaptiveAvgPool2d | nn.Conv2d | nn.GroupNorm


def convolution(module: nn.Conv2d, weight: int, bias: int | None) -> Step:
    how = tuple(
        given if isinstance(given, str) else tuple(given) for given in (module.stride, module.padding, module.dilation)
    )
    return lambda parts, x: company.convolve(x, parts[weight], None if bias is None else parts[bias], how)


def group_norm(module: nn.GroupNorm, weight: int, bias: int) -> Step:
    def step(parts: list[Tensor], x: Tensor) -> Tensor:
        clients = len(parts[weight])
        scale, shift = parts[weight].flatten(), parts[bias].flatten()
        return F.group_norm(x, clients * module.num_groups, scale, shift, module.eps)

    return step


def adaptive_average(module: nn.AdaptiveAvgPool2d) -> Step:
    """The means of the module's windows; its own order of summation depends on how many clients' channels there are."""
    size = module.output_size if isinstance(module.output_size, tuple) else (module.output_size,) * 2

    def windows(length: int, count: int) -> list[tuple[int, int]]:
        return [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]

    def step(parts: list[Tensor], x: Tensor) -> Tensor:
        rows, columns = (windows(length, count or length) for length, count in zip(x.shape[2:], size, strict=True))
        means = [
            [F.avg_pool2d(x[:, :, top:bottom, left:right], (bottom - top, right - left)) for left, right in columns]
            for top, bottom in rows
        ]
        return torch.cat([torch.cat(row, dim=3) for row in means], dim=2)

    return step


def residual(body: list[Step] | None, way: list[Step] | None) -> Step | None:
    if body is None or way is None:
        return None

    def step(parts: list[Tensor], x: Tensor) -> Tensor:
        out = past = x
        for layer in body:
            out = layer(parts, out)
        for layer in way:
            past = layer(parts, past)
        return out + past

    return step


def unrolled(parts: list[Tensor], x: Tensor) -> Tensor:
    """Images to rows, in PyTorch's order (channel, height, width) for each client."""
    if x.dim() == 5:
        return rows(parts, x)  # came as they are
    clients = len(parts[0])
    batch, channels, height, width = x.shape
    return x.view(batch, clients, channels // clients, height, width).transpose(0, 1).flatten(2)


def rows(parts: list[Tensor], x: Tensor) -> Tensor:
    return x.flatten(2)
