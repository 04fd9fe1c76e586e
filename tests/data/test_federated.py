"""From a configuration to every client's data: the section, the split, the file, the shifts."""

import json

import h5py
import numpy as np
import pytest
from pydantic import ValidationError

from mpipfl.data.federated import SOURCES, Data, Split, divide, fill
from mpipfl.data.partition import Partition
from mpipfl.data.partitions import Classes, Dirichlet, Iid
from mpipfl.data.samples import from_parts
from mpipfl.data.shifts import NoShift, PermuteLabels, Rotate
from mpipfl.data.sources import Arrays, Emnist, Glyphs, Mnist
from mpipfl.errors import DataError


def made(count=500, side=(6, 6), classes=5):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (count, 2, *side), np.uint8)
    return from_parts([x], [draw.integers(0, classes, count)], classes)


SAMPLES = made()


def test_defaults_and_short_forms():
    data = Data()
    assert (data.source, data.partition, data.shift, data.split) == (Glyphs(), Iid(), NoShift(), Split())
    data = Data.model_validate({"source": "mnist", "partition": "dirichlet", "shift": "rotate"})
    assert (data.source, data.partition, data.shift) == (Mnist(), Dirichlet(), Rotate())
    data = Data.model_validate({"partition": {"kind": "classes", "k": 3}, "shift": {"kind": "permute_labels"}})
    assert (data.partition, data.shift) == (Classes(k=3), PermuteLabels())
    torchvision = {"mnist", "fashion_mnist", "emnist", "cifar10", "cifar100"}
    texts_or_users = {"texts", "sent140", "leaf", "tff", "shakespeare"}
    assert set(SOURCES) == torchvision | texts_or_users | {
        "sun397",
        "arrays",
        "audio",
        "glyphs",
        "gaussian",
        "synthetic",
    }


def test_a_sources_keys_may_stand_beside_it():
    data = Data.model_validate({"source": "emnist", "split": "letters", "download": False})
    assert data.source == Emnist(split="letters", download=False) and data.split == Split()
    data = Data.model_validate({"source": {"kind": "emnist", "split": "digits"}, "split": {"test": 0.5}})
    assert data.source == Emnist(split="digits") and data.split == Split(test=0.5)
    assert Data.model_validate({"source": "arrays", "path": "a.npz"}).source == Arrays(path="a.npz")
    assert Data.model_validate({"classes": 10}).source == Glyphs(classes=10)


def test_it_survives_a_round_trip():
    data = Data.model_validate({"source": "emnist", "split": "letters", "shift": "rotate", "root": "/x"})
    assert Data.model_validate(json.loads(data.model_dump_json())) == data


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "imagenet"}, "imagenet"),
        ({"source": "mnist", "split": "letters"}, "split"),
        ({"source": "mnist", "colour": 1}, "colour"),
        ({"source": {"kind": "emnist", "split": "letters"}, "split": "digits"}, "both in source and beside it"),
        ({"partition": "x"}, "dirichlet"),
        ({"clients": 0}, "clients"),
        ({"samples": 0}, "samples"),
        ({"shift": {"kind": "rotate", "groups": 5}}, "groups"),
        ({"split": {"validation": 0.5, "test": 0.5}}, "less than 1"),
        ({"split": {"validation": -0.1}}, "validation"),
        ({"source": "arrays"}, "path"),
    ],
)
def test_wrong_sections(values, message):
    with pytest.raises(ValidationError, match=message):
        Data.model_validate(values)


def test_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MPIPFL_DATA", raising=False)
    assert Data().folder == tmp_path / ".cache/mpipfl/data"
    monkeypatch.setenv("MPIPFL_DATA", "/there")
    assert str(Data().folder) == "/there"
    assert Data(root="~/here").folder == tmp_path / "here"


@pytest.mark.parametrize(
    ("validation", "test"), [(0.1, 0.2), (0, 0), (0.5, 0.49), (0.9, 0.05), (0, 0.99), (0.01, 0.98)]
)
def test_split_sizes(validation, test):
    split = Split(validation=validation, test=test)
    totals = np.arange(split.floor, 400)
    sizes = split.sizes(totals)
    np.testing.assert_array_equal(sizes.sum(1), totals)
    assert (sizes[:, 0] >= 1).all()
    for part, share in ((1, validation), (2, test)):
        assert (sizes[:, part] >= (share > 0)).all()
        assert (np.abs(sizes[:, part] - share * totals) < 2).all()  # rounding, and at least one
        if not share:
            assert (sizes[:, part] == 0).all()


@pytest.mark.parametrize("partition", ["iid", "dirichlet", {"kind": "classes", "k": 2}])
def test_divide(partition):
    data = Data.model_validate({"clients": 8, "partition": partition})
    result = divide(data, SAMPLES, seed=3)
    assert result.clients == 8 and result.bounds[0, 0] == 0 and result.bounds[-1, 3] == len(result.index) == 500
    np.testing.assert_array_equal(result.bounds[1:, 0], result.bounds[:-1, 3])
    np.testing.assert_array_equal(np.sort(result.index), np.arange(500))
    assert min(result.n_train.min(), result.n_validation.min(), result.n_test.min()) >= 1
    np.testing.assert_array_equal(
        result.n_train + result.n_validation + result.n_test, np.diff(result.bounds[:, ::3])[:, 0]
    )
    assert divide(data, SAMPLES, seed=3).digest == result.digest != divide(data, SAMPLES, seed=4).digest
    assert result.index.dtype == result.bounds.dtype == result.group.dtype == result.rotation.dtype == np.int64


def test_samples_is_a_cap():
    subset = divide(Data(samples=100, clients=4), SAMPLES, 0)
    assert len(subset.index) == len(np.unique(subset.index)) == 100 and subset.index.max() > 100
    assert len(divide(Data(samples=9999, clients=4), SAMPLES, 0).index) == 500


def test_too_few_samples():
    with pytest.raises(DataError, match="10 samples are too few for 4 clients with at least 3"):
        divide(Data(samples=10, clients=4), SAMPLES, 0)
    assert (divide(Data(samples=12, clients=4), SAMPLES, 0).n_test == 1).all()


@pytest.mark.parametrize("kind", ["none", "rotate", "permute_labels"])
def test_partition_file(tmp_path, kind):
    data = Data.model_validate({"clients": 12, "shift": kind, "split": {"validation": 0}})
    partition = divide(data, SAMPLES, 0)
    path = tmp_path / "partition.h5"
    partition.write(path, source='{"kind": "made"}')
    partition.write(path, source='{"kind": "made"}')  # again, over the first
    assert [file.name for file in tmp_path.iterdir()] == ["partition.h5"]
    again = Partition.read(path)
    for name in ("index", "bounds", "group", "rotation", "permutation"):
        np.testing.assert_array_equal(getattr(again, name), getattr(partition, name))
    assert again.digest == partition.digest
    with h5py.File(path) as file:
        assert file.attrs["source"] == '{"kind": "made"}' and file.attrs["clients"] == 12
        start, end = partition.bounds[11, 2:]
        np.testing.assert_array_equal(file["clients/11/test"][...], partition.index[start:end])
        assert file["clients/11/validation"].shape == (0,) and file["clients/11/test"].dtype == np.int64
        assert file["clients/11"].attrs["group"] == partition.group[11]
        assert file["clients/11"].attrs["rotation"] == partition.rotation[11] == (270 if kind == "rotate" else 0)
        assert ("label_permutation" in file["clients/11"].attrs) is (kind == "permute_labels")


def test_damaged_partition_files(tmp_path):
    path = tmp_path / "partition.h5"
    with pytest.raises(DataError, match="cannot be read as a partition"):
        Partition.read(path)
    divide(Data(clients=3), SAMPLES, 0).write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read as a partition"):
        Partition.read(path)
    path.write_bytes(whole)
    with h5py.File(path, "r+") as file:
        file["clients/1/train"][0] += 1
    with pytest.raises(DataError, match="does not match its digest"):
        Partition.read(path)
    with pytest.raises(DataError, match="cannot be written"):
        divide(Data(clients=3), SAMPLES, 0).write(tmp_path / "absent" / "partition.h5")


def filled(data, samples=SAMPLES, clients=None, seed=0):
    partition = divide(data, samples, seed)
    x = np.zeros((len(partition.index), *samples.shape), samples.dtype)
    y = np.full(len(partition.index), -1, np.int64)
    fill(samples, partition, range(data.clients) if clients is None else clients, x, y)
    return partition, x, y


def test_fill_writes_only_the_clients_asked_for():
    partition, x, y = filled(Data(clients=5))
    np.testing.assert_array_equal(x, SAMPLES.parts[0][partition.index])
    np.testing.assert_array_equal(y, SAMPLES.labels[partition.index])
    partition, some_x, some_y = filled(Data(clients=5), clients=np.array([1, 3]))
    here = np.isin(np.repeat(np.arange(5), np.diff(partition.bounds[:, ::3])[:, 0]), [1, 3])
    np.testing.assert_array_equal(some_x[here], x[here])
    assert (some_y[~here] == -1).all() and not some_x[~here].any() and (some_y[here] >= 0).all()


def test_fill_turns_images():
    data = Data(clients=8, shift=Rotate())
    partition, x, y = filled(data)
    assert partition.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and partition.rotation.tolist() == [
        0,
        0,
        90,
        90,
        180,
        180,
        270,
        270,
    ]
    np.testing.assert_array_equal(y, SAMPLES.labels[partition.index])
    for client in range(8):
        rows = slice(*partition.bounds[client, [0, 3]])
        plain = SAMPLES.parts[0][partition.index[rows]]
        for image, original in zip(x[rows], plain, strict=True):
            for channel in range(2):
                np.testing.assert_array_equal(image[channel], np.rot90(original[channel], client // 2))
        np.testing.assert_array_equal(x[rows], data.shift.apply_images(plain, client // 2))


def test_fill_renames_labels():
    data = Data(clients=6, shift=PermuteLabels(groups=3))
    partition, x, y = filled(data, seed=7)
    np.testing.assert_array_equal(x, SAMPLES.parts[0][partition.index])
    assert partition.permutation.shape == (6, 5) and len(np.unique(partition.permutation, axis=0)) == 3
    np.testing.assert_array_equal(np.sort(partition.permutation, 1), np.tile(np.arange(5), (6, 1)))
    for client in range(6):
        rows = slice(*partition.bounds[client, [0, 3]])
        plain = SAMPLES.labels[partition.index[rows]]
        np.testing.assert_array_equal(y[rows], partition.permutation[client][plain])
        np.testing.assert_array_equal(y[rows], data.shift.apply_labels(plain, client // 2, 5, seed=7))


def test_shift_errors():
    with pytest.raises(DataError, match=r"needs square images; .* \(2, 6, 7\)"):
        divide(Data(clients=4, shift=Rotate()), made(side=(6, 7)), 0)
    with pytest.raises(DataError, match="groups is 4, but there are only 3 clients"):
        divide(Data(clients=3, shift=PermuteLabels()), SAMPLES, 0)
    assert divide(Data(clients=4, shift=Rotate(groups=1)), made(side=(6, 7)), 0).rotation.sum() == 0


def test_groups_are_blocks_of_nearly_equal_size():
    group = Rotate(groups=3).group(10)
    assert (np.diff(group) >= 0).all() and np.bincount(group).tolist() == [4, 3, 3]


def test_glyphs_from_end_to_end():
    data = Data.model_validate({"samples": 300, "clients": 6, "partition": "natural", "shift": "rotate"})
    samples = data.open(seed=1)
    partition, x, y = filled(data, samples, seed=1)
    np.testing.assert_array_equal(samples.users[partition.index], np.repeat(np.arange(6), 50))
    one = filled(data, samples, clients=[4], seed=1)[1]
    rows = slice(*partition.bounds[4, [0, 3]])
    np.testing.assert_array_equal(one[rows], x[rows])
    np.testing.assert_array_equal(y, samples.labels[partition.index])
