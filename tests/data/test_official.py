"""Clients tested on the source's own test samples: whose they are, that they are stored once, and what they score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mpipfl import newcomers, world
from mpipfl.comm import Comm
from mpipfl.config import check
from mpipfl.data.federated import Data, divide
from mpipfl.data.partition import Partition
from mpipfl.data.samples import from_parts
from mpipfl.errors import DataError

from ..suite import differing, train

DRAW = np.random.default_rng(0)
LABELS = [np.arange(400) % 5, DRAW.permutation(np.arange(100) % 5)]
PICTURES = [DRAW.integers(0, 256, (len(labels), 1, 6, 6), np.uint8) for labels in LABELS]


def made():
    return from_parts(PICTURES, LABELS, 5)


def of(**more):
    return Data.model_validate({"clients": 6, "split": {"validation": 0.2, "test": "official"}} | more)


def parts_of(partition: Partition, client: int) -> list[np.ndarray]:
    return [partition.index[a:b] for a, b in zip(partition.bounds[client], partition.bounds[client, 1:], strict=False)]


def test_a_client_has_all_test_samples_of_its_classes_and_no_others():
    samples = made()
    partition = divide(of(partition={"kind": "classes", "k": 2}), samples, 0)
    learned = []
    for client in range(6):
        train_, validation, test = parts_of(partition, client)
        own = np.unique(samples.labels[np.concatenate([train_, validation])])
        assert len(own) == 2 and len(validation)
        np.testing.assert_array_equal(test, 400 + np.flatnonzero(np.isin(LABELS[1], own)))
        learned += [*train_, *validation]
    np.testing.assert_array_equal(np.sort(learned), np.arange(400))  # the whole official training part, once


def test_by_user_it_is_the_users_own_test_samples():
    samples = made()
    samples.users = np.concatenate([np.arange(400) % 8, np.arange(100) % 9])  # the ninth has test samples only
    partition = divide(of(partition="natural"), samples, 0)
    for client in range(6):
        train_, validation, test = parts_of(partition, client)
        (user,) = np.unique(samples.users[np.concatenate([train_, validation])])
        np.testing.assert_array_equal(test, 400 + np.flatnonzero(samples.users[400:] == user))


def test_by_subclass_it_is_those_of_exactly_its_subclasses():
    samples = made()
    samples.subclasses = samples.labels * 2 + np.arange(500) // 5 % 2
    partition = divide(of(partition="superclasses"), samples, 0)
    for client in range(6):
        train_, validation, test = parts_of(partition, client)
        own = np.unique(samples.subclasses[np.concatenate([train_, validation])])
        assert len(own) == 5
        np.testing.assert_array_equal(test, 400 + np.flatnonzero(np.isin(samples.subclasses[400:], own)))


def test_a_source_without_test_samples_is_refused():
    bare = from_parts(PICTURES[:1], LABELS[:1], 5)
    with pytest.raises(DataError, match=r"test=official: the source mnist has no test samples.*data.split.test=0.2"):
        divide(of(source="mnist"), bare, 0)
    with pytest.raises(ValueError, match="validation"):
        of(split={"validation": 1, "test": "official"})


def test_the_file_of_the_partition_has_shared_samples(tmp_path: Path):
    partition = divide(of(), made(), 0)
    partition.write(tmp_path / "partition.h5")
    read = Partition.read(tmp_path / "partition.h5")
    assert read.digest == partition.digest and np.bincount(read.index).max() == 6


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "set.npz", x_train=PICTURES[0], y_train=LABELS[0], x_test=PICTURES[1], y_test=LABELS[1])
    return tmp_path / "set.npz"


def experiment(file: Path, folder: Path, **more: object):
    values = {
        "rounds": 2, "output": str(folder), "model": "logistic", "train": {"batch": 8}, "evaluate": {"every": 1},
        "algorithm": "ditto", "checkpoint": {"every": 1},
        "data": {
            "source": {"kind": "arrays", "path": str(file)}, "clients": 6, "partition": {"kind": "classes", "k": 2},
            "shift": {"kind": "rotate", "groups": 2}, "split": {"validation": 0.2, "test": "official"},
        },
    }  # fmt: skip
    return check(values | more, "the test's configuration")


def test_shared_pictures_are_stored_once_for_each_rotation_and_score_like_copies(file: Path, tmp_path: Path):
    config = experiment(file, tmp_path)
    plan = world.plan(config)
    store = world.store(plan, Comm(), torch.device("cpu"))
    seen = {
        (int(i), int(plan.partition.group[c])) for c in range(6) for part in parts_of(plan.partition, c) for i in part
    }
    assert len(store.x) == len(seen) < len(store.y) == len(plan.partition.index)

    theta = torch.linspace(-1, 1, plan.model.dimension).sin()
    network = plan.model.network
    torch.nn.utils.vector_to_parameters(theta, network.parameters())
    cohort = world.Cohort(np.arange(6), store, plan.model, config.train, 0, 0, 3)
    accuracy = cohort.evaluate(theta).accuracy
    for client in range(6):
        _, _, test = parts_of(plan.partition, client)
        x = torch.from_numpy(plan.samples.read(test, client)).float() / 255
        x = (x - plan.samples.mean) / plan.samples.std
        x = torch.rot90(x, int(plan.partition.rotation[client]) // 90, (2, 3))
        right = (network(x).argmax(1).numpy() == plan.samples.labels[test]).mean()
        assert accuracy[client].item() == pytest.approx(right)


@pytest.mark.mpi
def test_the_same_bits_at_any_rank_count(comm: Comm, alone: Comm, together_path: Path):
    file = together_path / "set.npz"
    if comm.is_server:
        np.savez(file, x_train=PICTURES[0], y_train=LABELS[0], x_test=PICTURES[1], y_test=LABELS[1])
    comm.barrier()
    together = train(experiment(file, together_path / "together"), comm)
    if comm.is_server:
        assert differing(together, train(experiment(file, together_path / "alone"), alone)) == []


def test_newcomers_learn_from_samples_nobody_had_and_are_tested_on_the_official_ones(file: Path, tmp_path: Path):
    config = experiment(file, tmp_path)
    few = config.model_copy(update={"data": config.data.model_copy(update={"samples": 200})})
    train(few, Comm())
    before = Partition.read(few.folder / "partition.h5")
    settings = newcomers.settings(few.folder, ["data.clients=4", "data.partition={kind: iid}"])
    train(settings, Comm())
    partition = Partition.read(settings.folder / "partition.h5")
    learned = [
        np.concatenate([np.concatenate(parts_of(p, c)[:2]) for c in range(p.clients)]) for p in (before, partition)
    ]
    assert len(learned[0]) == 200 and len(learned[1]) == round(200 / 6 * 4)
    assert not np.isin(learned[1], learned[0]).any() and max(learned[1]) < 400
    for client in range(4):  # all five classes each
        np.testing.assert_array_equal(parts_of(partition, client)[2], np.arange(400, 500))
