"""Drawn characters: the same whenever and wherever they are read, and different where they should be."""

import time
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from mpipfl.data import fonts as fonts_module
from mpipfl.data.fonts import CHARACTERS, fonts, stencils
from mpipfl.data.glyphs import Glyphs
from mpipfl.errors import DataError

ROOT = Path()


def test_what_a_source_promises():
    samples = Glyphs().open(ROOT, seed=0, clients=7, samples=1000)
    assert samples.shape == (1, 28, 28) and samples.classes == 62 and len(samples) == 1000
    counts = np.bincount(samples.labels, minlength=62)
    assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(samples.users, np.arange(1000) % 7)
    x = samples.read(np.arange(1000), 3)
    assert x.dtype == np.uint8 and x.shape == (1000, 1, 28, 28)
    assert len(Glyphs().open(ROOT, 0, 3)) == 1500
    x = np.concatenate([samples.read(np.arange(200), client) for client in range(30)]) / 255
    np.testing.assert_allclose([x.mean(), x.std()], [samples.mean, samples.std], atol=0.04)


def test_an_image_does_not_depend_on_its_batch():
    samples = Glyphs().open(ROOT, 5, 4, 700)
    whole = samples.read(np.arange(700), 2)
    order = np.random.default_rng(0).permutation(700)
    np.testing.assert_array_equal(samples.read(order, 2), whole[order])
    for indices in ([699], [3, 3, 257], list(range(250, 263))):
        np.testing.assert_array_equal(samples.read(np.array(indices), 2), whole[indices])
    again = Glyphs().open(ROOT, 5, 4, 700)
    np.testing.assert_array_equal(again.read(np.arange(700), 2), whole)
    assert samples.read(np.array([], np.int64), 2).shape == (0, 1, 28, 28)


def test_seed_client_and_index_matter():
    samples = Glyphs().open(ROOT, 5, 4, 700)
    other = Glyphs().open(ROOT, 6, 4, 700)
    assert (samples.labels != other.labels).any()
    assert (samples.read(np.arange(5), 0) != samples.read(np.arange(5), 1)).any((1, 2, 3)).all()
    same = np.flatnonzero(samples.labels == 0)[:2]
    first, second = samples.read(same, 0)
    assert (first != second).any()


def test_without_noise_distortion_and_variety_only_label_font_and_contrast_are_left():
    samples = Glyphs(noise=0, distortion=0, variety=0).open(ROOT, 0, 3, 300)
    x = samples.read(np.arange(300), 0).astype(float)
    for label in range(62):
        drawn = x[samples.labels == label]
        drawn /= drawn.max((1, 2, 3), keepdims=True)
        assert np.abs(drawn - drawn[0]).max() < 0.02


def test_fewer_classes_and_bounds():
    samples = Glyphs(classes=10).open(ROOT, 0, 3, 100)
    assert samples.classes == 10 and samples.labels.max() == 9
    for wrong in ({"classes": 63}, {"classes": 0}, {"noise": -1}, {"distortion": float("nan")}):
        with pytest.raises(ValidationError):
            Glyphs(**wrong)


def test_every_font_has_every_character():
    assert len(fonts()) >= 15
    for font in fonts():
        ink = stencils(font).reshape(len(CHARACTERS), -1).astype(int)
        assert (ink.max(1) > 100).all(), font
        different = len(np.unique(ink, axis=0))
        assert different >= 61, font  # a missing character would be drawn as one and the same box


def test_no_fonts(monkeypatch):
    monkeypatch.setattr(fonts_module.importlib.util, "find_spec", lambda name: None)
    fonts.cache_clear()
    with pytest.raises(DataError, match="pip install matplotlib"):
        Glyphs().open(ROOT, 0, 2, 10).read(np.arange(3), 0)


def test_fast_enough():
    """About 25 us an image here; the bound only catches a loop over samples."""
    samples = Glyphs().open(ROOT, 0, 2, 4000)
    samples.read(np.arange(10), 0)
    start = time.process_time()
    samples.read(np.arange(4000), 0)
    assert (time.process_time() - start) / 4000 < 250e-6


def test_a_centroid_classifier_learns_something_but_not_all():
    samples = Glyphs(classes=10).open(ROOT, 0, 10, 4000)
    x = np.concatenate([samples.read(np.flatnonzero(samples.users == c), c) for c in range(10)]).reshape(4000, -1) / 255
    y = np.concatenate([samples.labels[samples.users == c] for c in range(10)])
    train = np.random.default_rng(0).random(4000) < 0.7
    centres = np.stack([x[train & (y == label)].mean(0) for label in range(10)])
    guess = np.square(x[~train][:, None] - centres).sum(2).argmin(1)
    assert 0.3 < (guess == y[~train]).mean() < 0.9
