"""The cells of an .xlsx file, read with the standard library alone: a zip of XML, of which a few tags matter.

Nothing in the file is trusted: no entities are expanded, and no part is larger than a spreadsheet has reason to be.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

MOST = 50_000_000  # bytes of one part, unpacked
RELATIONSHIP = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def read_sheet(path: Path, name: str) -> list[list[str]]:
    """The rows of the sheet `name` as text, empty cells as ''. Raises whatever is wrong with the file."""
    with ZipFile(path) as archive:
        book, links = (_tree(archive, part) for part in ("xl/workbook.xml", "xl/_rels/workbook.xml.rels"))
        sheets = {sheet.get("name"): sheet.get(RELATIONSHIP) for sheet in book.iterfind(".//{*}sheet")}
        if name not in sheets:
            raise ValueError(f"no sheet '{name}' among {sorted(map(str, sheets))}")
        target = next(str(link.get("Target")) for link in links if link.get("Id") == sheets[name])
        texts = []
        if "xl/sharedStrings.xml" in archive.namelist():
            texts = [_text(item) for item in _tree(archive, "xl/sharedStrings.xml").iterfind("{*}si")]
        sheet = _tree(archive, target[1:] if target.startswith("/") else f"xl/{target}")
        return [_row(row, texts) for row in sheet.iterfind(".//{*}row")]


def _row(row: ElementTree.Element, texts: list[str]) -> list[str]:
    cells: list[str] = []
    for cell in row.iterfind("{*}c"):
        place = _column(str(cell.get("r", ""))) or len(cells) + 1
        value = cell.findtext("{*}v", "")
        if cell.get("t") == "s":
            value = texts[int(value)]
        elif cell.get("t") == "inlineStr":
            value = _text(cell)
        cells += [""] * (place - 1 - len(cells)) + [value]
    return cells


def _column(reference: str) -> int:
    """'C7' is 3; 0 where there is no reference."""
    number = 0
    for letter in re.match("[A-Z]{0,3}", reference)[0]:  # type: ignore[index]
        number = 26 * number + ord(letter) - 64
    return number


def _text(item: ElementTree.Element) -> str:
    """A string's text, which may stand in several runs."""
    return "".join(run.text or "" for run in item.iterfind(".//{*}t"))


def _tree(archive: ZipFile, part: str) -> ElementTree.Element:
    if archive.getinfo(part).file_size > MOST:
        raise ValueError(f"{part} is larger than {MOST:,} bytes")
    content = archive.read(part)
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ValueError(f"{part} declares entities")
    return ElementTree.fromstring(content)
