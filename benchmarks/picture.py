"""A figure as a file: a PNG, or one HTML page that stands alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from .common import Row, markdown

STYLE = "body{font:15px sans-serif;margin:2em;max-width:1100px}img{max-width:100%}"


def save(figure: Figure, into: Path, title: str, alt: str, body: str) -> None:
    """By the name's ending; the body is HTML beneath the figure."""
    if into.suffix == ".png":
        figure.savefig(into, dpi=150)
    else:
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=130)
        data = base64.b64encode(image.getvalue()).decode()
        into.write_text(
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
            f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
            f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">{body}</body></html>\n',
            encoding="utf-8",
        )
    print(f"written to {into}")


def texts(tables: Mapping[str, Sequence[Row]]) -> str:
    """Tables as HTML."""
    return "".join(f"<h3>{escape(name)}</h3><pre>{escape(markdown(rows))}</pre>" for name, rows in tables.items())
