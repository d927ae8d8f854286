"""Every network: features and head, seeds of its own, and clients that train stacked as they do one by one."""

import logging

import pytest
import torch
from helpers import advanced, apart, federation, held, toy
from small_networks import CLASSES, SMALL, TOKENS
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from fedbraid.models import build, names

every_network = pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)


def test_no_network_is_left_out():
    assert {small.name for small in SMALL.values()} == set(names())


@every_network
def test_the_head_turns_features_into_logits(small):
    network = small.network().double()
    out = network(small.samples(5))
    assert out.features.shape == (5, small.features)
    assert out.logits.shape == (5, CLASSES)
    assert torch.equal(network.head(out.features), out.logits)
    assert isinstance(network.head, nn.Linear)
    assert out.features.std(0).max() > 0, "samples differ"


@every_network
def test_samples_do_not_influence_each_other(small):
    network, x = small.network().double(), small.samples(6)
    torch.testing.assert_close(network(x).logits[:2], network(x[:2]).logits)


@every_network
def test_nothing_is_drawn_and_no_statistics_are_kept(small):
    network, x = small.network().double(), small.samples(3)
    assert not list(network.buffers())
    assert torch.equal(network.train()(x).logits, network.eval()(x).logits)


@pytest.fixture
def _no_vmap_fallback():
    """Operations without a batching rule would run client by client, slowly: here they fail instead."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


@every_network
@pytest.mark.usefixtures("_no_vmap_fallback")
def test_stacked_clients_learn_as_single_ones(small):
    networks = [small.network(seed=s).double() for s in range(3)]
    stacked, _ = stack_module_state(networks)
    x, y = torch.stack([small.samples(5, seed=s) for s in range(3)]), torch.randint(CLASSES, (3, 5))

    def loss(parameters, x, y):
        return cross_entropy(functional_call(networks[0], parameters, (x,)).logits, y)

    together = vmap(grad(loss))(stacked, x, y)
    for k, network in enumerate(networks):
        cross_entropy(network(x[k]).logits, y[k]).backward()
        for key, parameter in network.named_parameters():
            assert parameter.grad.abs().sum() > 0, key
            torch.testing.assert_close(together[key][k], parameter.grad, rtol=0, atol=1e-12)


@every_network
def test_a_federation_trains_the_same_model_stacked_and_client_by_client(small, caplog):
    network = {"module": small.network()} if small.by_hand else {"model": {"name": small.name, **small.options}}
    settings = {"data": small.data(), "rounds": 2, "sampling": {"clients": 3}, "local": {"batch": 4, "epochs": 1}}
    with caplog.at_level(logging.WARNING, "fedbraid"):
        results = [
            held(advanced(federation("scaffold", engine={"kind": kind}, **network, **settings)))
            for kind in ("stack", "loop")
        ]
    assert not caplog.records, "a warning would say that the stack became a loop"
    assert apart(*results) < 1e-9
    assert results[0]["w"].isfinite().all()


@every_network
def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone(small):
    def weights(seed):
        network = build(small.name, small.shape, CLASSES, tokens=small.tokens, seed=seed, **small.options)
        return torch.cat([p.flatten() for p in network.parameters()])

    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = weights(0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


@every_network
def test_a_state_dict_carries_a_network_over(small, tmp_path):
    one, other, x = small.network(0).double(), small.network(1).double(), small.samples(4)
    assert not torch.equal(one(x).logits, other(x).logits)
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(one(x).logits, other(x).logits)


@pytest.mark.parametrize("name", ["resnet18", "resnet20", "resnet50", "vit-tiny", "vit-small"])
def test_large_networks_answer_under_their_names(name):
    out = build(name, (3, 8, 8), 7, projection=6)(torch.randn(2, 3, 8, 8))
    assert out.logits.shape == (2, 7)
    assert out.features.shape == (2, 6)


def test_regression():
    settings = {"data": toy(task="regression"), "model": {"name": "mlp", "hidden": [8, 4]}, "rounds": 20}
    lines = []
    for kind in ("stack", "loop"):
        simulation = federation(engine={"kind": kind}, **settings)
        assert simulation.module().head.out_features == 1
        lines.append([simulation.advance()["train_loss"] for _ in range(20)])
    assert lines[0] == pytest.approx(lines[1], rel=1e-9)
    assert lines[0][-1] < 0.9 * lines[0][0]


def test_texts_of_padding_alone_are_taken():
    for name in ("textcnn", "lstm"):
        out = build(name, (6,), CLASSES, tokens=TOKENS)(torch.zeros(2, 6, dtype=torch.int64))
        assert out.logits.isfinite().all()
