"""Buffers in, buffers out: every collective on every kind of buffer, and who may speak MPI at all."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpipfl import comm as module
from mpipfl.comm import Comm, choose_device, cuda_aware
from mpipfl.errors import DataError

from .conftest import PROJECT

DTYPES = ("float32", "float64", "int64", "int32", "uint8")


@pytest.fixture(params=[None, 7, 1], ids=["whole", "slices of 7", "slices of 1"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if MPI's counts ended at a small odd number."""
    if request.param:
        monkeypatch.setattr(module, "SLICE", request.param)


def buffer(kind: str, dtype: str, shape: tuple[int, ...], value: Any) -> Any:
    array = np.broadcast_to(np.asarray(value), shape).astype(dtype)
    return torch.from_numpy(array.copy()) if kind == "tensor" else array.copy()


def ramp(size: int) -> np.ndarray:
    return np.arange(size) % 5


@pytest.mark.mpi
@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["tensor", "array"])
class TestCollectives:
    shape = (3, 5)

    def filled(self, kind: str, dtype: str, comm: Comm) -> Any:
        return buffer(kind, dtype, self.shape, ramp(15).reshape(3, 5) + comm.rank)

    def sum(self, comm: Comm) -> np.ndarray:
        return comm.size * ramp(15).reshape(3, 5) + comm.size * (comm.size - 1) // 2

    def test_broadcast(self, kind: str, dtype: str, comm: Comm) -> None:
        mine = self.filled(kind, dtype, comm)
        comm.broadcast(mine)
        assert np.array_equal(np.asarray(mine), ramp(15).reshape(3, 5))

    def test_reduce(self, kind: str, dtype: str, comm: Comm) -> None:
        mine = self.filled(kind, dtype, comm)
        comm.reduce(mine)
        if comm.is_server:
            assert np.array_equal(np.asarray(mine), self.sum(comm))

    def test_allreduce(self, kind: str, dtype: str, comm: Comm) -> None:
        mine = self.filled(kind, dtype, comm)
        comm.allreduce(mine)
        assert np.array_equal(np.asarray(mine), self.sum(comm))

    def test_allreduce_max(self, kind: str, dtype: str, comm: Comm) -> None:
        mine = self.filled(kind, dtype, comm)
        comm.allreduce(mine, "max")
        assert np.array_equal(np.asarray(mine), ramp(15).reshape(3, 5) + comm.size - 1)


@pytest.mark.mpi
@pytest.mark.parametrize("late", [0, -1])
@pytest.mark.parametrize("crowded", [False, True])
def test_ranks_that_share_cores_wait_asleep(
    crowded: bool, late: int, comm: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is late: the messages by which they meet are no part of what is sent."""
    monkeypatch.setattr(comm, "crowded", crowded)
    for turn in range(3):
        if comm.rank == late % comm.size:
            time.sleep(0.05)
        mine = np.full(5, comm.rank + turn)
        comm.allreduce(mine)
        assert (mine == sum(range(comm.size)) + turn * comm.size).all()
        gathered = comm.gather(np.full((comm.rank, 2), turn))
        assert gathered is None or [len(rows) for rows in gathered] == list(range(comm.size))


@pytest.mark.mpi
@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 4), (2, 0), (21,)])
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_odd_shapes(kind: str, shape: tuple[int, ...], comm: Comm) -> None:
    mine = buffer(kind, "float64", shape, comm.rank + 1)
    comm.allreduce(mine)
    assert tuple(mine.shape) == shape
    assert (np.asarray(mine) == comm.size * (comm.size + 1) / 2).all()


@pytest.mark.mpi
def test_a_parameter_travels_in_place(comm: Comm) -> None:
    parameter = torch.nn.Parameter(torch.full((4,), float(comm.rank)))
    comm.broadcast(parameter)
    assert parameter.tolist() == [0.0] * 4


@pytest.mark.mpi
@pytest.mark.parametrize("call", ["broadcast", "reduce", "allreduce"])
@pytest.mark.parametrize(
    "strided",
    [
        torch.zeros(4, 6).T,
        torch.zeros(10)[::2],
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        np.zeros((4, 6)).T,
        np.zeros(10)[::2],
    ],
    ids=["transposed", "every second", "channels last", "transposed array", "every second array"],
)
def test_strided_buffers_are_refused(call: str, strided: Any, comm: Comm) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        getattr(comm, call)(strided)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("call", ["broadcast", "reduce", "allreduce"])
def test_half_precision_is_refused(call: str, dtype: torch.dtype, comm: Comm) -> None:
    with pytest.raises(ValueError, match=str(dtype)):
        getattr(comm, call)(torch.zeros(3, dtype=dtype))


ROWS = [lambda rank: 2, lambda rank: 3 * (rank % 2), lambda rank: rank, lambda rank: 0]


@pytest.mark.mpi
@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
@pytest.mark.parametrize("width", [(), (3,), (2, 2)])
@pytest.mark.parametrize("counts", ROWS)
def test_gather_of_ragged_rows(counts: Any, width: tuple[int, ...], dtype: str, comm: Comm) -> None:
    def rows(rank: int) -> np.ndarray:
        return (np.arange(counts(rank) * int(np.prod(width))) + 10 * rank).astype(dtype).reshape(-1, *width)

    gathered = comm.gather(rows(comm.rank))
    if not comm.is_server:
        assert gathered is None
        return
    assert gathered is not None
    assert len(gathered) == comm.size
    for rank, got in enumerate(gathered):
        assert got.dtype == dtype
        assert got.shape == (counts(rank), *width)
        assert np.array_equal(got, rows(rank))


@pytest.mark.mpi
def test_gather_takes_strided_rows(comm: Comm) -> None:
    gathered = comm.gather(np.arange(12.0).reshape(3, 4).T)
    if gathered is not None:
        assert all(np.array_equal(rows, np.arange(12.0).reshape(3, 4).T) for rows in gathered)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("width", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("counts", ROWS)
def test_allgather_of_ragged_rows(counts: Any, width: tuple[int, ...], dtype: str, comm: Comm) -> None:
    """On every rank; strided rows too."""

    def strided(rank: int) -> np.ndarray:
        values = (np.arange(2 * counts(rank) * int(np.prod(width))) + rank) % 3
        return values.astype(dtype).reshape(2 * counts(rank), *width)[::2]

    before = comm.bytes
    gathered = comm.allgather(strided(comm.rank))
    assert comm.bytes - before == strided(comm.rank).nbytes + 8 * comm.size  # the rows, and how many everyone has
    assert len(gathered) == comm.size
    for rank, got in enumerate(gathered):
        assert got.dtype == dtype
        assert got.shape == (counts(rank), *width)
        assert np.array_equal(got, strided(rank))


PARTS = {
    "alike": lambda source, target: 4,
    "uneven": lambda source, target: (5 * source + 3 * target) % 7,
    "nothing from the first": lambda source, target: 3 * (source > 0),
    "all to the last": lambda source, target: (source + 2) * (target > source),
    "nothing": lambda source, target: 0,
}


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("counts", PARTS.values(), ids=PARTS)
def test_exchange(counts: Any, dtype: str, comm: Comm) -> None:
    """Every part is where it belongs, and what left the rank is counted."""

    def part(source: int, target: int) -> torch.Tensor:
        return (torch.arange(counts(source, target)) + 20 * source + 3 * target).to(getattr(torch, dtype))

    ranks, me = range(comm.size), comm.rank
    before = comm.bytes
    got = comm.exchange([part(me, target) for target in ranks], [counts(source, me) for source in ranks])
    leaves = sum(counts(me, target) for target in ranks if target != me)
    assert comm.bytes - before == leaves * np.dtype(dtype).itemsize
    assert len(got) == comm.size
    for source, flat in zip(ranks, got, strict=True):
        assert flat.dtype == part(source, me).dtype
        assert torch.equal(flat, part(source, me))


@pytest.mark.mpi
def test_exchange_takes_columns_of_parameters(comm: Comm) -> None:
    """Parts of any shape and stride, of what is being trained; they arrive flat, row by row, and apart from it."""
    theta = torch.nn.Parameter(torch.arange(6.0 * comm.size).view(2, -1) + 100 * comm.rank)
    before = theta.detach().clone()
    got = comm.exchange(list(theta.split(3, 1)), [6] * comm.size)
    for source, flat in enumerate(got):
        expected = torch.arange(6.0 * comm.size).view(2, -1)[:, 3 * comm.rank : 3 * comm.rank + 3] + 100 * source
        assert torch.equal(flat, expected.reshape(-1))
        assert not flat.requires_grad
        flat.zero_()
    assert torch.equal(theta, before)


@pytest.mark.mpi
@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("value", ["", "a", "naïve Σ_k θ_k 模型 🙂", "line\nline\0end", "x" * 1000])
def test_text(value: str, comm: Comm) -> None:
    assert comm.text(value if comm.is_server else None) == value


@pytest.mark.mpi
def test_any(comm: Comm) -> None:
    assert comm.any(False) is False
    for rank in range(comm.size):
        assert comm.any(comm.rank == rank) is True


@pytest.mark.mpi
def test_bytes_are_counted(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 3)
    before = comm.bytes
    comm.broadcast(np.zeros(10))
    comm.reduce(torch.zeros(10))
    comm.allreduce(torch.zeros(0))
    assert comm.bytes - before == 80 + 40
    before = comm.bytes
    comm.gather(np.zeros((comm.rank, 2)))
    assert comm.bytes - before == 16 * comm.rank + 8 * comm.size  # the rows, and how many everyone has


@pytest.mark.mpi
def test_who_works(comm: Comm, alone: Comm) -> None:
    assert comm.workers == ([0] if comm.size == 1 else list(range(1, comm.size)))
    assert alone.workers == [0]
    assert alone.is_server
    assert comm.is_server == (comm.rank == 0)


@pytest.mark.mpi
def test_workers_are_counted_on_the_node(comm: Comm) -> None:
    """All test ranks share a node: the server takes no worker's place."""
    expected = 0 if comm.size == 1 else None if comm.rank == 0 else comm.rank - 1
    assert comm.worker_on_node() == expected


# ---------------------------------------------------------------------- shared memory


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_shared_memory_is_seen_by_all(dtype: str, comm: Comm) -> None:
    array = comm.shared((comm.size, 5), dtype)
    assert array.shape == (comm.size, 5)
    assert array.dtype == dtype
    assert not array.any()
    comm.barrier()
    array[comm.rank] = comm.rank + 1
    comm.barrier()
    assert np.array_equal(array, np.broadcast_to(np.arange(1, comm.size + 1)[:, None], array.shape))
    comm.barrier()
    array[(comm.rank + 1) % comm.size, 0] = 100
    comm.barrier()
    assert (array[:, 0] == 100).all()
    comm.barrier()


@pytest.mark.mpi
def test_shared_memory_leaves_no_file(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []

    def watched(size: int, make: Any = module.memory_file) -> tuple[int, bytes]:
        handle, path = make(size)
        made.append(path)
        return handle, path

    monkeypatch.setattr(module, "memory_file", watched)
    array = comm.shared((1000,), np.float64)
    comm.barrier()
    assert len(made) == (comm.is_server and comm.size > 1)
    assert not any(os.path.exists(path) for path in made)
    array[:] = 1  # and works without its name
    comm.barrier()


@pytest.mark.mpi
def test_shared_arrays_are_apart(comm: Comm) -> None:
    one, other = comm.shared((8,), np.int64), comm.shared((8,), np.int64)
    comm.barrier()
    if comm.is_server:
        one[:] = 1
    comm.barrier()
    assert one.sum() == 8
    assert other.sum() == 0
    comm.barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_is_shared_too(shape: tuple[int, ...], comm: Comm) -> None:
    assert comm.shared(shape, np.float32).shape == shape


@pytest.mark.mpi
def test_no_place_for_shared_memory(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY", ("/nowhere/at/all",))
    if comm.size == 1:
        assert comm.shared((4,), np.float32).shape == (4,)  # needs no file
        return
    with pytest.raises(DataError, match=r"no room for .* MB .* in /nowhere/at/all"):
        comm.shared((4,), np.float32)


def test_no_room_for_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any machine has: refused at once, and the attempt is cleaned up."""
    monkeypatch.setattr(module, "MEMORY", (str(tmp_path),))
    assert module.memory_file(1 << 60) == (-1, b"")
    assert list(tmp_path.iterdir()) == []


def test_the_next_place_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY", ("/nowhere/at/all", str(tmp_path)))
    handle, path = module.memory_file(100)
    assert os.fstat(handle).st_size == 100
    assert Path(path.decode()).parent == tmp_path
    os.close(handle)


# ---------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("wanted", "worker", "gpus", "device"),
    [
        ("auto", 0, 4, "cuda:0"),
        ("auto", 3, 4, "cuda:3"),
        ("cuda", 1, 2, "cuda:1"),
        ("auto", 5, 4, "cuda:1"),  # more workers than GPUs: in turn
        ("auto", 3, 1, "cuda:0"),
        ("auto", 0, 0, "cpu"),
        ("auto", None, 4, "cpu"),  # a server
        ("cpu", 0, 4, "cpu"),
    ],
)
def test_choose_device(wanted: str, worker: int | None, gpus: int, device: str) -> None:
    assert choose_device(wanted, worker, gpus) == device


@pytest.mark.parametrize(
    ("environ", "aware"),
    [
        ({}, False),
        ({"MPIPFL_CUDA_AWARE": "1"}, True),
        ({"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
        ({"OMPI_MCA_opal_cuda_support": "TRUE"}, True),
        ({"MV2_USE_CUDA": "0"}, False),
        ({"MPIPFL_CUDA_AWARE": ""}, False),
        ({"SOMETHING_CUDA": "1"}, False),
    ],
)
def test_cuda_aware(environ: dict[str, str], aware: bool) -> None:
    assert cuda_aware(environ) is aware


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Pinned memory as plain memory, on machines without a GPU; whether it was asked for."""
    asked: list[bool] = []
    empty = torch.empty

    def pretend(*arguments: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*arguments, **more)

    monkeypatch.setattr(torch, "empty", pretend)
    return asked


@pytest.mark.mpi
@pytest.mark.usefixtures("slices")
def test_a_gpu_tensor_goes_through_pinned_memory(comm: Comm, pinned: list[bool]) -> None:
    tensor = torch.full((3, 5), float(comm.rank + 1)).as_subclass(OnGpu)
    before = comm.bytes
    comm.allreduce(tensor)
    assert pinned == [True]
    assert (torch.Tensor(tensor) == comm.size * (comm.size + 1) / 2).all()
    assert comm.bytes - before == 60


def test_a_gpu_tensor_goes_directly_where_mpi_takes_it(
    alone: Comm, pinned: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    alone.direct = True
    tensor = torch.ones(4).as_subclass(OnGpu)
    alone.broadcast(tensor)
    assert pinned == []
    assert len(waited) == 1  # its kernels are done before MPI reads it


# ---------------------------------------------------------------------- who may speak MPI


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((PROJECT / "mpipfl").rglob("*.py")):
        yield str(path.relative_to(PROJECT)), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_only_comm_imports_mpi4py() -> None:
    users = [path for path, tree in sources() if any(name.split(".")[0] == "mpi4py" for name in imports(tree))]
    assert users == ["mpipfl/comm.py"]


def test_only_tests_take_mpi_from_comm() -> None:
    """Not through the back door either."""
    for path, tree in sources():
        taken = [a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
        assert path == "mpipfl/comm.py" or "MPI" not in taken, path


def test_nothing_is_pickled() -> None:
    for path, tree in sources():
        found = {name.split(".")[0] for name in imports(tree)} & {"pickle", "cPickle", "dill", "shelve", "joblib"}
        assert not found, f"{path} imports {found}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "save"), ("torch", "load")}, path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


def test_mpi_calls_are_uppercase() -> None:
    """mpi4py pickles in its lowercase calls; the communicator is `self.mpi`."""
    tree = dict(sources())["mpipfl/comm.py"]
    called = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mpi"
    }
    assert {"Bcast", "Reduce", "Allreduce", "Send", "Recv", "Allgatherv", "Alltoallv"} <= called
    assert all(name[0].isupper() for name in called), called
