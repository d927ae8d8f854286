"""Run it with `pytest`. The contract trains small problems on every engine; the last test is the equation itself."""

import torch
from fedbraid_initial import Initial

import fedbraid as fb


def test_the_contract():
    fb.check_strand(Initial())


def test_it_is_a_method_by_its_name():
    """After `pip install .`, as `fedbraid run --set method=initial` has it."""
    run = fb.run("fedprox+initial(mu=0.1)", rounds=1)
    assert run.config.method == "fedprox+initial(mu=0.1)"


def test_the_pull():
    class Here:
        initial = torch.ones(3), torch.zeros(0)

    pulled = Initial(mu=0.5).grad(torch.full((3,), 3.0), Here(), lambda w: 0 * w)
    assert torch.equal(pulled, torch.ones(3))
