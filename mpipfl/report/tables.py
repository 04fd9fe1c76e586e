"""One table, five ways to write it: on a terminal, in HTML, as Markdown, as CSV and as LaTeX.

A cell is a text, a number, a figure with its standard error, or None, which is written "none".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, NamedTuple

from rich.table import Table as RichTable
from rich.text import Text

from .compare import Figure


class Settings(NamedTuple):
    """Names and values; where a table can, the values are bold."""

    values: dict[str, str]

    def __str__(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.values.items()) or "–"

    def html(self) -> str:
        return ", ".join(f"{escape(name)} = <b>{escape(value)}</b>" for name, value in self.values.items()) or "–"


Cell = str | int | float | Figure | Settings | None
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
LATEX |= {"²": r"\textsuperscript{2}", "σ": r"$\sigma$", "|": r"\textbar{}"}


@dataclass(frozen=True)
class Column:
    """A column: what it is called, digits of its numbers (None for text), and which number is the best."""

    head: str
    digits: int | None = None
    best: Literal["high", "low"] | None = None
    scale: float = 1.0  # 100 for per cent


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns. Rows of one league compete for the best in a column."""

    name: str  # of its files
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    leagues: Sequence[str] = field(default=())

    def texts(self) -> list[list[str]]:
        """Every cell as it is shown."""
        return [[text(cell, column) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def best(self) -> set[tuple[int, int]]:
        """The cells (row, column) that show the best of their league; a league of one has none."""
        found = set()
        leagues = self.leagues or [""] * len(self.rows)
        for j, column in enumerate(self.columns):
            for league in set(leagues) if column.best else ():
                rows = [i for i, row in enumerate(self.rows) if leagues[i] == league and number(row[j]) is not None]
                shown = {i: round(column.scale * (number(self.rows[i][j]) or 0.0), column.digits or 0) for i in rows}
                top = max(shown.values(), default=0.0) if column.best == "high" else min(shown.values(), default=0.0)
                found |= {(i, j) for i in rows if len(rows) > 1 and shown[i] == top}
        return found

    def rich(self) -> RichTable:
        """For a terminal."""
        result = RichTable(title=self.title, caption=self.caption or None)
        for column in self.columns:
            result.add_column(column.head, justify="left" if column.digits is None else "right")
        best = self.best()
        for i, row in enumerate(self.texts()):
            result.add_row(*(Text(cell, "bold" if (i, j) in best else "") for j, cell in enumerate(row)))
        return result

    def html(self) -> str:
        """A table whose heads sort it; `data-v` is what is sorted by."""
        best = self.best()
        heads = "".join(
            f'<th scope="col"{"" if c.digits is None else " class=n"} tabindex="0">{escape(c.head)}</th>'
            for c in self.columns
        )
        body = []
        for i, (row, texts) in enumerate(zip(self.rows, self.texts(), strict=True)):
            cells = []
            for j, (cell, shown) in enumerate(zip(row, texts, strict=True)):
                value = number(cell)
                key = f' data-v="{value:.12g}"' if value is not None else ""
                kind = "" if self.columns[j].digits is None else " class=n"
                inner = cell.html() if isinstance(cell, Settings) else escape(shown)
                inner = f"<b>{inner}</b>" if (i, j) in best else inner
                cells.append(f"<td{kind}{key}>{inner}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        caption = f"<p class=caption>{escape(self.caption)}</p>" if self.caption else ""
        rows = "\n".join(body)
        return (
            f"<div class=scroll><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>{caption}"
        )

    def markdown(self) -> str:
        best = self.best()
        lines = [[column.head for column in self.columns]]
        lines.append(["---" if column.digits is None else "---:" for column in self.columns])
        for i, row in enumerate(self.texts()):
            lines.append([f"**{cell}**" if (i, j) in best else cell for j, cell in enumerate(row)])
        escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"

    def csv(self) -> str:
        """Plain numbers as they are shown; where there are standard errors they have a column of their own."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        wide = [any(isinstance(row[j], Figure) and row[j].error is not None for row in self.rows)  # type: ignore[union-attr]
                for j in range(len(self.columns))]  # fmt: skip
        heads = [[c.head, f"{c.head} error"] if two else [c.head] for c, two in zip(self.columns, wide, strict=True)]
        writer.writerow([head for pair in heads for head in pair])
        for row in self.rows:
            cells: list[str] = []
            for cell, column, two in zip(row, self.columns, wide, strict=True):
                value, error = (cell.mean, cell.error) if isinstance(cell, Figure) else (cell, None)
                cells += [text(value, column), *([text(error, column) if error is not None else ""] if two else [])]
            writer.writerow(cells)
        return out.getvalue()

    def latex(self) -> str:
        """A tabular in the style of booktabs."""
        best = self.best()
        places = "".join("l" if column.digits is None else "r" for column in self.columns)
        lines = [" & ".join(latex(column.head) for column in self.columns) + r" \\", r"\midrule"]
        for i, row in enumerate(self.texts()):
            cells = [rf"\textbf{{{latex(c)}}}" if (i, j) in best else latex(c) for j, c in enumerate(row)]
            lines.append(" & ".join(cells) + r" \\")
        inner = "\n".join(lines)
        return f"\\begin{{tabular}}{{{places}}}\n\\toprule\n{inner}\n\\bottomrule\n\\end{{tabular}}\n"


def number(cell: Cell) -> float | None:
    if isinstance(cell, Figure):
        return cell.mean
    return None if cell is None or isinstance(cell, str | Settings) or cell != cell else float(cell)


def text(cell: Cell, column: Column) -> str:
    value = number(cell)
    if value is None:
        return "none" if cell is None or isinstance(cell, int | float | Figure) else str(cell)
    shown = fixed(column.scale * value, column.digits or 0)
    error = cell.error if isinstance(cell, Figure) else None
    return shown if error is None else f"{shown} ± {fixed(column.scale * error, column.digits or 0)}"


def fixed(value: float, digits: int) -> str:
    """So many digits after the point, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def latex(plain: str) -> str:
    return "".join(LATEX.get(character, character) for character in plain)
