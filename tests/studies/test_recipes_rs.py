"""Facts that the recipes of rFedAvg and FedSkip rest on: numbers of the papers that must fit together, sizes of
networks and payloads, cells of several tables that are one run."""

import pytest

from fedbraid import data, models
from fedbraid.errors import UserError
from fedbraid.studies import recipe_files
from fedbraid.studies.cells import cells
from fedbraid.studies.payload import payload
from fedbraid.studies.run_digest import digest
from fedbraid.studies.study_plan import table
from fedbraid.studies.table_results import gathered

SENT140 = ("FedAvg", "FedProx", "Scaffold", "q-FedAvg", "rFedAvg", "rFedAvg+")


def load(name):
    return recipe_files.load(recipe_files.HERE / f"{name}.toml")


def run_of(name, cell, small=False):
    return digest(cells(load(name), small=small)[cell].config)


# --- rFedAvg's third table


def test_a_client_receives_the_others_deltas_or_their_mean():
    made = cells(load("rfedavg-table3"))
    bytes_of = {place: payload(cell.settings, 0) for place, cell in made.items() if place[1].endswith("cross-silo")}
    assert bytes_of == {
        ("rFedAvg", "CNN cross-silo"): 19 * 512 * 4,
        ("rFedAvg", "RNN cross-silo"): 19 * 256 * 4,
        ("rFedAvg+", "CNN cross-silo"): 512 * 4,
        ("rFedAvg+", "RNN cross-silo"): 256 * 4,
    }


@pytest.mark.slow
def test_the_whole_table_of_bytes(tmp_path):
    values = {place: cell.values[0] for place, cell in gathered(table(load("rfedavg-table3")), tmp_path).cells.items()}
    assert values["rFedAvg", "CNN cross-device"] == 99 * 512 * 4
    assert values["rFedAvg", "RNN cross-device"] == 99 * 256 * 4
    assert values["rFedAvg+", "CNN cross-device"] == values["rFedAvg+", "CNN cross-silo"] == 512 * 4
    assert values["rFedAvg+", "RNN cross-device"] == values["rFedAvg+", "RNN cross-silo"] == 256 * 4


def test_the_papers_bytes_are_as_many_deltas_with_the_same_overhead():
    paper = load("rfedavg-table3").numbers
    for network, width in (("CNN", 512), ("RNN", 256)):
        for place, cohort in (("silo", 20), ("device", 100)):
            one = width * 4 + 760
            assert paper["rFedAvg+"][f"{network} cross-{place}"] == (one,)
            assert paper["rFedAvg"][f"{network} cross-{place}"] == (cohort * one,)


SMALL = {"model": {"name": "mlp", "hidden": [8]}, "samples": {"shape": [3], "classes": 2}, "clients": 12, "cohort": 5}


@pytest.mark.parametrize(
    ("method", "floats"),
    [
        ("fedavg", 0),
        ("rfedavg", 4 * 8),
        ("rfedavg(include_self=true)", 5 * 8),
        ("rfedavg_plus", 8),
        ("rfedavg_plus(include_self=true)", 8),
        ("scaffold", 3 * 8 + 8 + 8 * 2 + 2),
        ("scaffold+rfedavg", 3 * 8 + 8 + 8 * 2 + 2 + 4 * 8),
    ],
)
def test_payloads_of_other_methods(method, floats):
    assert payload({**SMALL, "method": method}, 0) == 4 * floats


def test_payloads_of_texts_do_not_depend_on_the_words():
    text = {**SMALL, "method": "rfedavg_plus", "model": {"name": "lstm", "embedding": 4, "hidden": 6}}
    sizes = {payload({**text, "samples": {"shape": [7], "classes": 2, "words": words}}, 0) for words in (5, 50)}
    assert sizes == {6 * 4}


@pytest.mark.parametrize(
    ("change", "said"),
    [({"rounds": 3}, "no setting of a payload is called 'rounds'"), ({"clients": None}, "a payload needs clients")],
)
def test_mistakes_of_a_payload_are_told(change, said):
    settings = {key: value for key, value in (SMALL | change).items() if value is not None}
    with pytest.raises(UserError, match=said):
        payload(settings, 0)


# --- networks and clients


@pytest.mark.parametrize(
    ("recipe", "cell", "shape", "classes", "parameters", "width"),
    [
        ("rfedavg-table1", ("FedAvg", "MNIST Sim 0%"), (1, 28, 28), 10, 1_663_370, 512),
        ("fedskip-table2", ("FedAvg", "CIFAR-10 IID"), (3, 32, 32), 10, 92_626, 256),
    ],
)
def test_networks_are_the_papers(recipe, cell, shape, classes, parameters, width):
    model = cells(load(recipe))[cell].config.model
    built = models.build(model.name, shape, classes, tokens=(), seed=0, **model.options)
    assert sum(p.numel() for p in built.parameters()) == parameters
    assert built.head.in_features == width


def test_as_many_users_of_synthetic_are_large_enough_as_the_paper_has_clients():
    config = cells(load("fedskip-table3"))["FedAvg", "SYNTHETIC (212,10)"].config
    assert config.partition.clients == 212 and config.sampling.clients == 10
    made = data.load(config.data.name, **config.data.options)
    assert len(data.make_partition(made, "natural", None, 0, min_size=64)) in range(212, 230)
    assert len(data.make_partition(made, "natural", 212, 0, **config.partition.options)) == 212


# --- numbers of the papers that must fit together


def test_fedskips_rounds_are_its_aggregations_times_the_period():
    paper = load("fedskip-table4").numbers
    for row, numbers in paper.items():
        every = int(row.removeprefix("FedSkip-")) if row.startswith("FedSkip-") else 1
        for name in ("P10, IID", "P10", "P50", "P100"):
            if f"{name} rounds" in numbers:
                assert numbers[f"{name} rounds"][0] == every * numbers[f"{name} aggregations"][0], (row, name)


def test_fedskips_speedups_are_fedavgs_rounds_over_its_own_but_for_one():
    paper = load("fedskip-table4").numbers
    off = {
        (row, name)
        for row, numbers in paper.items()
        for name in ("P10, IID", "P10", "P50", "P100")
        if f"{name} rounds" in numbers
        and abs(paper["FedAvg"][f"{name} rounds"][0] / numbers[f"{name} rounds"][0] - numbers[f"{name} speedup"][0])
        > 0.0051
    }
    assert off == {("FedSkip-3", "P10")}


@pytest.mark.parametrize(
    ("recipe", "row", "column", "gain"),
    [
        ("fedskip-table3", "FedSkip-7", "FEMNIST (180,10)", 4.2),
        ("fedskip-table3", "FedDyn", "FEMNIST (180,10)", 1.8),
        ("fedskip-table3", "FedSkip-10", "CIFAR-100 (50,10)", 9.8),
        ("fedskip-table3", "FedNova", "CIFAR-100 (50,10)", 6.6),
        ("fedskip-table3", "FedSkip-10", "CIFAR-100 (100,20)", 10.5),
        ("fedskip-table3", "FedNova", "CIFAR-100 (100,20)", 6.6),
        ("fedskip-table3", "MOON", "CIFAR-10 (50,10)", 1.5),
        ("fedskip-table3", "FedSkip-10", "CIFAR-10 (50,10)", 1.6),
        ("fedskip-table3", "FedDyn", "CIFAR-10 (100,20)", 1.0),
        ("fedskip-table3", "FedSkip-7", "CIFAR-10 (100,20)", 2.0),
        ("fedskip-table3", "FedNova", "SHAKESPEARE (660,10)", 1.2),
        ("fedskip-table3", "FedSkip-7", "SHAKESPEARE (660,10)", 1.3),
        ("fedskip-table3", "FedNova", "SYNTHETIC (212,10)", 0.6),
        ("fedskip-table3", "FedSkip-3", "SYNTHETIC (212,10)", 0.7),
        ("rfedavg-table1", "rFedAvg+", "CIFAR10 Sim 0%", 2.19),
        ("rfedavg-table1", "rFedAvg+", "MNIST Sim 0%", 0.95),
        ("rfedavg-table2", "rFedAvg+", "MNIST Sim 0%", 0.34),
        ("rfedavg-table2", "rFedAvg+", "Sent140 Non-IID", 3.50),
    ],
)
def test_gains_over_fedavg_are_those_of_the_papers_texts(recipe, row, column, gain):
    paper = load(recipe).numbers
    digits = 2 if recipe.startswith("rfedavg") else 1
    assert abs(paper[row][column][0] - paper["FedAvg"][column][0] - gain) <= 0.5 * 10**-digits + 1e-9


def test_every_cell_of_a_table_has_the_papers_number_but_where_it_has_none():
    for name, without in {
        "rfedavg-table1": 0,
        "rfedavg-table2": 0,
        "rfedavg-table3": 0,
        "fedskip-table1": 0,
        "fedskip-table2": 0,
        "fedskip-table3": 9 + 1,  # SCAFFOLD, and MOON on SHAKESPEARE
        "fedskip-table4": 6,  # SCAFFOLD on P50 and P100
    }.items():
        recipe = load(name)
        given = sum(map(len, recipe.numbers.values()))
        assert given + without == len(recipe.rows) * len(recipe.columns), name


# --- cells that are one run


SAME = {
    "figure 4": [
        ("rfedavg-table1", ("rFedAvg", "CIFAR10 Sim 10%")),
        ("rfedavg-figure4", ("rFedAvg", "Cross-silo Sim 10%")),
        ("rfedavg-figure5", ("rFedAvg", "Cross-silo Sim 10%")),
    ],
    "learning rate of FedProx": [
        ("rfedavg-table2", ("FedProx", "MNIST Sim 0%")),
        ("rfedavg-figure2", ("FedProx", "Cross-device Sim 0%")),
        ("rfedavg-figure3", ("FedProx", "Cross-device Sim 0%")),
    ],
    "Sent140": [
        ("rfedavg-table2", ("q-FedAvg", "Sent140 Non-IID")),
        ("rfedavg-figure6", ("q-FedAvg", "Cross-device non-IID")),
        ("rfedavg-figure7", ("q-FedAvg", "Cross-device non-IID")),
    ],
    "fairness": [
        ("rfedavg-table1", ("rFedAvg+", "CIFAR10 Sim 0%")),
        ("rfedavg-figure11", ("rFedAvg+", "CIFAR10 cross-silo")),
        ("rfedavg-figure9", ("rFedAvg+", "SR = 1.0")),
    ],
    "parameters": [
        ("rfedavg-table2", ("rFedAvg+", "CIFAR10 Sim 0%")),
        ("rfedavg-figure9", ("rFedAvg+", "λ = 1e-5")),
        ("rfedavg-figure9", ("rFedAvg+", "N = 500")),
        ("rfedavg-figure10", ("rFedAvg+", "CIFAR10 rounds to 40%")),
        ("rfedavg-figure10", ("rFedAvg+", "CIFAR10 Sim 0% seconds")),
    ],
    "skips": [
        ("fedskip-table3", ("FedSkip-3", "CIFAR-100 (50,10)")),
        ("fedskip-table4", ("FedSkip-3", "P50 rounds")),
        ("fedskip-figure4", ("FedSkip-3", "CIFAR-100 after 10 rounds")),
        ("fedskip-figure5", ("CIFAR-100 P50 β = 0.5", "Δ = 3")),
    ],
    "Δ = 1": [
        ("fedskip-table2", ("FedAvg", "CIFAR-10 β = 0.5")),
        ("fedskip-figure5", ("CIFAR-10 P10 β = 0.5", "Δ = 1")),
    ],
}


@pytest.mark.parametrize("what", SAME)
def test_cells_that_are_the_same_share_their_runs(what):
    assert len({run_of(*place) for place in SAME[what]}) == 1


@pytest.mark.parametrize("what", ["figure 4", "learning rate of FedProx", "Sent140", "fairness"])
def test_miniatures_share_them_too(what):
    assert len({run_of(*place, small=True) for place in SAME[what]}) == 1


def test_cells_that_differ_are_different_runs():
    made = cells(load("rfedavg-figure9"))
    columns = [line.name for line in load("rfedavg-figure9").columns]
    runs = {row: {digest(made[row, column].config) for column in columns} for row in ("FedAvg", "rFedAvg")}
    assert len(runs["rFedAvg"]) == len(columns) - 2  # λ = 1e-5, N = 500 and E = 10 are the setting itself
    assert len(runs["FedAvg"]) == len(columns) - 2 - 4  # and FedAvg has no λ


def test_tuned_values_are_the_papers():
    silo, device = cells(load("rfedavg-table1")), cells(load("rfedavg-table2"))
    for row, strand, key, values in (
        ("FedProx", "prox", "mu", (1.0, 1.0, 0.01)),
        ("q-FedAvg", "qfair", "q", (1.0, 1.0, 1e-4)),
        ("rFedAvg", "rfedavg", "lam", (1e-4, 1e-5, 0.1)),
        ("rFedAvg+", "rfedavg_plus", "lam", (1e-4, 1e-5, 0.1)),
    ):
        for made in (silo, device):
            columns = ("MNIST Sim 10%", "CIFAR10 Sim 0%", "Sent140 Non-IID")
            assert tuple(made[row, column].config.strands[strand][key] for column in columns) == values
    rates = {row: device[row, "CIFAR10 Sim 0%"].config.optimizer.options["lr"] for row in SENT140}
    assert rates == dict.fromkeys(SENT140, 0.1) | {"FedProx": 0.01}
    assert silo["FedProx", "CIFAR10 Sim 0%"].config.optimizer.options["lr"] == 0.1
    assert {device[row, "Sent140 IID"].config.optimizer.name for row in SENT140} == {"rmsprop"}
    few, many = cells(load("fedskip-table2")), cells(load("fedskip-table3"))
    assert few["MOON", "CIFAR-10 β = 1"].config.strands["moon"]["mu"] == 5
    assert few["MOON", "CIFAR-100 β = 1"].config.strands["moon"]["mu"] == 1
    assert many["MOON", "CIFAR-10 (50,10)"].config.strands["moon"]["mu"] == 1
    assert few["FedProx", "CIFAR-10 IID"].config.strands["prox"]["mu"] == 0.01
    assert many["FedProx", "CIFAR-10 (50,10)"].config.strands["prox"]["mu"] == 0.001
    alphas = {column: many["FedDyn", column].config.strands["drift"]["alpha"] for _, column in many}
    assert sorted(column.split()[0] for column, alpha in alphas.items() if alpha == 1e-3) == [
        "CIFAR-10",
        "CIFAR-10",
        "SYNTHETIC",
        "SYNTHETIC",  # on LEAF's draw
        "SYNTHETIC",  # and there with the sigmoid
    ]
    assert set(alphas.values()) == {1e-3, 1e-4}
    rounds = {column: many["FedSkip-7", column].config.rounds for _, column in many}
    assert list(rounds.values()) == [1000, 1000, 1000, 200, 200, 800, 800, 800, 1200]
