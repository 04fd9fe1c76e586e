"""Reads the report's pages: whether they are well-formed, stand alone, and say numbers only."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that what is opened is closed, and keeps addresses and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("href", "src", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.texts.append(data)


def checked(html: str) -> Reader:
    """A page that is well-formed, loads nothing, and has no NaN among its texts and its numbers."""
    reader = Reader(html)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in reader.addresses)
    assert "http" not in html and "@import" not in html and "<link" not in html
    assert not re.search(r"\b(nan|NaN|inf)\b", re.sub(r"base64,[^\"]*|<script>.*</script>", "", html, flags=re.S))
    return reader
