"""What is installed: its metadata, its dependencies, and a wheel in an environment that has nothing else."""

import ast
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fedbraid.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

IMPORTED_AS = {
    "flwr-datasets": "flwr_datasets",
    "pillow": "PIL",
    "protobuf": "google",
    "scikit-learn": "sklearn",
    "tomli-w": "tomli_w",
}
"""Distributions whose module has another name."""
TORCH_BRINGS = {"triton"}
"""Modules that come with torch on some machines only. Their imports are guarded."""


def modules(requirements):
    names = (re.split(r"[\[<>=~! ;]", requirement)[0] for requirement in requirements)
    return {IMPORTED_AS.get(name, name) for name in names}


def imported(file):
    """The top-level names of all imports of a module, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def test_every_imported_package_is_declared():
    """A package that only comes along with another one may be missing with that one's next version."""
    extras = PROJECT["optional-dependencies"]
    declared = modules(PROJECT["dependencies"])
    declared |= {name for extra in extras.keys() - {"dev", "docs"} for name in modules(extras[extra])}
    used = {(name, file.name) for file in (ROOT / "fedbraid").rglob("*.py") for name in imported(file)}
    allowed = declared | TORCH_BRINGS | sys.stdlib_module_names | {"fedbraid"}
    assert not {(name, file) for name, file in used if name not in allowed}


def test_every_dependency_is_used():
    used = {name for file in (ROOT / "fedbraid").rglob("*.py") for name in imported(file)}
    assert modules(PROJECT["dependencies"]) <= used


def test_every_dependency_has_a_lower_bound_and_a_reason():
    reasons = (ROOT / "docs" / "dependencies.md").read_text().lower()
    for requirement in PROJECT["dependencies"]:
        (name,) = re.fullmatch(r"([\w-]+)>=[\d.]+", requirement).groups()
        assert f"| {name}" in reasons or f", {name} |" in reasons, name


def test_the_citation_has_the_version_and_the_licence():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def run(*words, cwd):
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, built from the tracked files."""
    for tool in ("build", "twine"):
        if not find_spec(tool):
            pytest.skip(f"needs {tool}")
    place = tmp_path_factory.mktemp("built")
    tree = place / "tree"
    for name in run("git", "ls-files", cwd=ROOT).splitlines():
        if not name.startswith("results/"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", tree, cwd=place)
    return place / "dist"


@pytest.mark.slow
def test_wheel_and_sdist_pass_twine(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "fedbraid/py.typed" in names
    assert any(re.fullmatch(r"fedbraid/studies/recipes/.+\.toml", name) for name in names)
    assert all(name.startswith(("fedbraid/", "fedbraid-")) for name in names)


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(built, tmp_path):
    """Without constraints: only torch has the version of this environment, or gigabytes would come along."""
    venv.create(tmp_path / "empty", with_pip=True)
    bin = tmp_path / "empty" / "bin"
    pinned = subprocess.run([bin / "pip", "install", "-q", f"torch=={torch.__version__}"], capture_output=True)
    if pinned.returncode:
        pytest.skip(f"torch {torch.__version__} cannot be downloaded here")
    (wheel,) = built.glob("*.whl")
    run(bin / "pip", "install", "-q", wheel, cwd=tmp_path)
    assert f"fedbraid {__version__} " in run(bin / "fedbraid", "--version", cwd=tmp_path)
    run(bin / "fedbraid", "run", "--set", "rounds=2", "--out", "run", cwd=tmp_path)
    for words in (["--help"], ["methods"], ["models"], ["data", "list"], ["study", "list"], ["check", "fedprox"]):
        assert run(bin / "fedbraid", *words, cwd=tmp_path)
    run(bin / "fedbraid", "compare", "fedavg", "fedprox", "--set", "rounds=2", "--out", "compared", cwd=tmp_path)
    run(bin / "fedbraid", "analyze", "run", "--what", "drift", cwd=tmp_path)
    refused = subprocess.run([bin / "fedbraid", "serve"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "pip install 'fedbraid[flower]'" in refused.stderr
