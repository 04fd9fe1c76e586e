"""Sets that come divided by user: LEAF's JSON, TFF's HDF5, Shakespeare by speaker."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpipfl.data.federated import Data, divide
from mpipfl.data.leaf import Leaf, Shakespeare, Tff
from mpipfl.errors import DataError


def leaf(folder: Path, data: dict[str, tuple[list, list]], name: str = "a.json", **changes) -> Path:
    content = {
        "users": list(data),
        "num_samples": [len(y) for _, y in data.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in data.items()},
    }
    path = folder / "set" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return folder


def opened(folder: Path, path: str = "set/a.json", **options):
    return Leaf(path=path, **options).open(folder, 0, 2)


def test_leaf_images(tmp_path):
    """Flat images are squares; train and test files of the same users are joined."""
    image = [i / 16 for i in range(16)]
    leaf(tmp_path, {"bo": ([image, image[::-1]], [3, 0]), "al": ([image], [1])}, "train/0.json")
    leaf(tmp_path, {"al": ([image], [2])}, "test/0.json")
    samples = opened(tmp_path, "set")
    assert samples.shape == (1, 4, 4) and samples.dtype == np.float32 and samples.classes == 4
    assert samples.labels.tolist() == [3, 0, 1, 2] and samples.users.tolist() == [1, 1, 0, 0]
    assert samples.is_test.tolist() == [False, False, False, True]
    np.testing.assert_array_equal(samples.read(np.array([1]), 0)[0, 0].ravel(), np.float32(image[::-1]))


def test_leaf_texts(tmp_path):
    """A text by itself, or in a list as LEAF's Sent140 has it."""
    tweet = ["1", "Mon", "NO_QUERY", "al", "So GOOD!", "training"]
    samples = opened(leaf(tmp_path, {"al": ([tweet, "so bad"], [1, 0])}), content="text", length=3)
    fitted = samples.fitted(np.arange(2))
    assert fitted.vocabulary.words == ("so", "bad", "good")
    assert fitted.read(np.arange(2), 0).tolist() == [[2, 4, 0], [2, 3, 0]] and fitted.labels.tolist() == [1, 0]


def test_leaf_next_characters(tmp_path):
    samples = opened(
        leaf(tmp_path, {"A": (["ab a", "b ab"], ["b", " "]), "B": (["bbbb"], ["a"])}), content="characters", length=4
    )
    assert samples.classes == 3 and samples.labels.tolist() == [2, 0, 1]  # " ", a, b
    fitted = samples.fitted(np.array([0, 1]))
    assert fitted.vocabulary.words == ("a", "b", " ") and fitted.users.tolist() == [0, 0, 1]
    assert fitted.read(np.array([0]), 0).tolist() == [[2, 3, 4, 2]]


@pytest.mark.parametrize(
    ("users", "changes", "options", "message"),
    [
        ({"al": ([[0.0] * 4], [1])}, {"users": ["bo"]}, {}, "user bo: user_data must hold the lists x and y"),
        ({"al": ([[0.0] * 4], [1])}, {"num_samples": [2]}, {}, "user al: num_samples says 2, x has 1"),
        ({"al": ([[0.0] * 4], [1])}, {"num_samples": []}, {}, "1 users and 0 num_samples"),
        ({"al": ([[0.0] * 4], [1])}, {"users": "al"}, {}, "must be lists, user_data a mapping"),
        ({"al": ([[0.0], [1.0, 2]], [1, 1])}, {}, {}, "user al: x is no array of numbers"),
        ({"al": ([["z"]], [1])}, {}, {}, "user al: x is no array of numbers"),
        ({"al": ([[0.0] * 4], [1, 2])}, {"num_samples": [1]}, {}, "1 samples and 2 labels"),
        ({"al": ([[0.0] * 4], [-1])}, {}, {}, "labels contains -1"),
        ({"al": ([[0.0] * 4] * 2, [1, "b"])}, {}, {}, "labels has type"),
        ({"al": ([[0.0] * 4], [1]), "b": ([[0.0] * 9], [1])}, {}, {}, "images of several sizes"),
        ({"al": ([[0.0] * 4], [1])}, {}, {"content": "characters"}, "x must be texts for content=characters"),
        ({"al": ([["a"]], [1])}, {}, {"content": "text"}, "no entry 4; set data.source.column"),
        ({}, {}, {}, "there are no samples"),
    ],
)
def test_bad_leaf_files(tmp_path, users, changes, options, message):
    with pytest.raises(DataError, match=message):
        opened(leaf(tmp_path, users, **changes), **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"users": [', "cannot be read as JSON"),
        ("[1]", "holds a list, not a mapping"),
        ('{"users": []}', "has no num_samples"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_damaged_json(tmp_path, text, message):
    (leaf(tmp_path, {}) / "set/a.json").write_text(text)
    with pytest.raises(DataError, match=rf"a.json .*{message}|{message}"):
        opened(tmp_path)
    with pytest.raises(DataError, match=r"data.source.path: no folder at .*other/train"):
        opened(tmp_path, "other")


def tff(folder: Path, clients: dict[str, dict], name: str = "a.h5") -> Path:
    with h5py.File(folder / name, "w") as file:
        for client, arrays in clients.items():
            for key, value in arrays.items():
                file[f"examples/{client}/{key}"] = value
    return folder


def test_tff_images(tmp_path):
    draw = np.random.default_rng(0).random((3, 28, 28), np.float32)
    tff(tmp_path, {"f1": {"pixels": draw, "label": np.array([5, 1, 0])}, "f0": {"pixels": draw[:1], "label": [2]}})
    tff(tmp_path, {"f1": {"pixels": draw[:2], "label": np.array([1, 1])}}, "t.h5")
    samples = Tff(path="a.h5", test="t.h5").open(tmp_path, 0, 2)
    assert samples.shape == (1, 28, 28) and samples.classes == 6 and samples.labels.tolist() == [2, 5, 1, 0, 1, 1]
    assert samples.users.tolist() == [0, 1, 1, 1, 1, 1] and samples.is_test.tolist() == [False] * 4 + [True] * 2
    np.testing.assert_array_equal(samples.read(np.array([2]), 0)[0, 0], draw[1])


def test_tff_texts_and_characters(tmp_path):
    """Labels may be names; running text is cut into windows and the character after each."""
    tff(tmp_path, {"c": {"tokens": ["a dog", "a cat"], "tag": ["pets", "cats"], "snippets": ["hello", "hi"]}})
    samples = Tff(path="a.h5", content="text", x="tokens", y="tag").open(tmp_path, 0, 2)
    assert samples.labels.tolist() == [1, 0] and samples.fitted(np.arange(2)).vocabulary.words == ("a", "cat", "dog")
    samples = Tff(path="a.h5", content="characters", x="snippets", y=None, length=2, every=2).open(tmp_path, 0, 2)
    fitted = samples.fitted(np.arange(2))  # he -> l, ll -> o
    assert samples.labels.tolist() == [0, 1] and fitted.vocabulary.words == ("l", "e", "h")
    assert fitted.read(np.arange(2), 0).tolist() == [[4, 3], [2, 2]]


def test_bad_tff_files(tmp_path):
    tff(tmp_path, {"c": {"pixels": np.zeros((1, 4, 4), np.float32)}})
    with pytest.raises(DataError, match=r"examples/c has no label; it holds pixels. Set data.source.x and y"):
        Tff(path="a.h5").open(tmp_path, 0, 2)
    with pytest.raises(DataError, match=r"y is null; content=images needs the labels' key"):
        Tff(path="a.h5", y=None).open(tmp_path, 0, 2)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["other"] = 1
    (tmp_path / "c.h5").write_bytes(b"garbage")
    for name in ("b.h5", "c.h5"):
        with pytest.raises(DataError, match=r"cannot be read as examples/<client>/<key>"):
            Tff(path=name).open(tmp_path, 0, 2)


def test_shakespeare(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"B": ["to be,", "or"], "A": ["no"]}))
    samples = Shakespeare(path="s.json", length=4, every=3).open(tmp_path, 0, 2)
    assert len(samples) == 2  # of "to be,\nor": "to b" and e, "be,\n" and o
    assert samples.users.tolist() == [0, 0] and samples.classes == 2 and samples.labels.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"shorter than data.source.length"):
        Shakespeare(path="s.json").open(tmp_path, 0, 2)
    (tmp_path / "s.json").write_text(json.dumps({"B": "to be"}))
    with pytest.raises(DataError, match="what B says must be a list of texts"):
        Shakespeare(path="s.json").open(tmp_path, 0, 2)


def test_real_shakespeare(real_data):
    data = Data.model_validate(
        {"source": {"kind": "shakespeare", "every": 40}, "root": real_data, "clients": 30}
        | {"partition": {"kind": "natural", "min_samples": 50}}
    )
    samples = data.open(0)
    fitted = samples.fitted(divide(data, samples, 0).training)
    assert samples.shape == (80,) and 50 < samples.classes <= 65 and fitted.vocabulary.words[:2] == (" ", "e")
