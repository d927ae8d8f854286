"""Every network as a stack on a GPU, against clients one by one on the CPU."""

import pytest
import torch
from helpers import advanced, apart, federation, held
from small_networks import SMALL

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)
def test_a_federation_trains_the_same_model_on_a_gpu(small):
    network = {"module": small.network()} if small.by_hand else {"model": {"name": small.name, **small.options}}
    settings = {"data": small.data(), "rounds": 2, "sampling": {"clients": 3}, "local": {"batch": 4, "epochs": 1}}
    engines = {"kind": "stack", "device": "cuda"}, {"kind": "loop", "device": "cuda"}, {"kind": "loop"}
    stack, loop, cpu = (held(advanced(federation("scaffold", engine=e, **network, **settings))) for e in engines)
    assert apart(stack, cpu) < 1e-9
    assert apart(loop, cpu) < 1e-9
