"""What a person sees of a run: a live bar on a terminal, plain lines in a file or a Slurm log, and `log.txt`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS = 10.0  # between plain lines


def on_a_terminal() -> bool:
    """Whether a person's terminal shows what this process prints. Open MPI gives ranks a terminal of their own even
    when its output goes to a file, so under mpirun the parent's standard output is asked."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return sys.stdout.isatty()
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False


class Reporter:
    """Rank 0's voice; the other ranks are silent. MPIPFL_PROGRESS=bar, lines or quiet overrules the terminal's."""

    def __init__(self, speaks: bool, rounds: int, name: str) -> None:
        style = os.environ.get("MPIPFL_PROGRESS") or ("bar" if on_a_terminal() else "lines")
        self.speaks, self.quiet = speaks, style == "quiet"
        self.rounds, self.name = rounds, name
        self.log: Path | None = None
        self.last = 0.0
        self.console = Console(force_terminal=style == "bar" or None, highlight=False)
        self.bar: Progress | None = None
        if speaks and style == "bar":
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(), TimeRemainingColumn(), console=self.console, refresh_per_second=4,
            )  # fmt: skip

    def start(self, completed: int) -> None:
        if self.bar:
            self.bar.start()
            self.bar.add_task(self.name, total=self.rounds, completed=completed, note="")

    def say(self, text: str, console: bool = True) -> None:
        """A line for the log, and for the reader."""
        if not self.speaks:
            return
        if self.log:
            with contextlib.suppress(OSError), open(self.log, "a", encoding="utf-8") as log:  # the disk may be full
                log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")
        if console and not self.quiet:
            self.console.print(text, markup=False, soft_wrap=True)
            sys.stdout.flush()

    def round(self, round: int, note: str, evaluated: bool) -> None:
        """A round is done."""
        if not self.speaks:
            return
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=round)
            if evaluated:
                self.bar.update(self.bar.task_ids[0], note=note)
        now = time.monotonic()
        due = evaluated and (now - self.last > SECONDS or round == self.rounds)
        self.last = now if due else self.last
        if evaluated:
            self.say(f"round {round}/{self.rounds}  {note}", console=due and not self.bar)

    def stop(self) -> None:
        if self.bar:
            self.bar.stop()
