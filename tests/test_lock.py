"""One run folder, one run: the lock holds against others, and not against the dead."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpipfl import lock
from mpipfl.config import dump
from mpipfl.lock import BusyError, Lock, Owner
from mpipfl.run import main

from .conftest import clean_environment
from .suite import config

HOLD = """
import sys
from pathlib import Path
from mpipfl.lock import Lock
Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `run`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], env=clean_environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience, so that tests are short."""
    for name, seconds in (("DYING", 0.2), ("BEAT", 0.1), ("SILENCE", 0.6)):
        monkeypatch.setattr(lock, name, seconds)


@pytest.fixture
def no_kernel_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without them."""

    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(fcntl, "flock", refuse)


def left_by(owner: Owner, folder: Path) -> Path:
    """A lock file whose owner has not removed it."""
    path = folder / ".run.lock"
    path.write_text(f"{owner.host} {owner.process} {owner.begun}\n")
    return path


def test_held_and_released(quick: None, tmp_path: Path) -> None:
    first = Lock(tmp_path / "run")
    with pytest.raises(BusyError, match=rf"run is being trained by process {os.getpid()} on "):
        Lock(tmp_path / "run")
    Lock(tmp_path / "another").release()
    first.release()
    assert list(tmp_path.iterdir()) == []
    Lock(tmp_path / "run").release()


def test_a_second_start_is_refused(
    holder: subprocess.Popen[str], quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --resume and --overwrite, too, and nothing is touched; then the owner is killed, and it starts."""
    path = tmp_path / "config.yaml"
    path.write_text(dump(config({"algorithm": "fedavg", "rounds": 1}, tmp_path)))
    for more in ([], ["--resume"], ["--overwrite"]):
        assert main([str(path), *more]) == 7
        assert f"run is being trained by process {holder.pid} on" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    holder.send_signal(signal.SIGKILL)
    assert holder.wait(10) == -signal.SIGKILL
    assert main([str(path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "run"]


def test_one_of_many_gets_it(quick: None, tmp_path: Path) -> None:
    """Also while others give it back: nobody holds a lock on a file that is not there any more."""
    holders, most = [], []
    guard = threading.Lock()

    def work() -> None:
        for _ in range(30):
            try:
                mine = Lock(tmp_path / "run")
            except BusyError:
                continue
            with guard:
                holders.append(mine)
                most.append(len(holders))
            time.sleep(0.001)
            with guard:
                holders.remove(mine)
            mine.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) >= 30 and set(most) == {1}


def test_where_the_kernel_has_no_locks(
    holder: subprocess.Popen[str], quick: None, no_kernel_locks: None, tmp_path: Path
) -> None:
    """The owner is looked up; its number alone does not make another process the owner."""
    with pytest.raises(BusyError, match=f"process {holder.pid} "):
        Lock(tmp_path / "run")
    holder.kill()
    holder.wait()
    Lock(tmp_path / "run").release()
    me = Owner.here()
    left_by(me._replace(begun=me.begun - 100), tmp_path)
    Lock(tmp_path / "run").release()


def test_an_owner_on_another_machine(quick: None, no_kernel_locks: None, tmp_path: Path) -> None:
    """It lives as long as it touches the file; also with a clock that is far behind."""
    path = left_by(Owner("elsewhere", 1, 0.0), tmp_path)
    dead = threading.Event()

    def beat() -> None:
        for second in range(10**6):
            os.utime(path, (second, second))
            if dead.wait(0.1):
                return

    heart = threading.Thread(target=beat)
    heart.start()
    with pytest.raises(BusyError, match="process 1 on elsewhere"):
        Lock(tmp_path / "run")
    dead.set()
    heart.join()
    Lock(tmp_path / "run").release()


def test_the_owner_touches_its_file(quick: None, tmp_path: Path) -> None:
    held = Lock(tmp_path / "run")
    assert lock.is_touched(held.path)
    held.release()


@pytest.mark.parametrize("text", ["", "nonsense", "a b c", "\x00\x01"])
def test_a_file_that_names_nobody(text: str, quick: None, tmp_path: Path) -> None:
    (tmp_path / ".run.lock").write_text(text)
    Lock(tmp_path / "run").release()
    assert list(tmp_path.iterdir()) == []
