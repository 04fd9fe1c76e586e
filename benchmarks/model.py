"""What a round will take on machines nobody has here: a cost model, measured, checked and asked.

  python -m benchmarks.model --calibrate [-o FILE]     measures this machine with two ranks, in about a minute
  python -m benchmarks.model --check [FILE]            predicts runs on 2, 3, 5 and 9 ranks here, and says the errors
  python -m benchmarks.model [FILE] --node gpus=4,net=25GB/s,latency=2us --model lenet --clients 1000,1e6 --drawn 1000
                                                       seconds of a round on 8 to 4,096 ranks, efficiency, what limits
FILE is a calibration, by default the newest in benchmarks/results/. benchmarks/README.md has the assumptions.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from mpipfl import launch
from mpipfl.errors import ConfigError, UserError

RESULTS = Path(__file__).with_name("results")
RATES = {"GB/s": 1e9, "MB/s": 1e6, "Gb/s": 1e9 / 8}
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
SPEEDS = {"": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12}
CHECKED = (2, 3, 5, 9)  # ranks
MODELS = ("logistic", "mlp", "lenet")
T = TypeVar("T")


class Node(NamedTuple):
    """Hardware that is asked for: a worker for each GPU (or core), nodes by a network."""

    gpus: int = 4
    net: float = 25e9  # bytes a second, of a node
    latency: float = 2e-6
    speed: float | None = None  # of a worker: client-steps a second, or FLOP/s; None for a core of the calibration
    flops: bool = False  # what the speed is


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    quick = ["--quick"] if options.quick else []
    output = [] if options.output is None else ["-o", str(options.output)]
    try:
        if options.calibrate:
            return launch.ranks(2, ["-m", "benchmarks.model_calibrate", *quick, *output])
        path = options.calibration or newest()
        if options.check:
            from .model_units import read

            read(path)  # whether it is one
            ranks = options.ranks or CHECKED
            wanted = ["-m", "benchmarks.model_check", str(path), "--ranks", *map(str, ranks), *quick, *output]
            return launch.ranks(max(ranks), wanted)
        from .model_ask import ask

        ask(path, options)
        return 0
    except UserError as error:
        print(f"benchmarks.model: {error}", file=sys.stderr)
        return error.code


class Parser(argparse.ArgumentParser):
    """Says a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmarks.model: {message}\n")


def parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calibration", nargs="?", type=Path, metavar="FILE")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--calibrate", action="store_true", help="measure this machine")
    what.add_argument("--check", action="store_true", help="compare predictions with runs here")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: to see that it works, not to quote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the JSON; benchmarks/results/ by default")
    parser.add_argument("--ranks", type=counts("--ranks", 1), metavar="N,N...", help="default: 2,3,5,9 to check, "
                        "8,16 ... 4096 to ask", default=[])  # fmt: skip
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--node", type=said(node), default=Node(), metavar="KEY=VALUE,...",
                       help="gpus=4,net=25GB/s,latency=2us of a node; speed=20000 (client-steps a second) or "
                       "speed=5TFLOP/s of a worker, by default that of a core of the calibration")  # fmt: skip
    asked.add_argument("--model", type=said(model), default="lenet", metavar="NAME",
                       help=f"{', '.join(MODELS)}, or a number of parameters (a dense network)")  # fmt: skip
    asked.add_argument("--clients", type=counts("--clients", 1), metavar="N,N...", help="default: 1e2,1e3 ... 1e7",
                       default=[10**power for power in range(2, 8)])  # fmt: skip
    asked.add_argument("--drawn", type=count("--drawn", 1), metavar="N", help="clients of a round (default: all)")
    asked.add_argument("--samples", type=count("--samples", 1), metavar="N", help="that a client trains on, on average "
                       "(default: those of the workload: logistic 60, mlp 200, lenet 512)")  # fmt: skip
    asked.add_argument("--sizes", choices=("equal", "power_law"), default="equal", help="of the clients")
    asked.add_argument("--models", type=count("--models", 1), default=1, metavar="N", help="that the server keeps "
                       "(clusters, streams)")  # fmt: skip
    asked.add_argument("--state", type=count("--state", 0), default=0, metavar="N", help="vectors that a client keeps")
    asked.add_argument("--rounds", type=count("--rounds", 1), default=100, metavar="N", help="of the run")
    asked.add_argument("--evaluate-every", type=count("--evaluate-every", 0), default=5, metavar="N", help="0: never")
    asked.add_argument("--checkpoint-every", type=count("--checkpoint-every", 0), default=10, metavar="N",
                       help="0: never")  # fmt: skip
    asked.add_argument("--whole", action="store_true", help="as if rank 0 summed up and stepped long vectors, too, and "
                       "all ranks did not share in it")  # fmt: skip
    asked.add_argument("--report", type=said(picture), metavar="FILE", help="curves as .html or .png")
    return parser


def newest() -> Path:
    """The newest calibration that is kept here."""
    found = sorted(RESULTS.glob("*-calibration.json"))
    if not found:
        raise ConfigError(f"no calibration in {RESULTS}: name a file, or make one with --calibrate")
    return found[-1]


# ---------------------------------------------------------------------- words


def said(reading: Callable[[str], T]) -> Callable[[str], T]:
    """The reading of a word, whose mistakes argparse says in one line."""

    def read(word: str) -> T:
        try:
            return reading(word)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def count(name: str, least: int) -> Callable[[str], int]:
    """A whole number, also as 1e6."""

    def read(word: str) -> int:
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not (value >= least and value == int(value)):
            raise ConfigError(f"{word!r}: a whole number from {least} on is meant; write {name} 1000 or {name} 1e3")
        return int(value)

    return said(read)


def counts(name: str, least: int) -> Callable[[str], list[int]]:
    one = count(name, least)
    return lambda words: sorted({one(word) for word in words.split(",")})


def node(text: str) -> Node:
    """`gpus=4,net=25GB/s,latency=2us,speed=5TFLOP/s`, in any order, as far as they are given."""
    found = Node()
    for word in text.split(","):
        key, _, value = word.partition("=")
        if key == "gpus":
            found = found._replace(gpus=int(measure(word, value, {"": 1.0}, "gpus=4", whole=True)))
        elif key == "net":
            found = found._replace(net=measure(word, value, RATES, "net=25GB/s"))
        elif key == "latency":
            found = found._replace(latency=measure(word, value, TIMES, "latency=2us"))
        elif key == "speed":
            speed = measure(word, value, SPEEDS, "speed=20000 or speed=5TFLOP/s")
            found = found._replace(speed=speed, flops=value.endswith("FLOP/s"))
        else:
            raise ConfigError(f"{word!r}: gpus, net, latency and speed are known; write gpus=4,net=25GB/s,latency=2us")
    return found


def measure(word: str, value: str, units: dict[str, float], example: str, whole: bool = False) -> float:
    """A positive number with its unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([A-Za-z/]*)", value)
    number = float(match[1]) * units[match[2]] if match and match[2] in units else float("nan")
    if not 0 < number < float("inf") or (whole and number != int(number)):
        kinds = " or ".join(unit for unit in units if unit)
        meant = "a whole number from 1 on" if whole else f"a positive number{f' with {kinds}' if kinds else ''}"
        raise ConfigError(f"{word!r}: {meant} is meant; write {example}")
    return number


def model(word: str) -> str | int:
    """A known model, or a number of parameters."""
    if word in MODELS:
        return word
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not (value >= 1 and value == int(value)):
        raise ConfigError(f"{word!r}: {', '.join(MODELS)} or a number of parameters is meant; write --model 25e6")
    return int(value)


def picture(word: str) -> Path:
    path = Path(word)
    if path.suffix not in (".html", ".png"):
        raise ConfigError(f"{word!r}: an .html or a .png file is meant; write --report model.html")
    return path


if __name__ == "__main__":
    sys.exit(main())
