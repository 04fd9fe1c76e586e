"""PersFL against its formulas: by autograd, one client and one pair (lambda, T) at a time, with torch.optim."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mpipfl import schedule, world
from mpipfl.algorithms import PersFL
from mpipfl.algorithms.persfl import NEVER, softened
from mpipfl.cohort import Cohort
from mpipfl.comm import Comm
from mpipfl.config import Config, dump
from mpipfl.errors import ConfigError
from mpipfl.run import main

from .plain import Batch, Plain, Result, agrees, mean
from .suite import config, content, differing, rewound, train
from .test_cohort import ROUND, SEED, Bench, near

CLIENTS, ROUNDS = 7, 3
GRID: dict[str, Any] = {"lambdas": [0, 0.4, 0.9], "temperatures": [1, 6], "student_epochs": 2, "points": 4}
FULL = {"participation.fraction": 1.0}
LOSSES = list(itertools.product(("kl", "ce"), ("forward", "reverse")))
every_loss = pytest.mark.parametrize(("distill", "direction"), LOSSES, ids=lambda word: word)


def small(folder: Path, method: dict[str, Any] | None = None, **changes: Any) -> Config:
    """The small experiment with more validation data and a rate at which some teachers are not the last ones."""
    how = {"kind": "persfl"} | GRID | (method or {})
    return config({"algorithm": how, "data.split.validation": 0.3, "train.lr": 0.2, "rounds": ROUNDS} | changes, folder)


def own(got: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the method leaves: its state and its findings, but no series over rounds."""
    return {name: value for name, value in got.items() if not name.startswith("history/") or "/persfl/" in name}


# ---------------------------------------------------------------------- the losses


def apart(a: Tensor, o: Tensor, t: float, distill: str, direction: str) -> Tensor:
    """T² KL, or T² times the cross-entropy, between the softened outputs of student a and teacher o, as a mean."""
    student, teacher = torch.softmax(a / t, 1), torch.softmax(o / t, 1)
    first, second = (teacher, student) if direction == "forward" else (student, teacher)
    found = -(first * second.log()).sum(1).mean()
    if distill == "kl":
        found = found + (first * first.log()).sum(1).mean()
    return t * t * found


@pytest.mark.parametrize("t", [0.5, 1.0, 5.0, 25.0])
@every_loss
def test_the_gradient_is_autograds(distill: str, direction: str, t: float) -> None:
    random = torch.Generator().manual_seed(1)
    a, o = (3 * torch.randn(50, 7, generator=random, dtype=torch.float64) for _ in range(2))
    a.requires_grad_()
    (expected,) = torch.autograd.grad(50 * apart(a, o, t, distill, direction), a)
    log_p, log_q = (torch.log_softmax(logits.detach() / t, 1)[None] for logits in (a, o))
    assert torch.allclose(t * softened(log_p, log_q, distill, direction)[0], expected, rtol=1e-9, atol=1e-12)


def test_forward_kl_and_ce_have_one_gradient_and_reverse_ones_do_not() -> None:
    """By autograd of their formulas. Forward they differ by the teacher's entropy, reverse by the student's."""
    random = torch.Generator().manual_seed(2)
    a, o = (3 * torch.randn(20, 5, generator=random, dtype=torch.float64) for _ in range(2))
    a.requires_grad_()
    slope = {how: torch.autograd.grad(apart(a, o, 3.0, *how), a)[0] for how in LOSSES}
    assert torch.allclose(slope["kl", "forward"], slope["ce", "forward"], atol=1e-12)
    for one, other in itertools.combinations([how for how in LOSSES if how != ("ce", "forward")], 2):
        assert float((slope[one] - slope[other]).abs().max()) > 0.01, (one, other)


def students(bench: Bench, who: list[int], teacher: Tensor, pairs: Tensor, **how: Any) -> Tensor:
    method = PersFL.model_validate({"student_epochs": 3} | how)
    return method.train_student(bench.cohort(who), teacher, pairs)


WHO = [2, 0, 2, 5, 1, 0, 3]  # ragged, and some of them more than once
PAIRS = torch.tensor([[0.3, 1.0], [0.9, 25.0], [0.9, 5.0], [1.0, 2.0], [0.0, 7.0], [0.5, 1.0], [0.6, 13.0]])


@every_loss
def test_each_client_has_its_own_teacher_and_each_row_its_lambda_and_t(distill: str, direction: str) -> None:
    """A student at a time, with autograd of the whole loss, weight decay and momentum; the teacher takes no steps."""
    bench = Bench("convolutional", momentum=0.5, weight_decay=0.02, lr=0.05)
    random = torch.Generator().manual_seed(3)
    teacher = (bench.model.initial() + 0.3 * torch.randn(6, bench.model.dimension, generator=random))[WHO]
    got = students(bench, WHO, teacher, PAIRS, distill=distill, direction=direction, student_lr=0.03)
    for i, k in enumerate(WHO):
        lam, t = PAIRS[i].tolist()
        expected = student(bench, k, teacher[i], lam, t, distill, direction)
        assert near(got[i], expected), (k, lam, t)
        assert float((expected - teacher[i]).abs().max()) > 1e-3, "it has hardly moved"


def student(bench: Bench, k: int, teacher: Tensor, lam: float, t: float, distill: str, direction: str) -> Tensor:
    """Three passes at the rate 0.03."""
    x, y = bench.data(k, "train")
    steps = 3 * -(-len(x) // bench.train.batch)
    one = (np.array([k]), np.array([len(x)]), np.array([steps]))
    index, count = schedule.batches(SEED, "student", ROUND, *one, bench.train.batch)
    batches = [(x[i[:n]], y[i[:n]]) for i, n in zip(index[0], count[0], strict=True)]
    bench.set(teacher)
    with torch.no_grad():
        said = [bench.network(x) for x, _ in batches]
    parameters = list(bench.network.parameters())
    optimizer = torch.optim.SGD(parameters, 0.03, bench.train.momentum, weight_decay=bench.train.weight_decay)
    for (x, y), o in zip(batches, said, strict=True):
        a = bench.network(x)
        optimizer.zero_grad()
        ((1 - lam) * F.cross_entropy(a, y) + lam * apart(a, o, t, distill, direction)).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in parameters])


def test_forward_kl_and_ce_train_the_same_students() -> None:
    bench = Bench("logistic")
    kl, ce, reverse_kl, reverse_ce = (
        students(bench, WHO, bench.theta[WHO], PAIRS, distill=distill, direction=direction)
        for direction in ("forward", "reverse")
        for distill in ("kl", "ce")
    )
    assert torch.equal(kl, ce)
    assert float((reverse_kl - reverse_ce).abs().max()) > 0.01


@every_loss
def test_lambda_0_is_fine_tuning_to_the_bit(distill: str, direction: str) -> None:
    """At any T, beside rows with other pairs."""
    bench = Bench("convolutional", momentum=0.5, weight_decay=0.01)
    pairs = torch.tensor([[0.0, 1.0], [0.7, 3.0], [0.0, 25.0], [0.0, 5.0], [0.2, 1.0], [0.0, 9.0]])
    got = students(bench, list(range(6)), bench.theta, pairs, distill=distill, direction=direction)
    plainly = bench.cohort().descend(bench.theta, epochs=3, stream="student")
    zero = pairs[:, 0] == 0
    assert torch.equal(got[zero], plainly[zero])
    assert not (got == plainly)[~zero].all(1).any()


# ---------------------------------------------------------------------- both stages


def pairs_of(method: PersFL) -> list[tuple[float, float]]:
    return list(itertools.product(method.lambdas, method.temperatures))


def distilled(plain: Plain, method: PersFL, k: int, teacher: Tensor, lam: float, t: float) -> Tensor:
    """torch.optim.SGD on (1 - lambda) CE + lambda T² ..., on the same batches for every pair."""
    batches = plain.batches(k, plain.settings.rounds + 1, "student", epochs=method.student_epochs)
    theta, rate = teacher.clone().requires_grad_(), method.student_lr or plain.train.lr
    optimizer = torch.optim.SGD([theta], rate, plain.train.momentum, weight_decay=plain.train.weight_decay)
    for x, y in cast(list[Batch], batches):
        a, o = plain.outputs(theta, x), plain.outputs(teacher, x)
        optimizer.zero_grad()
        loss = (1 - lam) * F.cross_entropy(a, y) + lam * apart(a, o, t, method.distill, method.direction)
        loss.backward()
        optimizer.step()
    return theta.detach()


def persfl(plain: Plain) -> Result:
    """Both stages, a client and a pair at a time. No choice may be so close that rounding could decide it."""
    method = plain.settings.algorithm
    assert isinstance(method, PersFL)
    theta, clients = plain.start, range(plain.clients)
    seen: list[list[tuple[float, int, Tensor]]] = [[] for _ in clients]
    for round, who in plain.rounds():
        theta = mean([plain.sgd(theta, plain.batches(k, round)) for k in who], [plain.n[k] for k in who])
        for k in clients if round == plain.settings.rounds else who:
            seen[k].append((plain.score(theta, k, "validation")[1], round, theta))
    pick = (lambda models: min(models)) if method.teacher == "optimal" else (lambda models: models[-1])
    for models in seen:
        clear([-loss for loss, *_ in models])
    teachers = [pick(models) for models in seen]

    grid, kept, chosen = [], [], []
    for k in clients:
        tried = [distilled(plain, method, k, teachers[k][2], lam, t) for lam, t in pairs_of(method)]
        scores = [plain.score(theta, k, "validation") for theta in tried]
        top = max(accuracy for accuracy, _ in scores)
        among = [i for i, (accuracy, _) in enumerate(scores) if accuracy == top]
        best = min(among, key=lambda i: scores[i][1])
        clear([-scores[i][1] for i in among if not torch.equal(tried[i], tried[best]) or i == best])
        grid.append([accuracy - 1e-9 * loss for accuracy, loss in scores])
        kept.append(tried[best])
        chosen.append(best)
    state = {
        "server/theta": theta,
        "clients/teacher": torch.stack([model for *_, model in teachers]),
        "clients/loss": torch.tensor([loss for loss, *_ in teachers], dtype=torch.float64),
        "clients/round": torch.tensor([round for _, round, _ in teachers]),
        "clients/student": torch.stack(kept),
        "clients/chosen": torch.tensor(chosen),
        "clients/grid": torch.tensor(grid, dtype=torch.float64),
    }
    return Result(state, [theta] * plain.clients, kept)


def clear(values: list[float]) -> None:
    """The greatest is greatest by more than rounding."""
    ordered = sorted(values)
    assert len(values) == 1 or ordered[-1] - ordered[-2] > 2e-5, values


@pytest.mark.parametrize(
    ("how", "changes"),
    [
        ({}, {"participation.fraction": 1.0}),
        ({"direction": "reverse", "student_lr": 0.05}, {"train.weight_decay": 0.01}),
        ({"direction": "reverse", "distill": "ce", "teacher": "last", "student_lr": 0.01}, {"train.lr": 0.05}),
    ],
    ids=["all", "reverse", "last"],
)
def test_both_stages_are_the_plain_loops(
    how: dict[str, Any], changes: dict[str, Any], alone: Comm, tmp_path: Path
) -> None:
    got = agrees(small(tmp_path, how, **changes), alone, persfl)
    early = got["clients/round"] < ROUNDS
    assert how.get("teacher") == "last" or early.any(), "every teacher is the last one: the test shows nothing"
    assert len(np.unique(got["clients/chosen"])) > 1


def test_a_grid_is_what_its_points_are_one_by_one(alone: Comm, tmp_path: Path) -> None:
    whole = train(small(tmp_path / "whole", {"points": 100}), alone)
    parts = train(small(tmp_path / "parts", {"points": 1}, **{"train.cohort": 5, "checkpoint.every": 0}), alone)
    assert differing(own(whole), own(parts)) == []
    for name in ("accuracy", "validation_loss"):
        ends = (got[f"history/personal/{name}"][-1].tobytes() for got in (whole, parts))
        assert len(set(ends)) == 1, name


def test_fine_tuning_is_where_lambda_is_0(alone: Comm, tmp_path: Path) -> None:
    """In a run, to the bit, from each client's teacher."""
    settings = small(tmp_path, {"lambdas": [0], "temperatures": [5]}, **{"train.weight_decay": 0.01})
    got, made = train(settings, alone), world.plan(settings)
    store = world.store(made, alone, torch.device("cpu"))
    everyone = np.arange(CLIENTS)
    cohort = Cohort(everyone, store, made.model, settings.train, settings.seed, ROUNDS + 1, 3)
    tuned = cohort.descend(torch.from_numpy(got["clients/teacher"]), epochs=2, stream="student")
    assert tuned.numpy().tobytes() == got["clients/student"].tobytes()
    assert (got["clients/chosen"] == 0).all()


def test_of_equal_pairs_the_first(alone: Comm, tmp_path: Path) -> None:
    """Whether they come in one closing round or in several."""
    same = {"lambdas": [0, 0, 0.5], "temperatures": [1, 9]}  # the first four are the same fine-tuning
    for points in (2, 100):
        got = train(small(tmp_path / str(points), same | {"points": points}), alone)
        assert (got["clients/grid"][:, :4] == got["clients/grid"][:, :1]).all()
        assert set(got["clients/chosen"]) <= {0, 4, 5}
        assert 0 in got["clients/chosen"]


def test_before_stage_2_the_students_are_the_teachers(alone: Comm, tmp_path: Path) -> None:
    """And stage 1 is fedavg: its global model, round by round, and its history."""
    settings = small(tmp_path / "persfl")
    train(settings, alone)
    fedavg = {"algorithm": "fedavg", "data.split.validation": 0.3, "train.lr": 0.2, "rounds": ROUNDS}
    plainly = train(config(fedavg, tmp_path / "fedavg"), alone)
    first = content(settings.folder / f"checkpoints/round_{ROUNDS:05d}.h5")
    assert first["server/theta"].tobytes() == plainly["server/theta"].tobytes()
    assert first["history/global/loss"].tobytes() == plainly["history/global/loss"][:2].tobytes()  # rounds 0 and 2
    assert first["clients/student"].tobytes() == first["clients/teacher"].tobytes()
    assert (first["clients/chosen"] == -1).all()
    assert (first["clients/grid"] == -1).all()
    models = [content(settings.folder / f"checkpoints/round_{r:05d}.h5")["server/theta"] for r in range(ROUNDS + 1)]
    for teacher, round in zip(first["clients/teacher"], first["clients/round"], strict=True):
        assert teacher.tobytes() == models[round].tobytes()
    last = content(settings.folder / f"checkpoints/round_{settings.all_rounds:05d}.h5")
    assert last["server/theta"].tobytes() == first["server/theta"].tobytes()
    missed = sorted(set(range(CLIENTS)) - set(Plain(settings, alone).rounds()[-1][1]))
    changed = np.flatnonzero((last["clients/teacher"] != first["clients/teacher"]).any(1))
    assert set(changed) <= set(missed), "only who was not there may take the last round's model later"
    assert (last["clients/round"][changed] == ROUNDS).all()


def test_a_teacher_that_never_improves_is_the_first_one(alone: Comm, tmp_path: Path) -> None:
    """At a rate at which every round makes it worse."""
    settings = small(tmp_path, {"student_lr": 0.01, "lambdas": [0], "temperatures": [1]}, **FULL, **{"train.lr": 30.0})
    got = train(settings, alone)
    first = content(settings.folder / "checkpoints/round_00001.h5")
    worse = got["clients/round"] == 1
    assert worse.any()
    assert (got["clients/teacher"][worse] == first["server/theta"]).all()
    assert (got["clients/loss"] == np.min(validation_losses(settings, alone), 0)).all()


def validation_losses(settings: Config, alone: Comm) -> np.ndarray:
    """Of every round's global model (rounds, clients)."""
    made = world.plan(settings)
    cohort = Cohort(
        np.arange(CLIENTS), world.store(made, alone, torch.device("cpu")), made.model, settings.train, 0, 0, 3
    )
    models = [content(settings.folder / f"checkpoints/round_{r:05d}.h5")["server/theta"] for r in range(1, ROUNDS + 1)]
    return np.stack([cohort.loss(torch.from_numpy(theta), "validation").numpy() for theta in models])


# ---------------------------------------------------------------------- who has nothing to choose by


@pytest.mark.parametrize("teacher", ["optimal", "last"])
def test_a_client_without_validation_data(
    teacher: str, alone: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot choose: it takes the last global model, and no student. The others do not notice."""
    one = {"teacher": teacher, "lambdas": [0.5], "student_epochs": 1}
    full = train(small(tmp_path / "full", one), alone)
    original = world.store

    def without(*args: Any) -> world.Store:
        store = original(*args)
        bounds = store.bounds.copy()
        bounds[2, 2] = bounds[2, 1]
        return replace(store, bounds=bounds)

    monkeypatch.setattr(world, "store", without)
    settings = small(tmp_path / "without", one)
    got = train(settings, alone)
    others = np.arange(CLIENTS) != 2
    for name in ("teacher", "round", "student", "chosen", "grid"):
        assert got[f"clients/{name}"][others].tobytes() == full[f"clients/{name}"][others].tobytes(), name
    assert got["clients/chosen"][2] == -1
    assert got["clients/student"][2].tobytes() == got["clients/teacher"][2].tobytes()
    assert (got["clients/grid"][2] == -1).all()
    assert got["clients/round"][2] == ROUNDS
    assert got["clients/teacher"][2].tobytes() == got["server/theta"].tobytes()
    for name in ("teacher_loss", "lambda", "T"):
        assert np.isnan(got[f"history/persfl/{name}"][2]), name
        assert np.isfinite(got[f"history/persfl/{name}"][others]).all(), name


def test_who_was_never_drawn_has_the_last_model_as_teacher(alone: Comm, tmp_path: Path) -> None:
    """And not the one before training."""
    settings = small(tmp_path, participation={"fraction": 0.3}, rounds=2)
    got = train(settings, alone)
    drawn = {k for _, who in Plain(settings, alone).rounds() for k in who}
    never = sorted(set(range(CLIENTS)) - drawn)
    assert never
    assert (got["clients/teacher"][never] == got["server/theta"]).all()
    assert (got["clients/round"][never] == 2).all()
    assert (got["clients/chosen"] >= 0).all()


def test_a_student_that_diverges_is_not_chosen(alone: Comm, tmp_path: Path) -> None:
    """lambda = 1 at a T where nothing is left of the difference but rounding; the run goes on."""
    got = train(
        small(tmp_path, {"lambdas": [1, 0], "temperatures": [1e25, 1], "direction": "reverse", "distill": "ce"}), alone
    )
    assert np.isfinite(got["clients/grid"]).all()
    assert (got["clients/chosen"] > 0).all()
    assert (got["clients/grid"][:, 0] == -1).any()
    assert np.isfinite(got["clients/student"]).all()


def test_all_students_diverge(alone: Comm, tmp_path: Path) -> None:
    """Then the teacher remains."""
    got = train(small(tmp_path, {"student_lr": 1e38, "student_epochs": 1, "points": 6}, rounds=1), alone)
    assert (got["clients/chosen"] == -1).all()
    assert got["clients/student"].tobytes() == got["clients/teacher"].tobytes()


# ---------------------------------------------------------------------- files, switches, resume


def test_what_is_in_the_history(alone: Comm, tmp_path: Path) -> None:
    settings = small(tmp_path)
    got = train(settings, alone)
    with h5py.File(settings.folder / "history.h5") as file:
        found = {name: item[...] for name, item in file["persfl"].items()}
        rounds = file["round"][...]
    assert set(found) == {"teacher_round", "teacher_loss", "chosen", "grid_accuracy", "lambda", "T"}
    for name, state in (
        *(("teacher_round", "round"), ("teacher_loss", "loss"), ("chosen", "chosen"), ("grid_accuracy", "grid")),
    ):
        assert (found[name] == got[f"clients/{state}"]).all(), name
    assert found["grid_accuracy"].shape == (CLIENTS, 6)
    assert (found["grid_accuracy"].argmax(1) == found["chosen"]).all()
    pairs = np.array(pairs_of(cast(PersFL, settings.algorithm)))
    assert (np.column_stack([found["lambda"], found["T"]]) == pairs[found["chosen"].astype(int)]).all()
    assert rounds.tolist() == [0, 2, 4, 5]  # every second, and the last of the two closing ones


def test_one_run_of_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many rounds there are, an end that says so, and what a finished run may not be resumed with."""
    path = tmp_path / "persfl.yaml"
    path.write_text(dump(small(tmp_path)))

    def said(code: int, *arguments: str) -> str:
        assert main([str(path), *arguments]) == code
        return "".join(capsys.readouterr())

    assert "persfl on glyphs, 3 rounds and 2 closing ones\n" in said(0, "--dry-run")
    out = said(0)
    assert "round 5/5" in out
    assert "5 rounds in" in out
    steps = json.loads((tmp_path / "run/summary.json").read_text())["client_steps"]
    assert steps == steps_of(small(tmp_path))
    done = said(0, "--resume")
    assert "is finished: all 5 rounds are done" in done
    assert "More go on" not in done  # they cannot: the students are those of the third round's teachers
    for rounds in (2, 4):
        refused = said(2, "--resume", f"rounds={rounds}")
        assert f"was made with other settings: rounds was 3, is {rounds}" in refused
        assert "has done" not in refused
    assert "algorithm.points was 4, is 2" in said(2, "--resume", "algorithm.points=2")


def steps_of(settings: Config) -> int:
    """Of both stages: every student's count."""
    n, method = world.plan(settings).partition.n_train, cast(PersFL, settings.algorithm)
    passes = -(-n // settings.train.batch)
    drawn = [schedule.participants(0, r, CLIENTS, settings.participation.fraction) for r in range(1, ROUNDS + 1)]
    stage1 = sum(int(passes[who].sum()) for who in drawn)
    return stage1 + len(method.pairs) * method.student_epochs * int(passes.sum())


def test_resume_in_the_middle_of_stage_2(alone: Comm, tmp_path: Path) -> None:
    settings = small(tmp_path / "whole", {"points": 2})
    assert settings.all_rounds == ROUNDS + 3
    whole = train(settings, alone)
    copy = rewound(settings, tmp_path, ROUNDS + 1)
    (copy.folder / "history.h5").unlink()
    assert differing(whole, train(copy, alone, resume=True)) == []
    assert (copy.folder / "history.h5").read_bytes() == (settings.folder / "history.h5").read_bytes()


def test_the_grid_of_the_paper() -> None:
    method = PersFL()
    pairs = method.pairs
    assert pairs.shape == (140, 2)
    assert np.allclose(np.unique(pairs[:, 0]), np.arange(20) * 0.05, atol=1e-15)
    assert np.unique(pairs[:, 1]).tolist() == [1, 5, 9, 13, 17, 21, 25]
    assert len(np.unique(pairs, axis=0)) == 140
    assert (method.closing_rounds, PersFL(points=140).closing_rounds, PersFL(points=139).closing_rounds) == (5, 1, 2)
    assert np.isfinite(NEVER)


@pytest.mark.parametrize(
    ("how", "path"),
    [
        *(({"lambdas": [0, 1.2]}, "lambdas.1: 1.2"), ({"lambdas": [-0.1, 0]}, "lambdas.0: -0.1")),
        *(({"lambdas": []}, "lambdas: []"), ({"lambdas": [0, "much"]}, "lambdas.1: 'much'")),
        *(({"temperatures": []}, "temperatures: []"), ({"temperatures": [1, 0]}, "temperatures.1: 0")),
        *(({"temperatures": [-5, 1]}, "temperatures.0: -5"), ({"temperatures": [1, np.inf]}, "temperatures.1: inf")),
        *(({"points": 0}, "points: 0"), ({"student_epochs": 0}, "student_epochs: 0")),
        *(({"student_lr": 0}, "student_lr: 0"), ({"student_lr": np.inf}, "student_lr: inf")),
        *(({"distill": "js"}, "distill: 'js'"), ({"direction": "back"}, "direction: 'back'")),
        *(({"teacher": "first"}, "teacher: 'first'"),),
    ],
    ids=lambda value: str(value),
)
def test_refusals_name_the_key(how: dict[str, Any], path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        small(tmp_path, how)
    assert f"algorithm.{path} " in str(raised.value)


def test_no_validation_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.split\.validation: persfl chooses teachers on validation data"):
        small(tmp_path, **{"data.split.validation": 0})


def test_the_last_legal_values(tmp_path: Path) -> None:
    small(tmp_path, {"lambdas": [0, 1], "temperatures": [1e-3, 1e6], "points": 1})


# ---------------------------------------------------------------------- over the ranks


@pytest.mark.mpi
def test_one_clients_grid_keeps_all_ranks_busy(
    comm: Comm, alone: Comm, together_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that host nobody train as many students as the others, and the bits are those of one rank."""
    trained, original = list[int](), PersFL.train_student

    def counted(self: PersFL, cohort: Cohort, teacher: Tensor, pairs: Tensor) -> Tensor:
        trained.append(len(cohort))
        return original(self, cohort, teacher, pairs)

    monkeypatch.setattr(PersFL, "train_student", counted)
    one = {"data.clients": 1, "data.shift": {"kind": "none"}, "data.partition": {"kind": "iid"}, "rounds": 2}
    together = train(small(together_path / "together", {"points": 100}, **one), comm)
    loads = np.concatenate(comm.allgather(np.array([sum(trained)])))
    assert loads.sum() == 6
    assert np.ptp(loads[comm.workers]) <= 1
    assert len(trained) == (comm.rank in comm.workers)
    if comm.is_server:
        single = train(small(together_path / "alone", {"points": 2}, **one), alone)
        assert differing(own(together), own(single)) == []
