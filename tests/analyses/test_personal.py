"""Clients' own models, against heads put together by hand."""

import numpy as np
import pytest
import torch
from helpers import toy
from problems import Prior, labels, record

import fedbraid as fb
from fedbraid.analyses import analyze
from fedbraid.analyses.recorded import Recorded
from fedbraid.errors import UserError
from fedbraid.training.user_objects import UserObjects


def test_a_round_of_training_serves_the_client_whose_class_is_rare(tmp_path):
    """The model handed out says 0 to everybody; the client that knows class 1 alone learns to say 1."""
    objects = record(tmp_path, labels([0, 0], [0, 0], [1, 1]), Prior(2))
    (found,) = analyze(tmp_path, ["personal"], objects=objects)
    assert found.columns["generic"] == [1, 1, 0] and found.columns["tuned"] == [1, 1, 1]
    assert found.numbers == {"personal.generic": pytest.approx(2 / 3), "personal.tuned": 1.0}
    assert found.figure.axes[0].get_lines()


@pytest.fixture(params=["fedrod", "fedrod+prox"])
def trained(request, tmp_path):
    data, partition = toy()
    fb.run(request.param, out=tmp_path, data=data, partition=partition, rounds=4, sampling={"clients": 3})
    return tmp_path, UserObjects(data, partition)


def test_rods_own_model_has_both_heads(trained):
    place, objects = trained
    (found,) = analyze(place, ["personal"], objects=objects)
    e = Recorded(place, objects).simulation
    w, buffers = e.deployed()
    out = e.model.predict(w, buffers, e.test.inputs(torch.arange(len(e.test))))
    for place_, client in enumerate(found.columns["client"]):
        head = e.store.read([client])["rod"]
        said = (out.logits + out.features @ head["weight"][0].T + head["bias"][0]).argmax(-1).numpy()
        shares = e.label_counts[client] / e.label_counts[client].sum()
        right = [np.mean(said[e.test.labels == c] == c) for c in range(e.dataset.classes)]
        assert found.columns["personal"][place_] == pytest.approx(float(shares @ right))
    assert found.columns["personal"] != found.columns["generic"]


def test_a_head_of_another_kind_is_told(tmp_path):
    data, partition = toy()
    fb.run("fedrod+nh", out=tmp_path, data=data, partition=partition, rounds=1)
    with pytest.raises(UserError, match="rod's personal head adds to the network's last layer"):
        analyze(tmp_path, ["personal"], objects=UserObjects(data, partition))


def test_without_a_personal_head_the_model_is_everybodys(tmp_path):
    data, partition = toy()
    fb.run("rod(personal=False)", out=tmp_path, data=data, partition=partition, rounds=1)
    (found,) = analyze(tmp_path, ["personal"], objects=UserObjects(data, partition))
    assert found.columns["personal"] == found.columns["generic"]
