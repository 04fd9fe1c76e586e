"""One's own files: what is accepted, and what is refused with which words."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from mpipfl.data.arrays import Arrays
from mpipfl.errors import DataError

X = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])


def save(path: Path, **arrays) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for key, value in arrays.items():
                file[key] = value
    return path


def opened(path: Path, **options):
    return Arrays(path=path, **options).open(path.parent, 0, 2)


@pytest.fixture(params=[".npz", ".h5"])
def path(request, tmp_path):
    return tmp_path / f"set{request.param}"


def test_one_set_with_users(path):
    samples = opened(save(path, x=X, y=Y, user=np.array([7, 3, 7, 3, 9, 9])))
    assert samples.shape == (1, 4, 4) and samples.dtype == np.uint8 and samples.classes == 3 and samples.is_test is None
    np.testing.assert_array_equal(samples.read(np.array([5, 0]), 1), X[[5, 0], None])
    assert samples.users.tolist() == [1, 0, 1, 0, 2, 2]


@pytest.mark.parametrize("names", [np.array([b"b", b"a"] * 3), ["bo", "al"] * 3])
def test_users_may_have_names(path, names):
    assert opened(save(path, x=X, y=Y, user=names)).users.tolist() == [1, 0] * 3


def test_train_and_test(path):
    samples = opened(save(path, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2]))
    assert len(samples) == 8 and samples.is_test.tolist() == [False] * 6 + [True] * 2
    np.testing.assert_array_equal(samples.read(np.array([7]), 0), X[None, [1]])
    assert opened(save(path, x_train=X, y_train=Y)).is_test is None


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 5), (5,)),
        ((6, 8, 7), (1, 8, 7)),
        ((6, 8, 7, 3), (3, 8, 7)),
        ((6, 3, 8, 7), (3, 8, 7)),
        ((6, 8, 7, 1), (1, 8, 7)),
    ],
)
def test_shapes(path, shape, expected):
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    samples = opened(save(path, x=x, y=Y))
    assert samples.shape == expected and samples.dtype == np.float32
    first = x[0].transpose(2, 0, 1) if len(shape) == 4 and shape[1] != 3 else x[0]
    np.testing.assert_array_equal(samples.read(np.array([0]), 0)[0], first.reshape(expected))


def test_relative_paths(path, monkeypatch, tmp_path):
    save(path, x=X, y=Y)
    section = Arrays(path=path.name)
    assert len(section.open(tmp_path, 0, 2)) == 6
    monkeypatch.chdir(tmp_path)
    assert len(section.open(tmp_path / "elsewhere", 0, 2)) == 6
    monkeypatch.chdir("/")
    with pytest.raises(DataError, match=r"no file at .*elsewhere.* nor at /set"):
        section.open(tmp_path / "elsewhere", 0, 2)


NAN = np.full((6, 2), np.nan)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "has no y; it holds"),
        ({"y": Y}, "has no x; it holds"),
        ({"images": X}, "has no x; it holds nothing known"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "has no y_test"),
        ({"x": X, "y": Y[:5]}, "y has 5 entries for 6 samples"),
        ({"x": X, "y": Y - 1}, "y contains -1"),
        ({"x": X, "y": Y * 1.0}, "y has type float64; labels must be integers"),
        ({"x": X, "y": Y[:, None]}, "y has shape .* one-dimensional"),
        ({"x": NAN, "y": Y}, "x contains NaN"),
        ({"x": np.full((6, 2), 1e300), "y": Y}, "x contains NaN or infinite"),
        ({"x": X.astype(np.int64), "y": Y}, "x has type int64"),
        ({"x": X[:, 0, 0], "y": Y}, r"x has shape \(6,\)"),
        ({"x": X[:, None, None], "y": Y}, r"x has shape \(6, 1, 1, 4, 4\)"),
        ({"x": X[:0], "y": Y[:0]}, r"x has shape \(0, 4, 4\)"),
        ({"x": X, "y": Y, "user": Y[:3]}, r"user has shape \(3,\) for 6 samples"),
        ({"x": X, "y": Y, "user": Y * 0.5}, "user has type float64"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :3], "y_test": Y}, r"x_test has samples of uint8 \(1, 3, 4\)"),
    ],
)
def test_bad_contents(path, arrays, message):
    save(path, **arrays)
    with pytest.raises(DataError, match=message) as caught:
        opened(path)
    assert str(path) in str(caught.value)


def test_bad_files(path):
    save(path, x=X, y=Y)
    whole = path.read_bytes()
    for damaged in (b"", b"garbage" * 50, whole[: len(whole) // 2], b"PK\x03\x04" + whole[4:90]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"set\.(npz|h5).* cannot be read"):
            opened(path)


def test_pickles_are_never_loaded(tmp_path):
    path = save(tmp_path / "set.npz", x=np.array([{}, [], 1, 2, 3, 4], object), y=Y)
    with pytest.raises(DataError, match=r"set.npz: x cannot be read .*plain arrays"):
        opened(path)


def test_other_bad_values(tmp_path):
    with pytest.raises(DataError, match=r"unknown ending '\.csv'"):
        opened(Path(save(tmp_path / "a.npz", x=X, y=Y).rename(tmp_path / "a.csv")))
    path = save(tmp_path / "b.npz", x=X, y=Y)
    assert opened(path, classes=5).classes == 5
    with pytest.raises(DataError, match="has label 2; with classes: 2"):
        opened(path, classes=2)
    with pytest.raises(DataError, match="mean has 2 values"):
        opened(path, mean=(0.1, 0.2))
    with pytest.raises(DataError, match="std must be greater than 0"):
        opened(path, std=0)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_group("x")
        file["y"] = Y
    with pytest.raises(DataError, match="is a group"):
        opened(tmp_path / "c.h5")


def test_real_writers(real_data):
    samples = Arrays(path="femnist/digits_12_writers.npz").open(real_data, 0, 12)
    assert len(samples) == 5997 and np.unique(samples.users).tolist() == list(range(12))
