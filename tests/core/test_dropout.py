"""Dropout by keys: masks with the rate of torch's, independent of each other, and the same in every engine."""

import copy

import numpy as np
import pytest
import torch
from covering import rest_slow
from helpers import advanced, apart, federation, held, toy
from networks import Masked
from torch import nn
from torch.func import vmap

import fedbraid as fb
from fedbraid.core.dropout import Dropout, KeyedDropout, dropout_keys, with_keyed_dropout
from fedbraid.core.model import Model
from fedbraid.core.random import stream


def masks(key, shape=(400, 50), rate=0.3, number=0, layer=None):
    layer = layer or Dropout(rate, False, number)
    layer.key = torch.tensor(key)
    return layer(torch.ones(shape, dtype=torch.float64)) != 0


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.9])
def test_as_many_are_left_out_as_the_rate_says_and_the_mean_stays(rate):
    layer = Dropout(rate, False, 0)
    layer.key = torch.tensor(7)
    given = torch.ones(1000, 100, dtype=torch.float64)
    out = layer(given)
    spread = (rate * (1 - rate) / given.numel()) ** 0.5
    assert abs((out == 0).double().mean() - rate) < 5 * spread
    assert set(out.unique().tolist()) == {0.0, 1 / (1 - rate)}
    assert torch.equal(layer(torch.zeros_like(given)), torch.zeros_like(given))


def test_everything_or_nothing():
    assert not masks(1, rate=1.0).any()
    x = torch.randn(3, 4)
    assert torch.equal(with_keyed_dropout(nn.Sequential(nn.Dropout(0.0)))(x), x)


def alike(a, b):
    """The correlation of two masks, in its standard deviations."""
    a, b = (m.double().flatten() - m.double().mean() for m in (a, b))
    return abs(float((a * b).mean() / (a.std() * b.std()))) * a.numel() ** 0.5


def test_keys_layers_calls_rows_and_neighbours_have_masks_of_their_own():
    rng = np.random.default_rng(0)
    first, *others = (masks(int(key)) for key in rng.integers(0, 2**32, 20))
    assert max(alike(first, other) for other in others) < 4.5
    neighbours = [masks(key) for key in range(20)]  # keys that differ in their last bits only
    assert max(alike(neighbours[0], other) for other in neighbours[1:]) < 4.5
    assert max(alike(first, masks(1234, number=n)) for n in range(10)) < 4.5
    one = Dropout(0.3, False, 0)
    assert alike(masks(5, layer=one), masks(5, layer=one)) < 4.5
    for shift in (1, 2, 50, 51, 100):
        flat = first.flatten()
        assert alike(flat[shift:], flat[:-shift]) < 4.5


KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
SHAPES = (40, 30), (20, 10, 4), (20, 10, 3, 2), (20, 10, 2, 3, 2)


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *((kind, shape) for kind in (nn.Dropout, nn.Dropout2d) for shape in SHAPES),
        *((nn.Dropout1d, shape) for shape in SHAPES[:2]),  # torch refuses others
        *((nn.Dropout3d, shape) for shape in SHAPES[2:]),
    ],
)
def test_what_goes_as_a_whole_is_what_torch_takes_for_it(kind, shape):
    """Whichever axes torch's masks do not vary along, those of a key do not either, and no others."""
    torch.manual_seed(0)
    x = torch.ones(shape)
    masks = [layer.train()(x) != 0 for layer in (kind(0.5), with_keyed_dropout(nn.Sequential(kind(0.5)))[0])]
    constant = [[bool((m == m.narrow(d, 0, 1)).all()) for d in range(x.dim())] for m in masks]
    assert constant[0] == constant[1]


def test_a_layer_is_still_one_of_its_kind():
    for kind in KINDS:
        (layer,) = with_keyed_dropout(nn.Sequential(kind(0.3, inplace=True)))
        assert isinstance(layer, kind) and isinstance(layer, KeyedDropout) and (layer.p, layer.inplace) == (0.3, True)
    x = torch.ones(50, 4)
    assert with_keyed_dropout(nn.Sequential(nn.Dropout(0.5, inplace=True)))(x) is x and (x == 0).any()


def test_a_layer_that_the_network_holds_in_evaluation_leaves_nothing_out():
    class Frozen(Masked):
        def train(self, mode=True):
            super().train(mode)
            self.drop.eval()
            self.layers[4].eval()
            return self

    assert apart(*(held(advanced(federation(module=frozen))) for frozen in same_weights(Frozen(0.9), Frozen(0.0)))) == 0


def same_weights(one, other):
    other.load_state_dict(one.state_dict())
    return one, other


def test_padding_and_the_client_axis_change_no_mask():
    layer, keys = Dropout(0.5, False, 0), torch.tensor([3, 4, 5])
    x = torch.randn(3, 6, 4)

    def called(key, rows):
        layer.calls = 0
        return torch.func.functional_call(layer, {"key": key}, (rows,))

    together = vmap(called)(keys, x)
    for k, key in enumerate(keys):
        assert torch.equal(together[k], called(key, x[k]))
        assert torch.equal(together[k, :2], called(key, x[k, :2]))


def test_a_network_is_changed_in_its_copy_alone_and_every_name_of_a_layer_is():
    module = Masked()
    before, own = str(module), with_keyed_dropout(module)
    assert str(module) == before
    assert not any(type(layer) is nn.Dropout for layer in own.modules())
    assert own.drop is own.layers[2] and dropout_keys(own) == ("drop.key", "layers.4.key")
    assert own.state_dict().keys() == module.state_dict().keys()


def test_a_step_of_training_is_that_of_masks_made_by_hand():
    module = Masked().double()
    model = Model.of(module)
    w, buffers = model.initial(torch.float64, torch.device("cpu"))
    x, key = torch.randn(5, 4, dtype=torch.float64), torch.tensor(99)
    reference = copy.deepcopy(with_keyed_dropout(module)).double()
    drop, last = reference.drop, reference.layers[4]
    drop.key = last.key = key
    inner = torch.tanh(reference.layers[0](drop(x)))
    expected = reference.head(last(reference.layers[3](drop(inner))))
    for _ in range(2):  # every pass begins anew: the same key has the same masks
        torch.testing.assert_close(model.learn(w, buffers, x, key)[0].logits, expected, rtol=0, atol=1e-14)
    other = model.learn(w, buffers, x, torch.tensor(100))[0].logits
    assert not torch.allclose(other, expected)
    torch.testing.assert_close(model.predict(w, buffers, x).logits, module.eval()(x).logits, rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", rest_slow(["fedavg", "sam+scaffold", "moon", "fedavg+asd"], {"moon"}.__contains__))
def test_engines_agree(method):
    module, kinds = Masked(), ("stack", "loop", "compiled")
    stack, *others = (held(advanced(federation(method, module=module, engine={"kind": kind}))) for kind in kinds)
    assert max(apart(stack, other) for other in others) < 1e-12
    without = held(advanced(federation(method, module=Masked(0.0))))
    assert apart(stack, without) > 1e-6


def test_keys_are_the_seeds_rounds_clients_and_steps():
    """The key of a step is drawn from a stream of its own: nothing else of a plan changes."""
    plans = [federation(module=Masked(rate), data=toy((9, 9))).engine.plan(0, 3, 1) for rate in (0.5, 0.0)]
    assert np.array_equal(plans[0].positions, plans[1].positions)
    (key,) = plans[0].draws.keys() - plans[1].draws.keys()
    drawn = stream(0, "network", round=3, client=1).integers(0, 2**32, len(plans[0]))
    assert np.array_equal(plans[0].draws[key], drawn) and len(set(drawn.tolist())) == len(drawn)


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def test_a_run_repeats_resumes_and_gives_the_network_back_as_it_was(tmp_path):
    torch.manual_seed(1)
    once = fb.run("fedprox", model=small, rounds=4)
    torch.rand(100)  # whatever else draws
    again = fb.run("fedprox", model=small, rounds=2, out=tmp_path / "a")
    again = fb.run("fedprox", model=small, rounds=4, out=tmp_path / "a", resume=True)
    for a, b in zip(once.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert type(once.model[3]) is nn.Dropout and not once.model.training
    other = fb.run("fedprox", model=small, rounds=4, seed=1)
    assert other.accuracy != once.accuracy
