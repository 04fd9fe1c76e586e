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


def characters(samples, index):
    """Which characters of the running texts each sample is made of, its label included."""
    return set((samples.place[index][:, None] + np.arange(samples.reach)).ravel().tolist())


@pytest.mark.parametrize("every", [1, 3, 7, 20])
def test_no_part_has_seen_anothers_text(tmp_path, every):
    """Windows of six characters and their labels, of two users: parts follow each other, and nothing is lost but what
    reaches over a border."""
    texts = {"B": ["".join(chr(97 + i * 7 % 26) for i in range(400))], "A": ["z" * 150, "xy" * 60]}
    (tmp_path / "s.json").write_text(json.dumps(texts))
    source = {"kind": "shakespeare", "path": "s.json", "length": 6, "every": every}
    data = Data.model_validate({"source": source, "root": tmp_path, "clients": 2, "partition": "natural"})
    samples = data.open(0)
    partition = divide(data, samples, 0)
    for client in range(2):
        parts = [partition.index[slice(*partition.bounds[client, part : part + 2])] for part in range(3)]
        train, validation, test = (characters(samples, part) for part in parts)
        assert not train & validation and not train & test and not validation & test
        assert max(train) < min(validation) and max(validation) < min(test)
        mine = np.flatnonzero(samples.users == client)
        lost = len(mine) - sum(map(len, parts))
        assert lost == 2 * (-(-7 // every) - 1) and [len(part) > 0 for part in parts] == [True] * 3


def test_windows_that_others_have_cut(tmp_path):
    """LEAF's begin at every character, or at some, or of several texts: what they have in common tells."""
    text = "the quick brown fox jumps"
    x = [text[i : i + 8] for i in (0, 1, 2, 5, 9)] + ["somethin", "omething"]
    leaf(tmp_path, {"A": (x, list("abcdefg")), "B": (["otherold"], ["z"])})
    samples = opened(tmp_path, content="characters", length=8)
    assert samples.reach == 9 and np.diff(samples.place).tolist() == [1, 1, 3, 4, 9, 1, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "iid"}, r"partition=iid: samples of running text overlap.*data.source.every=7 or more"),
        ({"clients": 1}, r"client 0 has 33 samples of running text, too few for train and validation and test data"),
    ],
)
def test_running_text_that_cannot_be_kept_apart(tmp_path, changes, message):
    (tmp_path / "s.json").write_text(json.dumps({"B": ["to be, or not to be"] * 2, "A": ["no"]}))
    source = {"kind": "shakespeare", "path": "s.json", "length": 6, "every": 1}
    settings = {"source": source, "root": tmp_path, "clients": 1, "partition": {"kind": "natural", "min_samples": 5}}
    with pytest.raises(DataError, match=message):
        data = Data.model_validate(settings | {"source": source} | changes)
        divide(data, data.open(0), 0)


def test_running_text_without_overlap_goes_anywhere(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"B": ["to be, or not to be, that is the question " * 3]}))
    source = {"kind": "shakespeare", "path": "s.json", "length": 6, "every": 7}
    data = Data.model_validate({"source": source, "root": tmp_path, "clients": 2, "partition": "iid"})
    samples = data.open(0)
    assert len(divide(data, samples, 0).index) == len(samples)


def test_official_tests_are_of_the_same_users(tmp_path):
    """So they are for clients that are users, not for pooled ones."""
    image = [[i / 16 for i in range(16)]] * 4
    leaf(tmp_path, {user: (image, [0, 1, 0, 1]) for user in ("al", "bo", "cy", "di")}, "train/0.json")
    leaf(tmp_path, {user: (image[:1], [1]) for user in ("al", "bo", "cy", "di")}, "test/0.json")
    settings = {
        "source": {"kind": "leaf", "path": "set"},
        "root": tmp_path,
        "clients": 2,
        "split": {"test": "official"},
    }
    data = Data.model_validate(settings | {"partition": "natural"})
    assert divide(data, data.open(0), 0).n_test.tolist() == [1, 1]
    data = Data.model_validate(settings | {"partition": "pooled"})
    with pytest.raises(DataError, match=r"pooled: clients would be tested on users they train on"):
        divide(data, data.open(0), 0)


def test_real_shakespeare(real_data):
    data = Data.model_validate(
        {"source": {"kind": "shakespeare", "every": 40}, "root": real_data, "clients": 30}
        | {"partition": {"kind": "natural", "min_samples": 50}}
    )
    samples = data.open(0)
    fitted = samples.fitted(divide(data, samples, 0).training)
    assert samples.shape == (80,) and 50 < samples.classes <= 65 and fitted.vocabulary.words[:2] == (" ", "e")
    partition = divide(data, samples, 0)
    for client in range(30):
        parts = [partition.index[slice(*partition.bounds[client, part : part + 2])] for part in range(3)]
        train, validation, test = (characters(samples, part) for part in parts)
        assert not train & validation and not train & test and not validation & test
