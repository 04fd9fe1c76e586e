"""Everything random: functions of their keys alone, uniform, and the same for ever."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from scipy import stats

from mpipfl import schedule
from mpipfl.cohort import steps_of
from mpipfl.comm import Comm

KEYS = schedule.key(0, "test", np.arange(500))


def splitmix64(seed: int, count: int) -> list[int]:
    """Vigna's generator with plain integers."""
    out, mask = [], (1 << 64) - 1
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


@pytest.mark.parametrize("start", [0, 1, 1234567, 2**64 - 1])
def test_words_are_splitmix64(start: int) -> None:
    assert schedule.words(np.array(start, dtype=np.uint64), 5).tolist() == splitmix64(start, 5)


def test_golden_values() -> None:
    """Whoever changes a stream changes every result ever published with it."""
    assert int(schedule.key(0, "x")) == 0x0474C2B2E8D378C3
    assert schedule.words(schedule.key(0, "batches", 1, 2), 3).tolist() == [
        0xC8D436B1F68F1787, 0x5032FA85DAE8A0DE, 0xC15D2B4E2BF10024
    ]  # fmt: skip
    assert schedule.words(schedule.key(12345, "participants", 7), 2).tolist() == [
        0x56980091F9437106, 0xCCD4A4891EC6F6FC
    ]  # fmt: skip
    assert schedule.uniform(schedule.key(1, "u"), 2) == pytest.approx([0.78035587, 0.23565731], abs=1e-8)
    assert schedule.participants(0, 1, 20, 0.25).tolist() == [3, 5, 13, 15, 17]
    assert schedule.permutations(KEYS[:1], np.array([8])).shape == (1, 8)
    index, count = schedule.batches(3, "batches", 2, np.array([4]), np.array([5]), np.array([4]), 2)
    assert index.tolist() == [[[1, 4], [0, 3], [2, 0], [4, 2]]]
    assert count.tolist() == [[2, 2, 1, 2]]


def test_keys_differ_in_every_part() -> None:
    """Seed, purpose, and each number in its place."""
    keys = [
        schedule.key(*parts)
        for parts in (
            (0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 0), (0, "a", 0, 1), (0, "a", 1, 0)
        )
    ]  # fmt: skip
    assert len({int(k) for k in keys}) == len(keys)
    grid = schedule.key(0, "a", np.arange(200)[:, None], np.arange(200))
    assert len(np.unique(grid)) == grid.size
    assert grid[3, 5] == schedule.key(0, "a", 3, 5)


# ---------------------------------------------------------------------- uniformity


def fits(observed: np.ndarray, expected: np.ndarray | float) -> bool:
    """Chi-square with fixed seeds: a fair stream fails once in ten thousand changes of it."""
    return bool(stats.chisquare(observed, np.broadcast_to(expected, observed.shape)).pvalue > 1e-4)


def test_uniform() -> None:
    draws = schedule.uniform(KEYS, 400)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert fits(np.histogram(draws, 100, (0, 1))[0], draws.size / 100)
    assert fits(np.histogram(draws[:, 0], 20, (0, 1))[0], 500 / 20)  # across keys, not only along a stream
    pairs = np.histogram2d(draws[:, 0], draws[:, 1], 5, ((0, 1), (0, 1)))[0].ravel()
    assert fits(pairs, 500 / 25)


def test_every_bit_is_fair() -> None:
    bits = np.unpackbits(schedule.words(KEYS, 40).view(np.uint8).reshape(-1, 8), axis=1).sum(0, dtype=np.int64)
    assert (np.abs(bits - 10_000) < 4.5 * np.sqrt(20_000 / 4)).all()


def test_permutations_are_permutations() -> None:
    lengths = np.random.default_rng(0).integers(0, 20, len(KEYS))
    order = schedule.permutations(KEYS, lengths)
    for row, length in zip(order, lengths, strict=True):
        assert sorted(row[:length].tolist()) == list(range(length))


def test_permutations_are_fair() -> None:
    """All 24 orders of four, equally often."""
    order = schedule.permutations(schedule.key(7, "orders", np.arange(12_000)), np.full(12_000, 4))
    codes = order @ np.array([64, 16, 4, 1])
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 24
    assert fits(counts, 500)


def test_a_permutation_does_not_depend_on_its_companions() -> None:
    lengths = np.array([5, 17, 1, 9])
    together = schedule.permutations(KEYS[:4], lengths)
    for k, length in enumerate(lengths):
        single = schedule.permutations(KEYS[k : k + 1], lengths[k : k + 1])
        assert together[k, :length].tolist() == single[0, :length].tolist()


# ---------------------------------------------------------------------- participants


@pytest.mark.parametrize(
    ("clients", "fraction", "count"),
    [(10, 0.25, 3), (10, 0.24, 2), (10, 0.01, 1), (1, 0.1, 1), (7, 1.0, 7), (100, 0.1, 10), (3, 0.5, 2)],
)
def test_a_fraction_is_so_many(clients: int, fraction: float, count: int) -> None:
    """Rounded half up, one at least, sorted, nobody twice."""
    for round in range(1, 30):
        drawn = schedule.participants(0, round, clients, fraction)
        assert len(drawn) == count
        assert (np.diff(drawn) > 0).all()
        assert drawn.min() >= 0
        assert drawn.max() < clients


def test_everybody_is_drawn_equally_often() -> None:
    drawn = np.concatenate([schedule.participants(1, round, 40, 0.1) for round in range(2000)])
    counts = np.bincount(drawn, minlength=40)
    # drawn without replacement: the counts vary less than chi-square's, by 1 - n/N
    assert stats.chi2.sf(((counts - 200) ** 2 / 200).sum() / (36 / 40) * 39 / 40, 39) > 1e-4
    assert counts.std() > 5  # and are draws, not turns


def test_a_probability_is_met() -> None:
    sizes = np.array([len(schedule.participants(1, r, 50, 1.0, 0.1)) for r in range(2000)])
    expected = 2000 * stats.binom.pmf(np.arange(13), 50, 0.1)
    expected[-1] += 2000 - expected.sum()
    assert fits(np.bincount(np.minimum(sizes, 12), minlength=13), expected)
    assert sizes.min() == 0  # nobody at all is possible
    assert len(schedule.participants(1, 1, 50, 1.0, 1.0)) == 50


def test_rounds_and_seeds_differ() -> None:
    rounds = {tuple(schedule.participants(0, r, 50, 0.2)) for r in range(100)}
    seeds = {tuple(schedule.participants(s, 1, 50, 0.2)) for s in range(100)}
    assert len(rounds) == len(seeds) == 100
    assert schedule.participants(0, 1, 50, 0.2).tolist() == schedule.participants(0, 1, 50, 0.2).tolist()


@pytest.mark.mpi
def test_every_rank_draws_the_same(comm: Comm) -> None:
    """Whatever a rank has drawn before."""
    np.random.default_rng(comm.rank).random(comm.rank)
    drawn = schedule.participants(5, 3, 100, 0.3).tobytes()
    drawn += schedule.batches(5, "batches", 3, np.arange(9), np.arange(1, 10), np.arange(9), 4)[0].tobytes()
    digest = np.frombuffer(hashlib.sha256(drawn).digest(), dtype=np.uint8).copy()
    mine = digest.copy()
    comm.broadcast(digest)
    assert np.array_equal(digest, mine)


# ---------------------------------------------------------------------- batches

CLIENTS, SAMPLES = np.array([3, 11, 0, 8]), np.array([10, 4, 1, 7])


def epochs_of(index: np.ndarray, count: np.ndarray, samples: int, batch: int) -> list[list[int]]:
    """What a client takes, epoch by epoch."""
    taken = [index[s, : count[s]].tolist() for s in range(len(count)) if count[s]]
    per_epoch = -(-samples // batch)
    return [list(itertools.chain(*taken[e : e + per_epoch])) for e in range(0, len(taken), per_epoch)]


@pytest.mark.parametrize("batch", [1, 3, 4, 10, 64])
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_epoch_is_a_permutation(batch: int, epochs: int) -> None:
    """The last batch of each is what is left; every epoch has an order of its own, unless one batch holds it all."""
    steps = steps_of(batch, epochs, SAMPLES)
    index, count = schedule.batches(0, "batches", 5, CLIENTS, SAMPLES, steps, batch)
    assert index.shape == (4, steps.max(), batch)
    for k, samples in enumerate(SAMPLES.tolist()):
        rounds = epochs_of(index[k], count[k], samples, batch)
        assert len(rounds) == epochs
        assert all(sorted(order) == list(range(samples)) for order in rounds)
        sizes = [batch] * (samples // batch) + [samples % batch] * (samples % batch > 0)
        assert count[k, : steps[k]].tolist() == sizes * epochs
        assert not count[k, steps[k] :].any()
        if samples <= batch:
            assert rounds == [list(range(samples))] * epochs
        elif samples > 5:
            assert len({tuple(order) for order in rounds}) == epochs


def test_steps_stop_in_the_middle_of_an_epoch() -> None:
    """The first s steps of a longer plan, whatever s, for each client its own."""
    full = schedule.batches(0, "batches", 1, CLIENTS, SAMPLES, np.full(4, 20), 3)
    steps = np.array([0, 20, 7, 3])
    index, count = schedule.batches(0, "batches", 1, CLIENTS, SAMPLES, steps, 3)
    for k, s in enumerate(steps):
        assert np.array_equal(index[k, :s], full[0][k, :s])
        assert np.array_equal(count[k, :s], full[1][k, :s])
        assert not count[k, s:].any()


def test_places_without_a_sample_are_zero() -> None:
    index, count = schedule.batches(0, "batches", 1, CLIENTS, SAMPLES, np.full(4, 6), 4)
    assert not index[np.arange(4) >= count[..., None]].any()
    assert (index < SAMPLES[:, None, None]).all()


def test_a_clients_batches_are_its_own() -> None:
    """Alone or in company, in any order; and other in another round, stream or seed."""
    steps = np.array([9, 2, 5, 7])
    index, count = schedule.batches(0, "batches", 1, CLIENTS, SAMPLES, steps, 3)
    for order in ([2, 0, 3, 1], [3], [1, 2]):
        i, c = schedule.batches(0, "batches", 1, CLIENTS[order], SAMPLES[order], steps[order], 3)
        for row, k in enumerate(order):
            assert np.array_equal(i[row, : steps[k]], index[k, : steps[k]])
            assert np.array_equal(c[row, : steps[k]], count[k, : steps[k]])
    for seed, stream, round in ((1, "batches", 1), (0, "other", 1), (0, "batches", 2)):
        other = schedule.batches(seed, stream, round, CLIENTS, SAMPLES, steps, 3)[0]
        assert not np.array_equal(other[0], index[0])
        assert not np.array_equal(other[3], index[3])


def test_no_steps_no_batches() -> None:
    index, count = schedule.batches(0, "batches", 1, CLIENTS, SAMPLES, np.zeros(4, dtype=np.int64), 3)
    assert index.shape == (4, 0, 3)
    assert count.shape == (4, 0)
    index, count = schedule.batches(0, "batches", 1, CLIENTS[:0], SAMPLES[:0], SAMPLES[:0], 3)
    assert index.shape == (0, 0, 3)


def test_the_first_place_is_fair() -> None:
    """Which sample comes first, over many clients: each equally often."""
    many = np.arange(5000)
    index, _ = schedule.batches(0, "batches", 1, many, np.full(5000, 10), np.ones(5000, dtype=np.int64), 4)
    assert fits(np.bincount(index[:, 0, 0], minlength=10), 500)
    assert fits(np.bincount(index[:, 0, 3], minlength=10), 500)
