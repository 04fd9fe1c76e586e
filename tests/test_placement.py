"""Who hosts whom: balanced, complete, and the same wherever it is asked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpipfl.placement import place


def loads(work: np.ndarray, host: np.ndarray, ranks: list[int]) -> np.ndarray:
    return np.array([work[host == rank].sum() for rank in ranks])


@pytest.mark.parametrize(
    ("work", "ranks", "host"),
    [
        ([5, 4, 3, 3, 3], [1, 2], [1, 2, 2, 1, 2]),  # 5 | 4 | 4+3 | 5+3 | 7+3
        ([1, 1, 1, 1], [1, 2], [1, 2, 1, 2]),
        ([1, 9], [0], [0, 0]),
        ([1, 2], [1, 2, 3], [2, 1]),  # the third has nobody
        ([0, 0, 0], [1, 2, 3], [1, 2, 3]),  # no work at all is shared out too
        ([], [1, 2], []),
    ],
)
def test_by_hand(work: list[int], ranks: list[int], host: list[int]) -> None:
    assert place(np.array(work), ranks).tolist() == host


@pytest.mark.parametrize("seed", range(10))
def test_the_greatest_load_is_near_the_best(seed: int) -> None:
    """Heaviest first is within 4/3 - 1/(3 ranks) of the best placement (Graham 1969), found here by trying all."""
    work, ranks = np.random.default_rng(seed).integers(1, 30, 8), [1, 2, 3]
    best = min(loads(work, np.array(host), ranks).max() for host in itertools.product(ranks, repeat=len(work)))
    assert loads(work, place(work, ranks), ranks).max() <= (4 / 3 - 1 / 9) * best


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_equal_work_means_equal_numbers(ranks: int) -> None:
    counts = np.bincount(place(np.ones(100), list(range(1, ranks + 1))), minlength=ranks + 1)[1:]
    assert np.ptp(counts) <= 1


@pytest.mark.parametrize("seed", range(40))
def test_clients_are_placed_one_by_one(seed: int) -> None:
    """The heaviest of those without a host goes to the rank with least work, fewest clients, lowest place, one at a
    time: that placing equal ones at once comes to the same."""
    draw = np.random.default_rng(seed)
    ranks = sorted(draw.permutation(12)[: draw.integers(1, 8)].tolist())
    work = draw.integers(0, draw.choice([2, 4, 40]), draw.integers(0, 90))
    stay = np.where(draw.random(len(work)) < seed % 2 * 0.4, draw.choice(ranks, len(work)), -1)
    host = stay.copy()
    for client in np.argsort(-work, kind="stable"):
        if host[client] < 0:
            host[client] = min(ranks, key=lambda rank: (work[host == rank].sum(), (host == rank).sum(), rank))
    assert place(work, ranks, stay if seed % 2 else None).tolist() == host.tolist()


def test_a_function_of_its_arguments() -> None:
    work = np.random.default_rng(0).random(50)
    before = work.copy()
    first = place(work, [3, 1, 2])
    assert np.array_equal(first, place(work, [3, 1, 2]))
    assert np.array_equal(work, before)
    assert set(first.tolist()) == {1, 2, 3}
