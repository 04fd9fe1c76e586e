"""Readers of what others have divided by user: LEAF's JSON, TensorFlow Federated's HDF5, and Shakespeare by speaker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from pydantic import Field

from mpipfl.data.byuser import ByUser, Record
from mpipfl.data.places import check_size, find
from mpipfl.data.samples import Samples
from mpipfl.errors import DataError
from mpipfl.section import Natural

KEYS = ("users", "num_samples", "user_data")


class Leaf(ByUser):
    """LEAF's JSON files: users, num_samples and, by user, x and y."""

    kind: Literal["leaf"] = "leaf"
    path: Path = Field(
        description="A JSON file, relative to data.root or the working directory, or a folder with train/*.json and, "
        "if there are any, test/*.json."
    )
    column: Natural = Field(default=4, description="Texts that stand in a list (LEAF's Sent140): their place in it.")

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        if self.path.suffix == ".json":
            files = [(find("data.source.path", self.path, root), False)]
        else:
            folder = find("data.source.path", self.path, root, "train")
            parts = [(part, sorted((folder / part).glob("*.json"))) for part in ("train", "test")]
            files = [(file, part == "test") for part, inside in parts for file in inside]
        return self.gathered((record for file, test in files for record in self._records(file, test)), root, seed)

    def _records(self, path: Path, test: bool) -> Iterator[Record]:
        content = parsed(path)
        if missing := [key for key in KEYS if key not in content]:
            raise DataError(f"{path} has no {missing[0]}; LEAF's files have {', '.join(KEYS)}.")
        users, counts, data_of = (content[key] for key in KEYS)
        if not isinstance(users, list) or not isinstance(counts, list) or not isinstance(data_of, dict):
            raise DataError(f"{path}: users and num_samples must be lists, user_data a mapping.")
        if len(users) != len(counts):
            raise DataError(f"{path}: {len(users)} users and {len(counts)} num_samples; the numbers must be equal.")
        for user, count in zip(map(str, users), counts, strict=True):
            data = data_of.get(user)
            where = f"{path}: user {user}"
            if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in "xy"):
                raise DataError(f"{where}: user_data must hold the lists x and y.")
            x = data["x"]
            if len(x) != count:
                raise DataError(f"{where}: num_samples says {count}, x has {len(x)} samples.")
            if self.content == "text" and any(isinstance(entry, list) and len(entry) <= self.column for entry in x):
                raise DataError(f"{where}: a list of x has no entry {self.column}; set data.source.column.")
            if self.content == "text":
                x = [entry[self.column] if isinstance(entry, list) else entry for entry in x]
            yield Record(user, x, data["y"], test, where)


class Tff(ByUser):
    """TensorFlow Federated's HDF5 files: examples/<client>/<key>."""

    kind: Literal["tff"] = "tff"
    path: Path = Field(description="The HDF5 file, relative to data.root or the working directory.")
    test: Path | None = Field(
        default=None, description="The file with the same clients' test samples, if there is one."
    )
    x: str = Field(default="pixels", description="Key of the samples.")
    y: str | None = Field(default="label", description="Key of the labels; null for characters of running text.")

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        if self.y is None and self.content != "characters":
            raise DataError(f"data.source.y is null; content={self.content} needs the labels' key, for instance label.")
        files = [(find("data.source.path", self.path, root), False)]
        if self.test is not None:
            files.append((find("data.source.test", self.test, root), True))
        return self.gathered((record for file, test in files for record in self._records(file, test)), root, seed)

    def _records(self, path: Path, test: bool) -> Iterator[Record]:
        try:
            with h5py.File(path, "r") as file:
                for user in sorted(file["examples"]):
                    group, where = file["examples"][user], f"{path}: examples/{user}"
                    x, y = (None if key is None else values(group, key, where) for key in (self.x, self.y))
                    yield Record(user, x, y, test, where)
        except (OSError, KeyError, TypeError, RuntimeError, ValueError, AttributeError) as error:
            raise DataError(f"{path} cannot be read as examples/<client>/<key> ({error}).") from error


class Shakespeare(ByUser):
    """Shakespeare's speakers: the next character of what they say."""

    kind: Literal["shakespeare"] = "shakespeare"
    path: Path = Field(
        default=Path("shakespeare/by_speaker.json"),
        description="A JSON file, relative to data.root or the working directory: the texts of each speaker, in lists.",
    )
    content: Literal["characters"] = "characters"

    def open(self, root: Path, seed: int, clients: int, samples: int | None = None) -> Samples:
        path = find("data.source.path", self.path, root)
        return self.gathered(
            (Record(user, ["\n".join(texts)], None, False, user) for user, texts in speakers(path)), root, seed
        )


def speakers(path: Path) -> Iterator[tuple[str, list[str]]]:
    for user, texts in parsed(path).items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{path}: what {user} says must be a list of texts.")
        yield user, texts


def parsed(path: Path) -> dict[str, Any]:
    """A JSON file's mapping."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}).") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a mapping.")
    return content


def values(group: Any, key: str, where: str) -> Any:
    """A data set as an array or, if it holds texts, as a list of them."""
    if key not in group:
        raise DataError(f"{where} has no {key}; it holds {', '.join(sorted(group))}. Set data.source.x and y.")
    found = group[key]
    check_size(found)
    if h5py.check_string_dtype(found.dtype) is not None:
        return [str(text) for text in np.atleast_1d(found.asstr()[...])]
    return found[...]
