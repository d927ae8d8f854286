"""The fidelity index: the page is that of its source, and what it names is there."""

import ast
import importlib.util
from pathlib import Path

import pytest

from fedbraid.strands import STRANDS

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("fidelity", ROOT / "docs" / "site" / "fidelity.py")
fidelity = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fidelity)
POINTS = [(method, point) for method in fidelity.methods() for point in method["point"]]


def test_the_page_is_up_to_date():
    assert fidelity.PAGE.read_text(encoding="utf-8") == fidelity.page(fidelity.methods())


@pytest.mark.parametrize("file", sorted({point["test"].partition("::")[0] for _, point in POINTS}))
def test_tests_that_are_named_are_there(file):
    names = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    named = {point["test"].partition("::")[2] for _, point in POINTS if point["test"].startswith(file)}
    assert named <= names


def test_strands_that_are_named_are_there():
    assert {method["strand"] for method, _ in POINTS} <= {strand.name for strand in STRANDS}


def test_every_point_says_where_two_of_three_differ():
    for _, point in POINTS:
        assert set(point) == {"what", "paper", "released", "ours", "test"}
        assert len({point["paper"], point["released"], point["ours"]}) > 1
