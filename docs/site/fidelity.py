"""Write docs/fidelity.md: what papers say, what released code does and what FedBraid does, from fidelity.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("fidelity.toml")
PAGE = Path(__file__).parents[1] / "fidelity.md"

HEAD = """# Papers, released code, FedBraid

Where a paper, its authors' released code and FedBraid differ, this page says in what, and names the test that shows
what FedBraid does. Points on which all three agree are left out. Code was read at the named commits; a dash means that
it has nothing on the point, or that none is public. Authors got their numbers from their code, and most of these points
are too small for a paper: none of this says that a result is wrong. Corrections are welcome.

The tests compare rounds of the engines with references in float64 that are written from the definitions, one client
after the other. `python docs/site/fidelity.py` writes this page from `docs/site/fidelity.toml`.
"""


def page(methods: list[dict[str, Any]]) -> str:
    """Return the page as Markdown: a section for each method, a table row for each point."""
    parts = [HEAD]
    for method in methods:
        parts.append(
            f"## {method['name']}\n\nStrand `{method['strand']}`. {method['paper']}. Code: {method['code']}.\n"
        )
        rows = ["| | paper | released code | FedBraid | test |", "|---|---|---|---|---|"]
        for point in method["point"]:
            file, _, name = point["test"].partition("::")
            where = f"`{name}` in `{file}`"
            cells = (point["what"], point["paper"], point["released"], point["ours"], where)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def methods() -> list[dict[str, Any]]:
    """Return the methods of fidelity.toml in their order."""
    found: list[dict[str, Any]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["method"]
    return found


if __name__ == "__main__":
    PAGE.write_text(page(methods()), encoding="utf-8")
