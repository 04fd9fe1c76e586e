"""Seconds of messages between ranks, level by level of a tree: within nodes as measured, across them by the network's
own figures.

A term has two sums: its seconds on the way from one round to the next, and those of all ranks together, which are what
an oversubscribed machine can check.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Units = dict[str, dict[str, float]]  # term -> cause -> seconds of one


class Cost(NamedTuple):
    """Seconds of a term: on the way of a round, and of all ranks together."""

    path: float
    total: float


class Link(NamedTuple):
    """One level of a tree: seconds of a message as such, and of each byte."""

    message: float
    byte: float

    def seconds(self, size: float) -> float:
        return self.message + size * self.byte


NOTHING = Link(0.0, 0.0)


class Machine(NamedTuple):
    """What is measured of a rank, and how ranks are connected."""

    units: Units
    workers: int = 1 << 30  # on a node; the server is beside those of the first
    network: Link = NOTHING  # between nodes
    whole: bool = False  # whether long vectors, too, are summed up and stepped by rank 0 (they are not)

    def of(self, term: str, **counts: Any) -> Any:
        """Σ counts * units; counts may be arrays."""
        return sum(self.units[term][cause] * count for cause, count in counts.items())

    def link(self, kind: str) -> Link:
        return Link(self.units[kind]["message"], self.units[kind]["byte"])

    def levels(self, ranks: int, kind: str) -> list[Link]:
        """A tree over the ranks, from its leaves: first within nodes, then across them. A reduction adds what has come,
        which takes as long whatever way it came."""
        inside = self.link(kind)
        adding = max(0.0, inside.byte - self.units["broadcast"]["byte"])
        outside = self.network._replace(byte=self.network.byte + adding)
        nodes = -(-max(1, ranks - 1) // self.workers)
        return [inside] * depth(min(ranks, self.workers + 1)) + [outside] * depth(nodes)


def depth(ranks: int) -> int:
    """⌈log2 ranks⌉"""
    return (ranks - 1).bit_length()


def tree(size: float, links: list[Link]) -> float:
    """A vector up or down a binomial tree: whole at every level."""
    return sum(link.seconds(size) for link in links)


def halving(size: float, links: list[Link]) -> float:
    """A vector's sums, of which every rank gets its part, by recursive halving, or the reverse, everybody's parts to
    all: the i-th level, from 1, moves 2^-i of it."""
    return sum(link.seconds(size / 2**i) for i, link in enumerate(links, start=1))


def collective(machine: Machine, ranks: int, kind: str, size: float) -> Cost:
    """A reduction or a broadcast: every rank is called, and every rank but one sends, or receives, once."""
    if ranks == 1:
        return Cost(0.0, 0.0)
    path = tree(size, machine.levels(ranks, kind))
    return called(machine, ranks, kind, path, (ranks - 1) * machine.link(f"{kind}, work").seconds(size))


def in_parts(machine: Machine, ranks: int, kind: str, size: float, turns: int) -> Cost:
    """The same of a long vector, to which every rank has a part (`mpipfl.slices`), in several turns."""
    if ranks == 1:
        return Cost(0.0, 0.0)
    links, work = machine.levels(ranks, kind), machine.link(f"{kind}, work")
    total = ranks * len(links) * work.message + (ranks - 1) * work.byte * size / turns
    once = called(machine, ranks, kind, halving(size / turns, links), total)
    return Cost(turns * once.path, turns * once.total)


def called(machine: Machine, ranks: int, kind: str, path: float, total: float) -> Cost:
    """With what a call takes besides its messages, on every rank at the same time."""
    call, work = machine.units[kind]["call"], machine.units[f"{kind}, work"]["call"]
    return Cost(call + path, ranks * work + total)


def vote(machine: Machine, ranks: int) -> Cost:
    """A few numbers from everybody to everybody: at each level of a tree every rank exchanges them with one other."""
    if ranks == 1:
        return Cost(0.0, 0.0)
    links = machine.levels(ranks, "vote")
    pairs = ranks * len(links) / 2
    return called(machine, ranks, "vote", tree(0, links), pairs * machine.link("vote, work").message)


def everywhere(machine: Machine, ranks: int, size: float) -> Cost:
    """Rows of all ranks, so many bytes together, on every rank: each passes on what it has not itself."""
    links = machine.levels(ranks, "broadcast")
    path = tree(0, links) + size * max((link.byte for link in links), default=0.0)
    return Cost(path, (ranks - 1) * machine.link("broadcast, work").seconds(size))


def to_server(machine: Machine, ranks: int, size: float) -> Cost:
    """The same on rank 0 alone, one rank after the other."""
    links, work = machine.levels(ranks, "broadcast"), machine.link("broadcast, work")
    if not links:
        return Cost(0.0, 0.0)
    path = (ranks - 1) * links[0].message + size * max(link.byte for link in links)
    return Cost(path, (ranks - 1) * work.message + size * work.byte)
