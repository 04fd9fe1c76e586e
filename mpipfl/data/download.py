"""Downloads a torchvision data set quietly, and gives up soon where there is no network.

Compute nodes often have none, and some drop packets without an answer: the set's address is tried first, against a
clock.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = 8.0  # seconds to wait for a first answer


def fetch(make: Any, root: Path, **keywords: Any) -> Any:
    """make(root, download=True, **keywords) for a torchvision data set class `make`."""
    # EMNIST inherits MNIST's mirrors but is fetched from its own url.
    addresses = [make.url] if hasattr(make, "url") else list(make.mirrors)
    archives = [*(root / make.__name__ / "raw").glob("*.gz"), *root.glob("*.tar.gz")]  # may only need to be unpacked
    if not archives and not any(answers(address) for address in addresses):
        raise ConnectionError(f"no answer from {' or '.join(addresses)}")
    with _quiet(), _socket_timeout(30.0):
        return make(str(root), download=True, **keywords)


def answers(address: str) -> bool:
    """Whether a server answers at all; even a refusal shows that there is a way to it."""
    found: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE).close()
            found.append(True)
        except urllib.error.HTTPError:
            found.append(True)
        except Exception:
            found.append(False)

    _within(PATIENCE, ask)
    return bool(found and found[0])


def _within(seconds: float, task: Callable[[], None]) -> None:
    """Looking up a name knows no timeout, so it happens in a thread that can be left behind."""
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    thread.join(seconds)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
