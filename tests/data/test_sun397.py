"""SUN397 from small files in the original layout, and the spreadsheet that holds its hierarchy."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpipfl.data import kept, sun397
from mpipfl.data.federated import Data, divide
from mpipfl.data.spreadsheet import read_sheet
from mpipfl.data.sun397 import Sun397, read_hierarchy
from mpipfl.errors import DataError

MEMBERS = {  # category -> indoor; outdoor, natural; outdoor, man-made
    "/a/attic": (1, 0, 0), "/b/bar": (1, 0, 0), "/p/podium/indoor": (1, 0, 0),
    "/b/badlands": (0, 1, 0), "/c/creek": (0, 1, 0), "/v/valley": (0, 1, 0),
    "/a/abbey": (0, 0, 1), "/a/alley": (0, 0, 1), "/p/podium/outdoor": (0, 0, 1),
    "/c/corral": (0, 1, 1), "/g/greenhouse/indoor": (1, 0, 1),  # in two: left out
}  # fmt: skip
HEAD = ["category", "indoor", "outdoor, natural", "outdoor, man-made", "shopping and dining"]
SMALL = Sun397(subclasses=2, images=4, side=8)


def write_xlsx(path: Path, rows: list[list], shared: bool = True, name: str = "SUN397", extra: str = "") -> None:
    """A spreadsheet as Excel writes it: two sheets, texts shared or in place, empty cells left out."""
    texts: list[str] = []

    def cell(row: int, column: int, value) -> str:
        place = f'r="{chr(65 + column)}{row}"'
        if not isinstance(value, str):
            return f"<c {place}><v>{value}</v></c>"
        if not shared:
            return f'<c {place} t="inlineStr"><is><t>{value}</t></is></c>'
        texts.append(value)
        return f'<c {place} t="s"><v>{len(texts) - 1}</v></c>'

    body = "".join(
        f'<row r="{r}">' + "".join(cell(r, c, value) for c, value in enumerate(row) if value is not None) + "</row>"
        for r, row in enumerate(rows, 1)
    )
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    parts = {
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets><sheet name="SUN908" sheetId="1" '
        f'r:id="rId1"/><sheet name="{name}" sheetId="2" r:id="rId7"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}"><Relationship Id="rId1" '
        'Target="worksheets/sheet1.xml"/><Relationship Id="rId7" Target="worksheets/sheet2.xml"/></Relationships>',
        "xl/worksheets/sheet2.xml": f'{extra}<worksheet xmlns="{main}"><sheetData>{body}</sheetData></worksheet>',
    }
    if shared:
        half = [(text[:3], text[3:]) for text in texts]  # in two runs
        items = "".join(f"<si><r><t>{one}</t></r><r><t>{two}</t></r></si>" for one, two in half)
        parts["xl/sharedStrings.xml"] = f'<sst xmlns="{main}">{items}</sst>'
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)


def hierarchy_rows() -> list[list]:
    titles = [None, "Level 1", None, None, "Level 2"]
    return [titles, HEAD, *([f"'{name}'", *marks, 0] for name, marks in MEMBERS.items()), ["'/z/zoo'", 0, 0, 1, 0]]


@pytest.fixture
def root(tmp_path):
    """Six photographs of each category: all its pixels, but for a border left and right, are of one colour."""
    folder = tmp_path / "SUN397"
    for number, name in enumerate(MEMBERS):
        (folder / name[1:]).mkdir(parents=True)
        for image in range(6):
            picture = np.full((32, 64, 3), 255, np.uint8)
            picture[:, 16:48] = colour(number, image)
            Image.fromarray(picture).save(folder / name[1:] / f"sun_{image}.jpg", quality=100, subsampling=0)
    (folder / "ClassName.txt").write_text("\n".join(MEMBERS) + "\n")
    write_xlsx(folder / sun397.HIERARCHY, hierarchy_rows())
    return tmp_path


def colour(number: int, image: int) -> tuple[int, int, int]:
    return 20 * number, 40 * image, 100


@pytest.mark.parametrize("shared", [True, False])
def test_spreadsheets(tmp_path, shared):
    rows = [["a", 1, None, "bcdef"], [None, None, 2.5], []]
    write_xlsx(tmp_path / "x.xlsx", rows, shared)
    assert read_sheet(tmp_path / "x.xlsx", "SUN397") == [["a", "1", "", "bcdef"], ["", "", "2.5"], []]
    with pytest.raises(ValueError, match=r"no sheet 'x' among \['SUN397', 'SUN908'\]"):
        read_sheet(tmp_path / "x.xlsx", "x")


def test_spreadsheets_are_not_trusted(tmp_path, monkeypatch):
    write_xlsx(tmp_path / "x.xlsx", [["a"]], extra='<!DOCTYPE x [<!ENTITY a "b">]>')
    with pytest.raises(ValueError, match="declares entities"):
        read_sheet(tmp_path / "x.xlsx", "SUN397")
    monkeypatch.setattr("mpipfl.data.spreadsheet.MOST", 10)
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        read_sheet(tmp_path / "x.xlsx", "SUN397")


def test_hierarchy(root):
    """Categories with one superclass that ClassName.txt knows."""
    assert read_hierarchy(root / "SUN397") == [
        ["a/attic", "b/bar", "p/podium/indoor"],
        ["b/badlands", "c/creek", "v/valley"],
        ["a/abbey", "a/alley", "p/podium/outdoor"],
    ]


def check(samples) -> None:
    """Every image has the colour of one category, which is of the superclass that its label says."""
    assert (len(samples), samples.classes, samples.shape, samples.dtype) == (24, 3, (3, 8, 8), np.uint8)
    assert samples.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert samples.subclasses.tolist() == np.repeat(np.arange(6), 4).tolist()
    x = samples.read(np.arange(24), 0).astype(float)
    assert x.std((2, 3)).max() < 3  # the border is cropped
    numbers = np.rint(x[:, 0].mean((1, 2)) / 20).astype(int)
    seen = np.rint(x[:, 1].mean((1, 2)) / 40).astype(int)
    for subclass in range(6):
        mine = samples.subclasses == subclass
        assert len(set(numbers[mine])) == 1 and len(set(seen[mine])) == 4
        marks = list(MEMBERS.values())[numbers[mine][0]]
        assert sum(marks) == 1 and marks.index(1) == samples.labels[mine][0]
    assert len(set(numbers)) == 6


def test_images(root, monkeypatch):
    samples = SMALL.open(root, 0, 2)
    check(samples)
    assert len(list((root / "SUN397").glob("mpipfl_8_*.npy"))) == 1

    def never(*arguments):
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(sun397, "decoded", never)
        again = SMALL.open(root, 0, 2)
    np.testing.assert_array_equal(again.read(np.arange(24), 0), samples.read(np.arange(24), 0))
    other = SMALL.open(root, 1, 2)
    check(other)
    assert (other.read(np.arange(24), 0) != samples.read(np.arange(24), 0)).any()


def test_a_folder_that_cannot_be_written_to(root, monkeypatch):
    def refuse(*arguments):
        raise PermissionError("read-only")

    monkeypatch.setattr(kept, "whole", refuse)
    check(SMALL.open(root, 0, 2))
    assert not list((root / "SUN397").glob("*.npy"))


def test_each_client_has_one_subclass_of_each_superclass(root):
    values = {"source": SMALL.model_dump(), "root": root, "clients": 2, "partition": "superclasses"}
    data = Data.model_validate(values | {"split": {"validation": 0, "test": 0.2}})
    samples = data.open(0)
    made = divide(data, samples, 0)
    assert made.n_train.tolist() == [10, 10] and made.n_test.tolist() == [2, 2]  # 80/20 of three times four
    for client in range(2):
        mine = made.index[slice(*made.bounds[client, [0, 3]])]
        assert len(np.unique(samples.subclasses[mine])) == 3
        assert np.bincount(samples.labels[mine]).tolist() == [4, 4, 4]


DAMAGE = {
    "no names": (lambda f: (f / "ClassName.txt").unlink(), r"no .*ClassName.txt. Fetch http.*SUN397.tar.gz"),
    "no hierarchy": (lambda f: (f / sun397.HIERARCHY).unlink(), r"no .*three_levels.xlsx. Fetch .*levels.zip"),
    "garbage": (lambda f: (f / sun397.HIERARCHY).write_bytes(b"x"), "cannot be read .*unpack the originals again"),
    "no sheet": (lambda f: write_xlsx(f / sun397.HIERARCHY, [], name="other"), "no sheet 'SUN397'"),
    "no head": (lambda f: write_xlsx(f / sun397.HIERARCHY, [["x"]]), "no row of column names"),
    "columns": (lambda f: write_xlsx(f / sun397.HIERARCHY, [HEAD[:3]]), "'outdoor, man-made' is not in list"),
    "no images": (lambda f: [p.unlink() for p in f.glob("v/valley/*5.jpg")], r"valley has 5 images .* 6 were asked"),
    "image": (lambda f: (f / "b/bar/sun_3.jpg").write_bytes(b"x"), "bar/sun_3.jpg cannot be read as a JPEG image"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_missing_or_damaged_is_named(root, name):
    damage, message = DAMAGE[name]
    damage(root / "SUN397")
    with pytest.raises(DataError, match=message):
        Sun397(subclasses=3, images=6, side=8).open(root, 0, 2)


def test_too_much_asked_for(root):
    with pytest.raises(DataError, match=r"'indoor' has 3 categories of its own, 4 were asked for; lower data\.source"):
        Sun397(subclasses=4, images=6).open(root, 0, 2)


def test_a_damaged_file_of_small_images_is_named(root):
    SMALL.open(root, 0, 2)
    (file,) = (root / "SUN397").glob("*.npy")
    np.save(file, np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match="holds other samples than it should; delete it"):
        SMALL.open(root, 0, 2)
    file.write_bytes(b"x")
    with pytest.raises(DataError, match=r"npy cannot be read"):
        SMALL.open(root, 0, 2)
