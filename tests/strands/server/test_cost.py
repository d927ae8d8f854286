"""What every method and strand sends: floats of a client in a round, counted by hand from its paper.

P parameters, C classes, d features that the last layer receives, K clients in the round. All clients take part, so
that a round is like the next.
"""

import numpy as np
import pytest
from helpers import federation

from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.strands import METHODS, STRANDS

C, D, K, INPUTS = 3, 6, 4, 5
BODY = INPUTS * D + D
HEAD = C * D + C
P = BODY + HEAD
P_NH = BODY + C * D + 1  # prototypes without biases, and a scale

COST = {  # down, up
    "": (P, P),
    "uniform": (P, P),
    "sizes": (P, P),
    "disco": (P, P + 1),
    "nova": (P, P + 1),
    "nova(steps_effective=True)": (P, P + 2),
    "qfair": (P, P + 2),  # the loss and ‖Δw‖²: the server then needs no single client's model
    "prox": (P, P),
    "scaffold": (2 * P, 2 * P),
    "scaffold(option=1)": (2 * P, 2 * P),
    "drift": (P, P),
    "sam": (P, P),
    "asd": (P, P),
    "ntd": (P, P),
    "moon": (P, P),
    "rfedavg": (P + (K - 1) * D, P + D),
    "rfedavg(include_self=True)": (P + K * D, P + D),
    "rfedavg_plus": (P + D, P + D),
    "decorr": (P, P),
    "lc": (P, P),
    "rod": (P, P),
    "fedacd": (P, P + 1),
    "mixup": (P, P),
    "avgm": (P, P),
    "dp": (P, P),
    "opt": (P, P),
    "nh": (P_NH, BODY + 1 + C * D + C),  # prototypes take the place of the head, and counts
    "creff(per_class=2, match_steps=1, head_epochs=1)": (
        P + HEAD,
        P + C * HEAD + C,
    ),  # one gradient a class; who has it
    "skip(every=2)": (P, P),
    "scaffold+drift": (2 * P, 2 * P),
    "sam+drift": (P, P),
    "cm": (2 * P, P + 1),  # the momentum; how far its steps reach
    "sam+cm": (2 * P, P + 1),
    "sam+scaffold": (2 * P, 2 * P),
    "lesam": (P, P),
    "lesam+scaffold": (2 * P, 2 * P),
    "lesam+drift": (P, P),
    "smoo": (2 * P, 2 * P),
    "smoo+drift": (2 * P, 2 * P),
    "acg": (P, P),
    "acg+prox": (P, P),
    "relaxed": (P, P),
    "exp": (P, P + 1),  # the length of the update
    "rs": (P, P),
    "etf": (P + 1 + C * C, P + 1),  # a scale; the corners are fixed, and do not come back
    "etf+rod": (P + 1 + C * C, P + 1),
    "babu": (P, BODY),  # the head is frozen, and does not come back
    "parts": (P, P),  # clients send the part of their own as they received it
    "ditto": (P, P),
    "apfl": (P, P),
    "pfedme": (P, P),
    **dict.fromkeys(("normclip", "median", "trimmed", "rfa", "krum", "cclip"), (P, P)),  # the server alone does more
}


def rounds(method, kind="loop", dtype="float64", count=3):
    rng = np.random.default_rng(0)
    sizes = (3, 5, 7, 4)
    x, y = rng.normal(size=(sum(sizes), INPUTS)), np.arange(sum(sizes)) % C
    parts = tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    simulation = federation(
        method or "fedavg",
        data=(Dataset("cost", Split(x, y), Split(x[:3], y[:3]), C), Partition(parts)),
        model={"name": "mlp", "hidden": [D]},
        local={"batch": 4},
        rounds=count,
        engine={"kind": kind, "dtype": dtype},
        evaluate={"every": 99},
    )
    return simulation, [simulation.advance() for _ in range(count)]


@pytest.mark.parametrize("method", COST)
def test_floats_sent(method):
    simulation, records = rounds(method)
    sizes = {"nh": P_NH, "etf": P + 1 + C * C}
    assert simulation.setup.w.numel() == sizes.get(method[:3].rstrip("("), sizes.get(method[:2], P))
    record = records[-1]
    assert (record["bytes_down"] / 8 / K, record["bytes_up"] / 8 / K) == COST[method]


def test_every_strand_and_every_named_method_is_counted():
    counted = {method.split("(")[0] for method in COST}
    assert {s.name for s in STRANDS} <= counted
    for chain in METHODS.values():
        assert "+".join(part.split("(")[0] for part in chain.split("+")) in counted


@pytest.mark.parametrize("name", METHODS)
def test_named_methods_cost_what_their_strands_do(name):
    bare = "+".join(part.split("(")[0] for part in METHODS[name].split("+"))
    _, records = rounds(name, count=2)
    assert (records[-1]["bytes_down"] / 8 / K, records[-1]["bytes_up"] / 8 / K) == (COST | {"skip": (P, P)})[bare]


@pytest.mark.parametrize("method", ["", "scaffold", "nova", "nh", "rfedavg_plus", "disco"])
def test_engines_and_precisions_count_alike(method):
    down, up = COST[method]
    for kind, dtype, width in (("stack", "float64", 8), ("stack", "float32", 4), ("loop", "float32", 4)):
        _, records = rounds(method, kind, dtype, 1)
        assert (records[0]["bytes_down"], records[0]["bytes_up"]) == (width * K * down, width * K * up)


def test_a_global_target_costs_counts_and_the_target():
    """Down: the model, the target. Up: the model, counts, the discrepancy."""
    _, records = rounds("disco(target=cohort)")
    for record in records:
        assert record["bytes_down"] == 8 * K * (P + C)
        assert record["bytes_up"] == 8 * K * (P + C + 1)


def test_the_first_exchange_of_rfedavg_costs_no_more_than_the_means():
    """Nobody has a mean yet: clients are told so, send theirs under the initial model, and receive the others' once."""
    _, records = rounds("rfedavg")
    assert records[0]["bytes_up"] == 8 * K * (P + 2 * D)
    assert records[0]["bytes_down"] == 8 * K * (P + 1 + (K - 1) * D)


@pytest.mark.parametrize("method", ["scaffold+skip(every=2)", "skip(every=2)"])
def test_wandering_models_cost_what_a_common_one_does(method):
    _, records = rounds(method, count=4)
    down, up = COST[method.split("+")[0]]
    for record in records:
        assert (record["bytes_down"], record["bytes_up"]) == (8 * K * down, 8 * K * up)
