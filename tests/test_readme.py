"""Everything the README shows is run: its commands, its example of a method, its two scripts."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from torch import Tensor

from mpipfl import world
from mpipfl.algorithms import Algorithm, Models
from mpipfl.comm import Comm
from mpipfl.experiment import Experiment
from mpipfl.progress import Reporter
from mpipfl.runfolder import RunFolder

from .conftest import PROJECT, clean_environment
from .suite import config, content

README = (PROJECT / "README.md").read_text(encoding="utf-8")
USE = re.search(r"## Use\n\n(.*?)\n\nAny key", README, re.S)
assert USE is not None
COMMANDS = [line.split("#")[0].strip() for line in USE[1].splitlines()]
SHORT = "rounds=1 data.samples=2000"


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("source")])
def test_command(command: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "emnist" in command:
        command = f"{command} data.root={request.getfixturevalue('real_data')}"
    trains = ".yaml" in command and "--dry-run" not in command
    command = f"{command} {SHORT}" if trains else command
    name = "quickstart" if "--personalize" in command else "quickstart_before"
    before = f"python -m mpipfl.run configs/quickstart.yaml {SHORT} name={name}\n"
    script = f"set -e\ncd {tmp_path}\nln -s {PROJECT}/configs {PROJECT}/jobs .\n" + (
        before if "report" in command or "--personalize" in command else ""
    )
    done = subprocess.run(
        ["bash", "-c", f"source {PROJECT}/jobs/env.sh\n{script}{command}"],
        env=clean_environment() | {"MPIPFL_VENV": os.environ.get("VIRTUAL_ENV", str(PROJECT / ".venv"))},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_quickstart_script(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(PROJECT / "jobs/quickstart.sh"), "rounds=1", "data.samples=600", f"output={tmp_path}"],
        env=clean_environment() | {"MPIPFL_VENV": os.environ.get("VIRTUAL_ENV", str(PROJECT / ".venv"))},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"quickstart_{method}" for method in ("fedavg", "fedprox", "local", "oracle")
    ]


def test_the_method_of_the_readme(alone: Comm, tmp_path: Path) -> None:
    """It trains, and moves half as far as FedAvg in the first round."""
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code is not None
    names: dict[str, Any] = {
        "NamedTuple": NamedTuple, "Literal": Literal, "Tensor": Tensor, "Algorithm": Algorithm, "Models": Models,
        "__name__": __name__,
    }  # fmt: skip
    exec(code[1], names)
    thetas = {}
    for name, method in (("fedavg", None), ("halfway", names["Halfway"]())):
        settings = config({"rounds": 1, "algorithm": {"kind": "fedavg"}}, tmp_path / name)
        settings = settings if method is None else settings.model_copy(update={"algorithm": method})
        folder = RunFolder(settings.folder)
        made = world.plan(settings)
        folder.describe(settings, made.partition)
        assert Experiment(settings, made, alone, folder, Reporter(False, 1, name)).run(None) == 0
        last = content(settings.folder / "checkpoints/round_00001.h5")
        first = content(settings.folder / "checkpoints/round_00000.h5")
        thetas[name] = last["server/theta"] - first["server/theta"]
    np.testing.assert_allclose(2 * thetas["halfway"], thetas["fedavg"], atol=1e-6)


def test_the_readme_lists_what_there_is() -> None:
    from mpipfl.catalogue import listing

    parts = re.search(r"\| part \| kinds \|\n(.*?)\n\n", README, re.S)
    assert parts is not None
    for line in listing().splitlines():
        if line.startswith("  ") and (kind := line.split()[0]) not in ("none", "package.module:Class"):
            assert f"`{kind}`" in parts[1], kind
