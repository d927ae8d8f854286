"""Evaluating more often, more workers or one more client changes no other client's stream: promised to the bit."""

import numpy as np
import pytest
import torch
from helpers import SIZES, advanced, federation, held, identical, toy
from jobs import uploads
from made_up_strands import MADE_UP
from networks import Masked

from fedbraid.data.dataset import Dataset, Partition, Split

METHODS = ["scaffold+mix", "teach+mix+sharp", "disco+prox+mix"]
"""Chains that draw at clients; the network draws too, for its dropout."""
ALL_SCORES = {
    "every": 1,
    "per_client": True,
    "groups": True,
    "metrics": ["balanced_accuracy", "macro_f1"],
}


def built(method, kind="loop", workers=1, dtype="float64", **settings):
    """A federation whose network begins with the same weights each time, which torch's own generator draws."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Masked()
    engine = {"kind": kind, "workers": workers, "dtype": dtype}
    return federation(method, own=MADE_UP, module=network, engine=engine, **settings)


def with_one_more(samples):
    """The toy federation, and the same one with a client of so many samples after the others."""
    dataset, partition = toy()
    rng = np.random.default_rng(1)
    train, first = dataset.train, len(dataset.train.y)
    x = np.concatenate([train.x, rng.normal(size=(samples, *train.x.shape[1:]))])
    y = np.concatenate([train.y, rng.integers(0, dataset.classes, samples)])
    more = Dataset("toy", Split(x, y), dataset.test, dataset.classes)
    clients = (*partition.clients, np.arange(first, first + samples))
    return (dataset, partition), (more, Partition(clients))


def methods_by(*kinds):
    """Each method with each of these engines. What is compiled takes seconds, so that it is slow."""
    each = [(method, kind) for method in METHODS for kind in kinds]
    return [pytest.param(*one, marks=pytest.mark.slow) if "compiled" in one else one for one in each]


@pytest.mark.parametrize(("method", "kind"), methods_by("stack", "loop", "compiled"))
def test_evaluating_more_often_changes_no_bit(method, kind):
    settings = {"rounds": 3, "sampling": {"clients": 4}}
    rarely = advanced(built(method, kind, evaluate={"every": 3}, **settings))
    often = advanced(built(method, kind, evaluate=ALL_SCORES, analyses=["drift"], **settings))
    assert identical(held(rarely), held(often))


def test_scores_of_personal_models_change_no_bit():
    plain, scored = (advanced(built("ditto+mix", evaluate={"personal": personal})) for personal in (False, True))
    assert identical(held(plain), held(scored))


@pytest.mark.parametrize(("method", "kind"), methods_by("loop", "compiled"))
def test_more_workers_change_no_bit_of_what_is_drawn(method, kind):
    one, three = (advanced(built(method, kind, workers, "float32")) for workers in (1, 3))
    assert identical(held(one), held(three))


def arrays(tree, path=""):
    """All arrays of a plan by their path."""
    if isinstance(tree, dict):
        return {key: value for name, part in tree.items() for key, value in arrays(part, f"{path}/{name}").items()}
    if isinstance(tree, tuple):
        return {key: value for k, part in enumerate(tree) for key, value in arrays(part, f"{path}/{k}").items()}
    return {path: np.asarray(tree)}


@pytest.mark.parametrize("samples", [2, 40])
@pytest.mark.parametrize("method", METHODS)
def test_one_more_client_changes_nothing_that_the_others_draw(method, samples):
    fewer, more = (built(method, data=data) for data in with_one_more(samples))
    for round in (1, 2, 7):
        for client in range(len(SIZES)):
            before, after = (arrays(vars(s.local.plan(5, round, client, 4))) for s in (fewer, more))
            assert before.keys() == after.keys() and len(before) > 3
            for key, value in before.items():
                np.testing.assert_array_equal(after[key], value, err_msg=f"{key} of client {client}")


@pytest.mark.parametrize("samples", [2, 40])
def test_one_more_client_changes_no_bit_of_what_the_others_upload(samples):
    fewer, more = (uploads(built("mix", data=data))["model"] for data in with_one_more(samples))
    assert len(more) == len(fewer) + 1
    assert torch.equal(more[: len(fewer)], fewer)
