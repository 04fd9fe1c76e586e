"""Sums that do not depend on their order: the same bits for any split, and as accurate as promised."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from mpipfl import exact


def draw(kind: str, terms: int, columns: int, random: np.random.Generator) -> Tensor:
    """Terms (terms, columns) that make floating sums go wrong."""
    x = random.standard_normal((terms, columns))
    if kind == "huge and tiny":
        x *= 10.0 ** random.integers(-30, 31, x.shape)
    elif kind == "cancelling":
        x = np.concatenate([x[: terms // 2], -x[: terms // 2], x[: terms % 2]]) * 1e20 + random.standard_normal(x.shape)
    elif kind == "ties":
        x = random.integers(-3, 4, x.shape) * 2.0**-24 * 1.5 + 1
    elif kind == "denormals":
        x = (x * 1e-42).astype(np.float32)
    elif kind == "negative zeros":
        x = np.where(random.random(x.shape) < 0.7, -0.0, x)
    return torch.from_numpy(np.asarray(x, dtype=np.float32))


KINDS = ("plain", "huge and tiny", "cancelling", "ties", "denormals", "negative zeros")


def total(parts: list[tuple[Tensor, Tensor]], terms: int) -> np.ndarray:
    """The weighted sum of parts that ranks would hold, added as MPI would: each by itself, then one to the other."""
    peak = max(float((w[:, None] * v.double()).abs().max()) for w, v in parts if len(v))
    spacing = exact.grid(exact.exponent(peak), terms)
    sums = []
    for weight, value in parts:
        out = torch.zeros(value.shape[1], dtype=torch.float64)
        exact.add_weighted(out, weight, value, spacing)
        sums.append(out.numpy())
    return sum(sums[1:], sums[0])


def split(weight: Tensor, value: Tensor, random: np.random.Generator) -> list[tuple[Tensor, Tensor]]:
    """A random order, cut in random places; some parts are empty."""
    order = torch.from_numpy(random.permutation(len(value)))
    cuts = np.sort(random.integers(0, len(value) + 1, random.integers(0, 6)))
    return list(zip(weight[order].tensor_split(cuts.tolist()), value[order].tensor_split(cuts.tolist()), strict=True))


@pytest.mark.parametrize("terms", [1, 2, 7, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_order_or_split(kind: str, terms: int) -> None:
    random = np.random.default_rng(terms)
    value, weight = draw(kind, terms, 40, random), torch.from_numpy(random.random(terms) * 100)
    first = total([(weight, value)], terms)
    for _ in range(30):
        parts = split(weight, value, random)
        random.shuffle(parts)
        assert total(parts, terms).tobytes() == first.tobytes()


@pytest.mark.parametrize("terms", [1, 2, 7, 100, 129])
@pytest.mark.parametrize("kind", KINDS)
def test_error_is_within_the_documented_bound(kind: str, terms: int) -> None:
    """Each term is off by g/2 <= 2**(ceil(log2 n) - 51) of the greatest: with n terms the sum by n times that."""
    random = np.random.default_rng(terms)
    value = draw(kind, terms, 20, random)
    got = total([(torch.ones(terms, dtype=torch.float64), value)], terms)
    peak = Fraction(float(value.abs().max()))
    each = peak * Fraction(2) ** (math.ceil(math.log2(terms)) - 51)
    for column, result in zip(value.T.tolist(), got.tolist(), strict=True):
        truth = sum(map(Fraction, column), Fraction(0))
        assert abs(Fraction(result) - truth) <= terms * each
        assert abs(math.fsum(column) - result) <= terms * each


def test_a_hundred_clients_are_as_near_as_the_module_says() -> None:
    """2**-44 of the greatest term, at the worst place: the greatest just a power of two."""
    for peak in (1.0, np.nextafter(2.0, 1), 1e-30, 1e30):
        assert exact.grid(exact.exponent(peak), 100) / 2 <= 2.0**-44 * peak


def test_the_bound_is_not_idle() -> None:
    """A term well below the grid is lost, one above it is kept: the grid is where it is said to be."""
    spacing = exact.grid(exact.exponent(1.0), 1)
    assert spacing == 2.0**-50
    values = torch.tensor([1.0, spacing, 0.4 * spacing, 0.6 * spacing], dtype=torch.float64)
    assert exact.snap_(values, spacing).tolist() == [1.0, spacing, 0.0, spacing]


def test_a_million_terms() -> None:
    """All of one sign and size, so that a grid too fine would overflow 53 bits and lose exactness."""
    random = np.random.default_rng(0)
    value = torch.from_numpy(2 - random.random((1_000_000, 1)) * 1e-6)
    weight = torch.ones(len(value), dtype=torch.float64)
    forward = total([(weight, value)], len(value))
    cut = 123_457
    backward = total([(weight[cut:], value.flip(0)[cut:]), (weight[:cut], value.flip(0)[:cut])], len(value))
    assert forward.tobytes() == backward.tobytes()
    assert forward[0] == pytest.approx(math.fsum(value[:, 0].tolist()), rel=1e-9)


@pytest.mark.parametrize("value", [1.0, -1.0, 1e-30, -3e38, 2.0**-149, 1 / 3])
def test_one_term_alone_is_itself(value: float) -> None:
    """A float32 has 24 bits, the grid of one term 51: nothing is lost."""
    single = np.float32(value)
    got = total([(torch.ones(1, dtype=torch.float64), torch.tensor([[single]]))], 1)
    assert got[0] == single


def test_zeros_make_a_positive_zero() -> None:
    value = torch.full((3, 2), -0.0)
    out = torch.zeros(2, dtype=torch.float64)
    exact.add_weighted(out, torch.ones(3, dtype=torch.float64), value, exact.grid(exact.exponent(0.0), 3))
    assert out.numpy().tobytes() == bytes(16)


def test_no_terms_change_nothing() -> None:
    out = torch.tensor([1.5, -2.0], dtype=torch.float64)
    exact.add_weighted(out, torch.zeros(0, dtype=torch.float64), torch.zeros(0, 2), 1.0)
    assert out.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_summed_stays_as_it_is(dtype: torch.dtype) -> None:
    value, weight = torch.tensor([[1 / 3, 2.0]], dtype=dtype), torch.tensor([3.0], dtype=torch.float64)
    before = value.clone()
    exact.add_weighted(torch.zeros(2, dtype=torch.float64), weight, value, 2.0**-10)
    assert torch.equal(value, before)


@pytest.mark.parametrize("columns", [1, exact.BLOCK - 1, exact.BLOCK + 3])
def test_blocks_cover_every_column(columns: int) -> None:
    value = torch.arange(3 * columns, dtype=torch.float32).view(3, columns)
    out = torch.zeros(columns, dtype=torch.float64)
    exact.add_weighted(out, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), value, 1.0)
    assert torch.equal(out, value[0].double() + 2 * value[1] + 4 * value[2])


@pytest.mark.parametrize(("magnitude", "e"), [(1.0, 1), (0.99, 0), (2.0, 2), (3.0, 2), (2.0**-149, -148)])
def test_exponent_is_the_least(magnitude: float, e: int) -> None:
    assert exact.exponent(magnitude) == e
    assert magnitude < 2.0**e


def test_plain_sums_do_differ() -> None:
    """Why all this: the same numbers in another order, in float32 and in float64."""
    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        value = random.standard_normal(100).astype(dtype)
        sums = {float(np.add.accumulate(random.permutation(value))[-1]) for _ in range(30)}
        assert len(sums) > 1
