"""Networks that return logits alone: features are what their last layer receives."""

import pickle

import pytest
import torch
from helpers import advanced, federation, held, identical, toy
from torch import nn
from torch.nn.functional import linear, max_pool2d, relu, softmax

from fedbraid.core.model import Model
from fedbraid.errors import UserError
from fedbraid.models import Outputs, last_layer

IMAGES = toy((5, 1, 9, 4), (1, 8, 8))


class Net(nn.Module):
    """LeNet in small."""

    def __init__(self):
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(1, 2, 3), nn.Linear(18, 5), nn.Linear(5, 3)

    def features(self, x):
        return relu(self.hidden(relu(max_pool2d(self.conv(x), 2)).flatten(1)))

    def forward(self, x):
        features = self.features(x)
        return Outputs(self.head(features), features)


class LogitsAlone(Net):
    def forward(self, x):
        return self.head(self.features(x))


def in_sequence(net):
    """The same layers without a class of their own."""
    pooled = nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(nn.Sequential(net.conv, pooled), net.hidden, nn.ReLU(), net.head)


def like(net, kind):
    made = kind()
    made.load_state_dict(net.state_dict())
    return made


@pytest.mark.parametrize("engine", [{"kind": "stack"}, {"kind": "loop", "workers": 2}])
@pytest.mark.parametrize(
    "method", ["fedavg", "rfedavg", "rfedavg_plus", "moon", "fedrod", "feddecorr", "fednh", "creff"]
)
def test_they_train_to_the_bit_as_those_that_return_outputs(method, engine):
    net = Net()
    networks = net, like(net, LogitsAlone), in_sequence(net)
    made = [advanced(federation(method, data=IMAGES, module=m, engine=engine), 2) for m in networks]
    assert {e.engine.kind for e in made} == {engine["kind"]}
    first, alone, sequence = map(held, made)
    assert identical(first, alone) and identical(first, sequence)
    assert not torch.equal(first["w"], made[0].setup.w)


def test_what_is_trained_is_the_network_that_was_given():
    net = LogitsAlone()
    before = dict(vars(net))
    trained = advanced(federation(data=IMAGES, module=net), 1).module()
    assert vars(net).keys() == before.keys() and last_layer(net) == "head"
    assert type(trained) is LogitsAlone and trained.state_dict().keys() == net.state_dict().keys()
    assert trained(torch.zeros(2, 1, 8, 8).double()).shape == (2, 3)


def test_a_layer_by_itself_is_a_network():
    made = advanced(federation("creff", module=nn.Linear(4, 3)), 1)
    assert made.setup.width == 4 and made.setup.of_last_layer("weight") == "weight"
    with pytest.raises(UserError, match=r"nh replaces the network's last layer; it must be an nn\.Linear within"):
        federation("fednh", module=nn.Linear(4, 3))


def test_strands_that_change_the_last_layer_say_what_it_must_be():
    without_bias = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))
    with pytest.raises(UserError, match=r"creff trains the network's last layer.*with a bias"):
        federation("creff", module=without_bias)

    class Elsewhere(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return Outputs(self.fc(x), x)

    for method in ("creff", "fednh"):
        with pytest.raises(UserError, match=r"called head where the network returns fedbraid\.Outputs"):
            federation(method, module=Elsewhere())


def test_a_copy_in_another_process_knows_the_last_layer():
    model = federation(module=nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))).model
    x = torch.randn(6, 4, dtype=torch.float64)
    answers = [m.predict(*m.initial(x.dtype, x.device), x) for m in (model, pickle.loads(pickle.dumps(model)))]
    assert torch.equal(answers[0].logits, answers[1].logits) and torch.equal(*(a.features for a in answers))
    assert answers[0].features.shape == (6, 5) and bool((answers[0].features >= 0).all())
    assert not any(layer._forward_pre_hooks for layer in model.evaluating.modules())


class After(nn.Module):
    """Two layers, and what is done with what they give."""

    def __init__(self, then):
        super().__init__()
        self.last, self.first, self.then = nn.Linear(4, 3), nn.Linear(4, 4), then  # the order says nothing

    def forward(self, x):
        return self.then(self, self.first(x))


@pytest.mark.parametrize(
    "then",
    [
        lambda net, x: net.last(x).flatten(1),
        lambda net, x: net.last(x).view(-1, 3),
        lambda net, x: nn.Identity()(net.last(input=x)),
    ],
)
def test_what_is_the_same_tensor_is_the_last_layers(then):
    net = After(then)
    model = federation(module=net).model
    x = torch.randn(6, 4, dtype=torch.float64)
    assert last_layer(model.training) == "last"
    torch.testing.assert_close(model.predict(*model.initial(x.dtype, x.device), x).features, net.double().first(x))


@pytest.mark.parametrize(
    "then",
    [
        lambda net, x: softmax(net.last(x), -1),
        lambda net, x: net.last(x).exp_(),
        lambda net, x: net.last(x) + 0,
        lambda net, x: linear(x, net.last.weight),
        lambda net, x: [net.last(x), net.last(x)][0],
        lambda net, x: net.first(x)[:, :3],
    ],
)
def test_what_no_last_layer_gave_is_refused(then):
    with pytest.raises(UserError, match=r"not as one nn\.Linear, called once, gave it.* or return fedbraid\.Outputs\("):
        federation(module=After(then))


def test_what_is_neither_logits_nor_outputs_is_refused():
    with pytest.raises(UserError, match=r"the network returned dict; .*fedbraid\.Outputs\(logits, features\)"):
        federation(module=After(lambda net, x: {"logits": net.last(x)}))
    with pytest.raises(UserError, match="something else in training than in evaluation"):
        federation(module=After(lambda net, x: net.last(x) if net.training else Outputs(net.last(x), x)))


def test_a_mistake_in_forward_is_a_sentence():
    with pytest.raises(UserError, match=r"does not take samples of shape \(4,\) \(.*no attribute 'lost'\)"):
        federation(module=After(lambda net, x: net.lost(x)))
    with pytest.raises(UserError, match=r"does not take samples of shape \(4,\) \(mat1 and mat2"):
        federation(module=nn.Linear(5, 3))
    with pytest.raises(UserError, match=r"logits of shape \(2, 2\); toy needs \(2, 3\)"):
        federation(module=nn.Linear(4, 2))


def test_weights_that_are_drawn_late_are_refused():
    with pytest.raises(UserError, match=r"layer '1' \(LazyLinear\) has no weights before it is called"):
        federation(module=nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3)))


def test_a_network_that_was_never_tried_says_what_to_return():
    model = Model.of(nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"the network returned Tensor; .*fedbraid\.Outputs\(logits, features\)"):
        model.predict(*model.initial(torch.float32, torch.device("cpu")), torch.zeros(2, 4))
