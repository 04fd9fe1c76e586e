"""One table, written in every way."""

from __future__ import annotations

from mpipfl.report.compare import Figure
from mpipfl.report.tables import Column, Settings, Table

from .pages import Reader

NAN = float("nan")

TABLE = Table(
    "t", "A title", [Column("method"), Column("100 %", 1, "high", 100), Column("loss", 2, "low"), Column("own")],
    [["a_b", Figure(0.5, 0.0123), 1.0, Settings({"mu": "1"})],
     ["c|d", Figure(0.75), 1.004, None],
     ["<e>", None, NAN, "x & y"]],
    "a caption",
)  # fmt: skip


def test_markdown() -> None:
    assert TABLE.markdown() == (
        "| method | 100 % | loss | own |\n| --- | ---: | ---: | --- |\n| a_b | 50.0 ± 1.2 | **1.00** | mu = 1 |\n"
        "| c\\|d | **75.0** | **1.00** | none |\n| <e> | none | none | x & y |\n"
    )


def test_csv() -> None:
    assert TABLE.csv() == (
        "method,100 %,100 % error,loss,own\na_b,50.0,1.2,1.00,mu = 1\nc|d,75.0,,1.00,none\n<e>,none,,none,x & y\n"
    )


def test_latex() -> None:
    assert TABLE.latex() == (
        "\\begin{tabular}{lrrl}\n\\toprule\nmethod & 100 \\% & loss & own \\\\\n\\midrule\n"
        "a\\_b & 50.0 $\\pm$ 1.2 & \\textbf{1.00} & mu = 1 \\\\\n"
        "c\\textbar{}d & \\textbf{75.0} & \\textbf{1.00} & none \\\\\n<e> & none & none & x \\& y \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def test_html_table() -> None:
    html = TABLE.html()
    Reader(html)
    assert '<td class=n data-v="0.5">50.0 ± 1.2</td>' in html and "<td>mu = <b>1</b></td>" in html
    assert "&lt;e&gt;" in html and "x &amp; y" in html and "<td class=n>none</td>" in html


def test_a_league_of_one_has_no_best() -> None:
    two = Table("t", "", TABLE.columns, TABLE.rows[:2], "", ["a", "b"])
    assert two.best() == set() and len(TABLE.best()) == 3
