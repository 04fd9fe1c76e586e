"""Who gets which samples: nothing twice, nothing lost, the promised sizes, and no endless search."""

import time

import numpy as np
import pytest
from pydantic import ValidationError

from mpipfl.data.partitions import Classes, Dirichlet, Iid, Natural
from mpipfl.data.samples import Pool
from mpipfl.errors import DataError

LABELS = np.random.default_rng(1).integers(0, 10, 3001)
USERS = np.random.default_rng(2).integers(0, 13, 3001)
POOL = Pool(LABELS, USERS)
ALL = [
    Iid(),
    Dirichlet(alpha=0.5),
    Dirichlet(alpha=100),
    Dirichlet(alpha=0.1, by="client"),
    Classes(k=2),
    Classes(k=10),
    Classes(k=3, sizes="power_law"),
    Classes(k=3, sizes="log_normal", sigma=2),
    Natural(),
]


def sizes(shares):
    return np.array([len(share) for share in shares])


def table(shares, labels=LABELS):
    return np.stack([np.bincount(labels[share], minlength=labels.max() + 1) for share in shares])


@pytest.mark.parametrize("section", ALL, ids=repr)
def test_disjoint_complete_and_repeatable(section):
    shares = section.divide(POOL, 13, 0, 3)
    assert len(shares) == 13 and sizes(shares).min() >= 3
    np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.arange(3001))
    for one, other in zip(shares, section.divide(POOL, 13, 0, 3), strict=True):
        np.testing.assert_array_equal(one, other)
    if section.kind != "natural":
        other = section.divide(POOL, 13, 1, 3)
        assert any(len(a) != len(b) or (a != b).any() for a, b in zip(shares, other, strict=True))


@pytest.mark.parametrize("section", ALL, ids=repr)
def test_one_client_gets_all(section):
    if section.kind == "natural":
        shares = section.divide(Pool(LABELS, np.zeros(3001, np.int64)), 1, 0, 1)
    elif section.kind == "classes":
        shares = Classes(k=10, sizes=section.sizes).divide(POOL, 1, 0, 1)
    else:
        shares = section.divide(POOL, 1, 0, 1)
    assert sizes(shares).tolist() == [3001]


def test_iid_sizes():
    counts = sizes(Iid().divide(POOL, 13, 0, 1))
    assert counts.max() - counts.min() <= 1


def test_alpha_is_concentration():
    for by in ("class", "client"):
        skew = [table(Dirichlet(alpha=alpha, by=by).divide(POOL, 10, 0, 1)).std() for alpha in (100, 1, 0.2)]
        assert skew[0] < skew[1] < skew[2]


def test_dirichlet_by_client_gives_equal_totals():
    counts = sizes(Dirichlet(alpha=0.05, by="client").divide(POOL, 13, 0, 1))
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("alpha", [1e-8, 1e8])
def test_dirichlet_at_the_ends(alpha):
    assert sizes(Dirichlet(alpha=alpha, by="client").divide(POOL, 13, 0, 1)).sum() == 3001
    if alpha > 1:
        assert sizes(Dirichlet(alpha=alpha).divide(POOL, 13, 0, 1)).min() > 200


@pytest.mark.parametrize("k", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("kind", ["equal", "power_law", "log_normal"])
@pytest.mark.parametrize("clients", [10, 37])
def test_exactly_k_classes_each_and_all_used_evenly(k, kind, clients):
    counts = table(Classes(k=k, sizes=kind).divide(POOL, clients, 0, 1))
    assert ((counts > 0).sum(1) == k).all()
    holders = (counts > 0).sum(0)
    assert holders.max() - holders.min() <= 1


def test_classes_of_unequal_size_still_give_equal_clients():
    labels = np.repeat(np.arange(5), [300, 350, 400, 450, 500])
    counts = sizes(Classes(k=2).divide(Pool(labels), 20, 0, 1))
    assert counts.max() - counts.min() <= 2


def test_size_laws():
    power = np.sort(sizes(Classes(k=5, sizes="power_law", exponent=1.5).divide(POOL, 20, 0, 3)))
    assert power[-1] > 5 * np.median(power)
    flat = sizes(Classes(k=10, sizes="power_law", exponent=0).divide(POOL, 20, 0, 3))
    assert flat.max() - flat.min() <= 2
    normal = sizes(Classes(k=5, sizes="log_normal", sigma=2).divide(POOL, 20, 0, 3))
    assert normal.max() > 5 * np.median(normal) and normal.min() >= 5


def test_labels_need_not_be_contiguous():
    labels = np.array([5, 9, 40])[LABELS % 3]
    for section in (Dirichlet(), Dirichlet(by="client"), Classes(k=2)):
        assert sizes(section.divide(Pool(labels), 6, 0, 1)).sum() == 3001


def test_natural_users_are_clients():
    shares = Natural().divide(POOL, 13, 0, 1)
    for user, share in enumerate(shares):
        np.testing.assert_array_equal(share, np.flatnonzero(user == USERS))


def test_natural_chooses_among_the_busy():
    users = np.repeat(np.arange(30), np.arange(30))  # user u has u samples
    labels = np.zeros(len(users), np.int64)
    shares = Natural(min_samples=10).divide(Pool(labels, users), 8, 0, 3)
    chosen = [users[share[0]] for share in shares]
    assert len(set(chosen)) == 8 and min(chosen) >= 10 and chosen == sorted(chosen)
    assert [len(share) for share in shares] == chosen
    other = Natural(min_samples=10).divide(Pool(labels, users), 8, 1, 3)
    assert chosen != [users[share[0]] for share in other]


RARE = np.repeat(np.arange(4), [2, 500, 500, 500])


@pytest.mark.parametrize(
    ("section", "labels", "clients", "message"),
    [
        (Iid(), LABELS[:20], 10, "20 samples are too few for 10 clients .* at most 6 clients"),
        (Dirichlet(), LABELS[:20], 10, "20 samples are too few"),
        (Dirichlet(by="client"), LABELS[:20], 10, "20 samples are too few"),
        (
            Dirichlet(alpha=0.001),
            LABELS,
            100,
            r"in the best of 100 draws \d+ of 100 clients .*client \d+: .*greater alpha",
        ),
        (Classes(k=11), LABELS, 10, "have only 10 classes; k can be 1 to 10"),
        (
            Classes(k=2),
            LABELS,
            4,
            "4 clients hold at most 8 of 10 classes. Take at least 5 clients, or k of at least 3",
        ),
        (Classes(k=2), LABELS[:20], 10, "20 samples are too few for 10 clients"),
        (Classes(k=2), RARE, 40, "class 0 has 2 samples for the 20 clients"),
        (Natural(), LABELS, 20, "13 of 13 users have 3 samples or more, and 20 are needed"),
        (Natural(min_samples=999), LABELS, 2, "0 of 13 users"),
    ],
    ids=repr,
)
def test_the_impossible_is_refused(section, labels, clients, message):
    with pytest.raises(DataError, match=message):
        section.divide(Pool(labels, USERS[: len(labels)]), clients, 0, 3)


def test_rare_classes_can_leave_a_client_short():
    labels = np.repeat(np.arange(4), [4, 4, 500, 500])
    with pytest.raises(DataError, match=r"clients get fewer than 10 samples \(client \d+: \d+\)"):
        Classes(k=1).divide(Pool(labels), 8, 0, 10)


def test_natural_needs_users():
    with pytest.raises(DataError, match="needs a source with users"):
        Natural().divide(Pool(LABELS), 3, 0, 1)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (Dirichlet, {"alpha": 0}),
        (Dirichlet, {"by": "x"}),
        (Classes, {"k": 0}),
        (Classes, {"sizes": "x"}),
        (Iid, {"a": 1}),
    ],
)
def test_bad_parameters(section, values):
    with pytest.raises(ValidationError):
        section(**values)


def test_large_ones_are_quick():
    draw = np.random.default_rng(0)
    labels, users = draw.integers(0, 62, 100_000), draw.integers(0, 1000, 100_000)
    for section in (Iid(), Dirichlet(), Dirichlet(by="client", alpha=0.1), Classes(k=5, sizes="power_law"), Natural()):
        start = time.process_time()
        shares = section.divide(Pool(labels, users), 1000, 0, 3)
        assert time.process_time() - start < 2, section  # about 0.1 s; the bound allows for a busy machine
        assert sum(map(len, shares)) == 100_000
