"""Self-FL against its closed forms: the running variance, the number of steps, and the two-level Gaussian."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpipfl import warm, world
from mpipfl.algorithms import SelfFL
from mpipfl.algorithms.selffl import Client
from mpipfl.algorithms.selffl_server import Server
from mpipfl.algorithms.uncertainty import BY_EQUATION, TOO_SMALL, UNKNOWN, local_steps, observe
from mpipfl.cohort import Cohort
from mpipfl.comm import Comm
from mpipfl.config import Config, check
from mpipfl.data.gaussian import best
from mpipfl.errors import ConfigError
from mpipfl.runfolder import RunFolder

from .suite import config, content, differing, train

V, LR = 0.1, 1e-4


def gaussian(folder: Path, sigma2_0: float, **more: Any) -> Config:
    values: dict[str, Any] = {
        "name": "run", "output": str(folder), "rounds": 60, "evaluate": {"every": 60}, "checkpoint": {"every": 0},
        "data": {
            "source": {"kind": "gaussian", "sigma2_0": min(sigma2_0, 1.0), "variance": V, "least": 3, "most": 40,
                       "copies": 4},
            "clients": 6, "partition": "natural", "split": {"validation": 0, "test": 0},
        },
        "model": {"kind": "location", "variance": V},
        "train": {"batch": 50, "steps": 50, "lr": LR, "loss": "sum"},
        "algorithm": {"kind": "selffl", "uncertainty": "given", "sigma2_0": sigma2_0, "variance": V, "l_max": 3000,
                      "step_rule": "gradient", "smoothing": 1.0},
    }  # fmt: skip
    for key, change in more.items():
        values[key] = values[key] | change if isinstance(change, dict) else change
    return check(values, "the test's configuration")


def means(settings: Config) -> tuple[np.ndarray, np.ndarray]:
    """z_m and sigma_m², from the data itself."""
    plan = world.plan(settings)
    x, bounds = plan.samples.read(plan.partition.index, 0), plan.partition.bounds
    z = np.stack([x[start:end].astype(np.float64).mean(0) for start, end in bounds[:, [0, 3]]])
    return z, V / (bounds[:, 3] - bounds[:, 0])


def test_the_running_variance_is_the_two_pass_one() -> None:
    x = torch.randn(9, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 100
    mean, var, seen = torch.zeros(5, 7, dtype=torch.float64), torch.zeros(5, dtype=torch.float64), torch.zeros(5).long()
    for t in range(9):
        mean, var, seen = observe(mean, var, seen, x[t])
        assert torch.allclose(mean, x[: t + 1].mean(0))
        assert torch.allclose(var, x[: t + 1].var(0, correction=0).sum(1), atol=1e-12)
    assert seen.tolist() == [9] * 5


def test_steps_solve_equation_8() -> None:
    sigma2 = torch.tensor([0.5, 0.1, 0.02, 0.01, 0.3], dtype=torch.float64)
    known = torch.tensor([True, True, True, True, False])
    rest, eta = torch.full((5,), 8.0, dtype=torch.float64), 0.02
    steps, rule = local_steps(sigma2, known, rest, eta, 1, 40)
    for m in (0, 1):
        target = 8 / (1 / float(sigma2[m]) + 8)
        found = [(1 - eta / float(sigma2[m])) ** steps for steps in range(1, 41)]
        assert int(steps[m]) == 1 + int(np.argmin(np.abs(np.log(found) - np.log(target))))
    assert steps.tolist()[2:] == [1, 1, 40]  # eta = sigma², eta > sigma², not known
    assert rule.tolist() == [BY_EQUATION, BY_EQUATION, TOO_SMALL, TOO_SMALL, UNKNOWN]


@pytest.mark.parametrize("rest", [0.0, 1e-300, 1e300, float("inf")])
@pytest.mark.parametrize("sigma2", [0.0, 1e-300, 1.0, 1e300, float("inf")])
def test_steps_are_always_a_number(sigma2: float, rest: float) -> None:
    one = torch.ones(1, dtype=torch.float64)
    steps, _ = local_steps(sigma2 * one, one.bool(), rest * one, 0.1, 1, 40)
    assert 1 <= int(steps) <= 40


def test_the_best_models_of_the_gaussian() -> None:
    """Against the posterior means computed client by client."""
    z, sigma2_0, sigma2 = np.array([[1.0], [2.0], [4.0]]), 0.7, np.array([0.1, 0.2, 0.4])
    found = best(z, sigma2_0, sigma2)
    for m in range(3):
        others = [k for k in range(3) if k != m]
        precision = 1 / sigma2[m] + sum(1 / (sigma2_0 + sigma2[k]) for k in others)
        personal = (z[m] / sigma2[m] + sum(z[k] / (sigma2_0 + sigma2[k]) for k in others)) / precision
        assert found["personal"][m] == pytest.approx(personal)
        assert found["gain"][m] == pytest.approx(sigma2[m] * precision)
    assert best(z, 0.0, sigma2)["global"][0] == pytest.approx((z[:, 0] / sigma2).sum() / (1 / sigma2).sum())
    assert best(z, 0.0, sigma2)["personal"] == pytest.approx(best(z, 0.0, sigma2)["global"])
    assert best(z, 1e12, sigma2)["personal"] == pytest.approx(z)


def test_l_steps_from_the_others_mean_land_on_the_best_personal_model(alone: Comm, tmp_path: Path) -> None:
    """(5) - (8): with eta chosen so that l is a whole number, the descent ends at theta_FL."""
    settings = gaussian(tmp_path, 0.05)
    plan, (z, sigma2) = world.plan(settings), means(settings)
    w = 1 / (0.05 + sigma2)
    store = world.store(plan, alone, torch.device("cpu"))
    for m in range(6):
        rest = w.sum() - w[m]
        start = ((w[:, None] * z).sum(0) - w[m] * z[m]) / rest  # (7)
        eta = sigma2[m] * (1 - (rest / (1 / sigma2[m] + rest)) ** (1 / 12))
        cohort = Cohort(np.array([m]), store, plan.model, settings.train, 0, 1, 2)
        found = cohort.descend(torch.from_numpy(start).float(), steps=12, lr=eta)
        assert found[0].numpy() == pytest.approx(best(z, 0.05, sigma2)["personal"][m], rel=1e-5)


def test_full_participation_converges_to_the_fixed_point(alone: Comm, tmp_path: Path) -> None:
    """theta_m = A_m (theta - w_m / S_m (theta_m - theta)) + (1 - A_m) z_m, theta = Σ w theta_m / Σ w, solved here."""
    settings = gaussian(tmp_path, 0.05)
    run = train(settings, alone)
    z, sigma2 = means(settings)
    w = 1 / (0.05 + sigma2)
    rest = w.sum() - w
    steps = run["history/selffl/steps"][-1]
    assert ((steps > 1) & (steps < 3000)).all()
    a, part, mean = (1 - LR / sigma2) ** steps, w / rest, np.tile(w / w.sum(), (6, 1))
    system = np.eye(6) - np.diag(a * (1 + part)) @ mean + np.diag(a * part)
    personal = np.linalg.solve(system, (1 - a)[:, None] * z)
    assert run["clients/theta"] == pytest.approx(personal, abs=2e-5)
    assert run["server/theta"] == pytest.approx((w[:, None] * personal).sum(0) / w.sum(), abs=2e-5)


def test_very_different_clients_learn_alone(alone: Comm, tmp_path: Path) -> None:
    """sigma_0² without bound: every client ends at its own mean."""
    settings = gaussian(tmp_path, 1e12, rounds=2, algorithm={"l_max": 6000})
    run = train(settings, alone)
    z, _ = means(settings)
    assert np.abs(run["clients/theta"] - z).max() < 1e-4  # float32 steps end where lr * gradient is below its spacing


def test_errors_and_gain_are_in_the_history(alone: Comm, tmp_path: Path) -> None:
    settings = gaussian(tmp_path, 0.05, rounds=60)
    run = train(settings, alone)
    z, sigma2 = means(settings)
    known, history = best(z, 0.05, sigma2), content(settings.folder / "history.h5")
    assert history["gain"] == pytest.approx(known["gain"], rel=1e-5)
    assert history["personal/error"][-1] == pytest.approx(
        np.abs(run["clients/theta"] - known["personal"]).mean(1), 1e-3
    )
    assert history["global/error"][-1] == pytest.approx(np.abs(run["server/theta"] - known["global"]).mean(1), 1e-3)


PLAIN = {"kind": "selffl", "start": "global", "steps": "fixed", "weights": "samples", "smoothing": 1.0}


def test_with_everything_off_it_is_fedavg(alone: Comm, tmp_path: Path) -> None:
    plain = train(config({"algorithm": PLAIN}, tmp_path / "plain"), alone)
    fedavg = train(config({"algorithm": "fedavg"}, tmp_path / "fedavg"), alone)
    assert np.abs(plain["server/theta"] - fedavg["server/theta"]).max() < 1e-6


@pytest.mark.parametrize(
    "one",
    [{"start": "uncertainty"}, {"steps": "uncertainty"}, {"weights": "uncertainty"}],
    ids=lambda one: next(iter(one)),
)
def test_each_part_can_be_switched_on_alone(one: dict[str, Any], alone: Comm, tmp_path: Path) -> None:
    plain = train(config({"algorithm": PLAIN}, tmp_path / "plain", rounds=5), alone)
    with_one = train(config({"algorithm": PLAIN | one}, tmp_path / "one", rounds=5), alone)
    assert "server/theta" in differing(plain, with_one)


def test_the_variances_of_a_run_are_those_of_its_models(alone: Comm, tmp_path: Path) -> None:
    """sigma_m² from the checkpoints of all rounds, sigma_0² from the last round's models."""
    settings = config(
        {"algorithm": {"kind": "selffl", "l_max": 4}, "participation.fraction": 1.0, "rounds": 5}, tmp_path
    )
    run = train(settings, alone)
    models = np.stack(
        [content(settings.folder / f"checkpoints/round_{r:05d}.h5")["clients/theta"] for r in range(1, 6)]
    ).astype(np.float64)
    assert run["clients/sigma2"] == pytest.approx(models.var(0).sum(1), rel=1e-6)
    assert run["server/sigma2_0"] == pytest.approx(models[-1].var(0).sum(), rel=1e-6)
    assert (run["history/selffl/rule_used"][:2] == UNKNOWN).all()
    assert run["history/selffl/weight"][-1] == pytest.approx(1 / (run["server/sigma2_0"] + run["clients/sigma2"]))


def test_models_that_never_move_have_no_known_variance(alone: Comm, tmp_path: Path) -> None:
    """Zero over zero would be a weight without bound."""
    settings = config({"algorithm": {"kind": "selffl"}, "train.lr": 1e-30, "participation.fraction": 1.0}, tmp_path)
    run = train(settings, alone)
    assert (run["history/selffl/rule_used"] == UNKNOWN).all()
    assert (run["history/selffl/weight"] == 1).all()


def test_clusters_without_active_clients_still_count(alone: Comm, tmp_path: Path) -> None:
    """The global model is the weighted mean of the clusters' latest means, whoever was active."""
    method = {"kind": "selffl", "l_max": 4, "level": "cluster", "smoothing": 1.0}
    run = train(config({"algorithm": method, "participation.fraction": 0.15, "rounds": 6}, tmp_path), alone)
    cluster, w = run["server/cluster"].astype(np.float64), run["server/cluster_w"]
    assert len(w) == 2
    assert (w > 0).all()
    assert run["server/theta"] == pytest.approx((w[:, None] * cluster).sum(0) / w.sum(), abs=1e-6)
    active = ~np.isnan(run["history/selffl/steps"][-1])
    assert active.sum() == 1  # so one cluster had nobody


def test_a_collapse_is_said_at_the_end() -> None:
    method = SelfFL()
    assert method.remarks({"collapsed": np.full(60, 0.5)}) == []
    assert method.remarks({"collapsed": np.ones(5)}) == []
    assert "98 % of the active clients one step only" in method.remarks({"collapsed": np.full(60, 0.98)})[0]
    assert SelfFL(floor=5).remarks({"collapsed": np.ones(60)}) == []


@pytest.mark.parametrize(("population", "active", "a"), [(20, 5, 0.5), (20, 5, 0.25), (200, 20, 1.0), (10, 10, 1.0)])
def test_the_start_is_a_momentum(population: int, active: int, a: float) -> None:
    """Clients that all move by the same g in a round: theta moves by a g / (1 - momentum)."""
    method, draw = SelfFL(smoothing=a), np.random.default_rng(0)
    theta, own, seen = torch.zeros(1), torch.zeros(population, 1), torch.zeros(population)
    way = []
    for _ in range(4000):
        who = torch.from_numpy(draw.choice(population, active, replace=False))
        server = Server(theta, *(torch.zeros(()) for _ in Server._fields[1:]))
        clients = Client(own[who], own[who], seen[who], seen[who])
        own[who] = method.starts(server, clients, torch.full((active,), 1 / (active - 1))) + 1.0
        seen[who] = 1
        new = (1 - a) * theta + a * own[who].mean(0)
        way.append(float(new - theta))
        theta = new
    momentum = (a * population / active - 1) / (active - 1)
    assert np.mean(way[400:]) == pytest.approx(a / (1 - momentum), rel=0.01)
    steps = np.full((30, population), np.nan)
    steps[:, :active] = 40
    assert method.remarks({"steps": steps}) == []
    if population == 20:
        (said,) = SelfFL(smoothing=1.0).remarks({"steps": steps})
        assert "with 5 of 20 clients" in said and "a momentum of 0.75" in said and "smoothing=0.5 or" in said
        assert SelfFL(smoothing=1.0, others="all").remarks({"steps": steps}) == []


def test_augmented_trains_on(alone: Comm, tmp_path: Path) -> None:
    """Its second model fits the training data better than the personal one, and speaks for the client."""
    method = {"kind": "selffl_augmented", "l_max": 3, "stretch": 5, "longest": 30, "smoothing": 1.0}
    settings = config({"algorithm": method, "participation.fraction": 1.0, "rounds": 3}, tmp_path)
    run = train(settings, alone)
    plan = world.plan(settings)
    store = world.store(plan, alone, torch.device("cpu"))
    cohort = Cohort(np.arange(7), store, plan.model, settings.train, 0, 1, 4)
    full, stopped = (cohort.loss(torch.from_numpy(run[f"clients/{name}"])) for name in ("full", "theta"))
    assert (full < stopped).all()
    assert run["server/sigma2_0"] == pytest.approx(run["clients/full"].astype(np.float64).var(0).sum(), rel=1e-6)


def test_a_warm_start(alone: Comm, tmp_path: Path) -> None:
    """From another run's model, or from rounds of FedAvg of its own, which are such a run: it is in round 0."""
    other = train(config({"algorithm": "fedavg", "rounds": 2}, tmp_path / "other"), alone)
    for name, begin in (("run", {"run": str(tmp_path / "other/run")}), ("rounds", {"rounds": 2})):
        settings = config({"algorithm": {"kind": "ditto", "warm_start": begin}, "rounds": 1}, tmp_path / name)
        train(settings, alone)
        start = content(settings.folder / "checkpoints/round_00000.h5")
        assert (start["server/theta"] == other["server/theta"]).all()
        assert (start["clients/v"] == other["server/theta"]).all()
    own = content(tmp_path / "rounds/run/warm_start/checkpoints/round_00002.h5")
    assert (own["server/theta"] == other["server/theta"]).all()
    cold = content(tmp_path / "other/run/checkpoints/round_00000.h5")["server/theta"]
    assert np.abs(other["server/theta"] - cold).max() > 0.01


def begins_with(folder: Path, changes: dict[str, Any]) -> list[str]:
    """What is said of a run whose model another one with these changes is to begin with."""
    method = {"kind": "ditto", "warm_start": {"run": str(folder)}}
    settings = config({"algorithm": method, "model": {"kind": "lenet5"}} | changes, folder.parent)
    return warm.model(settings, world.plan(settings))[1]


def test_what_a_run_may_begin_with(alone: Comm, tmp_path: Path) -> None:
    """A run that is not finished, or of other data, is said; a model that means something else is refused."""
    settings = config({"algorithm": "fedavg", "rounds": 2, "model": {"kind": "lenet5"}}, tmp_path)
    train(settings, alone)
    assert begins_with(settings.folder, {"model.init": "glorot", "train.lr": 1.0}) == []
    (said,) = begins_with(settings.folder, {"seed": 1})
    assert "another division of the data; what its model was trained on may be test data here" in said
    for changes, wrong in (
        ({"model": {"kind": "logistic"}}, "needed is one global model of"),
        ({"model.activation": "tanh"}, "has trained model.activation=relu, not tanh"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            begins_with(settings.folder, changes)
    (settings.folder / "checkpoints/round_00002.h5").unlink()
    (said,) = begins_with(settings.folder, {})
    assert said.endswith("has not finished; its model is of round 1 of 2")
    for wrong in ("there is no folder", "holds no whole checkpoint"):
        with pytest.raises(ConfigError, match=wrong):
            begins_with(tmp_path / "nowhere", {})
        (tmp_path / "nowhere").mkdir(exist_ok=True)


def test_a_started_run_does_not_need_what_it_began_with(alone: Comm, tmp_path: Path) -> None:
    begin = {"rounds": 1}
    method = {"kind": "ditto", "warm_start": begin}
    settings = config({"algorithm": method, "rounds": 1, "evaluate.every": 1}, tmp_path)
    train(settings, alone)
    shutil.rmtree(settings.folder / "warm_start")
    longer = settings.model_copy(update={"rounds": 2})
    resumed = train(longer, alone, resume=True)
    whole = train(longer.model_copy(update={"output": tmp_path / "whole"}), alone)
    assert differing(resumed, whole) == []


def test_a_run_is_not_deleted_that_the_new_one_begins_with(alone: Comm, tmp_path: Path) -> None:
    """Nor one in whose folder it is."""
    settings = config({"algorithm": {"kind": "ditto", "warm_start": {"rounds": 1}}, "rounds": 1}, tmp_path)
    train(settings, alone)
    (tmp_path / "other").mkdir()
    for origin in (settings.folder, settings.folder / "warm_start", tmp_path / "other/../run"):
        begin = {"algorithm": {"kind": "ditto", "warm_start": {"run": str(origin)}}}
        with pytest.raises(ConfigError, match=r"--overwrite would delete .*algorithm.warm_start.run.*another name"):
            RunFolder(settings.folder).prepare(config(begin, tmp_path), resume=False, overwrite=True)
    assert (settings.folder / "summary.json").exists()


def test_models_that_differ_cannot_begin_with_one(tmp_path: Path) -> None:
    method = {"kind": "ifca", "k": 2, "warm_start": {"rounds": 1}}
    with pytest.raises(ConfigError, match="ifca begins with models that differ, not with one"):
        config({"algorithm": method}, tmp_path)
    config({"algorithm": method | {"k": 1}}, tmp_path)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"uncertainty": "given"}, "needs sigma2_0 and variance"),
        ({"floor": 9, "l_max": 5}, "floor is 9, more than l_max, 5"),
        ({"smoothing": 0}, "algorithm.smoothing"),
        ({"warm_start": {}}, "algorithm.warm_start: give rounds or run"),
    ],
)
def test_wrong_settings(method: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        world.plan(config({"algorithm": {"kind": "selffl"} | method}, tmp_path))


def test_means_in_place_of_observations_change_nothing(alone: Comm, tmp_path: Path) -> None:
    """Neither what training does, with batches of one, nor the best models."""
    whole = gaussian(tmp_path / "whole", 0.05, rounds=5)
    data = whole.model_dump(mode="json")["data"]
    of_means = gaussian(
        tmp_path / "means", 0.05, rounds=5, train={"batch": 1}, data={"source": data["source"] | {"means": True}}
    )
    one, other = train(whole, alone), train(of_means, alone)
    assert one["clients/theta"] == pytest.approx(other["clients/theta"], rel=1e-5)
    assert one["server/theta"] == pytest.approx(other["server/theta"], rel=1e-5)
    assert one["history/personal/error"] == pytest.approx(other["history/personal/error"], rel=1e-3)
