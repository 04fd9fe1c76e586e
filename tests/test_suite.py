"""The shared suite on every method: bits, resume, idle ranks, one client, few participants.

To stay quick it is divided over the numbers of ranks that tests/run.sh takes: the tests marked `at_three` run there
only, and each method takes one of the networks, another one at 1, 2 and 3 ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpipfl import slices
from mpipfl.comm import MPI, Comm

from .suite import METHODS, config, content, differing, rewound, train

pytestmark = pytest.mark.mpi

NETWORKS: dict[str, dict[str, Any]] = {
    "logistic": {"model": {"kind": "logistic"}, "train.batch": 5},
    "mlp": {},
    "lenet5": {"model": {"kind": "lenet5"}, "train.batch": 10, "train.lr": 0.01},
}


RANKS = MPI.COMM_WORLD.Get_size()
at_three = pytest.mark.skipif(RANKS != 3, reason="once is enough: at three ranks")


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"algorithm": METHODS[request.param]}


def same_as_alone(
    settings: dict[str, Any],
    comm: Comm,
    alone: Comm,
    folder: Path,
    meanwhile: AbstractContextManager[Any] = nullcontext(),  # noqa: B008
    **elsewhere: Any,
) -> None:
    """All ranks together make the bits that one rank makes alone, also with `elsewhere` settings there."""
    with meanwhile:
        together = train(config(settings, folder / "together"), comm)
    if comm.is_server:
        single = train(config(settings, folder / "alone", **elsewhere), alone)
        assert differing(together, single) == []
        for name in ("metrics.csv", "history.h5"):
            assert (folder / "together/run" / name).read_bytes() == (folder / "alone/run" / name).read_bytes(), name


def test_bits_do_not_depend_on_ranks_or_cohorts(
    method: dict[str, Any], comm: Comm, alone: Comm, together_path: Path
) -> None:
    place = list(METHODS.values()).index(method["algorithm"])
    network = list(NETWORKS)[(place + RANKS) % len(NETWORKS)]
    same_as_alone(method | NETWORKS[network], comm, alone, together_path, train__cohort=5)


@at_three
def test_all_clients_take_part(method: dict[str, Any], comm: Comm, alone: Comm, together_path: Path) -> None:
    """The ranks together take the server's steps in slices, where the method allows it."""
    settings = method | {"participation.fraction": 1.0}
    same_as_alone(settings, comm, alone, together_path, in_slices(), train__cohort=2)


@contextmanager
def in_slices() -> Iterator[None]:
    """What is done with long vectors is done with all."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("LONG", 100), ("WORK", 1000), ("LEAST", 90)):
            patch.setattr(slices, name, value)
        yield


@at_three
def test_some_rounds_have_no_participants(method: dict[str, Any], comm: Comm, alone: Comm, together_path: Path) -> None:
    settings = method | {"participation": {"probability": 0.1}, "rounds": 8}
    same_as_alone(settings, comm, alone, together_path)


def test_more_ranks_than_clients(method: dict[str, Any], comm: Comm, alone: Comm, together_path: Path) -> None:
    same_as_alone(method | {"data.clients": 2, "data.shift": {"kind": "none"}}, comm, alone, together_path)


@at_three
def test_one_client(method: dict[str, Any], comm: Comm, alone: Comm, together_path: Path) -> None:
    settings = method | {"data.clients": 1, "data.shift": {"kind": "none"}, "data.partition": {"kind": "iid"}}
    if "models" in method["algorithm"] or isinstance(method["algorithm"].get("streams"), int):
        pytest.skip("asks for more than one client")
    same_as_alone(settings, comm, alone, together_path)


def test_resume_elsewhere_gives_the_same_bits(
    method: dict[str, Any], comm: Comm, alone: Comm, together_path: Path
) -> None:
    """Killed after some round on all ranks, and resumed on one or on all; the last rounds are the method's closing
    ones, where it has such."""
    settings = config(method, together_path / "whole")
    undisturbed = train(settings, comm)
    if comm.is_server:
        copies = [rewound(settings, together_path / f"from_{r}", r) for r in (1, settings.all_rounds - 1)]
        assert differing(undisturbed, train(copies[0], alone, resume=True)) == []
    comm.barrier()
    last = settings.model_copy(update={"output": together_path / f"from_{settings.all_rounds - 1}"})
    assert differing(undisturbed, train(last, comm, resume=True)) == []


@at_three
def test_stragglers_train_but_do_not_report(
    method: dict[str, Any], comm: Comm, alone: Comm, together_path: Path
) -> None:
    settings = method | {"participation": {"fraction": 0.4, "train": "all"}}
    same_as_alone(settings, comm, alone, together_path)


@at_three
def test_clients_begin_alike(method: dict[str, Any], comm: Comm, together_path: Path) -> None:
    """Round 0 is the state before training: finite, and the same for every client."""
    settings = config(method, together_path)
    train(settings, comm)
    if comm.is_server:
        start = content(settings.folder / "checkpoints/round_00000.h5")
        for name, value in start.items():
            assert name.startswith("history") or np.isfinite(value).all(), name
            if name.startswith("clients/"):
                assert (value == value[0]).all(), name
