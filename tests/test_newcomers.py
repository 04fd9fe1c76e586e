"""Newcomers of a finished run: what each method gives them, by plain computations; whose samples they have; which runs
they cannot come to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mpipfl import newcomers, world
from mpipfl.algorithms import Algorithm
from mpipfl.comm import MPI, Comm
from mpipfl.config import Config, dump
from mpipfl.data.partition import Partition
from mpipfl.errors import DataError
from mpipfl.report.page import page
from mpipfl.run import main

from .folders import compared
from .plain import Plain
from .suite import METHODS, config, content, differing, rewound, train

RANKS = MPI.COMM_WORLD.Get_size()
FEW = ("data.clients=3", "rounds=1")
Made = dict[str, np.ndarray]


def finished(method: str, folder: Path, comm: Comm, **changes: Any) -> Path:
    """A small run of a method that has come to its end."""
    settings = config({"algorithm": METHODS.get(method, {"kind": method}), "rounds": 3} | changes, folder)
    train(settings, comm)
    return settings.folder


def joined(run: Path, comm: Comm, *overrides: str) -> tuple[Config, Made]:
    """The newcomers of a run, and what their last checkpoint holds."""
    settings = newcomers.settings(run, [*FEW, *overrides])
    return settings, train(settings, comm)


def left_by(run: Path) -> Made:
    """What a run's last checkpoint holds."""
    return content(max((run / "checkpoints").glob("round_*.h5")))


def is_near(got: np.ndarray, expected: list[Tensor], tolerance: float = 1e-5) -> None:
    wanted = torch.stack(expected).numpy()
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, atol=tolerance, rtol=0)


# ---------------------------------------------------------------------- every method


@pytest.mark.mpi
@pytest.mark.skipif(RANKS != 3, reason="once is enough: at three ranks")
@pytest.mark.parametrize("method", [name for name in METHODS if "-" not in name or "perfedavg-fo" in name])
def test_every_method(method: str, comm: Comm, alone: Comm, together_path: Path) -> None:
    """The server's state stays as it is, each newcomer ends with a model of finite loss, with the same bits at three
    ranks as at one; or the method says that it cannot have newcomers."""
    run = finished(method, together_path, alone, rounds=2) if comm.is_server else together_path / "run"
    comm.barrier()
    if method == "fedfomo":
        with pytest.raises(newcomers.ConfigError, match="fedfomo has nothing for newcomers"):
            joined(run, comm)
        return
    settings, made = joined(run, comm)
    if not comm.is_server:
        return
    before = left_by(run)
    for name in [name for name in made if name.startswith("server/") and made[name].shape == before[name].shape]:
        known = "server/theta" if name == "server/known" else name  # pFedVEM's newcomers learn on the run's last base
        np.testing.assert_array_equal(made[name], before[known], err_msg=name)
    assert np.isfinite(made["history/personal/loss"][-1]).all()
    assert made["history/personal/loss"].shape[1] == 3
    elsewhere = settings.model_copy(update={"output": together_path / "alone"})
    assert differing(made, train(elsewhere, alone)) == []


def test_a_method_of_ones_own_whose_clients_keep_something_must_say_how_newcomers_come_by_it() -> None:
    """No shipped method gives newcomers the state before training by mistake."""
    cannot = {
        m.model_fields["kind"].default
        for m in world.Algorithm.__subclasses__()
        if m.__module__.startswith("mpipfl.algorithms") and m.client is not Algorithm.client
        and m.newcomer is Algorithm.newcomer
    }  # fmt: skip
    assert cannot == {"fedfomo"}


# ---------------------------------------------------------------------- what it gives them, by plain loops


def test_local_and_ditto_are_descents(alone: Comm, tmp_path: Path) -> None:
    """Local's from the initial model; Ditto's from the global one, pulled towards it."""
    for name in ("local", "ditto"):
        run = finished(name, tmp_path / name, alone)
        settings, made = joined(run, alone)
        plain = Plain(settings, alone)
        if name == "local":
            expected = [plain.sgd(plain.start, plain.batches(k, 1)) for k in range(3)]
            is_near(made["clients/theta"], expected)
            continue
        theta = torch.from_numpy(left_by(run)["server/theta"])

        def pull(v: Tensor, theta: Tensor = theta) -> Tensor:
            return 0.5 / 2 * (v - theta).square().sum()

        is_near(made["clients/v"], [plain.sgd(theta, plain.batches(k, 1, steps=3), pull) for k in range(3)])


def test_fedrep_and_fedper_train_a_new_head_under_the_base_as_it_is(alone: Comm, tmp_path: Path) -> None:
    for name, batches in (("fedper", {}), ("fedrep", {"stream": "head batches", "epochs": 2})):
        run = finished(name, tmp_path / name, alone)
        settings, made = joined(run, alone)
        plain = Plain(settings, alone)
        theta = plain.start.clone()
        theta[~plain.head] = torch.from_numpy(left_by(run)["server/base"])
        trained = [plain.sgd(theta, plain.batches(k, 1, **batches), moving=plain.head) for k in range(3)]  # type: ignore[arg-type]
        is_near(made["clients/head"], [t[plain.head] for t in trained])
        for k, t in enumerate(trained):
            assert made["history/personal/loss"][-1, k] == pytest.approx(plain.score(t, k, "test")[1], abs=1e-4)


def test_pfedme_solves_its_proximal_problem_around_w(alone: Comm, tmp_path: Path) -> None:
    run = finished("pfedme", tmp_path, alone)
    settings, made = joined(run, alone)
    plain, w = Plain(settings, alone), torch.from_numpy(left_by(run)["server/w"])
    expected = []
    for k in range(3):
        theta = w
        for batch in plain.batches(k, 1):
            for _ in range(2):
                theta = theta - 0.09 * (plain.grad(theta, batch) + 2 * (theta - w))  # (7)
        expected.append(theta)
    is_near(made["clients/theta"], expected)


def test_selffl_trains_the_most_steps_from_theta_while_the_variance_is_unknown(alone: Comm, tmp_path: Path) -> None:
    run = finished("selffl", tmp_path, alone)
    settings, made = joined(run, alone)
    plain, theta = Plain(settings, alone), torch.from_numpy(left_by(run)["server/theta"])
    is_near(made["clients/theta"], [plain.sgd(theta, plain.batches(k, 1, steps=6)) for k in range(3)])


def test_gaussian_methods_with_hardly_any_noise(alone: Comm, tmp_path: Path) -> None:
    """pFedVEM: mu_j descends the summed loss and the prior's pull from w. pFedBayes without its divergence is SGD."""
    changes = {"algorithm": {"kind": "pfedvem", "sigma": 1e-5, "head_optimizer": "sgd", "head_epochs": 3,
                             "head_lr": 1e-3, "rho2": 0.05, "draws": 1}}  # fmt: skip
    run = finished("pfedvem", tmp_path / "vem", alone, **changes)
    settings, made = joined(run, alone)
    plain, before, expected = Plain(settings, alone), left_by(run), []
    w = torch.from_numpy(before["server/w"])
    for k in range(3):
        theta = plain.start.clone()
        theta[~plain.head], theta[plain.head] = torch.from_numpy(before["server/theta"]), w
        for _ in range(3):
            slope = plain.n[k] * plain.grad(theta, plain.data(k)) + (theta - _with(theta, plain.head, w)) / 0.05
            theta = torch.where(plain.head, theta - 1e-3 * slope, theta)
        expected.append(theta[plain.head])
    is_near(made["clients/mu"], expected, 1e-4)
    assert np.array_equal(made["server/known"], before["server/theta"])

    changes = {"algorithm": {"kind": "pfedbayes", "rho": -12, "zeta": 0}, "train.momentum": 0,
               "model": {"kind": "tests.plain:Smooth"}}  # fmt: skip
    run = finished("pfedbayes", tmp_path / "bayes", alone, **changes)
    settings, made = joined(run, alone)
    plain, mu = Plain(settings, alone), torch.from_numpy(left_by(run)["server/mu"])
    is_near(made["clients/mu"], [plain.sgd(mu, plain.batches(k, 1)) for k in range(3)], 1e-4)


def _with(theta: Tensor, head: Tensor, w: Tensor) -> Tensor:
    out = theta.clone()
    out[head] = w
    return out


@pytest.mark.parametrize("method", ["ucfl", "ucfl-streams", "cfl"])
def test_the_nearest_stream_or_cluster_has_the_least_training_loss(method: str, alone: Comm, tmp_path: Path) -> None:
    changes = {"algorithm": METHODS[method] | {"streams": "all"}} if method == "ucfl" else {}
    run = finished(method, tmp_path, alone, **changes)
    settings, made = joined(run, alone, "data.clients=6")
    before, plain = left_by(run), Plain(settings, alone)
    models = before["clients/theta"] if method == "ucfl" else before["server/theta"]
    models = models[: int(before["server/clusters"])] if method == "cfl" else models
    assert len(models) > 1
    losses = [[float(plain.loss(torch.from_numpy(m), plain.data(k))) for m in models] for k in range(6)]
    nearest = np.argmin(losses, 1)
    np.testing.assert_array_equal(made[f"history/{'cfl/joined' if method == 'cfl' else 'ucfl/nearest'}"], nearest)
    scores = [plain.score(torch.from_numpy(models[j]), k, "test") for k, j in enumerate(nearest)]
    np.testing.assert_allclose(made["history/personal/accuracy"][-1], [a for a, _ in scores], atol=1e-12)
    np.testing.assert_allclose(made["history/personal/loss"][-1], [loss for _, loss in scores], atol=1e-4)


# ---------------------------------------------------------------------- PersFL


@pytest.fixture(scope="module")
def persfl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every round's checkpoint."""
    return finished("persfl", tmp_path_factory.mktemp("persfl"), Comm(MPI.COMM_SELF), rounds=5)


@pytest.mark.parametrize("kept", ["every round", "the last"])
def test_teachers_are_chosen_among_the_stored_rounds_on_validation_data(
    kept: str, persfl: Path, alone: Comm, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(persfl, tmp_path / "run"))
    rounds = [1, 2, 3, 4, 5] if kept == "every round" else [5]
    for path in (run / "checkpoints").glob("round_*.h5"):
        if 0 < int(path.stem[6:]) < 6 and int(path.stem[6:]) not in rounds:
            path.unlink()
    settings, made = joined(run, alone, "data.clients=6", "algorithm.lambdas=[0]", "algorithm.temperatures=[1]")
    plain = Plain(settings, alone)
    last = left_by(run)["server/theta"]
    models = [content(p)["server/theta"] if (p := run / f"checkpoints/round_0000{r}.h5").exists() else last
              for r in rounds]  # fmt: skip
    losses = [[float(plain.loss(torch.from_numpy(m), plain.data(k, "validation"))) for m in models] for k in range(6)]
    best = np.argmin(losses, 1)
    np.testing.assert_array_equal(made["clients/round"], np.array(rounds)[best])
    teachers = [torch.from_numpy(models[j]) for j in best]
    is_near(made["clients/teacher"], teachers, 0)
    # lambda = 0 alone: the student is the teacher after fine-tuning, where that is better on validation data
    students = [plain.sgd(t, plain.batches(k, 2, "student", epochs=1)) for k, t in enumerate(teachers)]
    assert (made["clients/chosen"] == 0).all()
    is_near(made["clients/student"], students)


def test_a_damaged_round_between_is_no_teacher(persfl: Path, alone: Comm, tmp_path: Path) -> None:
    run = Path(shutil.copytree(persfl, tmp_path / "run"))
    for r in (1, 2, 3, 4):
        with open(run / f"checkpoints/round_0000{r}.h5", "r+b") as file:
            file.seek(3000)
            file.write(b"\xff" * 8)
    _, made = joined(run, alone)
    assert (made["clients/round"] == 5).all()


def test_newcomers_go_on_where_they_stopped(persfl: Path, alone: Comm, tmp_path: Path) -> None:
    settings = newcomers.settings(persfl, [*FEW, "algorithm.points=1", f"output={tmp_path / 'whole'}"])
    whole = train(settings, alone)
    for round in (0, settings.all_rounds - 1):
        again = train(rewound(settings, tmp_path / str(round), round), alone, resume=True)
        assert differing(whole, again) == []


# ---------------------------------------------------------------------- whose samples


def images(settings: Config) -> set[bytes]:
    """All samples of all clients, as they see them."""
    store = world.store(world.plan(settings), Comm(MPI.COMM_SELF), torch.device("cpu"))
    return {row.numpy().tobytes() for row in store.x}


def test_newcomers_have_samples_of_their_own(alone: Comm, tmp_path: Path) -> None:
    run = finished("fedavg", tmp_path, alone)
    settings, _ = joined(run, alone)
    before, now = (Partition.read(path / "partition.h5") for path in (run, settings.folder))
    assert len(before.index) == 260 and len(now.index) == round(260 / 7 * 3)
    assert not np.intersect1d(before.index, now.index).size
    assert not images(config({"algorithm": "fedavg"}, tmp_path)) & images(settings)


def arrays(folder: Path, users: bool = False) -> dict[str, Any]:
    """120 samples in a file, of 12 users or of nobody."""
    random = np.random.default_rng(0)
    more = {"user": np.arange(120) % 12} if users else {}
    np.savez(folder / "data.npz", x=random.random((120, 5), np.float32), y=np.arange(120) % 3, **more)
    return {"data.source": {"kind": "arrays", "path": str(folder / "data.npz")}, "data.shift": {"kind": "none"}}


def test_what_the_clients_left_of_a_file(alone: Comm, tmp_path: Path) -> None:
    source = arrays(tmp_path) | {"data.partition": {"kind": "iid"}, "data.samples": 84}
    run = finished("fedavg", tmp_path, alone, **source)
    settings, _ = joined(run, alone)
    before, now = (Partition.read(path / "partition.h5") for path in (run, settings.folder))
    assert len(now.index) == 36 and not np.intersect1d(before.index, now.index).size
    settings = newcomers.settings(run, ["data.clients=4"])
    with pytest.raises(DataError, match="48 are wanted, and 36 samples are left of 120"):
        world.plan(settings)
    assert len(world.plan(newcomers.settings(run, ["data.clients=4", "data.samples=20"])).partition.index) == 20


def test_clients_that_are_users_are_other_users(alone: Comm, tmp_path: Path) -> None:
    source = arrays(tmp_path, users=True) | {"data.partition": {"kind": "natural"}, "data.samples": None}
    run = finished("fedavg", tmp_path, alone, **source)
    settings, _ = joined(run, alone, "data.clients=5")
    before, now = (Partition.read(path / "partition.h5") for path in (run, settings.folder))
    assert set(before.index % 12) | set(now.index % 12) == set(range(12))
    assert not set(before.index % 12) & set(now.index % 12)
    with pytest.raises(DataError, match="5 of 5 users have 3 samples or more, and 6 are needed"):
        world.plan(newcomers.settings(run, ["data.clients=6"]))


# ---------------------------------------------------------------------- what goes wrong


def test_runs_that_newcomers_cannot_come_to(tmp_path: Path, alone: Comm, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished("fedavg", tmp_path, alone)
    numbers = {"data": {"source": "gaussian", "clients": 4, "partition": "natural", "shift": "none", "samples": None}}
    gaussian = finished("fedavg", tmp_path / "gaussian", alone, **numbers, model={"kind": "location", "variance": 0.1})

    def copy(name: str) -> Path:
        return Path(shutil.copytree(run, tmp_path / name))

    def refused(code: int, said: str, path: Path, *words: str) -> None:
        assert main(["--personalize", str(path), "data.clients=2", "data.shift.groups=2", *words]) == code
        error = capsys.readouterr().err
        assert said in error and error.startswith("mpipfl: ") and "Traceback" not in error

    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere", tmp_path / "file", tmp_path):
        refused(2, f"{path} holds no config.yaml: name a finished run's folder", path)
    unfinished = copy("unfinished")
    (unfinished / "summary.json").unlink()
    refused(2, "has not finished: its newest checkpoint is of round 3 of 3", unfinished)
    (unfinished / "summary.json").write_text(json.dumps({"rounds": 7}))
    refused(2, "has not finished", unfinished)
    early = copy("early")
    (early / "checkpoints/round_00003.h5").unlink()
    refused(2, "has not finished: its newest checkpoint is of round 2 of 3", early)
    damaged = copy("damaged")
    with open(damaged / "checkpoints/round_00003.h5", "r+b") as file:
        file.seek(2000)
        file.write(b"\xff\xfe\xfd")
    refused(5, "round_00003.h5 is damaged: its content does not match its checksum; make it anew", damaged)
    edited = copy("edited")
    text = (edited / "config.yaml").read_text()
    (edited / "config.yaml").write_text(text.replace("lr: 0.05", "lr: 0.06"))
    refused(2, "is not what the run was made with", edited)
    (edited / "config.yaml").write_text("rounds: [")
    refused(2, "is not valid YAML", edited)
    lost = copy("lost")
    (lost / "partition.h5").write_bytes(b"nothing")
    refused(3, "partition.h5 cannot be read as a partition", lost)
    refused(2, "seed=3: newcomers share this with the clients of", run, "seed=3")
    refused(2, "model.kind=logistic: newcomers share this", run, "model=logistic")
    refused(2, "algorithm.kind=ditto: newcomers share this", run, "algorithm=ditto")
    refused(2, "'configs/quickstart.yaml' is not an override", run, "configs/quickstart.yaml")
    assert main(["--personalize", str(gaussian), "data.clients=2"]) == 3
    assert "data.source=gaussian draws a run's clients together: it has no newcomers" in capsys.readouterr().err
    assert main(["--personalize", str(run), *FEW]) == 0
    refused(2, f"is of newcomers itself; name the run they came to: {run}", tmp_path / "newcomers_run")


def test_the_folder_says_whose_newcomers_they_are(
    alone: Comm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started by the command, and again by the folder's own configuration, which a dump reads back."""
    run = finished("ditto", tmp_path, alone)
    assert main(["--personalize", str(run), *FEW, "data.split.test=0.3"]) == 0
    assert f"ditto, 3 newcomers of {run}" in capsys.readouterr().out
    own = tmp_path / "newcomers_run"
    assert f"run: {run}" in (own / "config.yaml").read_text()
    assert json.loads((own / "summary.json").read_text())["clients"] == 3
    assert main([str(own / "config.yaml"), "--resume"]) == 0
    assert "is finished: all 1 rounds are done" in capsys.readouterr().out
    assert f"newcomers of {run}" in page(compared(own))
    assert main(["--personalize", str(run), *FEW, "--dry-run", "name=other"]) == 0
    assert f"newcomers of {run}" in capsys.readouterr().out
    assert dump(newcomers.settings(run, ["algorithm.lambda=3"])).count("lambda: 3.0") == 1
