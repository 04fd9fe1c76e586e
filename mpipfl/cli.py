"""The command `mpipfl`: `mpipfl run ...`, `mpipfl sweep ...`, `mpipfl report ...`."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "run": "train one experiment",
    "sweep": "train every run of a study",
    "report": "compare runs: tables and pictures",
}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in COMMANDS:
        lines = [f"  mpipfl {command:<8} {text}" for command, text in COMMANDS.items()]
        out = sys.stdout if name in ("-h", "--help") else sys.stderr
        print("\n".join(["usage: mpipfl COMMAND ...   (mpipfl COMMAND --help tells more)", *lines]), file=out)
        return 0 if name in ("-h", "--help") else 2
    result: int = importlib.import_module(f"mpipfl.{name}").main(sys.argv[2:])
    return result


if __name__ == "__main__":
    sys.exit(main())
