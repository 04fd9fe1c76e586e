"""From YAML and `key.path=value` overrides to one frozen, completely checked experiment.

Nothing is computed before everything is checked. A mistake is one message: the key's path, the value, what is legal,
and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from .algorithms import Method
from .data.federated import Data
from .errors import ConfigError
from .models import Model
from .models.networks import LeNet5
from .schedule import expected
from .section import Count, Fraction, Natural, NonNegative, Number, Positive, Section

MANY = 100_000  # values in a configuration


class Train(Section):
    """Local training: SGD on mini-batches"""

    batch: Count = Field(64, description="samples in a mini-batch")
    epochs: Count = Field(1, description="passes over a client's data in a round")
    steps: Count | None = Field(None, description="steps in a round, instead of epochs")
    lr: Positive = Field(0.01, description="learning rate")
    momentum: Annotated[float, Number, Field(ge=0, lt=1)] = Field(0.0, description="starts at zero in each round")
    loss: Literal["mean", "sum"] = Field("mean", description="over a client's samples; sum is estimated from the batch")
    weight_decay: NonNegative = Field(0.0, description="L2 penalty, as in torch.optim.SGD")
    cohort: Literal["auto"] | Count = Field("auto", description="clients trained as one batch; never changes a result")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of forward and backward passes; bfloat16 pays on GPUs and processors that compute in it. Weights, "
        "steps, sums and evaluation stay float32 and float64",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        if self.steps is not None and self.epochs != self.__class__.model_fields["epochs"].default:
            raise ValueError(f"give steps={self.steps} or epochs={self.epochs}, not both")
        return self


class Participation(Section):
    """Which clients take part in a round"""

    fraction: Fraction = Field(1.0, description="C: this share of the clients, drawn without replacement")
    probability: Fraction | None = Field(None, description="each client with this probability, instead of fraction")
    train: Literal["sampled", "all"] = Field(
        "sampled", description="who trains; with all, the clients that were not drawn train too but do not report"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Participation:
        if self.probability is not None and self.fraction != self.__class__.model_fields["fraction"].default:
            raise ValueError(f"give probability={self.probability} or fraction={self.fraction}, not both")
        return self

    def expected(self, clients: int) -> int:
        """How many of so many clients report in a round; about, where they are drawn one by one."""
        return expected(self.fraction if self.probability is None else self.probability, clients)


class Evaluate(Section):
    """When clients' models are evaluated, the last round always, and whose"""

    every: Count = Field(5, description="rounds between evaluations")
    clients: Count | None = Field(
        None, description="evaluate so many, the same ones each time, drawn by the seed; histories are of them only"
    )


class Checkpoint(Section):
    """When the complete state is written"""

    every: Natural = Field(10, description="rounds between checkpoints; 0 for none but the first and the last")
    keep: Count = Field(3, description="how many of the newest stay, besides round 0")
    keep_every: Natural = Field(0, description="those of every so-many-th round stay, too; 0 for none")
    history_megabytes: Positive = Field(
        64, description="rows of the histories beyond this go at checkpoints into files of their own, in volumes/"
    )


class States(Section):
    """Where the clients' own states are, for methods whose clients keep one"""

    megabytes: Positive | None = Field(
        None, description="more than so many on a rank are in a file of the scratch folder, $TMPDIR; by default never"
    )


class Newcomers(Section):
    """The finished run that newcomers come to"""

    run: Path = Field(description="its folder")


class FaultTolerance(Section):
    """What happens when a rank dies or stalls, or when the run is asked to end; a word is short for {mode: word}"""

    mode: Literal["auto", "off"] = Field("auto", description="auto: go on without a dead rank, where the MPI can do it")
    partner_copies: bool = Field(True, description="each rank keeps a copy of another one's client state in memory")
    stall_seconds: NonNegative = Field(600, description="a rank that does nothing for so long counts as dead; 0: never")
    grace_seconds: Positive | None = Field(
        None, description="from a signal to the end: a round that takes longer is dropped; by default it is finished"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_mode(cls, value: Any) -> Any:
        if isinstance(value, bool):  # what YAML makes of a bare off
            return {"mode": "auto" if value else "off"}
        return {"mode": value} if isinstance(value, str) else value


class Limit(Section):
    """How long the program may run; it ends by itself in time, to be resumed"""

    minutes: Positive | None = Field(None, description="from its start; a round that would not fit is not begun")


class Config(Section):
    """A whole experiment"""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][\w.+=,-]*$", description="the run folder is <output>/<name>")
    seed: Annotated[Natural, Field(lt=2**63)] = Field(0, description="everything random follows from it")
    rounds: Count = Field(100, description="communication rounds")
    output: Path = Field(Path("runs"), description="where run folders go")
    data: Data = Field(Data(), description="source, partition and shift")
    model: Model = Field(LeNet5(), description="the network")
    train: Train = Field(Train(), description="local training")
    participation: Participation = Field(Participation(), description="who takes part in a round")
    algorithm: Method = Field(description="the method and its own parameters")
    evaluate: Evaluate = Field(Evaluate(), description="when to evaluate")
    checkpoint: Checkpoint = Field(Checkpoint(), description="when to write the state")
    newcomers: Newcomers | None = Field(
        None, description="the clients are newcomers of a finished run, {run: PATH}; made by --personalize"
    )
    states: States = Field(States(), description="where clients' states are kept")
    fault_tolerance: FaultTolerance = Field(FaultTolerance(), description="dead and stalled ranks, signals")
    limit: Limit = Field(Limit(), description="how long the program may run")
    reduce: Literal["exact", "fast"] = Field(
        "exact", description="exact: same bits at any rank count; fast: plain sums"
    )
    nonfinite: Literal["stop", "skip"] = Field("stop", description="a diverged client: stop, or skip it for the round")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where clients train")
    threads: Count = Field(1, description="threads of a rank; more than 1 may change bits")

    @field_validator("model", "algorithm", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _method_fits(self) -> Config:
        self.algorithm.fits(self.data)
        if self.newcomers is None:
            self.algorithm.fits_run(self.data.clients, self.rounds)
        return self

    @property
    def folder(self) -> Path:
        return self.output / self.name

    @property
    def all_rounds(self) -> int:
        """The configuration's rounds and the method's closing ones."""
        return self.rounds + self.algorithm.closing_rounds

    @property
    def digest(self) -> str:
        """A hash of everything that decides a run's results: not of the number of rounds, where a longer run can go on
        with the same ones."""
        return hashlib.sha256(json.dumps(self.results(), sort_keys=True).encode()).hexdigest()

    def results(self) -> dict[str, Any]:
        """The settings that decide a run's results."""
        values = self.model_dump(mode="json")
        for key in ("name", "output", "checkpoint", "states", "fault_tolerance", "limit", "device", "threads"):
            del values[key]
        if not self.algorithm.closing_rounds:
            del values["rounds"]
        if self.newcomers is None:
            del values["newcomers"]
        if self.evaluate.clients is None:
            del values["evaluate"]["clients"]
        del values["train"]["cohort"]
        if self.train.precision == "float32":
            del values["train"]["precision"]
        del values["data"]["root"]
        values["data"]["source"].pop("cache", None)
        return values


# ---------------------------------------------------------------------- reading


class Loader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the base class says what is wrong with it
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The experiment of a file, with `key.path=value` overrides."""
    values = read(Path(path))
    for override in overrides:
        assign(values, override)
    return check(values, str(path))


def read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.yaml")], 1)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise ConfigError(f"no such configuration: {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    values = parse(text, str(path))
    if not isinstance(values, dict):
        held = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{path} holds {held}, not a mapping of keys such as 'rounds: 100'")
    return values


def parse(text: str, where: str) -> Any:
    """The value that a YAML text stands for."""
    try:
        value = yaml.load(text, Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None
    if not bounded(value):
        raise ConfigError(f"{where} holds more than {MANY:,} values, aliases (*name) written out")
    return value


def bounded(value: Any) -> bool:
    """Whether a value stays small: aliases of aliases, or of themselves, multiply without end."""
    todo, count = [value], 0
    while todo:
        inner = todo.pop()
        count += 1
        if count > MANY:
            return False
        if isinstance(inner, dict):
            todo.extend(inner.values())
        elif isinstance(inner, list | set):
            todo.extend(inner)
    return True


def assign(values: dict[str, Any], override: str) -> None:
    """Set `a.b.c=value` in a tree of mappings; a word on the way (`model: lenet5`) is opened up to `{kind: lenet5}`."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"{override!r} is not an override; write key.path=value, for instance train.lr=0.1")
    value = parse(text, f"{path}: {shortened(text)}")
    for key in keys[:-1]:
        inner = values.get(key)
        if isinstance(inner, str):
            inner = {"kind": inner}
        elif inner is None:
            inner = {}
        elif not isinstance(inner, dict):
            raise ConfigError(f"{path}: {key} is {shortened(inner)}, which has no keys of its own")
        values[key] = inner
        values = inner
    values[keys[-1]] = value


def check(values: dict[str, Any], where: str) -> Config:
    """The checked experiment, or one message with every mistake."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = list(dict.fromkeys(message(dict(e)) for e in error.errors()))
        raise ConfigError("\n".join([f"{where}: " + lines[0], *("  " + line for line in lines[1:])])) from None


# ---------------------------------------------------------------------- messages


def message(error: dict[str, Any]) -> str:
    """One mistake in one line: path, value, what is legal."""
    location, kind, given = error["loc"], error["type"], error.get("input")
    unknown = kind == "extra_forbidden"
    keys, options = sections(Config, location[:-1] if unknown else location)
    path = ".".join(map(str, keys)) or "the configuration"
    names = sorted({name for option in options for name in option.entries()})
    if unknown:
        full = ".".join(map(str, [*keys, location[-1]]))
        return f"{full}: unknown key{nearest(location[-1], names)}; known here: {', '.join(names)}"
    if kind == "missing":
        return f"{path}: missing, and it has no default" + (
            " (name a method, for instance algorithm: {kind: fedavg})" if path == "algorithm" else ""
        )
    if len(options) > 1:
        kinds = sorted(str(tag_of(option)) for option in options)
        tag = given.get("kind") if isinstance(given, dict) else given
        return f"{path}: no kind {shortened(tag)}{nearest(tag, kinds)}; known: {', '.join(kinds)}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{path}: {shortened(given)} is not a mapping of keys; known here: {', '.join(names)}"
    text = error["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    if not location:
        return text  # a check of several sections names the key itself
    return f"{path}: {text}" if isinstance(given, dict) else f"{path}: {shortened(given)} {text}"


def nearest(word: Any, known: Sequence[str]) -> str:
    """A question that may save a look at the manual."""
    near = difflib.get_close_matches(str(word), known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def sections(section: type[Section], location: Sequence[Any]) -> tuple[list[Any], list[type[Section]]]:
    """The key path without the tags of unions, and the section classes it may end in (none inside a plain value)."""
    path: list[Any] = []
    options: list[type[Section]] = [section]
    for part in location:
        chosen = [o for o in options if tag_of(o) == part]
        if chosen and len(options) > 1:
            options = chosen
            continue
        if options or isinstance(part, int):
            path.append(part)
        options = [o for owner in options if part in owner.entries() for o in classes(owner, part)]
    return path, options


def tag_of(section: type[Section]) -> Any:
    if "kind" not in section.model_fields:
        return None
    default = section.model_fields["kind"].default
    return "imported" if ":" in str(default) else default


def classes(owner: type[Section], field: str) -> Iterator[type[Section]]:
    """The sections a field may hold."""
    todo = [owner.entries()[field].annotation]
    while todo:
        kind = todo.pop()
        if isinstance(kind, type) and issubclass(kind, Section):
            yield kind
        else:
            todo.extend(a for a in get_args(kind) if a is not type(None))


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
