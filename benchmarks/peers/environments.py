"""An environment for each peer, made once and kept, with the torch that FedBraid runs on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch


class CannotMake(Exception):
    """Why there is no environment, in one line."""


@dataclass(frozen=True)
class Recipe:
    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()  # installed without what they ask for
    proof: str = ""  # an import that must work
    shown: tuple[str, ...] = ()  # packages whose versions are reported


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("pfl", ("pfl==0.6.0",), proof="import pfl.model.pytorch", shown=("pfl",)),
        Recipe(
            "flower",
            ("flwr[simulation]==1.41.0",),
            proof="import ray, flwr.simulation",
            shown=("flwr", "ray"),
        ),
        # FedLab asks for torchvision, for data sets that are not used here, and torchvision for a torch of its own
        Recipe(
            "fedlab",
            ("scikit-learn", "pandas", "tqdm", "munch", "pynvml", "pillow"),
            alone=("fedlab==1.3.0",),
            proof="import fedlab",
            shown=("fedlab",),
        ),
    )
}


def make(recipe: Recipe, folder: Path) -> Path:
    """The interpreter of the recipe's environment; quick where it was made before."""
    home = folder / recipe.name
    python, made = home / "bin" / "python", home / "made"
    torch_alone = f"torch=={torch.__version__.split('+')[0]}"
    wanted = f"{torch_alone} {recipe.packages} {recipe.alone}"
    if not made.exists() or made.read_text() != wanted:
        home.mkdir(parents=True, exist_ok=True)
        constraints = home / "constraints.txt"
        constraints.write_text(torch_alone + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints)]
        _run([sys.executable, "-m", "venv", str(home)])
        _run([*pip, torch_alone, "numpy"])  # first, or others ask for a build with everything for every GPU
        _run([*pip, *recipe.packages])
        if recipe.alone:
            _run([*pip, "--no-deps", *recipe.alone])
        made.write_text(wanted)
    return python


def versions(python: Path, env: dict[str, str], recipe: Recipe | None) -> dict[str, str]:
    """Of torch and of what the recipe is about. Fails with the reason where it cannot be imported."""
    names = ("torch", *(recipe.shown if recipe else ()))
    show = f"from importlib.metadata import version; print(*map(version, {names!r}))"
    if recipe:
        _run([str(python), "-c", recipe.proof], env)
    return dict(zip(names, _run([str(python), "-c", show], env).split(), strict=True))


def _run(command: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        reason = (errors or lines or [f"exit status {done.returncode}"])[-1]
        raise CannotMake(f"{' '.join(command[1:4])} …: {reason}")
    return done.stdout
