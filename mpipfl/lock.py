"""One run folder, one run at a time: a lock that is free again when its owner has died, however that happened.

The kernel's lock on a file (flock) goes with its process, also across the nodes of NFS 4, Lustre and GPFS as they are
usually mounted. Where a mount keeps such locks to a node, or has none, a second line holds: the file names its owner,
who touches it every few seconds. An owner on this machine is looked up; one on another machine is alive if the file
keeps being touched. No clocks are compared.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from .errors import UserError

DYING = 3.0  # seconds that a process which was just killed may take to be gone
BEAT = 5.0  # seconds between two touches
SILENCE = 4 * BEAT  # without a touch: the owner is dead
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class BusyError(UserError):
    """Somebody else trains this run."""

    code = 7


class Owner(NamedTuple):
    """A process that no other one can be mistaken for."""

    host: str
    process: int
    begun: float

    @classmethod
    def here(cls) -> Owner:
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    @classmethod
    def of(cls, text: str) -> Owner | None:
        try:
            host, process, begun = text.split()
            return cls(host, int(process), float(begun))
        except ValueError:
            return None

    def lives_here(self) -> bool:
        try:
            process = psutil.Process(self.process)
            dead = process.status() == psutil.STATUS_ZOMBIE  # killed, and nobody has asked for its exit code yet
            return not dead and abs(process.create_time() - self.begun) < 1
        except psutil.NoSuchProcess:
            return False


class Lock:
    """Held from when it is made to its release, or to the end of this process. It lies beside the folder, which may be
    replaced meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.with_name(f".{folder.name}.lock")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.handle = claimed(self.path)
        self.released = threading.Event()
        self.heart = threading.Thread(target=self._beat, daemon=True)
        self.heart.start()

    def _beat(self) -> None:
        while not self.released.wait(BEAT):
            with contextlib.suppress(OSError):  # the disk's troubles are said elsewhere
                os.utime(self.handle)

    def release(self) -> None:
        if self.released.is_set():
            return
        self.released.set()
        self.heart.join()
        if is_at(self.handle, self.path):  # not after somebody has cleaned up, and somebody else begun
            with contextlib.suppress(OSError):  # read-only by now; the next one sees that this process is gone
                self.path.unlink()
        os.close(self.handle)


def claimed(path: Path) -> int:
    """An open file of that name, locked and with this process's name in it."""
    limit = time.monotonic() + DYING
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if flocked(handle):
            if is_at(handle, path):
                break
        elif time.monotonic() > limit:
            owner = Owner.of(path.read_text(encoding="utf-8"))
            os.close(handle)
            raise busy(path, owner)
        else:
            time.sleep(0.1)
        os.close(handle)
    owner, me = Owner.of(os.read(handle, 4096).decode(errors="replace")), Owner.here()
    if owner is not None and (owner.lives_here() if owner.host == me.host else is_touched(path)):
        os.close(handle)
        raise busy(path, owner)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{me.host} {me.process} {me.begun}\n".encode(), 0)
    return handle


def flocked(handle: int) -> bool:
    """Whether nobody else holds the kernel's lock, as far as there is one."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in NO_LOCKS
    return True


def is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one of this name: the owner before may have removed that."""
    try:
        there, here = os.stat(path), os.fstat(handle)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def is_touched(path: Path) -> bool:
    """Whether somebody touches the file within some time."""
    first, limit = touched(path), time.monotonic() + SILENCE
    while time.monotonic() < limit:
        time.sleep(BEAT / 5)
        if touched(path) != first:
            return True
    return False


def touched(path: Path) -> int:
    with open(path, "rb") as file:  # NFS asks its server for the time only when a file is opened
        return os.fstat(file.fileno()).st_mtime_ns


def busy(path: Path, owner: Owner | None) -> BusyError:
    folder = path.with_name(path.name[1:].removesuffix(".lock"))
    who = "another process" if owner is None else f"process {owner.process} on {owner.host}"
    return BusyError(
        f"{folder} is being trained by {who}; wait for it or end it, or give another name (name=...). If both are "
        f"ranks of one job, each believes that it is alone: see --check"
    )
