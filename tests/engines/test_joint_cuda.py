"""Runs that share a stack on a GPU, its steps captured in CUDA graphs, against the same runs alone."""

import logging

import pytest
import torch
from helpers import toy
from joined import assert_same, one_by_one, side_by_side, stacks, together

from fedbraid.strands import STRANDS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
ROUNDING = 1e-9  # float64; the contract is 1e-6
CHEAP = {"creff": "creff(head_epochs=2, match_steps=2)"}
CHAINS = ["fedavg", *(CHEAP.get(s.name, s.name) for s in STRANDS), "scaffold+skip(every=2)+avgm"]
GPU = {"device": "cuda"}


def assert_as_alone(methods, *, stacks_a_round=1, rounds=3, **settings):
    settings = {"engine": GPU, "rounds": rounds, **settings}
    joint, alone = side_by_side(methods, **settings), side_by_side(methods, **settings)
    with stacks() as sizes:
        lines = together(joint)
    assert_same(joint, alone, lines, one_by_one(alone), ROUNDING)
    assert len(sizes) == rounds * stacks_a_round
    assert joint[0].clients.samples is joint[-1].clients.samples and joint[0].clients.samples.x.is_cuda


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain(method):
    assert_as_alone(method, sampling={"clients": 4}, optimizer={"momentum": 0.5, "weight_decay": 0.01})


@pytest.mark.parametrize("methods", [["prox(mu=0.1)", "prox(mu=1.0)"], ["asd(lam=1.0)", "asd(temperature=3.0)"]])
def test_hyper_parameters_side_by_side(methods):
    assert_as_alone(methods, each=[{"optimizer": {"lr": 0.1}}, {"optimizer": {"lr": 0.03}}])


def test_lost_and_straggling_clients_in_chunks():
    settings = {"sampling": {"dropout": 0.2}, "local": {"batch": 4, "epochs": 3, "least": 1}}
    joint, alone = (side_by_side("scaffold", engine=GPU | {"chunk": 5}, **settings) for _ in range(2))
    assert_same(joint, alone, together(joint), one_by_one(alone), ROUNDING)


def test_convolutions():
    images = toy((40, 47), (1, 28, 28), pixels=True)[0]
    assert_as_alone("scaffold", data=images, model={"name": "lenet"})


def test_numbers_that_code_looks_at(caplog):
    with caplog.at_level(logging.INFO, "fedbraid"):
        joint, alone = (side_by_side(["sam(mix=0.5)", "sam"], engine=GPU) for _ in range(2))
        assert_same(joint, alone, together(joint), one_by_one(alone), ROUNDING)
    assert "mix of sam" in caplog.text


def test_runs_that_finish_at_different_rounds():
    joint, alone = (side_by_side("scaffold+moon", (0, 1, 2), engine=GPU, rounds=5) for _ in range(2))
    joint[1].advance(), joint[2].advance(), joint[2].advance()
    lines = together(joint)
    others = [theirs[-len(mine) :] for mine, theirs in zip(lines, one_by_one(alone), strict=True)]
    assert_same(joint, alone, lines, others, ROUNDING)
