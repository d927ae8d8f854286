"""Runs in threads of one process train the models that they train alone."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import fedbraid as fb
from fedbraid.core.code import own_code
from fedbraid.core.torch_generator import forked_generator
from fedbraid.strands.parser import parse

SETTINGS = {"rounds": 1, "partition": {"clients": 3}, "data": {"name": "digits", "samples": 120}}


class Net(nn.Module):
    """Draws in its constructor, many times, so that threads meet there."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(20)), nn.Linear(64, classes))

    def forward(self, x):
        return self.layers(x)


def weights(seed):
    run = fb.run("fedavg", seed=seed, model=Net, engine={"kind": "loop", "device": "cpu", "workers": 1}, **SETTINGS)
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.fixture
def switching():
    """Threads that take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_train_what_they_train_alone(switching):
    alone = [weights(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(weights, [*range(4)] * 3))
    for one, other in zip(alone * 3, together, strict=True):
        assert torch.equal(one, other)


def test_the_generator_is_left_as_it_was(switching):
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def draw(seed):
        with forked_generator(seed=seed):
            return torch.cat([torch.randn(5) for _ in range(200)])

    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(draw, [0, 1] * 20))
    assert all(torch.equal(one, drawn[k % 2]) for k, one in enumerate(drawn))
    assert torch.equal(torch.get_rng_state(), before)


class Cycle:
    """Garbage whose finaliser runs Python code: a collection in the middle of parsing lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


def test_sources_are_digested_and_methods_parsed_in_threads(switching):
    """Python's parser itself is not safe in threads of CPython 3.11."""
    network, method = Net(), "fedprox(mu=0.1)+disco(a=0.4)"
    chain = parse(method)

    def look(k):
        for _ in range(20):
            Cycle()
        return own_code(chain, network), str(parse(method))

    before = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(look, range(120)))
    finally:
        gc.set_threshold(*before)
    assert all(one == found[0] for one in found)
    assert found[0][1] == str(chain)
