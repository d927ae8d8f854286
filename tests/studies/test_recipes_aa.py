"""What could be wrong in the recipes of ASD and FedACD: numbers put into the wrong cell, runs that should be shared,
and the readings that settings rest on."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from helpers import federation, toy

from fedbraid.config.schema import Config
from fedbraid.data.partitions.dirichlet import dirichlet
from fedbraid.errors import UserError
from fedbraid.studies import cell_metrics, recipe_files
from fedbraid.studies.cells import Cell, cells
from fedbraid.studies.layer_sizes import layers
from fedbraid.studies.naming import pairs
from fedbraid.studies.recipe import Recipe
from fedbraid.studies.run_digest import digest

BOTH = [name for name in recipe_files.names() if name.startswith(("asd-", "fedacd-"))]
LAYERS = "asd-table5"
"""Lists layers: nothing is trained."""
NAMES = [name for name in BOTH if name != LAYERS]
IMAGES = {
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "tiny-imagenet": (100_000, 200),
    "imagenet100": (126_689, 100),
}
"""Training samples and classes."""


@cache
def recipe(name: str) -> Recipe:
    return recipe_files.load(recipe_files.HERE / f"{name}.toml")


def every_cell(*, small: bool = False) -> Iterator[tuple[Recipe, Cell, Config]]:
    for name in NAMES:
        for cell in cells(recipe(name), small=small).values():
            assert cell.config is not None
            yield recipe(name), cell, cell.config


@cache
def runs() -> dict[str, list[tuple[Recipe, Cell]]]:
    """The cells of each run, by its digest."""
    found: dict[str, list[tuple[Recipe, Cell]]] = defaultdict(list)
    for of, cell, config in every_cell():
        found[digest(config)].append((of, cell))
    return found


def where(of: Recipe, cell: Cell) -> str:
    return f"{of.name}: {cell.row} @ {cell.column}"


def number(of: Recipe, cell: Cell) -> float | None:
    found = of.numbers.get(cell.row, {}).get(cell.column)
    return found[0] if found else None


def test_there_is_a_recipe_for_every_table_and_figure() -> None:
    asd = (
        [f"asd-table{k}" for k in range(1, 15)] + [f"asd-figure{k}" for k in (1, 3, 7, 11, 12)] + ["asd-proposition34"]
    )
    assert sorted(BOTH) == sorted(asd + [f"fedacd-table{k}" for k in range(1, 10)])


def test_a_run_that_is_in_several_tables_has_one_number_in_the_paper() -> None:
    different = []
    for places in runs().values():
        told: dict[str, dict[float, str]] = defaultdict(dict)
        for of, cell in places:
            if (value := number(of, cell)) is not None:
                told[cell.metric][value] = where(of, cell)
        different += [sorted(some.values()) for some in told.values() if len(some) > 1]
    assert different == [
        ["fedacd-table1: FedNH @ CIFAR-100 β=0.05", "fedacd-table5: FedNH w/o Mixup @ CIFAR-100 β=0.05"]  # 39.01, 39.61
    ]


@pytest.mark.parametrize(
    ("one", "shared"),
    [
        (
            "asd-table2: FedAvg+ASD @ CIFAR-100 δ=0.3",
            {"asd-table1", "asd-table3", "asd-table11", "asd-table14", "asd-figure3", "asd-figure7", "asd-figure11"},
        ),
        ("asd-table2: FedNTD @ CIFAR-100 δ=0.3", {"asd-table3", "asd-table12"}),
        ("asd-table13: FedNTD+ASD @ δ=0.3", {"asd-figure1"}),
        ("fedacd-table1: FedACD @ CIFAR-100 β=0.1", {f"fedacd-table{k}" for k in (2, 3, 4, 5, 6, 7, 8, 9)}),
        ("fedacd-table1: FedLC @ Tiny-ImageNet β=0.05", {"fedacd-table2", "fedacd-table3", "fedacd-table5"}),
    ],
)
def test_tables_with_the_same_cell_share_its_runs(one: str, shared: set[str]) -> None:
    holders = next(places for places in runs().values() if one in [where(*place) for place in places])
    assert {of.name for of, _ in holders} == shared | {one.partition(":")[0]}


def test_only_what_cannot_be_read_has_no_number() -> None:
    lacking = Counter(of.name for of, cell, _ in every_cell() if number(of, cell) is None)
    figures = {name: lacking.pop(name) for name in list(lacking) if "figure" in name}
    assert lacking.pop("asd-proposition34") == 6  # a proof
    assert figures == {"asd-figure1": 12, "asd-figure7": 14, "asd-figure12": 2}  # the text has one number of them
    unread = {1: 22, 2: 36, 3: 13, 5: 6, 9: 12}
    assert lacking == {f"fedacd-table{k}": count for k, count in unread.items()}


AGAINST = {
    "FedSpeed+ASD outperforms all the other algorithms of figures 4 to 6": {
        ("FedSpeed+ASD", "CIFAR-100 δ=0.6"),
        ("FedSpeed+ASD", "Tiny-ImageNet δ=0.6"),
    },
    "The top eigenvalue decreases when ASD is used": {("FedNTD+ASD", "Top eigenvalue")},
    "FedROD and FedLC demonstrate an improvement over FedAvg on CIFAR-10": {("FedLC", "CIFAR-10 β=0.05")},
}
"""Cells in which the paper's own numbers speak against what it says of them."""


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_numbers_bear_out_its_claims(name: str) -> None:
    """A number in the wrong place would speak against one of them."""
    of = recipe(name)
    made = cells(of)
    rows, columns = [r.name for r in of.rows], [c.name for c in of.columns]
    for claim in of.claims:
        gains = {}
        for better, than in pairs(claim, rows, columns):
            first, second = number(of, made[better]), number(of, made[than])
            if first is not None and second is not None:
                higher = cell_metrics.parse(made[better].metric).higher_is_better
                gains[better, than] = first - second if higher else second - first
        against = {better for (better, _), gain in gains.items() if gain <= -claim.margin}
        assert against == AGAINST.get(claim.says, set()) & set(made), claim.says
        assert not gains or fmean(gains.values()) > -claim.margin, claim.says


# --- ASD


def test_asd_has_the_strength_of_its_data_set() -> None:
    lam = {"cifar10": 10, "cifar100": 30, "tiny-imagenet": 20, "imagenet100": 2}
    for of, cell, config in every_cell():
        at, strands = where(of, cell), config.strands
        if of.name == "asd-figure7":
            assert (cell.row, cell.column) == (
                f"τ={strands['asd']['temperature']:g}",
                f"λ={strands['asd']['lam']:g}",
            ), at
        elif of.paper == "asd":
            assert strands.get("asd", {"lam": lam[config.data.name]})["lam"] == lam[config.data.name], at
            assert all(strands[name]["temperature"] == 2 for name in ("asd", "ntd") if name in strands), at
            if "ntd" in strands:  # where λ is β τ²
                assert strands["ntd"]["beta"] * 2**2 == lam[config.data.name], at
            assert ("+ASD" in cell.row) <= ("asd" in strands) or at == "asd-table3: FedNTD+ASD @ Uniform weights", at


def test_asd_counts_at_the_small_scale() -> None:
    """At its first step the local model is the received one, and ASD has no gradient."""
    for of, cell, config in every_cell(small=True):
        if "asd" in config.strands:
            size = config.data.options["samples"] // config.partition.clients
            assert config.local.epochs * math.ceil(size / config.local.batch) >= 2, where(of, cell)


LOCAL: dict[str, Any] = {"rounds": 3, "local": {"batch": 4, "epochs": 2}, "sampling": {"clients": 3}}


def after(method: str, **settings: Any) -> Any:
    e = federation(method, data=toy(sizes=(9, 9, 9, 9, 9)), **(LOCAL | settings))
    while not e.finished:
        e.advance()
    return e.deployed()[0]


def test_fedntd_is_the_uniform_case_of_fedntd_with_asd() -> None:
    """Why Table 3's cell is a run of FedNTD."""
    uniform = after("fedntd+asd(lam=30, temperature=2, weights=uniform)")
    np.testing.assert_allclose(after("ntd(beta=7.5, temperature=2)"), uniform, atol=1e-12)
    assert not np.allclose(after("fedntd+asd(lam=30, temperature=2)"), uniform, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg+asd", "feddyn+asd", "sam(rho=0.1)+drift", "feddisco+asd"])
def test_what_the_server_hands_out_is_the_mean_of_the_rounds_models(method: str) -> None:
    """Which model the recipes evaluate."""
    server, cohort = (after(method, evaluate={"model": model}) for model in ("server", "cohort"))
    np.testing.assert_allclose(server, cohort, atol=1e-12)


def test_figure_11_reads_both_methods_after_the_same_computation() -> None:
    for cell in cells(recipe("asd-figure11")).values():
        assert cell.config is not None
        passes = cell.config.local.epochs + ("asd" in cell.config.strands)
        assert cell_metrics.parse(cell.metric).until == 2500 // passes


def test_participation_is_that_of_the_columns() -> None:
    for name, of_all in (
        ("asd-table9", 2),
        ("asd-table10", 2),
        ("asd-table4", 1),
        ("asd-table6", 20),
        ("asd-table7", 5),
    ):
        for cell in cells(recipe(name)).values():
            assert cell.config is not None
            assert (cell.config.sampling.scheme, cell.config.sampling.rate) == ("bernoulli", of_all / 100)
    for cell in cells(recipe("fedacd-table4")).values():
        assert cell.config is not None
        clients, share = re.fullmatch(r"K=(\d+) γ=([\d.]+)", cell.column).groups()  # type: ignore[union-attr]
        assert cell.config.partition.clients == int(clients)
        assert cell.config.sampling.clients == int(clients) * float(share)


# --- partitions


@pytest.mark.parametrize("small", [False, True])
def test_every_partition_can_be_made(small: bool) -> None:
    tried = set()
    for of, cell, config in every_cell(small=small):
        part, (total, classes) = config.partition, IMAGES[config.data.name]
        total = config.data.options["samples"] or total
        assert total >= part.clients, where(of, cell)
        tried |= {(total, classes, part.clients, *part.options.values())} if part.name == "dirichlet" else set()
    for total, classes, clients, beta, min_size in tried:
        for seed in range(3):
            made = dirichlet(np.arange(total) % classes, clients, np.random.default_rng(seed), beta, min_size)
            assert len(made) == clients
    assert tried


# --- the layers of ASD's networks


def test_networks_have_the_layers_that_asd_lists():
    made = [cell for cell in cells(recipe(LAYERS)).values() if not cell.skip]
    numbers = recipe(LAYERS).numbers
    assert len(made) == 16
    for cell in made:
        assert layers(cell.settings, 0) == numbers[cell.row][cell.column][0], (cell.row, cell.column)


LAYER = {"model": {"name": "cnn"}, "samples": {"shape": [3, 32, 32], "classes": 5}, "layer": "all"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer": "convolution 3"}, "this network has 2 of that kind"),
        ({"layer": "pooling 1"}, "no kind of layer is called 'pooling'"),
        ({"rounds": 3}, "no setting of a layer is called 'rounds'"),
        ({"samples": None}, "a layer needs samples"),
    ],
)
def test_mistakes_of_a_layer_are_told(change, said):
    settings = {key: value for key, value in (LAYER | change).items() if value is not None}
    with pytest.raises(UserError, match=said):
        layers(settings, 0)
