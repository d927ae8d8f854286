"""Every command and snippet in the README and the docs runs as it stands."""

import inspect
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from forks import python

from fedbraid.cli.app import main
from fedbraid.contract import catalogue
from fedbraid.core.batch import Batch
from fedbraid.core.strand import HOOKS, Client, Strand

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language):
    return [
        pytest.param(
            block, id=f"{page.name}-{number}", marks=pytest.mark.slow if page.parent.name == "tutorials" else ()
        )
        for page in PAGES
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S))
    ]


@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_snippet_runs(snippet, tmp_path):
    file = tmp_path / "snippet.py"
    file.write_text(snippet)
    code, said = python(tmp_path, file)
    assert code == 0, said


def fedbraid(words, monkeypatch, capsys):
    """The command as typed, in this process: importing torch for each would take most of the time."""
    monkeypatch.setattr(sys, "argv", ["fedbraid", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None), (words, capsys.readouterr().err)


def files():
    """Snippets that say what their file is called, `# net.py`, for the commands that name it."""
    whole = "".join(page.read_text() for page in PAGES)
    return {name: text for text, name in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", whole, re.S)}


@pytest.mark.parametrize("commands", blocks("sh"))
def test_commands_run(commands, request, tmp_path, monkeypatch, capsys):
    if not request.node.callspec.id.startswith("README"):  # whose pictures are enough
        request.getfixturevalue("not_rendered")
    monkeypatch.chdir(tmp_path)
    for name, text in files().items():
        Path(name).write_text(text)
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "fedbraid", line
            fedbraid(words[1:], monkeypatch, capsys)


@pytest.mark.usefixtures("not_rendered")
@pytest.mark.parametrize("text", blocks("toml"))
def test_configuration_runs(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(text)
    fedbraid(["run", "config.toml", "--out", "run"], monkeypatch, capsys)


def test_adding_a_method_takes_under_25_lines():
    snippet = next(
        b for b in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S) if "Strand" in b
    )
    assert len([line for line in snippet.splitlines() if line.strip()]) < 25


def test_the_list_of_methods_is_up_to_date():
    assert (ROOT / "docs" / "methods.md").read_text() == catalogue.page()


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_in_the_table_with_its_arguments(hook):
    table = (ROOT / "docs" / "strands.md").read_text()
    _, *arguments = inspect.signature(getattr(Strand, hook)).parameters
    assert f"`{hook}({', '.join(arguments)})`" in table


@pytest.mark.parametrize(("seen", "letter"), [(Batch, "batch"), (Client, "c")])
def test_all_that_client_hooks_see_is_in_the_tables(seen, letter):
    page = (ROOT / "docs" / "strands.md").read_text()
    assert not [f.name for f in fields(seen) if f"`{letter}.{f.name}" not in page]


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
