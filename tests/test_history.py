"""What was measured, in memory and in its two files."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpipfl.history import History

N_TRAIN, N_TEST = np.array([5, 50, 20]), np.array([10, 20, 70])
NAN = float("nan")


def values(accuracy: list[float], validation: list[float]) -> dict[str, np.ndarray]:
    """One round's scores: the personal models as given, the global ones half as good."""
    out = {}
    for kind, factor in (("personal", 1.0), ("global", 0.5)):
        out[f"{kind}/accuracy"] = factor * np.array(accuracy)
        out[f"{kind}/loss"] = 3 - np.array(accuracy)
        out[f"{kind}/validation_accuracy"] = factor * np.array(validation)
        out[f"{kind}/validation_loss"] = 2 - np.array(validation)
    return out


@pytest.fixture
def history() -> History:
    history = History(N_TRAIN, N_TEST)
    history.append(0, values([0.1, 0.2, 0.3], [0.5, 0.5, NAN]))
    history.append(5, values([0.4, NAN, 0.8], [0.9, 0.9, NAN]))
    history.append(10, values([0.6, 0.6, 0.9], [0.9, 0.9, NAN]))
    return history


def test_a_row_by_hand(history: History) -> None:
    row = history.figures[1]
    assert row["round"] == 5
    assert row["personal_accuracy_mean"] == pytest.approx(0.6)
    assert row["personal_accuracy_weighted"] == pytest.approx((4 + 56) / 80)
    assert row["personal_accuracy_top10"] == pytest.approx(0.8)
    assert row["global_accuracy_worst"] == pytest.approx(0.2)
    assert row["personal_loss_mean"] == pytest.approx(3 - 0.6)
    assert row["personal_validation_accuracy_mean"] == pytest.approx(0.9)
    assert row["global_validation_loss_mean"] == pytest.approx(1.1)


def test_the_best_round_is_chosen_on_validation_data_and_the_first_of_equals(history: History) -> None:
    assert history.best("personal") == 1  # the last has better test accuracy
    assert history.best("global") == 1


def test_no_best_without_validation_data() -> None:
    history = History(N_TRAIN, N_TEST)
    assert history.best("personal") is None
    history.append(0, values([0.1, 0.2, 0.3], [NAN] * 3))
    assert history.best("personal") is None


def test_files_say_what_was_measured(history: History, tmp_path: Path) -> None:
    history.write(tmp_path)
    with open(tmp_path / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [0, 5, 10]
    for i, row in enumerate(rows):
        assert {k: float(v) for k, v in row.items()} == history.figures[i]  # to the last bit
    with h5py.File(tmp_path / "history.h5") as file:
        assert file["round"][...].tolist() == [0, 5, 10]
        assert file["personal/accuracy"].shape == (3, 3)
        assert np.array_equal(file["personal/accuracy"][1], [0.4, NAN, 0.8], equal_nan=True)
        assert file["n_train"][...].tolist() == N_TRAIN.tolist()
        assert file["n_test"][...].tolist() == N_TEST.tolist()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["history.h5", "metrics.csv"]


def test_missing_figures_are_written_as_nan(tmp_path: Path) -> None:
    history = History(N_TRAIN, N_TEST)
    history.append(1, values([NAN] * 3, [NAN] * 3))
    history.write(tmp_path)
    row = next(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert math.isnan(float(row["personal_accuracy_mean"]))


def test_restored_it_goes_on(history: History) -> None:
    other = History(N_TRAIN, N_TEST)
    other.restore(history.record())
    for h in (history, other):
        h.append(15, values([0.7, 0.7, 0.7], [1.0, 1.0, 1.0]))
    assert other.rounds == [0, 5, 10, 15]
    one, two = history.record().rows, other.record().rows
    assert one.keys() == two.keys()
    assert [one[name].tobytes() for name in one] == [two[name].tobytes() for name in one]
    assert other.table() == history.table()
    assert other.best("personal") == 3


def test_what_a_method_found_once(history: History, tmp_path: Path) -> None:
    """As it is, without rounds, beside the method's series; a second time in place of the first."""
    table, label = np.arange(12.0).reshape(3, 4), np.array([2, 0, 1])
    history.keep_own("ucfl", {"W": np.zeros((5, 5)), "cluster": label + 1})
    history.keep_own("ucfl", {"W": table, "cluster": label})
    history.append_own("other", 5, {"W": np.ones(3)})
    own = history.own("ucfl", [])
    assert own.keys() == {"W", "cluster"}
    assert own["W"].tolist() == table.tolist()
    assert own["cluster"].dtype == np.int64
    restored = History(N_TRAIN, N_TEST)
    restored.restore(history.record())
    for h in (history, restored):
        h.append(15, values([0.7, 0.7, 0.7], [1.0, 1.0, 1.0]))
        h.write(tmp_path)
        with h5py.File(tmp_path / "history.h5") as file:
            assert sorted(file["ucfl"]) == ["W", "cluster"]
            assert file["ucfl/W"][...].tobytes() == table.tobytes()
            assert file["ucfl/cluster"][...].tolist() == label.tolist()
            assert file["other/W"].shape == (1, 3)


def test_nothing_measured_is_written_too(tmp_path: Path) -> None:
    History(N_TRAIN, N_TEST).write(tmp_path)
    assert (tmp_path / "metrics.csv").read_text() == ""
