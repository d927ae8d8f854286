"""The documentation site: what it lists, what is generated from the code, and that it needs no network."""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import fedbraid
from fedbraid.config.schema import Config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {"reference/api.md", "reference/configuration-keys.md", "reference/commands.md"}


def pages(nav):
    """The files that a navigation names."""
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages(value) if isinstance(value, list) else [value]


def test_the_navigation_has_every_page_once():
    listed = sorted(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert listed == sorted({str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | GENERATED)


@pytest.fixture(scope="module")
def reference():
    if not find_spec("mkdocs"):
        pytest.skip("needs mkdocs")
    spec = importlib.util.spec_from_file_location("reference", DOCS / "site" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys(owner, prefix=""):
    for f in fields(owner):
        value = getattr(owner, f.name)
        if is_dataclass(value):
            yield from keys(value, f"{prefix}{f.name}.")
        elif f.name != "options":
            yield f"{prefix}{f.name}"


def test_the_reference_has_every_configuration_key(reference):
    page = reference.configuration()
    assert not [key for key in keys(Config()) if f"| `{key}` |" not in page]
    for sample in ("optimizer.momentum", "optimizer.beta2"):
        assert f"| `{sample}` |" in page


def test_the_reference_says_what_keys_mean_and_their_ranges(reference):
    page = reference.configuration()
    (row,) = re.findall(r"\| `local.batch` .*", page)
    assert "0 = the whole local set" in row
    (row,) = re.findall(r"\| `sampling.rate` .*", page)
    assert "beside `scheme=bernoulli`" in row
    rows = re.findall(r"\| `optimizer.momentum` .*", page)
    assert any("at least 0 and below 1" in row for row in rows)


def test_every_configuration_key_is_explained(reference):
    """A comment beside the field, or above it, says what a key means."""
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| ([^|]*) \|$", reference.configuration(), re.M)
    assert len(rows) > 60
    assert not [
        key for key, note in rows if not note.strip() or note.startswith(("has an effect", "at least", "above"))
    ]


def test_the_reference_has_every_command_and_option(reference):
    import typer

    from fedbraid.cli.app import app

    page = reference.commands()
    commands = list(reference.walk(typer.main.get_command(app), ("fedbraid",)))
    assert len(commands) > 10
    for path, command in commands:
        section = page.split(f"## `{' '.join(path)}`\n")[1].split("\n## ")[0]
        for parameter in command.params:
            for name in parameter.opts if parameter.param_type_name == "option" else []:
                assert f"`{name}`" in section or name == "--help", (path, name)


def test_the_reference_has_every_public_name(reference):
    page = reference.api()
    for name in fedbraid.__all__:
        value = getattr(fedbraid, name)
        assert f".{getattr(value, '__qualname__', name)}\n" in page or f"`{name}`" in page or name.startswith("_"), name


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path):
    if not find_spec("mkdocs"):
        pytest.skip("needs mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"(https?:[^\"]+)", text)
        fetched += re.findall(r"<link[^>]* href=\"(https?:[^\"]+)", text)
        assert not fetched, (page, fetched)
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?https?:", style.read_text(encoding="utf-8")), style
    api = unescape(re.sub(r"<[^>]+>", "", (site / "reference" / "api.html").read_text(encoding="utf-8")))
    assert "Train one federation" in api or "fedprox+disco" in api
