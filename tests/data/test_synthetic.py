"""synthetic(alpha, beta) against its moments; samples that are made when they are needed are always the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from mpipfl.data.federated import Data, divide, made
from mpipfl.data.partition import Partition
from mpipfl.data.synthetic import Synthetic, SyntheticSamples
from mpipfl.errors import DataError

NOWHERE = Path("nowhere")


def opened(clients: int, seed: int = 0, **settings: Any) -> SyntheticSamples:
    return Synthetic(**settings).open(NOWHERE, seed, clients)


def test_inputs_have_the_moments_of_the_formulas() -> None:
    """Within a client x_j varies by j^-1.2; between clients the mean over features by beta + 1 / features."""
    samples = opened(600, beta=4, features=20, least=30, classes=3)
    x = np.stack([samples.make(k)[0] for k in range(600)]).astype(np.float64)  # (clients, samples, features)
    within = x.var(1, ddof=1).mean(0)
    assert within == pytest.approx(np.arange(1, 21) ** -1.2, rel=6 * np.sqrt(2 / (600 * 29)))
    between = x.mean((1, 2)).var(ddof=1)
    assert between == pytest.approx(4 + 1 / 20, rel=5 * np.sqrt(2 / 599))


def test_labels_are_those_of_a_linear_model_of_the_clients_own() -> None:
    """Each client's samples are separable by logistic regression, those of two clients together are not."""
    samples = opened(2, least=400, features=5, classes=4, beta=0)
    (x0, y0), (x1, y1) = (samples.make(k) for k in (0, 1))

    def fits(x: np.ndarray, y: np.ndarray) -> float:
        return float(LogisticRegression(C=1e6, max_iter=5000).fit(x, y).score(x, y))

    assert fits(x0, y0) > 0.99 and fits(x1, y1) > 0.99
    assert fits(np.concatenate([x0, x1]), np.concatenate([y0, y1])) < 0.95


def test_all_clients_have_one_model_where_all_of_it_is_shared() -> None:
    samples = opened(40, shared=1, features=5, classes=3)
    parts = [samples.make(k) for k in range(40)]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    assert LogisticRegression(C=1e6, max_iter=5000).fit(x, y).score(x, y) > 0.99


def test_alpha_moves_models_but_no_labels() -> None:
    """u_k is added to every logit alike."""
    for k in range(5):
        (x, y), (other, labels) = (opened(5, alpha=alpha).make(k) for alpha in (0, 9))
        assert np.array_equal(x, other) and np.array_equal(y, labels)


def test_sizes_follow_their_laws() -> None:
    assert set(opened(7, least=12).sizes) == {12}
    normal = opened(20_000, sizes="log_normal", least=5, mean=3, sigma=1, most=10**6).sizes
    assert np.median(normal) == pytest.approx(5 + np.exp(3), abs=1)
    assert np.log(normal - 4.5).std() == pytest.approx(1, abs=0.03)
    power = opened(20_000, sizes="power_law", least=20, exponent=2, most=500).sizes
    assert power.min() == 20 and power.max() == 500
    assert (power >= 40).mean() == pytest.approx(1 / 4, abs=0.015)  # P(N >= 2 least) = 2^-exponent


@pytest.mark.parametrize("sizes", ["equal", "log_normal", "power_law"])
def test_a_client_depends_on_its_number_alone(sizes: str) -> None:
    few, many = (opened(clients, sizes=sizes) for clients in (5, 500))
    late = many.after(3)
    assert np.array_equal(few.sizes, many.sizes[:5]) and np.array_equal(late.sizes[:2], few.sizes[3:])
    for k in (0, 3, 4):
        assert all(map(np.array_equal, few.make(k), many.make(k)))
    assert all(map(np.array_equal, few.make(4), late.make(1)))
    assert not np.array_equal(few.make(0)[0][:50], few.make(1)[0][:50])
    assert not np.array_equal(few.make(0)[0], opened(5, seed=1, sizes=sizes).make(0)[0])


# ---------------------------------------------------------------------- divided


def data(**changes: Any) -> Data:
    return Data.model_validate({"source": {"kind": "synthetic"}, "partition": "natural", "clients": 9} | changes)


def test_the_first_samples_are_for_training_and_the_last_for_testing() -> None:
    settings = data(source={"kind": "synthetic", "sizes": "power_law"}, split={"validation": 0.1, "test": 0.3})
    samples = opened(9, sizes="power_law")
    partition = divide(settings, samples, 0)
    totals = samples.sizes
    assert partition.samples == totals.sum() == len(samples)
    assert np.array_equal(partition.n_test, np.rint(0.3 * totals))
    assert np.array_equal(partition.n_validation, np.rint(0.1 * totals))
    assert np.array_equal(partition.n_train + partition.n_validation + partition.n_test, totals)


def test_groups_have_names_of_their_own_for_the_classes() -> None:
    samples = opened(9)
    partition = divide(data(shift={"kind": "permute_labels", "groups": 3}), samples, 0)
    x, y = made(samples, partition, np.array([1, 7]))
    plain = [samples.make(k) for k in (1, 7)]
    assert np.array_equal(x, np.concatenate([x for x, _ in plain]))
    assert partition.permutation is not None
    assert np.array_equal(y, np.concatenate([partition.permutation[k][plain[i][1]] for i, k in enumerate((1, 7))]))
    assert not np.array_equal(y, np.concatenate([y for _, y in plain]))


@pytest.mark.parametrize("shift", [{}, {"shift": {"kind": "permute_labels", "groups": 3}}])
def test_the_partition_is_small_and_comes_back(shift: dict[str, Any], tmp_path: Path) -> None:
    settings = data(clients=50_000, source={"kind": "synthetic", "sizes": "power_law"}, **shift)
    partition = divide(settings, opened(50_000, sizes="power_law"), 0)
    partition.write(tmp_path / "partition.h5", "{}")
    assert (tmp_path / "partition.h5").stat().st_size < 10 * 50_000
    back = Partition.read(tmp_path / "partition.h5")
    assert back.made and back.digest == partition.digest
    with h5py.File(tmp_path / "partition.h5", "r+") as file:
        file["sizes"][17, 0] += 1
    with pytest.raises(DataError, match="does not match its digest"):
        Partition.read(tmp_path / "partition.h5")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "iid"}, "data.partition=iid: with data.source=synthetic every client makes its own samples; "),
        ({"samples": 100}, "data.samples=100: with data.source=synthetic"),
        ({"split": {"test": "official"}}, "data.split: with data.source=synthetic"),
        ({"split": {"lists": True}}, "data.split: with data.source=synthetic"),
        ({"source": {"kind": "synthetic", "least": 2}}, "client 0 gets 2 samples and needs at least 3"),
        ({"shift": "rotate"}, "data.shift=rotate needs square images"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    settings = data(**changes)
    with pytest.raises(DataError, match=message) as error:
        divide(settings, settings.open(0), 0)
    assert "\n" not in str(error.value)


def test_sizes_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="least is 50, more than most, 20"):
        Synthetic(most=20)
