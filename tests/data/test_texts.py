"""Texts become token ids: what counts as a word, which words are known, and who may decide that."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from mpipfl.data.federated import Data, divide, fill
from mpipfl.data.texts import Texts
from mpipfl.data.words import MOST, Corpus, words_of
from mpipfl.errors import DataError

FILES = {
    "train/cats/0.txt": "The cat sat.",
    "train/cats/1.txt": "<p>A cats mat; the MAT</p>",
    "train/dogs/0.txt": "the dog",
    "test/dogs/0.txt": "zebra zebra zebra zebra",
}


def lay(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        path = folder / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def opened(root: Path, **options):
    return Texts(folder="set", **options).open(root, 0, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, WORLD!", ["hello", "world"]),
        ("don't  can’t\n\tstop", ["do", "n't", "ca", "n't", "stop"]),
        ("It's what we've; dogs' I'm he'd.", ["it", "'s", "what", "we", "'ve", "dogs", "i", "'m", "he", "'d"]),
        ("five o'clock 'quoted' rock'n'roll n't", ["five", "oclock", "quoted", "rocknroll", "n't"]),
        ("'s it'sy don'ts' _it's_", ["'s", "itsy", "donts", "it", "'s"]),
        ("<b class='x'>bold</b><br/>new<!-- no\n --> line", ["bold", "new", "line"]),
        ("if a < b and c > d", ["if", "a", "b", "and", "c", "d"]),
        ("&lt;center&gt; R&amp;D &quot;x_y&quot;", ["center", "r", "d", "x", "y"]),
        ("ÉTÉ naïve 日本 2nd", ["été", "naïve", "日本", "2nd"]),
        ("... !? <br>", []),
    ],
)
def test_words(text, words):
    assert words_of(text) == words


def test_ids_by_hand(tmp_path):
    """Training texts say: the 3, cat 1, cats 1, mat 2, dog 1 ...; most frequent first, then by the alphabet."""
    samples = opened(lay(tmp_path), vocabulary=4, length=5)
    assert (samples.shape, samples.classes, samples.dtype) == ((5,), 2, np.int32)
    assert samples.labels.tolist() == [0, 0, 1, 1] and samples.is_test.tolist() == [False, False, False, True]
    fitted = samples.fitted(np.array([0, 1, 2]))
    assert fitted.vocabulary.words == ("the", "mat", "a", "cat") and fitted.vocabulary.size == 6
    assert fitted.read(np.arange(4), 0).tolist() == [
        [2, 5, 1, 0, 0],
        [4, 1, 3, 2, 3],
        [2, 1, 0, 0, 0],
        [1, 1, 1, 1, 0],
    ]
    assert (fitted.labels == samples.labels).all() and (fitted.is_test == samples.is_test).all()


def test_texts_are_cut(tmp_path):
    samples = opened(lay(tmp_path), length=2).fitted(np.array([0]))
    assert samples.vocabulary.words == ("cat", "sat", "the")
    assert samples.read(np.array([1, 0]), 0).tolist() == [[1, 1], [4, 2]]


def test_a_text_without_words_is_an_unknown_one(tmp_path):
    samples = opened(lay(tmp_path, FILES | {"train/dogs/1.txt": "?!"}), length=3).fitted(np.arange(3))
    assert samples.read(np.array([3]), 0).tolist() == [[1, 0, 0]]


def test_only_the_clients_training_texts_decide(tmp_path):
    """Every text has a word of its own: known are those of the division's training texts, wherever the files lay."""
    words = [f"w{i}" for i in range(40)]
    files = {f"{'train' if i % 2 else 'test'}/{'ab'[i % 3 % 2]}/{i}.txt": word for i, word in enumerate(words)}
    data = Data.model_validate({"source": "texts", "folder": "set", "root": lay(tmp_path, files), "clients": 3})
    samples = data.open(0)
    partition = divide(data, samples, 0)
    fitted = samples.fitted(partition.training)
    assert len(partition.training) == partition.n_train.sum() < 40
    x = np.zeros((40, 250), np.float32)
    fill(fitted, partition, range(3), x, np.zeros(40, np.int64))
    for start, middle, _, end in partition.bounds:
        assert (x[start:middle, 0] > 1).all() and (x[middle:end, 0] == 1).all()
    assert not x[:, 1:].any()


def test_ids_are_exact_in_the_engines_numbers():
    ids = np.array([0, 1, 2, 2**24 - 1, 2**24], np.int64)
    assert (ids.astype(np.float32).astype(np.int64) == ids).all()
    assert Texts(vocabulary=MOST).vocabulary + 1 < 2**24
    with pytest.raises(ValidationError, match="less than or equal"):
        Texts(vocabulary=MOST + 1)


def test_an_order_that_no_file_system_decides(tmp_path):
    files = {f"train/{label}/{i}.txt": f"{label}{i}" for label in "zax" for i in (2, 10, 1)}
    samples = opened(lay(tmp_path, files))
    assert samples.corpus.words == [f"{label}{i}" for label in "axz" for i in (1, 10, 2)]
    assert samples.is_test is None and samples.classes == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/cats/9.txt", b"caf\xe9", r"9.txt cannot be read as a text in UTF-8"),
        ("train/cats/9.txt", b" \n", r"9.txt is empty; delete it"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (lay(tmp_path) / "set" / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


def test_bad_folders(tmp_path):
    with pytest.raises(DataError, match=r"data.source.folder: no folder at .*set/train.* nor at .*data.root"):
        opened(tmp_path)
    lay(tmp_path, {"train/only/0.txt": "one"})
    with pytest.raises(DataError, match=r"set has 1 texts under 1 labels; two labels or more"):
        opened(tmp_path)


def test_no_words_at_all(tmp_path):
    samples = opened(lay(tmp_path, {"train/a/0.txt": "...", "train/b/0.txt": "word"}))
    with pytest.raises(DataError, match="no words at all"):
        samples.fitted(np.array([0]))


def test_counting_is_by_occurrence():
    corpus = Corpus.of([["b", "a", "b"], [], ["c", "c", "c"]])
    assert [corpus.words[i] for i in corpus.frequent(np.array([0, 1]), 9)] == ["b", "a"]
    assert [corpus.words[i] for i in corpus.frequent(np.arange(3), 2)] == ["c", "b"]


def test_real_texts(real_data, tmp_path):
    """The first 100 files of each folder stand for all 16,000."""
    for folder in (real_data / "stackoverflow").glob("*/*"):
        own = tmp_path / "stackoverflow" / folder.relative_to(real_data / "stackoverflow")
        own.mkdir(parents=True)
        for path in sorted(folder.glob("*.txt"))[:100]:
            (own / path.name).symlink_to(path)
    samples = Texts(vocabulary=1000, length=40).open(tmp_path, 0, 35)
    assert len(samples) == 800 and np.bincount(samples.labels).tolist() == [200] * 4 and samples.is_test.sum() == 400
    fitted = samples.fitted(np.arange(0, 800, 2))
    assert {"the", "i", "to"} <= set(fitted.vocabulary.words[:5])
    x = fitted.read(np.arange(800), 0)
    assert 900 < x.max() <= 1001 and (x[:, 0] > 0).all() and (x == 0).any()
