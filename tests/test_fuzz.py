"""Files and words that nobody has thought of: every one gives a result or one clear message, soon, in little memory.

Inputs are made by hypothesis: random ones, and good ones with a few places changed. The same ones each time; a longer
search goes `HYPOTHESIS_PROFILE=long python -m pytest --with-mpi tests/test_fuzz.py`.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpipfl import checkpoint, config, verify
from mpipfl.comm import Comm
from mpipfl.config import Config
from mpipfl.data.arrays import Arrays
from mpipfl.data.leaf import Leaf, Shakespeare, Tff
from mpipfl.data.partition import Partition
from mpipfl.data.sent140 import Sent140
from mpipfl.errors import DataError, UserError
from mpipfl.history import History
from mpipfl.states import States
from mpipfl.study import points, study_of
from mpipfl.telemetry import peak_resident

from .conftest import PROJECT
from .suite import SMALL

QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
for name, examples in (("short", 60), ("long", 5000)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, derandomize=name == "short", database=None,
        suppress_health_check=QUIET, print_blob=True,
    )  # fmt: skip
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))
MEMORY = 200 << 20  # bytes that reading a file of some kilobytes may take more than the test process had


def clear(error: UserError) -> None:
    """A message for people: it says something, and not too much."""
    assert str(error).strip() and len(str(error)) < 20_000


def outcome(work: Callable[[], Any]) -> Any:
    """What comes of it; None after a clear message. Anything else that is raised fails the test."""
    before = peak_resident()
    try:
        return work()
    except UserError as error:
        clear(error)
        return None
    finally:
        assert peak_resident() - before < MEMORY


def changed(good: bytes) -> st.SearchStrategy[bytes]:
    """A good file with some bytes changed, taken out or put in."""
    places = st.integers(0, len(good))
    splices = st.tuples(places, st.integers(0, 40), st.binary(max_size=20))
    bits = st.tuples(places, st.just(1), st.binary(min_size=1, max_size=1))

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        data = good
        for place, length, new in changes:
            data = data[:place] + new + data[place + length :]
        return data

    return st.lists(st.one_of(splices, bits), min_size=1, max_size=5).map(apply)


# ---------------------------------------------------------------------- configurations

WORDS = st.sampled_from(
    sorted({word for path in (PROJECT / "configs").glob("*.yaml") for word in path.read_text().split()})
)
YAML = st.one_of(
    st.text(alphabet=st.sampled_from(list("{}[]:,-?&*!|>'\"%@`#~ \n\tab01.e_<")), max_size=60),
    st.lists(WORDS, max_size=20).map(" ".join),
    changed((PROJECT / "configs/quickstart.yaml").read_bytes()).map(lambda data: data.decode(errors="replace")),
)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10), st.dates(),
    st.sampled_from(["fedavg", "lenet5", "glyphs", "iid", "kind", "auto", "1e3", 10**30, -1, 0, 2**63]),
)  # fmt: skip


def paths(values: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The places of a tree of mappings."""
    inner = [path for key, value in values.items() if isinstance(value, dict) for path in paths(value, (*before, key))]
    return [(*before, key) for key in values] + inner


KEYS = sorted({".".join(path) for path in paths(SMALL | Config(algorithm={"kind": "persfl"}).model_dump(mode="json"))})  # type: ignore[arg-type]
TREES = st.recursive(PLAIN, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(KEYS), PLAIN), inner, max_size=4),
), max_leaves=8)  # fmt: skip


@given(YAML)
def test_yaml(text: str) -> None:
    outcome(lambda: config.parse(text, "here"))


@given(st.one_of(st.binary(max_size=200), changed((PROJECT / "configs/quickstart.yaml").read_bytes())))
def test_configuration_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(data)
    made = outcome(lambda: config.load(path))
    assert made is None or config.check(yaml.safe_load(config.dump(made)), "again") == made


@given(st.sampled_from(KEYS), TREES)
def test_values(key: str, value: Any) -> None:
    """Any value at any place: a configuration that comes back as it was, or a message that names the place."""
    values = yaml.safe_load(yaml.safe_dump(SMALL | {"algorithm": "fedavg"}))
    inner = values
    for part in key.split(".")[:-1]:
        inner[part] = inner[part] if isinstance(inner.get(part), dict) else {}
        inner = inner[part]
    inner[key.split(".")[-1]] = value
    made = outcome(lambda: config.check(values, "here"))
    assert made is None or config.check(yaml.safe_load(config.dump(made)), "again") == made


@given(st.one_of(st.text(max_size=30), st.tuples(st.sampled_from(KEYS), YAML).map("=".join)))
def test_overrides(text: str) -> None:
    outcome(lambda: config.load(PROJECT / "configs/quickstart.yaml", [text]))


@given(st.dictionaries(st.sampled_from(["name", "base", "ranks", "set", "axes", "special", "seeds", "x"]), TREES))
def test_studies(tmp_path: Path, study: dict[str, Any]) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        yaml.dump({"name": "s", "base": str(PROJECT / "configs/quickstart.yaml")} | study, Dumper=yaml.Dumper)
    )
    outcome(lambda: list(points(study_of(path))))


# ---------------------------------------------------------------------- data


def opened(source: Any, path: Path) -> None:
    """All samples of a source, read."""

    def work() -> None:
        samples = source.open(path.parent, seed=0, clients=2)
        samples = samples.fitted(np.arange(len(samples)))
        assert len(samples.labels) == len(samples)
        samples.read(np.arange(len(samples)), 0)
        np.bincount(samples.labels, minlength=samples.classes)

    outcome(work)


def npz() -> bytes:
    buffer = io.BytesIO()
    x, y = np.arange(24, dtype=np.float32).reshape(6, 4), np.array([0, 1, 0, 1, 2, 2])
    np.savez(buffer, x=x, y=y, user=np.array(["a", "b", "a", "b", "c", "c"]))
    return buffer.getvalue()


def hdf5_arrays(folder: Path) -> bytes:
    with h5py.File(folder / "good.h5", "w") as file:
        file["x"], file["y"] = np.arange(24, dtype=np.float32).reshape(6, 4), np.array([0, 1, 0, 1, 2, 2])
        file["user"] = ["a", "b", "a", "b", "c", "c"]
    return (folder / "good.h5").read_bytes()


def tff(folder: Path) -> bytes:
    with h5py.File(folder / "good.h5", "w") as file:
        for user in "ab":
            file[f"examples/{user}/pixels"] = np.ones((3, 4), np.float32)
            file[f"examples/{user}/label"] = np.array([0, 1, 0])
    return (folder / "good.h5").read_bytes()


LEAF = {
    "users": ["a", "b"], "num_samples": [2, 1],
    "user_data": {"a": {"x": [[0.1, 0.2], [0.3, 0.4]], "y": [0, 1]}, "b": {"x": [[1, 2]], "y": [1]}},
}  # fmt: skip
SPEAKERS = {"HAMLET": ["to be or not to be " * 8], "ROMEO": ["but soft what light " * 8]}
TWEETS = "".join(f'"{4 * (i % 2)}","{i}","today","none","user{i % 3}","so very glad number {i}"\n' for i in range(9))
JSON = st.recursive(PLAIN.filter(lambda v: not hasattr(v, "year")), lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["x", "y", "a", "users", "user_data"]), inner),
), max_leaves=10)  # fmt: skip


@given(st.data())
@pytest.mark.parametrize("ending", [".npz", ".h5"])
def test_arrays(ending: str, tmp_path: Path, data: st.DataObject) -> None:
    good = npz() if ending == ".npz" else hdf5_arrays(tmp_path)
    path = tmp_path / f"mine{ending}"
    path.write_bytes(data.draw(st.one_of(st.binary(max_size=100), changed(good))))
    opened(Arrays(path=path), path)


SHAPES = st.lists(st.integers(0, 3), max_size=5)
ARRAYS = st.builds(
    lambda shape, kind, value: np.full(shape, value).astype(kind),
    SHAPES, st.sampled_from(["f4", "f8", "i8", "u1", "U3", "c8", "M8[s]", "?"]), st.sampled_from([0, 1, 2, -1, 2**40]),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["x", "y", "user", "x_train", "y_train", "x_test", "y_test", "z"]), ARRAYS))
def test_arrays_of_any_shape_and_type(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    opened(Arrays(path=tmp_path / "mine.npz"), tmp_path / "mine.npz")


@given(st.one_of(changed(json.dumps(LEAF).encode()), JSON.map(lambda v: json.dumps(v, default=str).encode())))
@pytest.mark.parametrize("content", ["images", "text"])
def test_leaf(content: Any, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "all.json").write_bytes(data)
    opened(Leaf(path=tmp_path / "all.json", content=content, column=0, length=5), tmp_path / "all.json")


@given(st.sampled_from(["users", "num_samples", "user_data"]), JSON, st.sampled_from(["images", "text", "characters"]))
def test_leaf_with_anything_inside(tmp_path: Path, key: str, value: Any, content: Any) -> None:
    (tmp_path / "all.json").write_text(json.dumps(LEAF | {key: value}, default=str))
    opened(Leaf(path=tmp_path / "all.json", content=content, length=5), tmp_path / "all.json")


@given(JSON, JSON)
def test_leaf_with_any_samples(tmp_path: Path, x: Any, y: Any) -> None:
    count = len(x) if isinstance(x, list) else 1
    leaf = {"users": ["a"], "num_samples": [count], "user_data": {"a": {"x": x, "y": y}}}
    (tmp_path / "all.json").write_text(json.dumps(leaf, default=str))
    for content in ("images", "text", "characters"):
        opened(Leaf(path=tmp_path / "all.json", content=content, length=5), tmp_path / "all.json")  # type: ignore[arg-type]


@given(st.data())
def test_tff(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "mine.h5"
    path.write_bytes(data.draw(changed(tff(tmp_path))))
    opened(Tff(path=path), path)


@given(st.one_of(changed(json.dumps(SPEAKERS).encode()), JSON.map(lambda v: json.dumps(v, default=str).encode())))
def test_speakers(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "all.json").write_bytes(data)
    opened(Shakespeare(path=tmp_path / "all.json", length=5), tmp_path / "all.json")


@given(changed(TWEETS.encode()))
def test_tweets(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "all.csv").write_bytes(data)
    opened(Sent140(path=tmp_path / "all.csv"), tmp_path / "all.csv")


def test_a_long_field_of_tweets(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(TWEETS + '"0","1","2","3","4","' + "x" * (csv.field_size_limit() + 1))
    with pytest.raises(DataError, match="not a line of CSV"):
        Sent140(path=tmp_path / "all.csv").open(tmp_path, 0, 2)


def test_a_small_file_that_declares_much(tmp_path: Path) -> None:
    """An HDF5 data set that was never written takes no room in its file."""
    for name in ("x", "examples/a/pixels"):
        with h5py.File(tmp_path / "mine.h5", "w") as file:
            file.create_dataset(name, (10**7, 100), "f4")
            file["y"], file["examples/a/label"] = np.zeros(3, int), np.zeros(3, int)
        source = Arrays(path=tmp_path / "mine.h5") if name == "x" else Tff(path=tmp_path / "mine.h5")
        with pytest.raises(DataError, match=r"declares 4\.0 GB"):
            source.open(tmp_path, 0, 2)


@pytest.mark.parametrize("greatest", [10**6, 2**62])
def test_labels_that_are_no_labels(greatest: int, tmp_path: Path) -> None:
    """Tables are made of as many classes as the greatest label says."""
    labels = np.array([0, 1, greatest])
    np.savez(tmp_path / "mine.npz", x=np.zeros((3, 4), np.float32), y=labels)
    leaf = {"users": ["a"], "num_samples": [3], "user_data": {"a": {"x": [[0.0]] * 3, "y": labels.tolist()}}}
    (tmp_path / "mine.json").write_text(json.dumps(leaf))
    for source in (Arrays(path=tmp_path / "mine.npz"), Leaf(path=tmp_path / "mine.json")):
        with pytest.raises(DataError, match=f"label {greatest}"):
            source.open(tmp_path, 0, 2)


# ---------------------------------------------------------------------- a run's folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one checkpoint and a partition."""
    path = tmp_path_factory.mktemp("fuzz") / "run"
    path.mkdir()
    state = (torch.arange(5.0), torch.ones(3, 2))
    server = type("Server", (tuple,), {"_fields": ("theta", "more")})(state)

    class Client(NamedTuple):
        theta: torch.Tensor

    states = States(Client(torch.zeros(4)), np.arange(3), 3, torch.device("cpu"))
    checkpoint.write(path, 1, server, states, History(np.ones(3), np.ones(3)), "digest", Comm())
    bounds = np.array([[0, 2, 3, 4], [4, 6, 7, 8]])
    Partition(np.arange(8), bounds, np.zeros(2, int), np.zeros(2, int)).write(path / "partition.h5")
    return path


@given(st.data())
def test_checkpoints(folder: Path, data: st.DataObject) -> None:
    """Whatever is changed is found, before anything is read from it."""
    path = checkpoint.path_of(folder, 2)
    good = checkpoint.path_of(folder, 1).read_bytes()
    bad = data.draw(st.one_of(st.binary(max_size=1000), changed(good)))
    path.write_bytes(bad)
    try:
        assert (checkpoint.fault(path) is None) == (bad == good)
        assert checkpoint.newest(folder)[0] == (2 if bad == good else 1)
    finally:
        path.unlink()


@given(st.data())
def test_partitions(folder: Path, data: st.DataObject) -> None:
    good = (folder / "partition.h5").read_bytes()
    path = folder.parent / "changed.h5"
    path.write_bytes(data.draw(st.one_of(st.binary(max_size=1000), changed(good))))
    read = outcome(lambda: Partition.read(path))
    assert read is None or read.digest == Partition.read(folder / "partition.h5").digest


@given(st.sampled_from(["config.yaml", "partition.h5", "history.h5", "metrics.csv", "summary.json"]), st.binary())
def test_verify(folder: Path, name: str, content: bytes) -> None:
    (folder / name).with_suffix(".before").write_bytes(
        (folder / name).read_bytes() if (folder / name).exists() else b""
    )
    (folder / name).write_bytes(content)
    try:
        list(verify.findings(folder))
    finally:
        (folder / name).write_bytes((folder / name).with_suffix(".before").read_bytes())
