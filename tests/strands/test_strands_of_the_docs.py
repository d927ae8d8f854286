"""The examples of docs/strands.md are the methods that they are called."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from quadratic import World, clients

import fedbraid as fb
from fedbraid.core.chain import Chain
from fedbraid.core.options import default

PAGE = (Path(__file__).parents[2] / "docs" / "strands.md").read_text()
SECTION = PAGE.split("## Three examples")[1].split("## The hooks")[0]
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", SECTION, re.M)]
KNOWN = {"torch": torch, "PerClient": fb.PerClient, "Strand": fb.Strand, "Constraints": fb.Constraints}


def made(name, text, **fields):
    """A strand whose hooks are written as in the page."""
    body = {"__annotations__": dict.fromkeys(fields, "int"), "__module__": __name__, **fields, "name": name}
    exec(text, KNOWN, body)
    return dataclass(frozen=True)(type(name.title(), (fb.Strand,), body))


def test_fedprox():
    whole = dict(KNOWN, dataclass=dataclass, default=default)
    exec(BLOCKS[0], whole)
    ends = [
        World(Chain((whole["Prox"](0.3),)), clients(3, 2)).rounds(3)[-1],
        World("prox(mu=0.3)", clients(3, 2)).rounds(3)[-1],
    ]
    assert np.array_equal(*ends)


@pytest.mark.parametrize("cohorts", [[(0, 1, 2, 3)] * 6, [(0, 1, 2), (3, 1, 0), (2, 0, 3), (1, 2, 3)]])
def test_scaffold(cohorts):
    worlds = World(Chain((made("scaffold", BLOCKS[1])(),)), clients(4, 3)), World("scaffold", clients(4, 3))
    for cohort in cohorts:
        for world in worlds:
            world.round(cohort)
    assert np.abs(worlds[0].deployed - worlds[1].deployed).max() < 1e-14
    assert not np.allclose(worlds[0].deployed, World("fedavg", clients(4, 3)).rounds(len(cohorts))[-1], atol=1e-6)


def test_fedskip():
    written = made("skip", BLOCKS[2] + "\n" + BLOCKS[3], every=3)
    worlds = World(Chain((written(),)), clients(4, 3)), World("skip(final_aggregate=false)", clients(4, 3))
    for done in range(1, 7):
        ends = [world.round().deployed for world in worlds]
        assert np.abs(ends[0] - ends[1]).max() < 1e-14
        assert done >= 3 or not ends[0].any()
