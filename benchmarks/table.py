"""A benchmark's results as Markdown: `python -m benchmarks.table benchmarks/results/FILE.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .common import markdown

if __name__ == "__main__":
    for path in sys.argv[1:]:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
        machine = result["machine"]
        print(f"{result['date'][:10]}, {machine['processor']}, {machine['cores']} cores", end=", ")
        print(", ".join(f"{name} {release}" for name, release in machine["versions"].items()))
        for title, rows in result["tables"].items():
            print(f"\n**{title}**\n\n{markdown(rows)}")
