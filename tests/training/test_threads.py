"""Runs in threads of one process train the models that they train alone."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import fedbraid as fb
from fedbraid.core.torch_generator import forked_generator

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
