"""What there is and what will happen, in words: `--list`, `--keys`, `--dry-run`, and a run's first line."""

from __future__ import annotations

from typing import get_args

import numpy as np
import psutil
import torch

from . import world
from .algorithms import METHODS
from .comm import Comm
from .config import Config, classes, nearest
from .data.federated import Data
from .errors import ConfigError
from .models import NETWORKS
from .models.networks import Imported
from .placement import place
from .section import Section


def kinds() -> dict[str, tuple[str, list[type[Section]]]]:
    """What there is several kinds of: path -> what they are, and their sections."""
    inside = {name: list(reversed(list(classes(Data, name)))) for name in ("source", "partition", "shift")}
    return {
        "algorithm": ("methods", list(METHODS)),
        "model": ("models", [*NETWORKS, Imported]),
        "data.source": ("data sources", inside["source"]),
        "data.partition": ("partitions", inside["partition"]),
        "data.shift": ("shifts", inside["shift"]),
    }


def listing() -> str:
    """Every kind of everything, one line each."""
    lines = []
    for path, (title, sections) in kinds().items():
        lines += ["", f"{title} ({path})"]
        for section in sections:
            own = ", ".join(k for k in section.entries() if k not in ("kind", "warm_start"))
            lines.append(
                f"  {section.model_fields['kind'].default:<22} {section.line()}" + (f" [{own}]" if own else "")
            )
    return "\n".join(lines[1:])


def keys_of(kind: str | None) -> str:
    """Every key of a configuration, or of one kind of method, model, source, partition or shift."""
    if kind is None:
        return f"{keys()}\n\nKinds have keys of their own: --keys ditto, --keys emnist ...; --list names them"
    found = {
        path: section
        for path, (_, sections) in kinds().items()
        for section in sections
        if section.model_fields["kind"].default == kind
    }
    if not found:
        known = [s.model_fields["kind"].default for _, sections in kinds().values() for s in sections]
        raise ConfigError(f"--keys {kind}: there is no such kind{nearest(kind, known)}; --list names them")
    return "\n".join(f"{path}={kind}: {section.line()}\n{keys(section, path + '.')}" for path, section in found.items())


def keys(section: type[Section] = Config, path: str = "", made: Section | None = None) -> str:
    """Every key with its default, of the section that is there when nothing is said, and its meaning."""
    lines = []
    for name, field in section.model_fields.items():
        inner = list(classes(section, field.alias or name))
        here = f"{path}{field.alias or name}"
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        if made is not None:
            default = getattr(made, name)
        if len(inner) == 1 and not get_args(field.annotation):
            own = default if isinstance(default, Section) else None
            lines += [f"{here}:  # {field.description}", keys(inner[0], here + ".", own)]
        else:
            shown = f"{default:g}" if isinstance(default, float) else getattr(default, "kind", default)
            lines.append(f"{here} = {shown}  # {field.description or ''}".rstrip(" #"))
    return "\n".join(lines)


def plan(config: Config, made: world.Plan, comm: Comm) -> str:
    """The plan of `--dry-run`; every rank must call."""
    n, d = made.partition.n_train, made.model.dimension
    host = place(made.work, comm.workers)
    devices = comm.gather(np.frombuffer(f"{world.device(config, comm)!s:<10}".encode(), dtype=np.uint8)[None])
    now = comm.gather(np.array([psutil.Process().memory_info().rss / 1e6]))  # libraries, the source's arrays
    facts = world.facts(config, made)
    theta = facts.start(0)
    server, client = made.method.server(theta, facts), made.method.client(theta, facts)
    down = sum(t.numel() * t.element_size() for t in server)
    up = sum(t.numel() for t in server) * (8 if config.reduce == "exact" else 4)
    vectors = sum(t.numel() for t in client) / d
    active = world.ever_active(config) * len(n)
    closing = f" and {config.algorithm.closing_rounds} closing ones" if config.algorithm.closing_rounds else ""
    warm = config.algorithm.warm_start
    before = "" if warm is None else f"from {warm.run}, " if warm.rounds is None else f"{warm.rounds} of fedavg, then "
    come = "" if config.newcomers is None else f", newcomers of {config.newcomers.run}"
    lines = [
        f"{config.name}: {config.algorithm.kind} on {config.data.source.kind}, "
        f"{before}{config.rounds} rounds{closing}{come}",
        f"data       {made.partition.samples:,} samples of {made.samples.shape}, {made.samples.classes} classes; "
        f"{len(n)} clients in {facts.groups} group(s)",
        f"per client train {n.min()}-{n.max()} (median {int(np.median(n))}), validation "
        f"{made.partition.n_validation.min()}-{made.partition.n_validation.max()}, test "
        f"{made.partition.n_test.min()}-{made.partition.n_test.max()}",
        f"model      {config.model.kind}, {d:,} parameters, {4 * d / 1e6:.2f} MB",
        f"a round    {down / 1e6:.2f} MB broadcast and {up / 1e6:.2f} MB reduced per rank",
        f"checkpoint {(down + vectors * 4 * d * active) / 1e6:.1f} MB",
        "rank  device      clients  training samples  memory (MB, estimate)",
    ]
    for rank in range(comm.size):
        mine = host == rank
        name = bytes(devices[rank][0]).decode().strip() if devices else ""
        own, is_server = int(np.ceil(vectors)), rank not in comm.workers
        memory = world.memory(config, made, down / 4 / d, own, int(mine.sum()), is_server)
        memory += now[rank][0] if now else 0.0
        role = f"{mine.sum():>7}  {n[mine].sum():>16,}" if rank in comm.workers else f"{'server':>7}  {'':>16}"
        lines.append(f"{rank:>4}  {name:<10}  {role}  {memory:>21,.0f}")
    return "\n".join(lines)


def start(config: Config, made: world.Plan, comm: Comm, width: int, device: torch.device) -> str:
    """A run's first line; every rank must call."""
    gpu = device.index if device.type == "cuda" else -1
    rows = comm.gather(np.array([[comm.node_ranks[0], gpu]], dtype=np.int64))
    if rows is None:
        return ""
    where = gpus(np.concatenate(rows)[comm.workers]) or f"cpu, {config.threads} thread(s) each"
    whose = "clients" if config.newcomers is None else f"newcomers of {config.newcomers.run}"
    return (
        f"{config.name}: {config.algorithm.kind}, {config.data.clients} {whose}, {config.model.kind} "
        f"({made.model.dimension:,} parameters), {len(comm.workers)} worker(s) on {where}, cohorts of {width}; "
        f"{comm.library()}"
    )


def gpus(places: np.ndarray) -> str:
    """The workers' GPUs from rows of (node, GPU or -1): which are used, and which are crowded; empty without any."""
    used, workers = np.unique(places[places[:, 1] >= 0], axis=0, return_counts=True)
    if not len(used):
        return ""
    text = ", ".join(f"cuda:{gpu}" for gpu in np.unique(used[:, 1])) + f" of {len(np.unique(used[:, 0]))} node(s)"
    crowded = f" (up to {workers.max()} workers share one: start fewer ranks a node)" if workers.max() > 1 else ""
    idle = " (some workers have none)" if (places[:, 1] < 0).any() else ""
    return text + crowded + idle
