"""Figures over clients, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpipfl.metrics import mean, over_clients

NAN = float("nan")


def figures(values: list[float], n_test: list[int], n_train: list[int]) -> dict[str, float]:
    return over_clients(np.array(values), np.array(n_test), np.array(n_train))


def test_by_hand() -> None:
    got = figures([0.5, 1.0, 0.0, 0.5], [10, 30, 40, 20], [1, 2, 9, 3])
    assert got == {
        "mean": 0.5,
        "weighted": (5 + 30 + 0 + 10) / 100,
        "std": pytest.approx(math.sqrt(0.5 / 4)),
        "worst": 0.0,
        "worst10": 0.0,
        "top10": 0.0,  # the third client has most training samples
    }


def test_a_client_without_data_is_left_out() -> None:
    """In every figure, and in the number of clients that a tenth is of."""
    some, n_test, n_train = [0.2, NAN, 0.6, NAN], [10, 0, 30, 0], [5, 100, 1, 100]
    got = figures(some, n_test, n_train)
    assert got == figures([0.2, 0.6], [10, 30], [5, 1])
    assert got["weighted"] == pytest.approx(0.5)
    assert got["top10"] == pytest.approx(0.2)


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (10, 1), (11, 2), (20, 2), (100, 10)])
def test_a_tenth_is_rounded_up(clients: int, tenth: int) -> None:
    values = np.random.default_rng(clients).permutation(clients) / clients
    got = over_clients(values, np.ones(clients), np.round(1000 * values))
    assert got["worst10"] == pytest.approx(np.arange(tenth).mean() / clients)
    assert got["top10"] == pytest.approx(np.arange(clients - tenth, clients).mean() / clients)


def test_ties_for_the_top_go_by_client() -> None:
    values = np.linspace(0, 1, 20)
    assert over_clients(values, np.ones(20), np.full(20, 7))["top10"] == pytest.approx(values[:2].mean())


@pytest.mark.parametrize("values", [[], [NAN], [NAN, NAN]])
def test_nobody_has_data(values: list[float]) -> None:
    got = figures(values, [1] * len(values), [1] * len(values))
    assert list(got) == ["mean", "weighted", "std", "worst", "worst10", "top10"]
    assert all(math.isnan(v) for v in got.values())
    assert math.isnan(mean(np.array(values)))


def test_mean() -> None:
    assert mean(np.array([1.0, NAN, 2.0])) == 1.5


def test_order_does_not_matter() -> None:
    random = np.random.default_rng(0)
    values, n_test, n_train = random.random(30), random.integers(1, 9, 30), random.permutation(30)
    order = random.permutation(30)
    one, other = over_clients(values, n_test, n_train), over_clients(values[order], n_test[order], n_train[order])
    assert one == pytest.approx(other, rel=1e-12)
