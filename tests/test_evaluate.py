"""What is counted of single samples: macro figures in every round, confusion matrices and scores in the last one, by
scikit-learn from a plain network's outputs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from mpipfl.comm import Comm
from mpipfl.evaluate import counted

from .plain import Plain
from .suite import config, train

MARKS = ("precision", "recall", "f1")


@pytest.mark.parametrize("classes", [2, 6])
def test_a_run_keeps_what_its_models_said(classes: int, alone: Comm, tmp_path: Path) -> None:
    """Ditto has both kinds of models; clients have different numbers of test samples."""
    changes = {"algorithm": {"kind": "ditto"}, "data.source": {"kind": "glyphs", "classes": classes}, "rounds": 2}
    settings = config(changes | {"data.partition": {"kind": "dirichlet", "alpha": 2.0}}, tmp_path)
    got, plain = train(settings, alone), Plain(settings, alone)
    assert {len(got[f"history/personal/{name}"]) for name in MARKS} == {2}  # rounds 0 and 2
    longest = max(len(plain.data(k, "test")[1]) for k in range(7))
    for kind in ("personal", "global"):
        assert got[f"history/confusion/{kind}"].shape == (7, classes, classes)
        for k in range(7):
            theta = got["clients/v"][k] if kind == "personal" else got["server/theta"]
            x, y = plain.data(k, "test")
            with torch.no_grad():
                outputs = plain.outputs(torch.from_numpy(theta), x)
            said = outputs.argmax(1)
            expected = precision_recall_fscore_support(y, said, average="macro", zero_division=0)[:3]
            assert [got[f"history/{kind}/{name}"][-1, k] for name in MARKS] == pytest.approx(expected, abs=1e-12)
            matrix = confusion_matrix(y, said, labels=range(classes))
            np.testing.assert_array_equal(got[f"history/confusion/{kind}"][k], matrix)
            if classes == 2:
                scores, label = got[f"history/scores/{kind}"][k], got["history/scores/label"][k]
                np.testing.assert_allclose(scores[: len(y)], torch.softmax(outputs, 1)[:, 1], atol=1e-6)
                assert scores.shape == (longest,) and np.isnan(scores[len(y) :]).all()
                np.testing.assert_array_equal(label, np.pad(y, (0, longest - len(y)), constant_values=-1))
    assert ("history/scores/label" in got) == (classes == 2)
    last = (settings.folder / "metrics.csv").read_text().splitlines()
    row = dict(zip(last[0].split(","), last[-1].split(","), strict=True))
    assert float(row["personal_f1_mean"]) == pytest.approx(got["history/personal/f1"][-1].mean())


def test_a_method_without_global_models_and_a_task_without_classes(alone: Comm, tmp_path: Path) -> None:
    got = train(config({"algorithm": "local", "rounds": 1}, tmp_path / "local"), alone)
    assert np.isnan(got["history/global/f1"]).all() and not np.isnan(got["history/personal/f1"]).any()
    assert "history/confusion/global" not in got
    numbers = {"source": "gaussian", "clients": 4, "partition": "natural", "shift": "none", "samples": None}
    settings = {"algorithm": "fedavg", "rounds": 1, "data": numbers, "model": {"kind": "location", "variance": 0.1}}
    got = train(config(settings, tmp_path / "gaussian"), alone)
    assert not [name for name in got if name.endswith(MARKS) or "confusion" in name]


def test_an_older_checkpoint_has_fewer_series(alone: Comm, tmp_path: Path) -> None:
    """A run that goes on from a checkpoint without the macro figures has them from there on."""
    from mpipfl.history import KINDS, History

    history = History(np.array([3, 4]), np.array([1, 1]))
    one = {f"{kind}/accuracy": np.array([0.5, 1.0]) for kind in KINDS}
    history.append(0, one)
    history.append(1, one | {"personal/f1": np.array([0.25, 1.0])})
    np.testing.assert_array_equal(history.record().rows["personal/f1"], [[np.nan, np.nan], [0.25, 1.0]])
    assert [row["personal_f1_mean"] for row in csv.DictReader(history.table().splitlines())] == ["nan", "0.625"]


def test_counts_of_rows_by_hand() -> None:
    rows = torch.tensor([[0, 2, 2, -1], [1, 1, 7, 0]])
    assert counted(rows, 3).tolist() == [[1, 0, 2], [1, 2, 0]]
    assert counted(rows[:0], 3).shape == (0, 3)
