"""The public image sets, from small files in their original layouts and, where there are any, from real ones."""

import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from mpipfl.data import download, sources
from mpipfl.data.federated import Data, Split, divide
from mpipfl.data.partitions import Superclasses
from mpipfl.data.sources import SUPERCLASS, Cifar10, Cifar100, Emnist, FashionMnist, Mnist, Source
from mpipfl.data.sun397 import Sun397
from mpipfl.data.torchvision_import import datasets
from mpipfl.errors import DataError

N_TRAIN, N_TEST = 7, 3


def write_idx(path: Path, array: np.ndarray) -> None:
    """A file in MNIST's own format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_set(folder: Path, names: list[str], first_label: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Image and label files for train and test; all images and labels, joined."""
    images = np.random.default_rng(0).integers(0, 256, (N_TRAIN + N_TEST, 28, 28), np.uint8)
    labels = np.arange(N_TRAIN + N_TEST) % 10
    for name, part in zip(names, (slice(0, N_TRAIN), slice(N_TRAIN, None)), strict=True):
        write_idx(folder / f"{name}-images-idx3-ubyte", images[part])
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels[part] + first_label)
    return images, labels


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr(download, "answers", lambda address: False)


@pytest.mark.parametrize(("section", "folder"), [(Mnist(), "MNIST"), (FashionMnist(), "FashionMNIST")])
def test_mnist_layout(tmp_path, section, folder):
    images, labels = write_set(tmp_path / folder / "raw", ["train", "t10k"])
    samples = section.open(tmp_path, seed=0, clients=2)
    assert (samples.shape, samples.classes, samples.dtype, len(samples)) == ((1, 28, 28), 10, np.uint8, 10)
    order = np.array([9, 0, 7, 6, 0])  # across train and test, out of order, repeated
    np.testing.assert_array_equal(samples.read(order, client=1)[:, 0], images[order])
    np.testing.assert_array_equal(samples.labels, labels)
    np.testing.assert_array_equal(samples.is_test, np.arange(10) >= N_TRAIN)
    assert samples.users is None and samples.labels.dtype == np.int64


@pytest.mark.parametrize(("split", "first_label"), [("byclass", 0), ("letters", 1), ("digits", 0)])
def test_emnist_is_upright_and_counts_from_zero(tmp_path, split, first_label):
    names = [f"emnist-{split}-train", f"emnist-{split}-test"]
    images, labels = write_set(tmp_path / "EMNIST/raw", names, first_label)
    samples = Emnist(split=split).open(tmp_path, seed=0, clients=2)
    np.testing.assert_array_equal(samples.read(np.arange(10), 0)[:, 0], images.transpose(0, 2, 1))
    np.testing.assert_array_equal(samples.labels, labels)
    assert samples.classes == {"byclass": 62, "letters": 26, "digits": 10}[split]


def test_emnist_of_some_characters(tmp_path):
    """In the order given, from the training and the test images."""
    images, labels = write_set(tmp_path / "EMNIST/raw", ["emnist-byclass-train", "emnist-byclass-test"])
    samples = Emnist(only="420").open(tmp_path, seed=0, clients=2)
    rows = np.flatnonzero(np.isin(labels, [0, 2, 4]))
    np.testing.assert_array_equal(samples.read(np.arange(len(rows)), 0)[:, 0], images[rows].transpose(0, 2, 1))
    np.testing.assert_array_equal(np.array([4, 2, 0])[samples.labels], labels[rows])
    np.testing.assert_array_equal(samples.is_test, rows >= N_TRAIN)
    assert samples.classes == 3
    with pytest.raises(ValueError, match="split=byclass"):
        Emnist(split="letters", only="ab")
    with pytest.raises(ValueError, match="twice"):
        Emnist(only="aba")


def test_labels_beyond_the_set_are_refused(tmp_path):
    write_set(tmp_path / "MNIST/raw", ["train", "t10k"], first_label=5)
    with pytest.raises(DataError, match="MNIST has labels 0 to 9"):
        Mnist().open(tmp_path, 0, 2)


def write_cifar(
    folder: Path, dataset: type, keys: list[str], size: int = 4, own: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Pickled batches of a few images each, as the originals are."""
    folder.mkdir(parents=True)
    names = [name for name, _ in dataset.train_list + dataset.test_list]
    images = np.random.default_rng(0).integers(0, 256, (size * len(names), 3, 32, 32), np.uint8)
    labels = {key: np.arange(len(images)) % 10 if own is None else own for key in keys}
    for number, name in enumerate(names):
        here = slice(size * number, size * (number + 1))
        batch = {"data": images[here].reshape(size, -1), **{key: labels[key][here].tolist() for key in keys}}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / dataset.meta["filename"]).write_bytes(pickle.dumps({dataset.meta["key"]: list("abcdefghij")}, protocol=2))
    return images, labels


@pytest.fixture
def any_checksum(monkeypatch):
    """torchvision only opens files with the originals' checksums."""
    module = sys.modules[datasets().CIFAR10.__module__]
    monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: Path(path).is_file())


def test_cifar10_layout(tmp_path, any_checksum):
    images, labels = write_cifar(tmp_path / "cifar-10-batches-py", datasets().CIFAR10, ["labels"])
    samples = Cifar10().open(tmp_path, 0, 2)
    np.testing.assert_array_equal(samples.read(np.arange(24), 0), images)
    np.testing.assert_array_equal(samples.labels, labels["labels"])
    assert samples.shape == (3, 32, 32) and samples.is_test.sum() == 4 and len(samples.mean) == 3


@pytest.mark.parametrize("kind", ["fine", "coarse"])
def test_cifar100_layout(tmp_path, any_checksum, kind):
    images, labels = write_cifar(tmp_path / "cifar-100-python", datasets().CIFAR100, ["fine_labels", "coarse_labels"])
    samples = Cifar100(labels=kind).open(tmp_path, 0, 2)
    np.testing.assert_array_equal(samples.read(np.arange(8), 0), images)
    expected = labels["fine_labels"] if kind == "fine" else SUPERCLASS[labels["fine_labels"]]
    np.testing.assert_array_equal(samples.labels, expected)
    assert samples.classes == {"fine": 100, "coarse": 20}[kind]
    assert (samples.subclasses is None) is (kind == "fine")


def test_cifar_with_wrong_checksum_is_not_unpickled(tmp_path, no_network):
    write_cifar(tmp_path / "cifar-10-batches-py", datasets().CIFAR10, ["labels"])
    with pytest.raises(DataError, match="CIFAR10 is not complete"):
        Cifar10().open(tmp_path, 0, 2)


PUBLISHED = """
beaver dolphin otter seal whale, aquarium_fish flatfish ray shark trout, orchid poppy rose sunflower tulip,
bottle bowl can cup plate, apple mushroom orange pear sweet_pepper, clock keyboard lamp telephone television,
bed chair couch table wardrobe, bee beetle butterfly caterpillar cockroach, bear leopard lion tiger wolf,
bridge castle house road skyscraper, cloud forest mountain plain sea, camel cattle chimpanzee elephant kangaroo,
fox porcupine possum raccoon skunk, crab lobster snail spider worm, baby boy girl man woman,
crocodile dinosaur lizard snake turtle, hamster mouse rabbit shrew squirrel,
maple_tree oak_tree palm_tree pine_tree willow_tree, bicycle bus motorcycle pickup_truck train,
lawn_mower rocket streetcar tank tractor
"""


def test_superclasses_are_the_published_ones():
    """As the data set's own page lists them; the fine classes are numbered in alphabetical order."""
    groups = [group.split() for group in PUBLISHED.split(",")]
    fine = sorted(name for group in groups for name in group)
    assert len(groups) == 20 and len(set(fine)) == 100
    for number, group in enumerate(groups):
        assert [fine[place] for place in np.flatnonzero(number == SUPERCLASS)] == group


def test_cifar100_clients_hold_and_test_exactly_their_twenty_subclasses(tmp_path, any_checksum):
    """Superclass labels are never compared with fine ones: that keeps four of the twenty subclasses."""
    fine = np.random.default_rng(0).permutation(np.arange(2400) % 100)
    write_cifar(tmp_path / "cifar-100-python", datasets().CIFAR100, ["fine_labels"], 1200, fine)
    data = Data.model_validate({"source": {"kind": "cifar100", "labels": "coarse"}, "root": tmp_path, "clients": 5})
    data = data.model_copy(update={"partition": Superclasses(), "split": Split(validation=0, test=0.4)})
    samples = data.open(0)
    np.testing.assert_array_equal(samples.subclasses, fine)
    np.testing.assert_array_equal(samples.labels, SUPERCLASS[fine])
    made = divide(data, samples, 0)
    held = [np.unique(fine[made.index[slice(*made.bounds[client, [0, 3]])]]) for client in range(5)]
    assert sorted(np.concatenate(held)) == list(range(100))  # five clients, and five subclasses of each superclass
    for client, own in enumerate(held):
        test = made.index[slice(*made.bounds[client, 2:])]
        assert len(own) == 20 and np.unique(fine[test]).tolist() == own.tolist()
        assert np.unique(samples.labels[test]).tolist() == list(range(20))


def write_cifar_arrays(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        np.save(folder / f"x_{part}.npy", draw.integers(0, 256, (count, 32, 32, 3), np.uint8))
        np.save(folder / f"y_{part}.npy", np.arange(count))


def test_cifar10_from_arrays(tmp_path):
    write_cifar_arrays(tmp_path / "cifar10")
    samples = Cifar10().open(tmp_path, 0, 2)
    assert samples.shape == (3, 32, 32) and len(samples) == 8 and samples.is_test.sum() == 2
    expected = np.load(tmp_path / "cifar10/x_test.npy").transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(samples.read(np.array([6, 7]), 0), expected)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("y_test.npy", lambda path: np.save(path, np.arange(3)), r"y_test.npy has 3 entries for 2 samples"),
        ("y_train.npy", lambda path: np.save(path, np.arange(6) + 9), r"labels 0 to 9"),
        (
            "x_train.npy",
            lambda path: np.save(path, np.zeros((6, 8, 8, 3), np.uint8)),
            r"expected uint8 \(N, 32, 32, 3\)",
        ),
        ("x_test.npy", lambda path: path.write_bytes(b"garbage"), r"x_test.npy cannot be read"),
        ("y_test.npy", lambda path: path.unlink(), r"y_test.npy cannot be read"),
    ],
)
def test_bad_cifar10_arrays(tmp_path, name, damage, message):
    write_cifar_arrays(tmp_path / "cifar10")
    damage(tmp_path / "cifar10" / name)
    with pytest.raises(DataError, match=message):
        Cifar10().open(tmp_path, 0, 2)


@pytest.mark.parametrize("section", [Mnist(), FashionMnist(), Emnist(split="balanced"), Cifar10(), Cifar100()])
@pytest.mark.parametrize("may_download", [True, False])
def test_a_missing_set_is_reported_with_the_way_out(tmp_path, no_network, capfd, section, may_download):
    with pytest.raises(DataError) as caught:
        section.model_copy(update={"download": may_download}).open(tmp_path, 0, 2)
    message = str(caught.value)
    split = ", split='balanced'" if section.kind == "emnist" else ""
    assert str(tmp_path / section.folder) in message
    assert f"import {section.dataset}; {section.dataset}('{tmp_path}'{split}, download=True)" in message
    assert "data.source=glyphs needs no download" in message
    assert ("no answer from http" in message) is may_download
    assert capfd.readouterr() == ("", "")


def test_a_failing_download_is_reported(tmp_path, monkeypatch, capfd):
    def refuse(*arguments, **keywords):
        print("0 % [      ]")
        raise OSError("connection reset")

    monkeypatch.setattr(download, "answers", lambda address: True)
    monkeypatch.setattr(sys.modules[datasets().MNIST.__module__], "download_and_extract_archive", refuse)
    with pytest.raises(DataError, match="the download failed: connection reset"):
        Mnist().open(tmp_path, 0, 2)
    assert capfd.readouterr() == ("", "")


def test_a_download_is_read(tmp_path, monkeypatch):
    def deliver(url, download_root, filename, md5):
        if "train-images" in url:
            write_set(Path(download_root), ["train", "t10k"])

    monkeypatch.setattr(download, "answers", lambda address: True)
    monkeypatch.setattr(sys.modules[datasets().MNIST.__module__], "download_and_extract_archive", deliver)
    assert len(Mnist().open(tmp_path, 0, 2)) == 10


def test_a_silent_network_is_given_up(monkeypatch):
    monkeypatch.setattr(download, "PATIENCE", 0.2)
    monkeypatch.setattr(download.urllib.request, "urlopen", lambda *arguments, **keywords: time.sleep(5))
    start = time.monotonic()
    assert not download.answers("http://example.invalid/")
    assert time.monotonic() - start < 2


def test_a_damaged_file_is_named(tmp_path):
    write_set(tmp_path / "MNIST/raw", ["train", "t10k"])
    file = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"MNIST in .*MNIST/raw is damaged .*download=True"):
        Mnist().open(tmp_path, 0, 2)


def test_torchvision_is_only_imported_when_needed():
    code = (
        "import sys, mpipfl.data.federated as f; from pathlib import Path; f.Data(clients=2, samples=9).open(0);"
        "assert not {'torchvision', 'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(sources.__file__).parents[2])


def test_every_source_is_documented():
    for section in (Mnist, FashionMnist, Emnist, Cifar10, Cifar100, Sun397):
        assert TypeAdapter(Source).validate_python({"kind": section().kind}) == section()
        assert section.line()
        assert all(field.description for name, field in section.model_fields.items() if name != "kind")


@pytest.mark.parametrize(
    ("section", "count"), [(Mnist(), 70_000), (FashionMnist(), 70_000), (Emnist(), 116_323), (Cifar10(), 24_000)]
)
def test_real_data(real_data, section, count):
    samples = section.open(real_data, 0, 2)
    assert len(samples) >= count and samples.labels.max() == samples.classes - 1
    x = samples.read(np.arange(0, len(samples), 50), 0) / 255
    np.testing.assert_allclose(x.mean((0, 2, 3)), samples.mean, atol=0.02)
    np.testing.assert_allclose(x.std((0, 2, 3)), samples.std, atol=0.02)


def test_real_emnist_digits_stand_like_mnist_ones(real_data):
    """The mean image of each digit is nearer to MNIST's than a transposed one would be."""
    mnist, emnist = Mnist().open(real_data, 0, 2), Emnist().open(real_data, 0, 2)
    for digit in (2, 4, 7):
        one, other = (set_.read(np.flatnonzero(set_.labels == digit)[:500], 0).mean((0, 1)) for set_ in (mnist, emnist))
        assert np.square(one - other).sum() < np.square(one - other.T).sum()
