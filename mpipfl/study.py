"""Studies: a base configuration, axes of named settings, and seeds; every combination is a run for `sweep.py`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from .config import Config, load, read
from .errors import ConfigError, UserError
from .runfolder import differences
from .section import Count, Natural, Section


class Study(Section):
    """A base configuration, axes and seeds"""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.+=,-]*$", description="of the study")
    base: Path = Field(description="the configuration to vary")
    ranks: Count = Field(1, description="ranks of each run")
    output: Path = Field(Path("runs"), description="where the study's folder goes")
    set: dict[str, Any] = Field(default_factory=dict, description="overrides for all runs")
    axes: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict, description="choices by axis")
    special: dict[str, dict[str, Any]] = Field(default_factory=dict, description="overrides by names of choices")
    start: dict[str, Any] | None = Field(None, description="overrides of a run whose model all others begin with")
    seeds: tuple[Natural, ...] = Field((0,), min_length=1, description="each combination runs with each of them")

    @field_validator("axes", mode="before")
    @classmethod
    def _values(cls, axes: Any) -> Any:
        """`key: [a, b]` is short for the choices `a: {key: a}` and `b: {key: b}`."""
        if not isinstance(axes, dict):
            return axes
        return {
            key: {str(value): {key: value} for value in choices} if isinstance(choices, list) else choices
            for key, choices in axes.items()
        }

    @model_validator(mode="after")
    def _known_choices(self) -> Study:
        known = [name for choices in self.axes.values() for name in choices]
        for names in self.special:
            unknown = [name for name in names.split() if name not in known]
            if unknown or not names.split():
                raise ValueError(f"special: {names!r} is not made of choices; known: {', '.join(known)}")
        return self

    def settings(self, combination: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        """The overrides of a combination of choices, those special to it last."""
        names = {name for name, _ in combination}
        special = [more for words, more in self.special.items() if names >= set(words.split())]
        every = [*(overrides for _, overrides in combination), *special]
        return {key: value for overrides in every for key, value in overrides.items()}


class Point(NamedTuple):
    """One run of a study."""

    study: Study
    choices: tuple[str, ...]
    seed: int
    settings: dict[str, Any]
    more: tuple[str, ...] = ()  # overrides of the command line
    start: Path | None = None  # the run whose model it begins with

    @property
    def name(self) -> str:
        return "_".join([*self.choices, f"s{self.seed}"])

    @property
    def folder(self) -> Path:
        return self.study.output / self.study.name / self.name

    @property
    def overrides(self) -> list[str]:
        own = {"name": self.name, "output": str(self.study.output / self.study.name), "seed": self.seed}
        return [f"{key}={written(value)}" for key, value in (self.study.set | self.settings | own).items()] + [
            *self.more
        ]

    @property
    def begins(self) -> bool:
        """Whether it is made for others to begin with."""
        return self.start is None and self.study.start is not None

    @property
    def config(self) -> Config:
        return loaded(self.study.base, tuple(self.overrides))

    @property
    def difference(self) -> str:
        """In what the run in its folder was made otherwise; empty where it is this one, as far as it has got."""
        path = self.folder / "config.yaml"
        try:
            made = loaded(path, (), path.stat().st_mtime_ns)
        except (UserError, OSError) as error:
            return str(error)
        if made.digest != self.config.digest:
            return differences(made, self.config)
        return f"rounds was {made.rounds}, is {self.config.rounds}" if made.rounds > self.config.rounds else ""

    @property
    def ended(self) -> bool:
        """Whether its summary is of all its rounds: a run that is to go on has an earlier end's until it is done."""
        try:
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
            return bool(summary["rounds"] == self.config.rounds)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @property
    def state(self) -> str:
        """done, failed, begun, new; or other: of other settings, and so no run of this study"""
        if (self.folder / "summary.json").exists() and self.difference:
            return "other"
        if self.ended:
            return "done"
        if (self.folder / "failed.txt").exists():
            return "failed"
        return "begun" if (self.folder / "config.yaml").exists() else "new"


@cache
def loaded(path: Path, overrides: tuple[str, ...], changed: int = 0) -> Config:
    """An experiment, read once for each time that its file was changed."""
    return load(path, overrides)


def written(value: Any) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...").strip()


def study_of(path: Path) -> Study:
    try:
        return Study.model_validate(read(path))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'the study'}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"{path}: " + "\n  ".join(lines)) from None


def points(study: Study, more: Sequence[str] = ()) -> Iterator[Point]:
    """Every combination with every seed, its settings checked; runs that others begin with come before them."""
    starts: set[str] = set()
    for combination in itertools.product(*(choices.items() for choices in study.axes.values())):
        for seed in study.seeds:
            point = Point(study, tuple(name for name, _ in combination), seed, study.settings(combination), tuple(more))
            if study.start is not None:
                start = start_of(study, combination, seed, tuple(more))
                if start.name not in starts:
                    first = start.config.algorithm
                    if not first.learns_globally:
                        raise ConfigError(
                            f"start: algorithm={first.kind} has no global model for others to begin with; take fedavg"
                        )
                    yield start
                starts.add(start.name)
                begin = {"algorithm.warm_start": {"run": str(start.folder)}}
                point = point._replace(settings=point.settings | begin, start=start.folder)
            _ = point.config
            yield point


def start_of(
    study: Study, combination: Sequence[tuple[str, dict[str, Any]]], seed: int, more: tuple[str, ...]
) -> Point:
    """The run that a combination begins with: on the same data, with the same network."""
    assert study.start is not None
    every = [
        (name, {key: value for key, value in own.items() if key.split(".")[0] in ("data", "model")})
        for name, own in combination
    ]
    alike = [(name, own) for name, own in every if own]
    more = tuple(word for word in more if word.partition("=")[0] not in study.start)  # its rounds are its own
    return Point(study, ("start", *(name for name, _ in alike)), seed, study.settings(alike) | study.start, more)
