"""Tweets in the original layout, natural and pooled users, and that no user is where it should not be."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from mpipfl.data.federated import Data, divide
from mpipfl.data.samples import Pool
from mpipfl.data.sent140 import Sent140
from mpipfl.errors import DataError

LINES = [
    '"0","1","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","bo","@al http://x.y/z - Awww, that\'s ""bad"""',
    '"4","2","Mon Apr 06 22:19:49 PDT 2009","NO_QUERY","al","caf\xe9 is good, good"',
    '"4","3","Mon Apr 06 22:19:53 PDT 2009","NO_QUERY","bo",":)"',
]


def lay(folder: Path, lines: list[str] = LINES) -> Path:
    (folder / "tweets.csv").write_bytes("\n".join(lines).encode("latin-1"))
    return folder


def opened(folder: Path, **options):
    return Sent140(path="tweets.csv", **options).open(folder, 0, 2)


def test_the_original_layout(tmp_path):
    samples = opened(lay(tmp_path), length=4)
    assert samples.labels.tolist() == [0, 1, 1] and samples.users.tolist() == [1, 0, 1] and samples.classes == 2
    fitted = samples.fitted(np.arange(3))
    assert fitted.vocabulary.words == ("good", "'s", "awww", "bad", "café", "is", "that")
    assert fitted.read(np.arange(3), 0).tolist() == [[4, 8, 3, 5], [6, 7, 2, 2], [1, 0, 0, 0]]
    assert Sent140().length == 25 and fitted.users.tolist() == [1, 0, 1]


def test_the_same_tweets_in_utf8(tmp_path):
    """Some lines may be in the one encoding, some in the other."""
    for lines in (
        [line.encode() for line in LINES],
        [LINES[0].encode(), LINES[1].encode(), LINES[2].encode("latin-1")],
    ):
        (tmp_path / "tweets.csv").write_bytes(b"\r\n".join(lines))
        fitted = opened(tmp_path, length=4).fitted(np.arange(3))
        assert fitted.vocabulary.words == ("good", "'s", "awww", "bad", "café", "is", "that")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"2","9","d","q","u","neutral"', "line 4: label '2'; expected label, id, date, query, user, text with label"),
        ('"4","9","d","q","u"', "line 4: 5 columns; expected"),
        ("", "line 4: 0 columns"),
        ('"4","9","d","q","u","' + "x" * 200_000 + '"', "line 4: not a line of CSV"),
    ],
)
def test_bad_lines(tmp_path, line, message):
    with pytest.raises(DataError, match=message):
        opened(lay(tmp_path, [*LINES, line, LINES[0]]))


def test_bad_files(tmp_path):
    with pytest.raises(DataError, match=r"data.source.path: no file at .*tweets.csv nor at"):
        opened(tmp_path)
    with pytest.raises(DataError, match="is empty"):
        opened(lay(tmp_path, []))
    (tmp_path / "tweets.csv").write_text("\n".join(LINES), encoding="utf-16")
    with pytest.raises(DataError, match="line 1"):
        opened(tmp_path)


def many(folder: Path, users: int = 30) -> Path:
    """User u has 1 + u % 7 tweets."""
    who = [u for u in range(users) for _ in range(1 + u % 7)]
    draw = np.random.default_rng(0).permutation(who)
    return lay(folder, [f'"{4 * (i % 2)}","{i}","d","q","u{u:02}","word{i} word"' for i, u in enumerate(draw)])


def parts_of(partition, users, client):
    """The users of a client's training, validation and test samples."""
    bounds = partition.bounds[client]
    return [set(users[partition.index[a:b]].tolist()) for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("split", [{}, {"validation": 0}, {"validation": 0, "test": 0}, {"validation": 0.3}])
@pytest.mark.parametrize("clients", [1, 4, 10])
def test_pooled_users_are_in_one_part_of_one_client(tmp_path, split, clients):
    values = {"source": "sent140", "path": "tweets.csv", "root": many(tmp_path), "clients": clients, "split": split}
    data = Data.model_validate(values | {"partition": "pooled"})
    samples = data.open(0)
    partition = divide(data, samples, 0)
    np.testing.assert_array_equal(np.sort(partition.index), np.arange(len(samples)))  # nothing lost, nothing twice
    seen: set[int] = set()
    for client in range(clients):
        shares = (1, data.split.validation, data.split.test)
        for part, share in zip(parts_of(partition, samples.users, client), shares, strict=True):
            assert bool(part) is (share > 0) and not part & seen
            seen |= part
    assert len(seen) == 30
    assert divide(data, samples, 0).digest == partition.digest != divide(data, samples, 1).digest


def test_parts_are_near_the_sizes_asked_for(tmp_path):
    values = {"source": "sent140", "path": "tweets.csv", "root": many(tmp_path, 300), "clients": 3}
    data = Data.model_validate(values | {"partition": "pooled"})
    partition = divide(data, data.open(0), 0)
    total = np.diff(partition.bounds[:, ::3])[:, 0]
    assert np.abs(partition.n_validation - 0.1 * total).max() <= 1 and np.abs(partition.n_test - 0.2 * total).max() <= 1


def test_users_left_out_or_missing(tmp_path):
    values = {"source": "sent140", "path": "tweets.csv", "root": many(tmp_path), "clients": 5}
    data = Data.model_validate(values | {"partition": {"kind": "pooled", "min_samples": 4}})
    samples = data.open(0)
    assert np.bincount(samples.users[divide(data, samples, 0).index]).tolist() == [
        size if size >= 4 else 0 for size in (1 + u % 7 for u in range(28))
    ]
    data = Data.model_validate(values | {"clients": 11, "partition": "pooled"})
    with pytest.raises(DataError, match="30 of 30 users have 1 samples or more, and 33 are needed"):
        divide(data, samples, 0)
    with pytest.raises(DataError, match=r"data.partition=pooled needs a source with users"):
        data.partition.divide(Pool(samples.labels), 2, 0, 1)


def test_natural_users_stay_whole(tmp_path):
    """A client is one user, whose own tweets are its training, validation and test data."""
    values = {"source": "sent140", "path": "tweets.csv", "root": many(tmp_path), "clients": 8}
    data = Data.model_validate(values | {"partition": {"kind": "natural", "min_samples": 6}})
    samples = data.open(0)
    partition = divide(data, samples, 0)
    users = [set.union(*parts_of(partition, samples.users, client)) for client in range(8)]
    assert all(len(own) == 1 for own in users) and len(set.union(*users)) == 8
    assert (np.bincount(samples.users)[[own.pop() for own in users]] == np.diff(partition.bounds[:, ::3])[:, 0]).all()


def test_real_tweets(real_data):
    samples = Sent140(path="sent140/training.sample20000.csv").open(real_data, 0, 10)
    assert len(samples) == 20_000 and (np.bincount(samples.users) >= 2).sum() == 1_435
    fitted = samples.fitted(np.arange(0, 20_000, 2))
    assert {"i", "the", "to"} <= set(fitted.vocabulary.words[:5])
