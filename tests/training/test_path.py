"""The path of a run is the one that the docs describe."""

import re
import sys
from pathlib import Path

import pytest

import fedbraid as fb
from fedbraid.cli.app import main

ROOT = Path(fb.__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "path-of-a-run.md"
MOST = {"modules": 12, "frames": 26}


def listed():
    """The modules of the page, in its order."""
    return re.findall(r"^\| `(fedbraid/[\w/]+\.py)` \|", PAGE.read_text(), re.M)


@pytest.fixture
def entered(monkeypatch, tmp_path):
    """Modules in the order in which a run first calls a function of them, and the stack of its first gradient."""
    order, stack = {}, []

    def look(frame, event, argument):
        file = Path(frame.f_code.co_filename)
        if event != "call" or not file.is_relative_to(ROOT / "fedbraid"):
            return
        order.setdefault(str(file.relative_to(ROOT)), len(order))
        if not stack and file.name == "client_step.py" and frame.f_code.co_name == "step":
            while frame:
                at = Path(frame.f_code.co_filename)
                if at.is_relative_to(ROOT / "fedbraid"):
                    stack.insert(0, str(at.relative_to(ROOT)))
                frame = frame.f_back

    monkeypatch.chdir(tmp_path)
    words = [
        "run",
        "--engine",
        "stack",
        "--device",
        "cpu",
        "--set",
        "rounds=1",
        "--set",
        "partition.clients=3",
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", ["fedbraid", *words])
    monkeypatch.setattr("fedbraid.training.results.write_report", lambda *_: [])
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.setprofile(before)
    assert left.value.code in (0, None)
    return order, stack


def test_the_page_lists_the_modules_of_a_run_in_their_order(entered, capsys):
    order, stack = entered
    assert set(listed()) <= set(order), set(listed()) - set(order)
    path = list(dict.fromkeys(stack))
    assert set(path) - {"fedbraid/engines/codegen/trace.py", "fedbraid/core/returns.py"} <= set(listed())
    assert [module for module in listed() if module in path] == [module for module in path if module in listed()]


def test_the_way_to_the_first_gradient_is_short(entered, capsys):
    _, stack = entered
    assert len(set(stack)) <= MOST["modules"], stack
    assert len(stack) <= MOST["frames"], stack
