"""The papers' divisions of data: PersFL's DS-1 to DS-4, sizes by random slicing, subclasses."""

import numpy as np
import pytest
from pydantic import ValidationError

from mpipfl.data.federated import Data, divide
from mpipfl.data.partitions import Classes, Dirichlet, Iid, Minority, Superclasses
from mpipfl.data.samples import Pool, from_parts
from mpipfl.errors import DataError

LABELS = np.random.default_rng(3).permutation(np.arange(6000) % 10)  # as balanced as MNIST and CIFAR-10 nearly are
POOL = Pool(LABELS)
DS1 = Classes(k=4, counts="uneven")
DS2 = Dirichlet(alpha=0.9, least=1)
DS3 = Classes(k=2, sizes="log_normal", sigma=2)
DS4 = Minority(k=68)
SPLIT = {"validation": 0.2, "test": 0.2}


def table(shares, labels=LABELS):
    return np.stack([np.bincount(labels[share], minlength=labels.max() + 1) for share in shares])


def check_disjoint(shares):
    every = np.concatenate(shares)
    assert len(np.unique(every)) == len(every)
    return len(every)


@pytest.mark.parametrize("section", [Classes(k=5, sizes="slicing"), Iid(sizes="slicing")], ids=repr)
def test_slicing_uses_all_and_spans_a_wide_range(section):
    sizes = []
    for seed in range(5):
        shares = section.divide(POOL, 50, seed, 3)
        assert check_disjoint(shares) == 6000
        sizes.append(np.sort([len(share) for share in shares]))
    sizes = np.array(sizes)
    assert sizes.min() >= 3 and (sizes[:, 0] < 20).all() and (sizes[:, -1] > 300).all()
    # The gaps between sorted uniform positions are exponential: their standard deviation is their mean, 120.
    assert 90 < sizes.std(1).mean() < 150


def test_slicing_by_hand(monkeypatch):
    """Cuts at 0.1, 0.5 and 0.6 of what is left when four clients have got two samples each."""
    shares = Iid(sizes="slicing").targets(108, 4, 2, Fixed([0.5, 0.1, 0.6]))
    np.testing.assert_allclose(shares, [2 + 10, 2 + 40, 2 + 10, 2 + 40])


class Fixed:
    """A generator whose uniform numbers are given."""

    def __init__(self, numbers):
        self.numbers = numbers

    def random(self, count):
        assert count == len(self.numbers)
        return np.array(self.numbers)


def test_slices_of_one_client_or_just_enough_samples():
    assert [len(share) for share in Iid(sizes="slicing").divide(POOL, 1, 0, 3)] == [6000]
    assert [len(share) for share in Iid(sizes="slicing").divide(Pool(LABELS[:30]), 10, 0, 3)] == [3] * 10


@pytest.mark.parametrize("sizes", ["power_law", "log_normal"])
def test_iid_sizes_follow_the_other_laws_too(sizes):
    shares = Iid(sizes=sizes, exponent=1.5, sigma=2).divide(POOL, 20, 0, 3)
    counts = np.array([len(share) for share in shares])
    assert check_disjoint(shares) == 6000 and counts.min() >= 3 and counts.max() > 5 * np.median(counts)
    mix = table(shares)[counts.argmax()] / counts.max()
    assert (np.abs(mix - 0.1) < 0.03).all()


@pytest.mark.parametrize("seed", range(5))
def test_ds1_equal_totals_k_classes_uneven_counts(seed):
    shares = DS1.divide(POOL, 10, seed, 3)
    counts = table(shares)
    assert check_disjoint(shares) == 6000
    assert ((counts > 0).sum(1) == 4).all() and ((counts > 0).sum(0) == 4).all()
    assert np.abs(counts.sum(1) - 600).max() <= 4
    even = table(Classes(k=4).divide(POOL, 10, seed, 3))
    assert np.abs(even[even > 0] - 150).max() <= 4
    np.testing.assert_array_equal(even > 0, counts > 0)  # the same classes, other counts
    assert counts[counts > 0].std() > 50 and counts[counts > 0].max() > 300


def test_k_sets_the_overlap():
    """Classes that two clients have in common, on average."""
    shared = []
    for k in (2, 4, 8):
        held = table(Classes(k=k, counts="uneven").divide(POOL, 10, 0, 3)) > 0
        both = held.astype(int) @ held.T
        shared.append((both.sum() - both.trace()) / 90)
    assert shared[0] < shared[1] < shared[2]


@pytest.mark.parametrize("seed", range(5))
def test_ds2_every_class_everywhere(seed):
    shares = DS2.divide(POOL, 10, seed, 3)
    counts = table(shares)
    assert check_disjoint(shares) == 6000 and counts.min() >= 1
    assert (counts.sum(0) == 600).all()


def test_ds2_is_a_dirichlet_draw_per_class():
    """A share's mean is 1 / M and its variance (M - 1) / (M^2 (M alpha + 1)), over many classes."""
    labels = np.repeat(np.arange(400), 1000)
    shares = table(DS2.divide(Pool(labels), 10, 0, 3), labels) / 1000
    assert np.abs(shares.mean(1) - 0.1).max() < 0.02
    assert shares.var() == pytest.approx(9 / 100 / (9 + 1), rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_ds3_two_classes_and_sizes_far_apart(seed):
    shares = DS3.divide(POOL, 10, seed, 3)
    counts = table(shares)
    assert check_disjoint(shares) == 6000
    assert ((counts > 0).sum(1) == 2).all() and ((counts > 0).sum(0) == 2).all()
    assert counts.sum(1).max() > 1000 > 400 > counts.sum(1).min() >= 3
    many = np.array([len(share) for share in DS3.divide(POOL, 100, seed, 3)])
    assert many.max() > 15 * np.median(many)


def test_ds3_sizes_are_log_normal_where_the_classes_allow_it():
    draw = np.random.default_rng(0)
    targets = DS3.targets(10**9, 4000, 1, draw)
    assert np.log(targets - 1).std() == pytest.approx(2, rel=0.05)
    counts = np.array([len(share) for share in Classes(k=10, sizes="log_normal", sigma=1).divide(POOL, 10, 0, 10)])
    wished = Classes(k=10, sizes="log_normal", sigma=1)
    assert counts.sum() == 6000 and counts.std() > 0.3 * wished.targets(6000, 10, 10, draw).std()


@pytest.mark.parametrize(("k", "samples"), [(68, 6000), (196, 12000)])
def test_ds4_majority_and_minority(k, samples):
    labels = np.arange(samples) % 10
    shares = Minority(k=k).divide(Pool(labels), 10, 0, 3)
    counts = table(shares, labels)
    assert check_disjoint(shares) == counts.sum() == 5 * 5 * k + 5 * (k // 2 + 2 * k)
    assert (counts[:5, :5] == k).all() and not counts[:5, 5:].any()
    assert (np.sort(counts[5:, :5], 1) == [0, 0, 0, 0, k // 2]).all()
    assert (np.sort(counts[5:, 5:], 1) == [0, 0, 0, 0, 2 * k]).all()
    assert (counts[5:].max(0)[5:] == 2 * k).all() and (counts[5:, :5].max(0) == k // 2).all()  # each class once


def test_ds4_with_other_numbers_of_clients_and_classes():
    labels = np.arange(6000) % 7
    counts = table(Minority(k=9).divide(Pool(labels), 13, 0, 3), labels)
    assert (counts[:7, :4] == 9).all() and not counts[:7, 4:].any()
    assert (np.sort(counts[7:, :4], 1)[:, -2:] == [0, 4]).all() and (np.sort(counts[7:, 4:], 1) == [0, 0, 18]).all()


@pytest.mark.parametrize("partition", [DS1, DS2, DS3, DS4], ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_every_client_has_all_three_parts(partition, seed):
    samples = from_parts([np.zeros((6000, 1, 2, 2), np.uint8)], [LABELS], 10)
    for clients in (10, 12):
        made = divide(Data(clients=clients, partition=partition, split=SPLIT), samples, seed)
        parts = np.stack([made.n_train, made.n_validation, made.n_test], 1)
        assert parts.min() >= 1
        large = parts.sum(1) >= 20
        assert (np.abs(parts[large] / parts[large].sum(1, keepdims=True) - [0.6, 0.2, 0.2]) < 0.05).all()


def test_tiny_clients_of_ds3():
    """Three samples each is what there is; fewer are an error that says what to do."""
    samples = from_parts([np.zeros((6000, 1, 2, 2), np.uint8)], [LABELS], 10)
    data = Data(clients=20, partition=Classes(k=2, sizes="log_normal", sigma=4), samples=200, split=SPLIT)
    made = divide(data, samples, 0)
    total = made.n_train + made.n_validation + made.n_test
    assert min(made.n_train.min(), made.n_validation.min(), made.n_test.min()) == 1 and total.min() == 3
    with pytest.raises(DataError, match="200 samples are too few for 80 clients with at least 3 each"):
        divide(data.model_copy(update={"clients": 80}), samples, 0)


SUBCLASSES = np.random.default_rng(0).permutation(np.arange(4000) % 20)
SUPERCLASS = np.array([3, 0, 1, 2, 0, 1, 2, 3, 1, 2, 3, 0, 2, 3, 0, 1, 3, 3, 0, 1])  # 5, 5, 4 and 6 subclasses


@pytest.mark.parametrize("clients", [5, 12, 31])
@pytest.mark.parametrize("sizes", ["equal", "slicing"])
def test_one_subclass_of_every_superclass(clients, sizes):
    pool = Pool(SUPERCLASS[SUBCLASSES], None, SUBCLASSES)
    shares = Superclasses(sizes=sizes).divide(pool, clients, 0, 3)
    counts = table(shares, SUBCLASSES)
    check_disjoint(shares)
    for superclass in range(4):
        members = superclass == SUPERCLASS
        assert ((counts[:, members] > 0).sum(1) == 1).all()
        holders = (counts[:, members] > 0).sum(0)
        assert holders.max() - holders.min() <= 1
    used = (counts > 0).any(0)
    assert (counts.sum(0)[used] == 200).all()  # all samples of whatever somebody drew
    assert used.all() or clients < 6
    other = table(Superclasses(sizes=sizes).divide(pool, clients, 1, 3), SUBCLASSES)
    assert ((counts > 0) != (other > 0)).any()


def test_test_samples_are_of_exactly_the_clients_subclasses():
    """Four superclasses, so four subclasses; comparing superclass with fine labels would keep others."""
    samples = from_parts([np.zeros((4000, 1, 2, 2), np.uint8)], [SUPERCLASS[SUBCLASSES]], 4)
    samples.subclasses = SUBCLASSES
    made = divide(Data(clients=10, partition="superclasses", split=SPLIT), samples, 0)
    for client in range(10):
        train, test = (made.index[slice(*made.bounds[client, part : part + 2])] for part in (0, 2))
        own = np.unique(SUBCLASSES[train])
        assert np.unique(SUBCLASSES[test]).tolist() == own.tolist() and len(own) == 4
        assert np.unique(samples.labels[test]).tolist() == [0, 1, 2, 3] == sorted(SUPERCLASS[own])


@pytest.mark.parametrize(
    ("section", "pool", "clients", "message"),
    [
        (Superclasses(), POOL, 5, "needs a source with subclasses: cifar100 with labels: coarse, or sun397"),
        (Superclasses(), Pool(LABELS[:50] // 5, None, LABELS[:50]), 20, "50 samples are too few for 20 clients"),
        (Superclasses(), Pool(np.array([0] * 99 + [1]), None, np.array([0] * 99 + [1])), 2, "subclass 1 has 1 samples"),
        (Minority(k=200), POOL, 10, r"class \d has 600 samples, and 10 clients need 1100. Take k of at most 109"),
        (Minority(), POOL, 1, "1 client.* have no halves"),
        (Minority(), Pool(np.zeros(50, np.int64)), 10, r"1 class\(es\) have no halves"),
        (Dirichlet(least=9), POOL, 100, r"class \d has 600 samples, too few for 100 clients. Take least of at most 6"),
    ],
    ids=repr,
)
def test_the_impossible_is_refused(section, pool, clients, message):
    with pytest.raises(DataError, match=message):
        section.divide(pool, clients, 0, 3)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (Minority, {"k": 1}, "greater than or equal to 2"),
        (Dirichlet, {"by": "client", "least": 1}, "goes with by: class only"),
        (Dirichlet, {"least": -1}, "greater than or equal to 0"),
        (Classes, {"counts": "odd"}, "'even' or 'uneven'"),
        (Iid, {"sizes": "x"}, "'slicing'"),
        (Superclasses, {"k": 3}, "Extra inputs"),
    ],
)
def test_bad_parameters(section, values, message):
    with pytest.raises(ValidationError, match=message):
        section(**values)


@pytest.mark.parametrize("partition", [DS1, DS2, DS3, DS4, Classes(k=5, sizes="slicing")], ids=repr)
@pytest.mark.parametrize("source", ["mnist", "cifar10"])
def test_on_real_data(real_data, source, partition):
    if isinstance(partition, Minority):
        partition = Minority(k={"mnist": 196, "cifar10": 68}[source])
    data = Data.model_validate({"source": source, "root": real_data, "clients": 10, "split": SPLIT})
    data = data.model_copy(update={"partition": partition})
    samples = data.open(0)
    made = divide(data, samples, 0)
    assert min(made.n_train.min(), made.n_validation.min(), made.n_test.min()) >= 1
    assert len(np.unique(made.index)) == len(made.index)
    assert len(made.index) == len(samples) or partition.kind == "minority"
