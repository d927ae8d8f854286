"""`evaluate.personal`: every client's own model on its own test samples."""

import numpy as np
import pytest
import torch
from helpers import advanced, federation, toy

import fedbraid as fb
from fedbraid.data.dataset import Partition
from fedbraid.training.own_models import model_of

EVALUATED = {"personal": True, "per_client": True}


def data():
    """Clients with test samples of their own, but for the last, which is tested by its labels."""
    dataset, partition = toy()
    n = len(partition.clients)
    tests = [np.arange(k, len(dataset.test), n) for k in range(n - 1)]
    return dataset, Partition(partition.clients, client_tests=(*tests, np.zeros(0, dtype=int)))


def by_hand(made, client):
    """A client's accuracy, sample by sample."""
    dataset, partition = data()
    w, buffers = model_of(made, client, *made.deployed())
    logits = made.model.predict(w, buffers, torch.as_tensor(dataset.test.x).to(w)).logits
    right = (logits.argmax(-1).numpy() == dataset.test.y).astype(float)
    own = partition.client_tests[client]
    if len(own):
        return right[own].mean()
    classes = [right[dataset.test.y == c].mean() for c in range(3)]
    counts = np.bincount(dataset.train.y[partition.clients[client]], minlength=3)
    return counts @ classes / counts.sum()


@pytest.mark.parametrize("method", ["ditto(lam=0.0)", "apfl", "pfedme", "fedper", "fedrod"])
def test_scores_are_those_of_each_clients_own_model(method):
    made = advanced(federation(method, data=data(), evaluate=EVALUATED, optimizer={"lr": 0.3}), 3)
    line = made.scored()()
    due = [by_hand(made, k) for k in range(len(made.sizes))]
    assert line["personal_accuracy"]["each"] == pytest.approx(due)
    assert line["personal_accuracy"]["mean"] == pytest.approx(np.mean(due))
    assert line["personal_accuracy"]["worst10"] == pytest.approx(min(due))
    assert line["personal_accuracy"]["each"] != line["client_accuracy"]["each"]


def test_they_are_in_the_log_and_in_none_without_it():
    settings = {"rounds": 2, "engine": {"device": "cpu"}}
    runs = [fb.run("ditto", **settings, evaluate={"personal": on}) for on in (True, False)]
    assert set(runs[0].rounds[-1]) - set(runs[1].rounds[-1]) == {"personal_accuracy"}
    assert 0 <= runs[0].rounds[-1]["personal_accuracy"]["mean"] <= 1


def test_a_method_without_own_models_is_refused():
    with pytest.raises(fb.UserError, match=r"evaluate\.personal scores clients' own models, and this method has none"):
        fb.run("scaffold", rounds=1, evaluate={"personal": True})


def test_a_regression_is_refused():
    dataset, partition = toy(task="regression")
    with pytest.raises(fb.UserError, match=r"evaluate\.personal is about accuracy"):
        federation("ditto", data=(dataset, partition), evaluate={"personal": True})
