"""Strands of other packages are methods by their entry points."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedbraid as fb
from fedbraid.contract import catalogue
from fedbraid.strands import installed
from fedbraid.strands.parser import parse

TEMPLATE = Path(__file__).parents[2] / "examples" / "strand-package"


def install(place, name, entries, **modules):
    """A package as pip leaves it: modules, and metadata with entry points."""
    place.mkdir(exist_ok=True)
    for module, text in modules.items():
        (place / f"{module}.py").write_text(text)
    info = place / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{installed.GROUP}]", *lines]) + "\n")
    return place


@pytest.fixture
def template(tmp_path, monkeypatch):
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    (module,) = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["tool"]["setuptools"]["py-modules"]
    source = (TEMPLATE / f"{module}.py").read_text()
    place = install(tmp_path / "site", project["name"], project["entry-points"][installed.GROUP], **{module: source})
    monkeypatch.syspath_prepend(place)
    yield place
    sys.modules.pop(module, None)


@pytest.mark.usefixtures("template")
def test_an_installed_strand_is_a_method():
    chain = parse("fedprox+initial(mu=0.1)")
    assert str(chain) == "prox+initial(mu=0.1)" and parse(str(chain)) == chain
    assert "initial" in installed.names()
    shown = catalogue.one("initial")
    assert shown["hyper-parameters"] == "initial(mu=0.01)" and "class Initial" in shown["source"][0]
    with pytest.raises(fb.UserError, match="did you mean 'initial'"):
        parse("initiall")


@pytest.mark.slow
def test_the_templates_own_test_passes(template):
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TEMPLATE)],
        env={"PYTHONPATH": f"{template}:{':'.join(sys.path)}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and run.stdout.startswith("..."), run.stdout + run.stderr


@pytest.mark.parametrize(
    ("entry", "text", "why"),
    [
        ("broken:Broken", "1 / 0", r"cannot be loaded \(ZeroDivisionError: division by zero\)"),
        ("broken:Broken", "", r"'mine' of some-package 1.0 cannot be loaded \(AttributeError"),
        ("broken:Broken", "Broken = 7", "is 7; it must be a subclass of Strand"),
        ("broken:Prox", "from fedbraid.strands import Prox", "brings its strand 'prox' as 'mine'"),
    ],
)
def test_a_package_that_brings_no_such_strand_is_named(entry, text, why, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(install(tmp_path / "site", "some-package", {"mine": entry}, broken=text))
    with pytest.raises(fb.UserError, match=why):
        parse("mine")
    sys.modules.pop("broken", None)


def test_two_packages_of_one_name_are_refused(tmp_path, monkeypatch):
    for name in ("one", "other"):
        monkeypatch.syspath_prepend(install(tmp_path / name, name, {"mine": f"{name}:Mine"}))
    with pytest.raises(fb.UserError, match=r"(one|other) 1.0 and (one|other) 1.0 both bring a method 'mine'"):
        parse("mine")


def test_fedbraids_own_names_stay_its_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(install(tmp_path / "site", "some-package", {"prox": "nowhere:Prox"}))
    assert type(parse("prox").strands[0]).__module__ == "fedbraid.strands.prox"
