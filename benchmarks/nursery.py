"""Ranks that are born with their libraries: to import PyTorch takes seconds, which a test of hundreds of ranks cannot
afford. One process imports everything but MPI, and forks whenever mpirun asks for a rank.

What mpirun starts is a stand-in. It lends the rank its environment and its output, passes signals on, and dies as the
rank does. A rank's process id is written to the file `rank_<number>` in its working directory.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "torch", "torch.fx.experimental.symbolic_shapes", "sklearn.cluster", "sklearn.metrics", "h5py", "psutil",
    "rich.progress", "mpipfl.config", "mpipfl.cohort",
)  # fmt: skip
STAND_IN = """
import json, os, signal, socket, sys
home = socket.socket(socket.AF_UNIX)
home.connect(sys.argv[1])
text = json.dumps([os.getcwd(), dict(os.environ), sys.argv[2:]]).encode()
socket.send_fds(home, [len(text).to_bytes(8, "little")], [1, 2])
home.sendall(text)
rank = int(home.recv(20))
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: os.kill(rank, number))
status = int(home.recv(20) or 9)
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
"""


class Nursery:
    """The process that forks ranks; `command` is what mpirun is to start."""

    def __init__(self, folder: Path) -> None:
        self.path, script = folder / "nursery", folder / "stand_in.py"
        script.write_text(STAND_IN, encoding="utf-8")
        self.command = [sys.executable, "-S", str(script), str(self.path)]
        self.process = subprocess.Popen([sys.executable, "-m", "benchmarks.nursery", str(self.path)])
        while not self.path.exists():
            time.sleep(0.05)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def serve(path: Path) -> NoReturn:
    """Fork ranks for ever, and tell their stand-ins how they end."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(path))
    door.listen(64)
    door.settimeout(0.01)
    ranks: dict[int, socket.socket] = {}
    while True:
        try:
            visitor, _ = door.accept()
            rank = born(visitor, [door, visitor, *ranks.values()])
            ranks[rank] = visitor
        except TimeoutError:
            pass
        while ranks:
            rank, status = os.waitpid(-1, os.WNOHANG)
            if not rank:
                break
            with ranks.pop(rank) as visitor:
                visitor.send(str(status).encode())


def born(visitor: socket.socket, doors: list[socket.socket]) -> int:
    """A new rank in its stand-in's place; its process id."""
    visitor.settimeout(None)
    size, outputs, _, _ = socket.recv_fds(visitor, 8, 2)
    text = b""
    while len(text) < int.from_bytes(size, "little"):
        text += visitor.recv(1 << 16)
    folder, environment, arguments = json.loads(text)
    rank = os.fork()
    if rank:
        for handle in outputs:
            os.close(handle)
        Path(folder, f"rank_{environment['OMPI_COMM_WORLD_RANK']}").write_text(str(rank), encoding="ascii")
        visitor.send(str(rank).encode())
        return rank
    for handle, standard in zip(outputs, (1, 2), strict=True):
        os.dup2(handle, standard)
    for one in doors:
        one.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = 1
    try:
        code = importlib.import_module("mpipfl.run").main(arguments)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
