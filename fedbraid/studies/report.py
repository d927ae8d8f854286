"""What is written of a study: its table for people and programs, its claims, its pictures."""

from __future__ import annotations

import json
from pathlib import Path

from fedbraid.storage.files import write_bytes
from fedbraid.studies.recipe import Recipe
from fedbraid.studies.reporting.account import account
from fedbraid.studies.reporting.latex import to_latex
from fedbraid.studies.reporting.markdown import to_markdown
from fedbraid.studies.reporting.page import page
from fedbraid.studies.reporting.pictures import pictures
from fedbraid.studies.reporting.tidy import to_json
from fedbraid.studies.table_results import Results


def write_report(recipe: Recipe, results: Results, out: Path, call: str = "") -> list[Path]:
    """Write the report into `out`; the paths of what was written. `call` is what `study run` is given for it."""
    told = account(recipe, results, call)
    drawn = pictures(recipe, results, told.entries)
    contents = {
        "table.md": to_markdown(told).encode(),
        "table.tex": to_latex(told, out.name).encode(),
        "results.json": (json.dumps(to_json(told), indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode(),
        **{f"{picture.name}.png": picture.light for picture in drawn},
        "report.html": page(told, drawn).encode(),
    }
    for name, content in contents.items():
        write_bytes(out / name, content)
    return [out / name for name in contents]
