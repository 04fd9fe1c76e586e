"""The configuration: every mistake is one message with its key path and advice; what is right survives a round trip."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpipfl import algorithms, models, world
from mpipfl.config import Config, check, dump, load
from mpipfl.data import federated
from mpipfl.errors import ConfigError, DataError
from mpipfl.run import main

from .conftest import PROJECT, Run
from .suite import METHODS, config

FEDAVG = "algorithm: fedavg\n"
ALIASES = "[&a [x,x,x,x,x,x,x,x,x]" + "".join(
    f", &{name} [{','.join(['*' + before] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
) + "]"  # fmt: skip

WRONG_FILES = {
    "unknown key": (FEDAVG + "round: 3", "round: unknown key (did you mean rounds?); known here: algorithm, "),
    "unknown key of a section": (FEDAVG + "train: {learning: 1}", "train.learning: unknown key; known here: batch, "),
    "unknown key of a method": (
        "algorithm: {kind: fedprox, muu: 1}", "algorithm.muu: unknown key (did you mean mu?); known here: kind, mu, ",
    ),
    "unknown key of a source": (
        FEDAVG + "data: {source: {kind: glyphs, clases: 5}}", "data.source.clases: unknown key (did you mean classes?)",
    ),
    "unknown key of an imported model": (
        FEDAVG + "model: {kind: 'a:B', argz: 1}", "model.argz: unknown key (did you mean args?); known here: ",
    ),
    "unknown method": (
        "algorithm: fedavgg", "algorithm: no kind 'fedavgg' (did you mean fedavg?); known: ",
    ),
    "unknown model": (
        FEDAVG + "model: lenet6",
        "model: no kind 'lenet6' (did you mean lenet5?); known: char_lstm, cnn, cnn6, imported, lenet5, location, "
        "logistic, lstm, mlp, resnet, text",
    ),
    "unknown source": (FEDAVG + "data: {source: glyph}", "data.source: no kind 'glyph' (did you mean glyphs?); "),
    "unknown partition": (
        FEDAVG + "data: {partition: dirichlett}", "data.partition: no kind 'dirichlett' (did you mean dirichlet?); ",
    ),
    "unknown shift": (FEDAVG + "data: {shift: rotates}", "data.shift: no kind 'rotates' (did you mean rotate?); "),
    "no kind": ("algorithm: {mu: 1}", "algorithm: no kind None; known: "),
    "a number for a kind": (FEDAVG + "model: 5", "model: no kind 5; known: char_lstm, cnn, "),
    "nothing for a kind": (FEDAVG + "model:", "model: no kind None; known: char_lstm, cnn, "),
    "no algorithm": ("rounds: 3", "algorithm: missing, and it has no default (name a method, for instance "),
    "no path": (FEDAVG + "data: {source: arrays}", "data.source.path: missing, and it has no default"),
    "word for a number": (FEDAVG + "train: {lr: fast}", "train.lr: 'fast' should be a valid number"),
    "fraction for a count": (FEDAVG + "rounds: 1.5", "rounds: 1.5 should be a valid integer"),
    "number for a word": (FEDAVG + "name: 5", "name: 5 should be a valid string"),
    "word for a section": (FEDAVG + "train: sgd", "train: 'sgd' is not a mapping of keys; known here: batch, "),
    "list for a section": (FEDAVG + "data: [glyphs]", "data: ['glyphs'] is not a mapping of keys; known here: "),
    "other word": (FEDAVG + "device: tpu", "device: 'tpu' should be 'auto', 'cpu' or 'cuda'"),
    "bool for a count": (FEDAVG + "rounds: yes", "rounds: True is a number, not true or false"),
    "bool for a share": (FEDAVG + "data: {split: {test: no}}", "data.split.test: False is a number, not true or false"),
    "bool for groups": (
        FEDAVG + "data: {shift: {kind: rotate, groups: yes}}", "data.shift.groups: True is a number, not true or false",
    ),
    "number in a list": (
        FEDAVG + "model: {kind: mlp, hidden: [20, 0]}", "model.hidden.1: 0 should be greater than or equal to 1",
    ),
    "C = 0": (FEDAVG + "participation: {fraction: 0}", "participation.fraction: 0 should be greater than 0"),
    "C > 1": (FEDAVG + "participation: {fraction: 1.5}", "participation.fraction: 1.5 should be less than or equal"),
    "steps and epochs": (FEDAVG + "train: {steps: 3, epochs: 2}", "train: give steps=3 or epochs=2, not both"),
    "fraction and probability": (
        FEDAVG + "participation: {fraction: 0.5, probability: 0.3}",
        "participation: give probability=0.3 or fraction=0.5, not both",
    ),
    "no clients": (FEDAVG + "data: {clients: 0}", "data.clients: 0 should be greater than or equal to 1"),
    "nothing to train on": (
        FEDAVG + "data: {split: {validation: 0.5, test: 0.5}}",
        "data.split: validation + test is 1; it must be less than 1, the rest is train",
    ),
    "lr NaN": (FEDAVG + "train: {lr: .nan}", "train.lr: nan should be greater than 0"),
    "lr infinite": (FEDAVG + "train: {lr: .inf}", "train.lr: inf should be a finite number"),
    "momentum 1": (FEDAVG + "train: {momentum: 1}", "train.momentum: 1 should be less than 1"),
    "cohort 0": (FEDAVG + "train: {cohort: 0}", "train.cohort: 0 should be greater than or equal to 1"),
    "negative mu": ("algorithm: {kind: fedprox, mu: -1}", "algorithm.mu: -1 should be greater than or equal to 0"),
    "slash in the name": (FEDAVG + "name: a/b", "name: 'a/b' should match pattern"),
    "given twice": (
        FEDAVG + "data: {source: {kind: glyphs, classes: 5}, classes: 6}",
        "data: classes is given both in source and beside it; give it once",
    ),
    "key twice": (FEDAVG + "train: {lr: 1, lr: 2}", "is not valid YAML: the key 'lr' is there twice"),
    "key a list": (FEDAVG + "? [a, b]\n: 1", "is not valid YAML: while constructing a mapping"),
    "key a number": (FEDAVG + "1: 2", "1: 1 Keys should be strings"),
    "invalid YAML": ("rounds: [3", "is not valid YAML: while parsing a flow sequence"),
    "tag": (FEDAVG + "name: !!python/object/apply:os.getcwd []", "is not valid YAML: could not determine a"),
    "two documents": (FEDAVG + "---\nrounds: 3", "is not valid YAML: expected a single document"),
    "list": ("- rounds", "holds a list, not a mapping of keys such as 'rounds: 100'"),
    "empty": ("", "holds nothing, not a mapping of keys such as 'rounds: 100'"),
    "deep": (FEDAVG + "train: " + "[" * 2000 + "]" * 2000, "is nested too deeply"),
    "aliases of aliases": (FEDAVG + f"seed: {ALIASES}", "holds more than 100,000 values, aliases (*name) written out"),
    "alias of itself": (FEDAVG + "model: {kind: 'a:B', args: &a {x: *a}}", "holds more than 100,000 values"),
    "long value": (FEDAVG + f"seed: {'x' * 1000}", f"seed: '{'x' * 96}... should be a valid integer"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), WRONG_FILES.values(), ids=WRONG_FILES)
@pytest.mark.timeout(20)
def test_a_wrong_file_is_one_message(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).startswith(str(path))
    mistakes = [line.removeprefix(str(path)).lstrip(": ") for line in str(raised.value).splitlines()]
    assert any(mistake.startswith(expected) for mistake in mistakes), mistakes
    assert max(map(len, mistakes)) < 300


WRONG_OVERRIDES = {
    "rounds": "'rounds' is not an override; write key.path=value, for instance train.lr=0.1",
    "=3": "'=3' is not an override",
    "train..lr=1": "'train..lr=1' is not an override",
    "rounds.x=3": "rounds.x: rounds is 5, which has no keys of its own",
    "train.lr=[1": "train.lr: '[1' is not valid YAML",
    "train.lr=": "train.lr: None should be a valid number",
    "train.lrr=1": "train.lrr: unknown key (did you mean lr?)",
    "algorithm.muu=1": "algorithm.muu: unknown key (did you mean mu?)",
}


@pytest.mark.parametrize("override", WRONG_OVERRIDES)
def test_a_wrong_override_is_one_message(override: str, tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("algorithm: fedprox\nrounds: 5")
    with pytest.raises(ConfigError, match=re.escape(WRONG_OVERRIDES[override])):
        load(path, [override])


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=f"no such configuration.*did you mean {tmp_path}/quickstart.yaml"):
        load(tmp_path / "quikstart.yaml")
    with pytest.raises(ConfigError, match=r"quickstart\.yaml cannot be read: 'utf-8' codec"):
        load(tmp_path / "quickstart.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: .*directory"):
        load(tmp_path)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        check({"algorithm": "fedavg", "rounds": 0, "train": {"lr": -1}, "data": {"clients": 0}}, "here")
    assert [line.split()[0] for line in str(raised.value).removeprefix("here: ").splitlines()] == [
        "rounds:", "data.clients:", "train.lr:",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"data.partition.k": 7}, r"classes\(k=7\): the samples have only 6 classes; k can be 1 to 6"),
        ({"data.clients": 300, "data.partition": {"kind": "iid"}}, "260 samples are too few for 300 clients.*at most"),
        ({"data.shift.groups": 4, "data.clients": 3}, "groups is 4, but there are only 3 clients; take at most 3"),
    ],
)
def test_what_the_data_does_not_allow(changes: dict, advice: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=advice):
        world.plan(config({"algorithm": "fedavg"} | changes, tmp_path))


# ---------------------------------------------------------------------- what is right


@pytest.mark.parametrize("name", METHODS)
def test_a_dumped_configuration_reads_back(name: str, tmp_path: Path) -> None:
    original = config({"algorithm": METHODS[name], "model": {"kind": "cnn", "channels": [3, 5]}}, tmp_path)
    (tmp_path / "dumped.yaml").write_text(dump(original))
    assert load(tmp_path / "dumped.yaml") == original


def test_steps_and_a_probability_read_back(tmp_path: Path) -> None:
    original = config({"algorithm": "fedavg", "train.steps": 3, "participation": {"probability": 0.3}}, tmp_path)
    (tmp_path / "dumped.yaml").write_text(dump(original))
    assert load(tmp_path / "dumped.yaml") == original


@pytest.mark.parametrize("path", sorted((PROJECT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_are_right(path: Path) -> None:
    assert load(path).name == path.stem


def test_words_stand_for_kinds() -> None:
    short = {"algorithm": "local", "model": "mlp", "data": {"source": "glyphs", "partition": "iid", "classes": 5}}
    long = {
        "algorithm": {"kind": "local"}, "model": {"kind": "mlp"},
        "data": {"source": {"kind": "glyphs", "classes": 5}, "partition": {"kind": "iid"}},
    }  # fmt: skip
    assert check(short, "") == check(long, "")


def test_overrides_replace_and_open_up(tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text("algorithm: fedavg\nmodel: mlp\ntrain: {lr: 1, batch: 3}\n")
    overrides = ["algorithm=fedprox", "algorithm.mu=2", "model.hidden=[4, 5]", "train.lr=1e-3", "evaluate.every=7"]
    given = load(path, overrides)
    assert given.algorithm == algorithms.fedprox.FedProx(mu=2)
    assert (given.model.hidden, given.train.lr, given.train.batch) == ((4, 5), 0.001, 3)
    assert given.evaluate.every == 7


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"name": "other"}, True), ({"rounds": 9}, True), ({"output": "elsewhere"}, True), ({"threads": 2}, True),
        ({"train.cohort": 7}, True), ({"checkpoint.every": 3}, True), ({"data.root": "/tmp"}, True),
        ({"train.lr": 0.06}, False), ({"seed": 1}, False), ({"algorithm.weights": "equal"}, False),
        ({"data.clients": 6}, False), ({"reduce": "fast"}, False), ({"evaluate.every": 3}, False),
    ],
    ids=str,
)  # fmt: skip
def test_the_digest_is_of_what_decides_results(change: dict, same: bool, tmp_path: Path) -> None:
    first = config({"algorithm": {"kind": "fedavg"}}, tmp_path)
    other = config({"algorithm": {"kind": "fedavg"}} | change, tmp_path)
    assert (first.digest == other.digest) == same


def test_list_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    data = {"iid", "dirichlet", "classes", "natural", "none", "rotate", "permute_labels", *federated.SOURCES}
    kinds = {section.model_fields["kind"].default for section in (*algorithms.METHODS, *models.NETWORKS)}
    assert kinds | data | {"package.module:Class"} <= listed


def test_keys_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keys"]) == 0
    shown = {re.split(r"[ :]", line)[0] for line in capsys.readouterr().out.splitlines()}
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", {})
        assert {name, *(f"{name}.{key}" for key in inner)} <= shown


def test_keys_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """All of every method's; two kinds may have one name."""
    for method in algorithms.METHODS:
        assert main(["--keys", method.model_fields["kind"].default]) == 0
        shown = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
        assert {f"algorithm.{name}" for name in method.entries()} <= {line.rstrip(":") for line in shown}
    assert main(["--keys", "ditoo"]) == 2
    assert "--keys ditoo: there is no such kind (did you mean ditto?); --list names them" in capsys.readouterr().err


# ---------------------------------------------------------------------- one's own model

MODELS = """
import torch
from torch import nn

def net(*layers, out=6):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), *layers, nn.Linear(8, out))

class Good(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(784, width), nn.Linear(width, classes)
    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1))))

class Bare(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :6]

def norm(): return net(nn.BatchNorm1d(8))
def dropout(): return net(nn.Dropout(0.5))
def still(): return net(nn.Dropout(0.0))
def wide(): return net(out=7)
def text(): return "a network"
def broken(): raise KeyError("weights")
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(MODELS)
    (tmp_path / "own_broken.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "own_models:Good"}, None),
        ({"kind": "own_models:Good", "args": {"width": 3}}, None),
        ({"kind": "own_models:still"}, None),
        ({"kind": "no_such_module:Net"}, "model.kind: cannot import 'no_such_module:Net' .*importable from the folder"),
        ({"kind": "own_models:Nett"}, "model.kind: cannot import 'own_models:Nett' .*has no attribute 'Nett'"),
        ({"kind": "own_broken:Net"}, "model.kind: cannot import 'own_broken:Net' .*SyntaxError"),
        ({"kind": "own_models:__name__"}, "model.kind: own_models:__name__ is a str; name a class"),
        ({"kind": "own_models:text"}, "model.kind: own_models:text makes a str, not a torch.nn.Module"),
        ({"kind": "own_models:broken"}, "model.args: own_models:broken cannot be made with {} .*KeyError: 'weights'"),
        ({"kind": "own_models:Good", "args": {"depth": 3}}, "model.args: own_models:Good cannot be made with.*'depth'"),
        ({"kind": "own_models:wide"}, r"own_models:wide gives outputs of shape \(7,\); the data has 6 classes"),
        ({"kind": "own_models:norm"}, "model: BatchNorm1d at '2' keeps running statistics.*use nn.GroupNorm"),
        ({"kind": "own_models:dropout"}, "model: Dropout at '2' draws random numbers.*set its p to 0 or remove it"),
        ({"kind": "own_models:Bare"}, "model: the network has no parameters to train"),
    ],
    ids=str,
)
def test_a_model_of_ones_own(model: dict, message: str | None, tmp_path: Path) -> None:
    given = config({"algorithm": "fedavg", "model": model}, tmp_path)
    if message is None:
        assert world.plan(given).model.dimension > 0
    else:
        with pytest.raises(ConfigError, match=message):
            world.plan(given)


# ---------------------------------------------------------------------- as a user sees it


@pytest.mark.parametrize("np", [None, 3])
def test_the_program_says_it_once(np: int | None, run: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("algorithm: {kind: fedprox, muu: 1}\nrounds: 0")
    done = run("wrong.yaml", np=np)
    assert done.returncode == 2
    assert done.stderr.count("mpipfl: wrong.yaml: ") == done.stderr.count("mpipfl:") == 1
    assert done.stderr.count("algorithm.muu: unknown key (did you mean mu?)") == done.stderr.count("rounds: 0") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.yaml"]
