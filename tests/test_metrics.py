"""Figures over clients, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpipfl.metrics import (
    fairness,
    fairness_apart,
    false_accepts_at,
    improvement,
    macro,
    mean,
    over_clients,
    quantum_of_improvement,
)

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
        "least10": 0.5,  # the first has fewest
    }


def test_a_client_without_data_is_left_out() -> None:
    """In every figure, and in the number of clients that a tenth is of."""
    some, n_test, n_train = [0.2, NAN, 0.6, NAN], [10, 0, 30, 0], [5, 100, 1, 100]
    got = figures(some, n_test, n_train)
    assert got == figures([0.2, 0.6], [10, 30], [5, 1])
    assert got["weighted"] == pytest.approx(0.5)
    assert got["top10"] == pytest.approx(0.2) and got["least10"] == pytest.approx(0.6)


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (10, 1), (11, 2), (20, 2), (100, 10)])
def test_a_tenth_is_rounded_up(clients: int, tenth: int) -> None:
    values = np.random.default_rng(clients).permutation(clients) / clients
    got = over_clients(values, np.ones(clients), np.round(1000 * values))
    assert got["worst10"] == pytest.approx(np.arange(tenth).mean() / clients)
    assert got["top10"] == pytest.approx(np.arange(clients - tenth, clients).mean() / clients)
    assert got["least10"] == pytest.approx(np.arange(tenth).mean() / clients)


def test_ties_for_the_top_go_by_client() -> None:
    values = np.linspace(0, 1, 20)
    got = over_clients(values, np.ones(20), np.full(20, 7))
    assert got["top10"] == got["least10"] == pytest.approx(values[:2].mean())


@pytest.mark.parametrize("values", [[], [NAN], [NAN, NAN]])
def test_nobody_has_data(values: list[float]) -> None:
    got = figures(values, [1] * len(values), [1] * len(values))
    assert list(got) == ["mean", "weighted", "std", "worst", "worst10", "top10", "least10"]
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


# ---------------------------------------------------------------------- improvement and fairness


def test_quantum_of_improvement_by_hand() -> None:
    """Against the better of the two baselines, client by client."""
    personal = np.array([0.9, 0.5, 0.7, 0.6, NAN, 0.8])
    general = np.array([0.7, 0.8, 0.7, 0.1, 0.5, NAN])
    local = np.array([0.8, 0.1, 0.2, 0.4, 0.5, 0.1])
    got = quantum_of_improvement(personal, general, local)
    np.testing.assert_allclose(got, [0.1, -0.3, 0.0, 0.2, NAN, NAN], atol=1e-12)
    assert got[2] == 0


def test_rounding_is_no_improvement() -> None:
    assert quantum_of_improvement(np.array([0.1 + 0.2]), np.array([0.3]), np.array([0.0])).tolist() == [0.0]


def test_improvement_by_hand() -> None:
    """Of five clients with a number three improved, one got worse."""
    got = improvement(np.array([0.1, -0.3, 0.0, 0.2, NAN, 0.6]))
    assert got == pytest.approx({"PUI": 60, "PUD": 20, "MPI": 0.2, "API": 0.3, "MPD": -0.3, "APD": -0.3})
    two = improvement(np.array([-0.1, -0.2, -0.6, -0.3]))
    assert (two["MPI"], two["API"], two["PUI"]) == (None, None, 0)
    assert (two["MPD"], two["APD"]) == pytest.approx((-0.25, -0.3))


@pytest.mark.parametrize("values", [[], [NAN]])
def test_improvement_of_nobody(values: list[float]) -> None:
    assert set(improvement(np.array(values)).values()) == {None}


def test_fairness_by_hand() -> None:
    """x = (1, 3): mean 2, sum 4, squares 10."""
    assert fairness(np.array([1.0, NAN, 3.0])) == pytest.approx({
        "variance": 1,
        "cosine": 4 / math.sqrt(2 * 10),
        "entropy": 0.25 * math.log(4) + 0.75 * math.log(4 / 3),
        "jain": 16 / 20,
    })  # fmt: skip
    one_has_all = fairness(np.array([0.0, 0.0, 0.0, 0.5]))
    assert one_has_all == pytest.approx({"variance": 3 / 64, "cosine": 0.5, "entropy": 0, "jain": 0.25})


@pytest.mark.parametrize("value", [1e-300, 0.7, 1.0])
def test_equal_numbers_are_fair(value: float) -> None:
    equal = {"variance": 0, "cosine": 1, "entropy": math.log(5), "jain": 1}
    assert fairness(np.full(5, value)) == pytest.approx(equal, abs=1e-12)


def test_fairness_of_nothing() -> None:
    assert set(fairness(np.array([])).values()) == {None}
    assert fairness(np.zeros(3)) == {"variance": 0, "cosine": None, "entropy": None, "jain": None}
    with pytest.raises(ValueError, match="not negative"):
        fairness(np.array([0.1, -0.1]))


def test_fairness_of_improved_and_worsened_apart() -> None:
    got = fairness_apart(np.array([0.1, 0.3, 0.0, -0.2, NAN]))
    assert got["improved"] == pytest.approx(fairness(np.array([1.0, 3.0])) | {"variance": 0.01})
    assert got["worsened"] == pytest.approx({"variance": 0, "cosine": 1, "entropy": 0, "jain": 1})
    assert set(fairness_apart(np.array([0.2]))["worsened"].values()) == {None}


# ---------------------------------------------------------------------- samples of one client


def test_macro_by_hand() -> None:
    """Classes 0 and 1 occur; class 2 is said once and never true; class 3 is not there at all."""
    confusion = np.array([[3, 1, 0, 0], [1, 2, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    got = macro(confusion.diagonal(), confusion.sum(1), confusion.sum(0))
    assert got["precision"] == pytest.approx((3 / 4 + 2 / 3 + 0) / 3)
    assert got["recall"] == pytest.approx((3 / 4 + 2 / 4 + 0) / 3)
    assert got["f1"] == pytest.approx((6 / 8 + 4 / 7 + 0) / 3)
    two = macro(np.array([[3, 2], [0, 0]]), np.array([[4, 2], [0, 0]]), np.array([[3, 3], [0, 0]]))
    assert two["recall"].tolist() == pytest.approx([(3 / 4 + 1) / 2, float("nan")], nan_ok=True)  # the second has none


def test_macro_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    random = np.random.default_rng(1)
    true, said = random.integers(0, 5, 40), random.integers(2, 8, 40)
    confusion = confusion_matrix(true, said, labels=range(10))
    got = macro(confusion.diagonal(), confusion.sum(1), confusion.sum(0))
    expected = precision_recall_fscore_support(true, said, average="macro", zero_division=0)[:3]
    assert list(got.values()) == pytest.approx(expected)


LABELS = np.array([1, 1, 1, 1, 0, 0, 0, 0])
BASELINE = np.array([0.9, 0.8, 0.7, 0.1, 0.6, 0.7, 0.2, 0.1])  # at 0.5: one false reject, two false accepts


def test_false_accepts_by_hand() -> None:
    scores = np.array([0.9, 0.6, 0.5, 0.3, 0.55, 0.4, 0.35, 0.1])
    got = false_accepts_at(scores, LABELS, BASELINE)
    # one false reject for 0.3 < t <= 0.5, of which 0.5 accepts the fewest negatives: that with 0.55
    # the baseline's are 0.1 < t <= 0.7, of which 0.7 accepts one
    assert got == ((0.5, 1, 1), (0.7, 1, 1), 0.25, 0.25, 1.0)


def test_false_accepts_take_fewer_rejects_of_two_equally_near() -> None:
    """Two positives share a score, so the model rejects none or two where the baseline rejects one."""
    scores = np.array([0.9, 0.6, 0.3, 0.3, 0.55, 0.4, 0.35, 0.1])
    assert false_accepts_at(scores, LABELS, BASELINE) == ((0.3, 0, 3), (0.7, 1, 1), 0.75, 0.25, 3.0)


def test_false_accepts_where_there_is_nothing_to_compare() -> None:
    perfect = false_accepts_at(BASELINE, LABELS, LABELS.astype(float))
    assert (perfect.baseline, perfect.relative) == ((1.0, 0, 0), None)
    ones = false_accepts_at(BASELINE, np.ones(8, int), BASELINE)
    assert (ones.rate, ones.baseline_rate, ones.relative) == (None, None, None)
    zeros = false_accepts_at(BASELINE, np.zeros(8, int), BASELINE)
    assert (zeros.model, zeros.relative) == ((math.inf, 0, 0), None)
    with pytest.raises(ValueError, match="score"):
        false_accepts_at(BASELINE[:3], LABELS, BASELINE)


def test_false_accepts_of_the_baseline_itself() -> None:
    """A model like its baseline is as good as it, wherever the baseline's threshold is among equals."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        labels, scores = (draw.random(20) < 0.5).astype(int), draw.integers(-5, 6, 20) / 2
        for threshold in (-1.0, -0.25, 0.0, 0.3, 2.0):
            got = false_accepts_at(scores, labels, scores, threshold)
            assert got.model == got.baseline and got.relative in (1.0, None)
            rejected = (scores[labels == 1] < threshold).sum()
            assert got.model.rejects == rejected and got.model.accepts <= (scores[labels == 0] >= threshold).sum()


def test_scores_that_are_no_numbers_are_never_accepted() -> None:
    scores = np.array([0.9, NAN, 0.5, 0.3, NAN, 0.4, 0.35, 0.1])
    got = false_accepts_at(scores, LABELS, BASELINE)
    assert got.model == (0.3, 1, 2)  # one positive is rejected whatever the threshold
    nothing = false_accepts_at(np.full(8, NAN), LABELS, BASELINE)
    assert (nothing.model, nothing.relative) == ((math.inf, 4, 0), 0.0)
    assert false_accepts_at(BASELINE, LABELS, np.full(8, NAN)).relative is None
