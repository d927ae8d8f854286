"""The networks: the papers' shapes, seeds of their own, and clients that can be stacked."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy, max_pool2d, relu

from fedbraid.errors import UserError
from fedbraid.models import build, describe, fitting, names

IMAGE, GREY, DIGIT, ROW = (3, 32, 32), (1, 28, 28), (1, 8, 8), (60,)
CASES = [
    ("logistic", ROW, {}, 60),
    ("logistic", DIGIT, {}, 64),
    ("mlp", DIGIT, {}, 64),
    ("mlp", ROW, {"hidden": [32, 16]}, 16),
    ("lenet", GREY, {}, 84),
    ("lenet", IMAGE, {}, 84),
    ("lenet", (1, 16, 20), {}, 84),
    ("cnn", IMAGE, {}, 192),
]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet", IMAGE, 10, 62_006),
        ("lenet", GREY, 10, 62_006 - 2 * 6 * 25 - (400 - 256) * 120),
        ("cnn", IMAGE, 10, 797_962),
        ("cnn", IMAGE, 100, 815_332),
        ("logistic", ROW, 10, 610),
        ("mlp", DIGIT, 10, 64 * 64 + 64 + 64 * 10 + 10),
    ],
)
def test_parameter_counts_are_the_papers(name, shape, classes, count):
    assert sum(p.numel() for p in build(name, shape, classes).parameters()) == count


@pytest.mark.parametrize(("name", "shape", "options", "width"), CASES)
def test_the_head_turns_features_into_logits(name, shape, options, width):
    network = build(name, shape, 7, **options)
    out = network(torch.randn(5, *shape))
    assert out.features.shape == (5, width)
    assert out.logits.shape == (5, 7)
    assert torch.equal(network.head(out.features), out.logits)
    assert {"head.weight", "head.bias"} <= {key for key, _ in network.named_parameters()}


@pytest.mark.parametrize(("name", "shape", "options", "width"), CASES)
def test_features_are_not_negative_after_a_hidden_layer(name, shape, options, width):
    x = torch.randn(5, *shape)
    features = build(name, shape, 7, **options)(x).features
    assert torch.equal(features, x.flatten(1)) if name == "logistic" else bool((features >= 0).all())
    assert features.std() > 0


@pytest.mark.parametrize(("name", "shape", "options", "width"), CASES)
def test_samples_do_not_influence_each_other(name, shape, options, width):
    network, x = build(name, shape, 7, **options).double(), torch.randn(6, *shape, dtype=torch.float64)
    torch.testing.assert_close(network(x).logits[:2], network(x[:2]).logits)


@pytest.mark.parametrize(("name", "shape", "options", "width"), CASES)
def test_stacked_clients_learn_as_single_ones(name, shape, options, width):
    networks = [build(name, shape, 4, seed=s, **options).double() for s in range(3)]
    stacked, _ = stack_module_state(networks)
    x, y = torch.randn(3, 5, *shape, dtype=torch.float64), torch.randint(4, (3, 5))

    def loss(parameters, x, y):
        return cross_entropy(functional_call(networks[0], parameters, (x,)).logits, y)

    together = vmap(grad(loss))(stacked, x, y)
    for k, network in enumerate(networks):
        alone = grad(loss)({key: p.detach() for key, p in network.named_parameters()}, x[k], y[k])
        for key, gradient in alone.items():
            assert gradient.abs().sum() > 0
            torch.testing.assert_close(together[key][k], gradient)


@pytest.mark.parametrize(("name", "shape"), [("lenet", GREY), ("cnn", IMAGE)])
def test_pooling_first_changes_neither_outputs_nor_gradients(name, shape):
    network, x = build(name, shape, 10).double(), torch.randn(4, *shape, dtype=torch.float64)

    def as_published(x):
        x = max_pool2d(relu(network.conv1(x)), 2)
        x = max_pool2d(relu(network.conv2(x)), 2)
        return network.head(relu(network.fc2(relu(network.fc1(x.flatten(1))))))

    def gradients(logits):
        return torch.autograd.grad(logits.square().sum(), list(network.parameters()))

    ours, published = network(x).logits, as_published(x)
    torch.testing.assert_close(ours, published)
    torch.testing.assert_close(gradients(ours), gradients(published))


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    def weights(seed):
        return torch.cat([p.flatten() for p in build("mlp", DIGIT, 10, seed=seed).parameters()])

    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = weights(0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


def test_weights_are_torchs_default():
    torch.manual_seed(3)
    expected = nn.Linear(60, 10)
    head = build("logistic", ROW, 10, seed=3).head
    assert torch.equal(head.weight, expected.weight)
    assert torch.equal(head.bias, expected.bias)


@pytest.mark.parametrize("name", ["lenet", "cnn"])
@pytest.mark.parametrize("shape", [DIGIT, (3, 15, 32), (3, 32, 15), ROW, (32, 32)])
def test_inputs_too_small_are_refused_naming_models_that_fit(name, shape):
    with pytest.raises(UserError, match=r"at least 16x16 .* models that fit: logistic, mlp"):
        build(name, shape, 10)
    for other in fitting(shape):
        build(other, shape, 10)


def test_sixteen_pixels_are_enough():
    assert fitting((1, 16, 16)) == names()
    assert build("lenet", (1, 16, 16), 10)(torch.zeros(2, 1, 16, 16)).logits.shape == (2, 10)


def test_no_network_draws_or_keeps_statistics():
    for name in names():
        network = build(name, IMAGE, 10)
        assert not list(network.buffers())
        x = torch.randn(2, *IMAGE)
        assert torch.equal(network.train()(x).logits, network.eval()(x).logits)


@pytest.mark.parametrize("hidden", [64, "64", [], [0], [3.5], [True]])
def test_hidden_is_a_list_of_widths(hidden):
    with pytest.raises(UserError, match="hidden"):
        build("mlp", ROW, 10, hidden=hidden)


def test_mistakes_are_answered_with_what_is_known():
    with pytest.raises(UserError, match="did you mean 'lenet'"):
        build("lenett", IMAGE, 10)
    with pytest.raises(UserError, match="known: hidden"):
        build("mlp", ROW, 10, width=3)
    with pytest.raises(UserError, match="takes no options"):
        build("logistic", IMAGE, 10, hidden=(3,))
    with pytest.raises(UserError, match="classes must be"):
        build("cnn", IMAGE, 0)
    with pytest.raises(UserError, match="shape"):
        build("logistic", (0,), 10)


def test_the_registry_describes_every_model_it_builds():
    assert [entry.name for entry in describe()] == names()
    assert {entry.name: entry.options for entry in describe()}["mlp"] == {"hidden": (64,), "projection": 0}
    assert all(entry.summary for entry in describe())


def test_lenet_with_moons_projection_head_has_the_papers_parameters():
    network = build("lenet", (3, 32, 32), 10, projection=256)
    assert sum(p.numel() for p in network.parameters()) == 92_626
    assert network(torch.zeros(2, 3, 32, 32)).features.shape == (2, 256)
