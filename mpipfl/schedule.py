"""Everything random that a round needs, as pure functions of (seed, purpose, round, client): never of rank or order.

Random words come from a counter: word i of a key is splitmix64's output for that key, so any client's draws can be
made anywhere, for many clients at once, without a generator's state.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(z: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer: a bijection of 64-bit words whose outputs look independent."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key(seed: int, purpose: str, *numbers: int | np.ndarray) -> np.ndarray:
    """A 64-bit key for a purpose and any numbers (round, client, epoch ...); arrays broadcast."""
    with np.errstate(over="ignore"):
        state = mix(np.asarray(seed, dtype=np.uint64) + GOLDEN)
        state = mix((state ^ np.uint64(zlib.crc32(purpose.encode()))) + GOLDEN)
        for number in numbers:
            state = mix((state ^ np.asarray(number).astype(np.uint64)) * GOLDEN + GOLDEN)
    return state


def words(keys: np.ndarray, count: int) -> np.ndarray:
    """`count` random 64-bit words for each key: shape keys.shape + (count,)."""
    with np.errstate(over="ignore"):
        return mix(np.asarray(keys)[..., None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def uniform(keys: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers in [0, 1) for each key."""
    return (words(keys, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(keys: np.ndarray, count: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` standard normal numbers for each key, by the device's own generator begun with it: Philox on a GPU; the
    Mersenne Twister on a CPU, which knows the key's lower half only (two of 100,000 keys draw the same numbers), at a
    third of the time that numpy's Philox takes."""
    generator, out = torch.Generator(device), torch.empty(len(keys), count, device=device)
    for row, one in zip(out, keys.tolist(), strict=True):
        row.normal_(generator=generator.manual_seed(one))
    return out


def permutations(keys: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Row k starts with a random order of 0 .. lengths[k]-1 (the rest of the row is of no use)."""
    width = int(lengths.max(initial=0))
    order = words(keys, width)
    order[np.arange(width) >= lengths[:, None]] = np.iinfo(np.uint64).max  # behind all others
    return np.argsort(order, axis=1, kind="stable")


def participants(seed: int, round: int, clients: int, fraction: float, probability: float | None = None) -> np.ndarray:
    """The clients of a round, sorted: a fraction without replacement, or each with a probability (maybe none)."""
    draw = words(key(seed, "participants", round), clients)
    if probability is not None:
        return np.flatnonzero((draw >> np.uint64(11)).astype(np.float64) * 2.0**-53 < probability)
    return lowest(draw, expected(fraction, clients))


def sample(seed: int, purpose: str, clients: int, count: int) -> np.ndarray:
    """So many of the clients, sorted, the same ones each time; all where there are no more."""
    return lowest(words(key(seed, purpose), clients), min(count, clients))


def lowest(draw: np.ndarray, count: int) -> np.ndarray:
    """Where the least of some random words are, sorted."""
    return np.arange(len(draw)) if count == len(draw) else np.sort(np.argpartition(draw, count)[:count])


def expected(share: float, clients: int) -> int:
    """How many clients a share is; at least one."""
    return max(1, round_half_up(share * clients))


def round_half_up(x: float) -> int:
    return int(np.floor(x + 0.5))


def batches(
    seed: int, stream: str, round: int, clients: np.ndarray, samples: np.ndarray, steps: np.ndarray, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which of its training samples each client takes in each step: positions (K, steps, batch), and how many count.

    A client goes through its samples in random order, epoch after epoch; the last batch of an epoch may be short. One
    whose samples fit into a batch takes them all in every step, as they lie.
    """
    per_epoch = -(-samples // batch)
    index = np.zeros((len(clients), int(steps.max(initial=0)), batch), dtype=np.int64)
    count = np.zeros(index.shape[:2], dtype=np.int64)
    whole = per_epoch <= 1
    index[whole] = np.arange(batch)
    count[whole] = np.where(np.arange(count.shape[1]) < steps[whole, None], samples[whole, None], 0)
    for epoch in range(int((-(-steps // np.maximum(per_epoch, 1)))[~whole].max(initial=0))):
        rows = np.flatnonzero((steps > epoch * per_epoch) & ~whole)
        order = permutations(key(seed, stream, round, clients[rows], epoch), samples[rows])
        order = np.pad(order, ((0, 0), (0, int(per_epoch[rows].max()) * batch - order.shape[1])))
        valid = np.minimum(np.maximum(samples[rows, None] - np.arange(order.shape[1] // batch) * batch, 0), batch)
        for i, row in enumerate(rows):
            first, last = epoch * per_epoch[row], min((epoch + 1) * per_epoch[row], steps[row])
            index[row, first:last] = order[i, : (last - first) * batch].reshape(-1, batch)
            count[row, first:last] = valid[i, : last - first]
    index[np.arange(batch) >= count[..., None]] = 0
    return index, count
