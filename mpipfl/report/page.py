"""The report as one HTML file: nothing is loaded from anywhere, and it reads well in light, in dark and on paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from . import across, classes, contents, detection, own, pictures
from .clock import System, participants, told
from .compare import Comparison, Line, over_runs, shown
from .tables import Table

HERE = Path(__file__).parent


def page(comparison: Comparison, systems: Sequence[System] = ()) -> str:
    """The whole file."""
    sections = [
        ("results", "Results", results(comparison)),
        ("gain", "Improvement and fairness", improvement(comparison)),
        ("rounds", "Against rounds", drawn(comparison, pictures.curves(comparison), "No figures of rounds are there.")),
        ("time", "Against normalised time", time(comparison, systems) if systems else ""),
        ("settings", "Against settings", settings(comparison)),
        ("clients", "Clients", clients(comparison)),
        ("methods", "Pictures of the methods", methods(comparison)),
        ("costs", "Where the time went", costs(comparison)),
    ]
    body = [head(comparison)]
    links = " ".join(f'<a href="#{i}">{escape(title)}</a>' for i, title, text in sections if text)
    body.append(f"<nav>{links}</nav>")
    body += [f"<h2 id={i}>{escape(title)}</h2>\n{text}" for i, title, text in sections if text]
    css, js = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    title = escape(" · ".join(dict.fromkeys(line.method for line in comparison.lines)))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>\n{css}</style></head>\n<body>\n" + "\n".join(body) + f"\n<script>\n{js}</script>\n</body></html>\n"
    )


def head(comparison: Comparison) -> str:
    """What was run: what differs in bold, what does not folded away, and everything that is not as it should be."""
    lines = comparison.lines
    data = comparison.common
    facts = [f"{len(comparison.runs)} runs in {len(lines)} lines",
             *(f"{name} {shown(data[key])}" for name, key in
               (("data", "data.source.kind"), ("clients", "data.clients"), ("partition", "data.partition.kind"),
                ("shift", "data.shift.kind"), ("model", "model.kind")) if data.get(key) is not None)]  # fmt: skip
    came_to = sorted({str(run.settings["newcomers.run"]) for run in comparison.runs if "newcomers.run" in run.settings})
    facts += [f"newcomers of {', '.join(came_to)}"] if came_to else []
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    common, alone = (
        "".join(f"<dt>{escape(k)}</dt><dd>{escape(shown(v))}</dd>" for k, v in settings.items())
        for settings in (data, contents.told(comparison)[1])
    )
    return "\n".join([
        "<h1>Personalized federated learning: comparison of runs</h1>",
        f"<p class=soft>{escape('; '.join(facts))}<br>{escape(versions(comparison))}</p>",
        f"<ul class=notes>{notes}</ul>" if notes else "",
        f"<div class=wide>{contents.what_was_run(comparison).html()}</div>",
        f"<details><summary>Settings that all runs share</summary><dl>{common}</dl></details>",
        f"<details><summary>Settings of single methods</summary><dl>{alone}</dl></details>" if alone else "",
    ])  # fmt: skip


def versions(comparison: Comparison) -> str:
    """What the runs were made with; where that differs, which with what."""
    made: dict[str, list[str]] = {}
    for run in comparison.runs:
        made.setdefault(run.head.partition("; ")[2] or "unknown versions", []).append(run.path.name)
    if len(made) == 1:
        return next(iter(made))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in made.items())


def results(comparison: Comparison) -> str:
    more = (classes.macro_table(comparison), classes.false_accepts_table(comparison), detection.table(comparison))
    return "\n".join([contents.results(comparison).html(), *(titled(table) for table in more if table is not None)])


def improvement(comparison: Comparison) -> str:
    table, fairness = contents.improvement(comparison), contents.fairness_table(comparison)
    parts = [f"<p>{marked(comparison.missing())}</p>" if table is None else titled(table)]
    if (density := pictures.density(comparison)) is not None:
        parts += ["<h3>Density of the quantum of improvement</h3>", drawn(comparison, density, "")]
    if fairness is not None:
        parts.append(titled(fairness))
    otherwise = "Not drawn: the accuracies of single clients are not known."
    parts += ["<h3>Fairness of the accuracies</h3>", drawn(comparison, pictures.fairness_bars(comparison), otherwise)]
    return "\n".join(parts)


def clients(comparison: Comparison) -> str:
    otherwise = "Not drawn: all clients have the same number of training samples, or no history.h5 tells it."
    parts = ["<h3>Accuracy against the client's size</h3>", drawn(comparison, pictures.by_size(comparison), otherwise)]
    if (table := contents.clients(comparison)) is not None:
        parts.append(f"<details><summary>Every client</summary>{table.html()}</details>")
    return "\n".join(parts)


def settings(comparison: Comparison) -> str:
    """Results against each number in which lines differ alone."""
    return "\n".join(f"<h3>{escape(key)}</h3>\n{drawing}" for key, drawing in across.pictures(comparison))


def methods(comparison: Comparison) -> str:
    parts = []
    for line, picture, said in own.pictures(comparison):
        parts.append(f"<h3>{escape(line.label)}</h3>")
        if len(line.runs) > 1:
            said = [f"Of the run with seed {line.runs[0].seed}.", *said]
        parts += [picture or "", *(f"<p class=caption>{escape(sentence)}</p>" for sentence in said)]
    return "\n".join(parts)


def costs(comparison: Comparison) -> str:
    table = contents.costs(comparison)
    if not table.rows:
        return "<p>No run has finished.</p>"
    ranks = f"<details><summary>Each phase over ranks</summary>{contents.phases(comparison).html()}</details>"
    return "\n".join([table.html(), pictures.phases(comparison) or "", ranks])


def time(comparison: Comparison, systems: Sequence[System]) -> str:
    """The pictures, and each line's time of a round in every system."""
    rows: list[Any] = []
    unknown = [line.label for line in comparison.lines if not all(told(run)[1] for run in line.runs)]
    for line in comparison.lines:
        figures = [line.figure(system.of) for system in systems]
        moved = contents.scaled(contents.mean(line, "bytes_per_rank"), 1e-6)
        sent = [over_runs(numbers) for numbers in zip(*(told(run)[0] for run in line.runs), strict=True)]
        means = [figure and figure.mean for figure in (*sent, *figures)]
        rows.append([line.label, participants(line.runs[0]), *means, moved])
    columns = [contents.METHOD, contents.Column("clients of a round", 0), contents.Column("streams", 0),
               contents.Column("uplinks of a client", 0),
               *(contents.Column(f"time of a round: {system}", 1) for system in systems),
               contents.Column("sent and received here, MB", 1)]  # fmt: skip
    parts = [
        "<p>T_round = T_dl (streams + rho uplinks N) + tmin + H_N / mu, with T_dl = 1 and N clients in a round; the "
        "table's are of the last round.</p>",
        drawn(comparison, pictures.against_time(comparison, systems), ""),
        Table("time", "Normalised time", columns, rows).html(),
    ]
    if unknown:
        parts.append(
            f"<p class=caption>One stream and one uplink are taken for {escape(', '.join(unknown))}: "
            f"the summaries do not tell them.</p>"
        )
    return "\n".join(parts)


def titled(table: Table) -> str:
    return f"<h3>{escape(table.title)}</h3>\n{table.html()}"


def marked(text: str) -> str:
    """A text in which `names` are code."""
    return "".join(escape(p) if i % 2 == 0 else f"<code>{escape(p)}</code>" for i, p in enumerate(text.split("`")))


def drawn(comparison: Comparison, picture: str | None, otherwise: str) -> str:
    """A picture of all lines under its legend."""
    if picture is None:
        return f"<p class=soft>{escape(otherwise)}</p>"
    return f"<div class=legend>{''.join(key(i, line) for i, line in enumerate(comparison.lines))}</div>\n{picture}"


def key(index: int, line: Line) -> str:
    """A line's name with a stroke as it is drawn."""
    style = pictures.style(index)
    spaces = () if style["linestyle"] == "solid" else style["linestyle"][1]
    dash = f' stroke-dasharray="{" ".join(f"{2 * space:g}" for space in spaces)}"' if spaces else ""
    stroke = f'<path d="M0 5H32" stroke="{style["color"]}" stroke-width="3"{dash}/>'
    return f'<span><svg viewBox="0 0 32 10" aria-hidden="true">{stroke}</svg>{escape(line.label)}</span>'
