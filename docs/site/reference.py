"""Write the reference pages from the code, each time the site is built.

MkDocs calls `on_files`, which adds the pages that no file holds: the Python API, every configuration key and every
command. They cannot differ from the code that way. `on_page_markdown` handles links that lead out of the documentation.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

API = {
    "Train and compare": ("run", "compare", "load", "Run", "Comparison", "Failure", "STOP"),
    "Follow and stop runs": ("Callback", "RunState", "EarlyStopping"),
    "Write a method": ("Strand", "chain", "Chain", "check_strand", "PerClient", "Release"),
    "What hooks see": ("Batch", "Client", "Round", "Cohort", "Setup", "Outputs"),
    "Data": ("Dataset", "Split", "Partition"),
    "A trained model": ("trained", "Trained", "Predictions"),
    "Configuration and errors": ("Config", "UserError"),
}
"""Public names by what they are for. Those that are not listed come last."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"api": api(), "configuration-keys": configuration(), "commands": commands()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for picture in ("results/overview.png",):
        files.append(File.generated(config, picture, content=(ROOT / picture).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside the documentation into their paths: the site has no such pages."""
    depth = page.file.src_uri.count("/")
    out = "../" * (depth + 1)
    markdown = re.sub(rf"\]\({re.escape(out)}(results/[\w-]+\.png)\)", rf"]({'../' * depth}\1)", markdown)
    return re.sub(rf"\[([^\]]+)\]\({re.escape(out)}([^)#]+)(#[^)]*)?\)", _path, markdown)


def _path(link: re.Match[str]) -> str:
    text, path = link[1].strip("`"), link[2]
    return f"`{path}`" if path.endswith(text) else f"{link[1]} (`{path}`)"


# --- the Python API


def api() -> str:
    """Return the page of all public names, which mkdocstrings fills with their docstrings."""
    import fedbraid

    listed = {name for names in API.values() for name in names}
    others = tuple(name for name in fedbraid.__all__ if name not in listed and not name.startswith("_"))
    parts = ["# Python API", "`import fedbraid as fb`; every name below is `fb.NAME`.", _values(fedbraid)]
    for title, names in (API | ({"More": others} if others else {})).items():
        parts.append(f"## {title}")
        for name in names:
            value = getattr(fedbraid, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                parts.append(f"::: {value.__module__}.{value.__qualname__}\n    options:\n      heading_level: 3")
    return "\n\n".join(part for part in parts if part)


def _values(package: Any) -> str:
    names = [n for n in package.__all__ if not n.startswith("_") and not callable(getattr(package, n))]
    return "".join(f"- `{name}`: a constant, see the functions below.\n" for name in names)


# --- the configuration


def configuration() -> str:
    """Return the page of every key, with its type, default and meaning, from the dataclasses."""
    from fedbraid.config.schema import Config
    from fedbraid.core.optimizer import OPTIMIZERS

    parts = [
        "# Configuration keys",
        "Every key of a run's configuration: in a TOML file, as `--set key=value`, and as a keyword argument of "
        "`fb.run` (tables as dictionaries). [Configuration](../configuration.md) explains them with examples. "
        "`fedbraid data list` and `fedbraid models` have the options of data sets, partitions and networks, "
        "[methods](../methods.md) the hyper-parameters of strands.",
        "## Run",
        _table(Config, "", [f.name for f in fields(Config) if not is_dataclass(_default(f))]),
    ]
    for f in fields(Config):
        owner = _default(f)
        if is_dataclass(owner):
            parts += [f"## `[{f.name}]`", _first(type(owner)), _table(type(owner), f"{f.name}.")]
    for name, owner in OPTIMIZERS.items():
        parts += [f'## `[optimizer]` with `name = "{name}"`', _first(owner), _table(owner, "optimizer.")]
    return "\n\n".join(part for part in parts if part)


def _first(owner: type) -> str:
    """Return the first paragraph of a class's own docstring."""
    text = inspect.cleandoc(owner.__dict__.get("__doc__") or "")
    return "" if text.startswith(f"{owner.__name__}(") else text.partition("\n\n")[0]


def _default(f: Any) -> Any:
    return f.default if f.default is not MISSING else f.default_factory()


def _table(owner: type, prefix: str, only: list[str] | None = None) -> str:
    hints, notes = get_type_hints(owner), dict(field_notes(owner))
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for f in fields(owner):
        if f.name == "options":
            rows.append(f"| `{prefix}…` | | | the options of what `{prefix}name` names |")
        elif only is None or f.name in only:
            cells = (f"`{prefix}{f.name}`", _type(hints[f.name]), f"`{_shown(_default(f))}`", _note(f, notes))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _type(hint: Any) -> str:
    choices = get_args(hint)
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(f"`{choice}`" for choice in choices)
    return {"tuple[str, ...]": "list of str", "tuple[int, ...]": "list of int"}.get(str(hint), _name(hint))


def _name(hint: Any) -> str:
    return "table" if str(hint).startswith("dict") else getattr(hint, "__name__", str(hint))


def _shown(value: Any) -> str:
    """Return a default as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else f'"{value}"' if isinstance(value, str) else str(value)


def _note(f: Any, notes: dict[str, str]) -> str:
    """Return what a field's comment says, its range, and the settings beside which it has an effect."""
    bounds = [f"{word} {bound:g}" for word, bound in f.metadata.get("bounds", {}).items()]
    beside = " or ".join(f"`{other}`" for other in f.metadata.get("beside", ()))
    said = [notes.get(f.name, ""), " and ".join(bounds), f"has an effect only beside {beside}" if beside else ""]
    return "; ".join(part for part in said if part)


def field_notes(owner: type) -> Iterator[tuple[str, str]]:
    """Yield each field's name and comment: the one on its line, or the lines of comments above it."""
    for cls in reversed(owner.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(cls))
        lines = source.splitlines()
        for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                comment = _comment(lines, node)
                if comment:
                    yield node.target.id, comment


def _comment(lines: list[str], node: ast.AnnAssign) -> str:
    assert node.end_lineno is not None
    beside = re.search(r"  # (.*)$", lines[node.end_lineno - 1])
    if beside:
        return beside[1]
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("# "):
            break
        above.insert(0, line.strip()[2:])
    return " ".join(above)


# --- the commands


def commands() -> str:
    """Return the page of every command with its arguments and options."""
    import typer

    from fedbraid.cli.app import app

    parts = ["# Commands", "`fedbraid COMMAND --help` shows the same in a terminal."]
    for path, command in walk(typer.main.get_command(app), ("fedbraid",)):
        parts += [f"## `{' '.join(path)}`", _help(command.help), _options(command.params)]
    return "\n\n".join(part for part in parts if part)


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below this one that does something by itself."""
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
    for name, child in sorted((children or {}).items()):
        yield from walk(child, (*path, name))


def _help(text: str | None) -> str:
    return re.sub(r"\[/?bold\]", "", inspect.cleandoc(text or ""))


def _options(params: list[Any]) -> str:
    rows = ["| | | default |", "|---|---|---|"]
    for p in params:
        if p.name == "help" or getattr(p, "hidden", False):
            continue
        argument = p.param_type_name == "argument"
        names = f"`{p.metavar or p.name.upper()}`" if argument else ", ".join(f"`{name}`" for name in p.opts)
        if not argument and p.metavar:
            names += f" `{p.metavar}`"
        default = _default_of(p)
        cells = (names, _help(getattr(p, "help", "")), default)
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _default_of(p: Any) -> str:
    shown = getattr(p, "show_default", None)
    if isinstance(shown, str):
        return shown
    plain = isinstance(p.default, str | int | float) and not isinstance(p.default, bool)
    return f"`{p.default}`" if plain else ""
