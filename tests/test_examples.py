"""Every example runs as it stands, and notebooks have the outputs of a run without errors."""

import json
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from forks import python

import fedbraid as fb

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
QUICK = {"01_first_run", "10_scenario"}
LARGEST = 150_000
"""Bytes of a notebook. Outputs are kept in the repository for ever."""


def names(files):
    return [file.stem for file in files]


def test_there_are_twelve_scripts_and_three_notebooks():
    assert len(SCRIPTS) == 12
    assert len(NOTEBOOKS) == 3
    listed = re.findall(r"\]\((\S+)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(str(file.relative_to(EXAMPLES)) for file in [*SCRIPTS, *NOTEBOOKS])


@pytest.mark.parametrize(
    "script",
    [pytest.param(s, id=s.stem, marks=() if s.stem in QUICK else pytest.mark.slow) for s in SCRIPTS],
)
def test_script_runs(script, tmp_path):
    if script.stem == "11_lora":
        pytest.importorskip("peft")
    code, output = python(tmp_path, script)
    assert code == 0, output
    assert output.strip()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=names(NOTEBOOKS))
def test_notebook_is_small_and_has_outputs_without_errors(notebook):
    assert notebook.stat().st_size < LARGEST
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=names(NOTEBOOKS))
def test_notebook_runs(notebook, tmp_path):
    if not (find_spec("nbclient") and find_spec("ipykernel")):
        pytest.skip("needs nbclient and ipykernel")
    run = (
        "import sys, nbformat; from nbclient import NotebookClient; "
        "NotebookClient(nbformat.read(sys.argv[1], 4), timeout=600, kernel_name='python3').execute()"
    )
    done = subprocess.run([sys.executable, "-c", run, notebook], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_method_of_the_example_is_the_built_in_one():
    """Two independent implementations of FedExP move the model alike."""
    own = runpy.run_path(str(EXAMPLES / "06_own_method.py"))["Extrapolate"]
    settings = {"rounds": 3, "partition": {"beta": 0.1}, "optimizer": {"lr": 0.01}}
    models = [fb.run(method, **settings).model.state_dict() for method in (own(), "exp+uniform")]
    for name, parameter in models[0].items():
        torch.testing.assert_close(parameter, models[1][name])
