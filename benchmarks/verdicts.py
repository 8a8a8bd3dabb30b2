"""What the paper says that each table and figure shows, tested on the rows in docs/results/rows.

python -m benchmarks.verdicts        prints the table of docs/results/reproduced.md
"""

import csv
from pathlib import Path
from typing import Any

from selfadapt.recipes.claim import judge
from selfadapt.recipes.index import RECIPES
from selfadapt.recipes.paper_claims import PAPER_CLAIMS

ROWS = Path(__file__).parent.parent / "docs" / "results" / "rows"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a reproduction, with measured values as numbers."""
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {**row, "measured": float(row["measured"]) if row["measured"] else None} for row in csv.DictReader(file)
        ]


def table() -> str:
    lines = ["| name | claim of the paper | difference | cells | seeds | p | here |", "|---|---|---|---|---|---|---|"]
    for name in RECIPES:
        path = ROWS / f"{name}.csv"
        for claim in PAPER_CLAIMS.get(name, ()):
            found = judge(claim, read_rows(path) if path.exists() else [])
            difference = "" if found.difference is None else f"{found.difference:+.2f}"
            cells = f"{found.cells_above} of {found.cells}" if found.cells else ""
            p = "" if found.p is None else f"{found.p:.2g}"
            cells_of_row = [f"`{name}`", found.statement, difference, cells, str(found.seeds or ""), p, found.verdict]
            lines.append(f"| {' | '.join(cells_of_row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
