"""Networks with layers that need care: BatchNorm, recurrence, dropout, and outputs of the wrong kind."""

import copy
import logging
from threading import Thread

import pytest
import torch
from helpers import SIZES, advanced, apart, federation, held, toy
from jobs import training_job, uploads
from networks import Centred, Choosing, Network, Normed, Recurrent, Tied, Tracking
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from fedbraid.core.chain import Chain
from fedbraid.core.model import Model
from fedbraid.core.plan import make_plan
from fedbraid.errors import UserError
from fedbraid.models import build

EVEN = toy((4, 8, 12, 6))  # no batch of a single sample, which BatchNorm cannot train on
WORK = {"batch": 4, "epochs": 2, "drop_last": True}


def plain_torch(module, rounds, lr=0.1, momentum=0.5):
    """FedAvg as anybody would write it: modules, torch.optim and averaged state dicts."""
    dataset, partition = EVEN
    x, y = torch.as_tensor(dataset.train.x), torch.as_tensor(dataset.train.y)
    module = copy.deepcopy(module).double()
    work = federation(local=WORK).config.local
    for t in range(rounds):
        states = []
        for k, own in enumerate(partition.clients):
            client = copy.deepcopy(module).train()
            optimizer = torch.optim.SGD(client.parameters(), lr, momentum)
            plan = make_plan(Chain(), work, len(own), 4, seed=0, round=t, client=k)
            for row, count in zip(plan.positions, plan.counts, strict=True):
                at = own[row[:count]]
                optimizer.zero_grad()
                cross_entropy(client(x[at]).logits, y[at]).backward()
                optimizer.step()
            states.append(client.state_dict())
        shares = partition.sizes / partition.sizes.sum()
        mean = {key: sum(p * s[key].double() for p, s in zip(shares, states, strict=True)) for key in states[0]}
        module.load_state_dict(mean)
    return module.state_dict()


def as_state(simulation):
    layout, buffers = simulation.model.layout, simulation.model.buffers
    return layout.views(simulation.server.w) | buffers.views(simulation.server.buffers)


@pytest.mark.parametrize("network", [Normed, Recurrent])
def test_batchnorm_and_recurrence_train_as_in_plain_torch_with_averaged_buffers(network):
    module = network()
    settings = {"data": EVEN, "module": module, "local": WORK, "optimizer": {"momentum": 0.5}}
    got = as_state(advanced(federation(**settings)))
    expected = plain_torch(module, 3)
    for key, value in got.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-12)
    assert len(got) == len([k for k in expected if "num_batches" not in k])


@pytest.mark.parametrize("kind", ["auto", "stack", "loop"])
def test_layers_of_two_names_and_weights_of_two_layers_train_as_in_plain_torch(kind):
    module = Tied()
    settings = {"data": EVEN, "module": module, "local": WORK, "optimizer": {"momentum": 0.5}}
    made = advanced(federation(engine={"kind": kind}, **settings))
    assert made.engine.kind == ("loop" if kind == "loop" else "stack")
    expected, got = plain_torch(module, 3), as_state(made)
    assert got.keys() == {name for name, _ in module.named_parameters()}
    for key, value in got.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-12)


def test_lenet_trains_as_in_plain_torch(monkeypatch):
    data = toy((4, 8, 12, 6), (1, 16, 16))
    monkeypatch.setitem(globals(), "EVEN", data)
    module = build("lenet", (1, 16, 16), 3)
    settings = {"data": data, "module": module, "local": WORK, "optimizer": {"momentum": 0.5}, "rounds": 2}
    for kind in ("stack", "loop"):
        got, expected = as_state(advanced(federation(engine={"kind": kind}, **settings))), plain_torch(module, 2)
        for key, value in got.items():
            torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (Tracking, "layer 'norm' (InstanceNorm1d) mixes the samples"),
        (Choosing, "torch cannot batch it over clients"),
        (Centred, "what it computes for a sample depends on the padding of its batch"),
    ],
)
@pytest.mark.parametrize("kind", ["auto", "stack"])
def test_what_cannot_be_stacked_runs_in_the_loop_and_the_log_says_why(network, why, kind, caplog):
    with caplog.at_level(logging.WARNING, "fedbraid"):
        simulation = federation(module=network(), data=EVEN, engine={"kind": kind})
    assert simulation.engine.kind == "loop"
    assert [r.getMessage() for r in caplog.records if why in r.getMessage()] and len(caplog.records) == 1


def test_who_asks_for_the_loop_is_told_nothing(caplog):
    assert federation(module=Normed(), data=EVEN, engine={"kind": "loop"}).engine.kind == "loop"
    assert not caplog.records


@pytest.mark.parametrize(("model", "kind"), [("lenet", "loop"), ("mlp", "stack")])
def test_auto_runs_convolutions_on_a_cpu_client_by_client(model, kind):
    simulation = federation(data=toy((3, 4), (1, 16, 16)), model={"name": model}, engine={"kind": "auto"})
    assert simulation.engine.kind == kind


@pytest.mark.parametrize("method", ["fedavg", "avgm", "scaffold", "avgm+scaffold+sizes"])
def test_buffers_are_averaged_with_the_weights_and_no_strand_corrects_them(method):
    simulation = federation(method, module=Normed(), data=EVEN, local=WORK)
    for _ in range(3):
        before = held(simulation)
        each = uploads(federation_like(simulation), training_job(simulation))["buffers"]
        sizes = simulation.clients.sizes if "scaffold" not in method or "sizes" in method else [1, 1, 1, 1]
        weights = torch.tensor(sizes).double() / sum(sizes)
        advanced(simulation, 1)
        torch.testing.assert_close(simulation.server.buffers, weights @ each, rtol=0, atol=1e-12)
        assert not torch.equal(before["buffers"], simulation.server.buffers)
    assert {v.shape for s in simulation.server.kept.values() for v in s.values()} <= {simulation.server.w.shape}


def federation_like(simulation):
    """The same federation once more, clients' states included: asking an engine moves them on."""
    other = federation(simulation.chain, module=Normed(), data=EVEN, local=WORK)
    ids = range(len(simulation.clients))
    if simulation.store.blank:
        other.store.write(ids, simulation.store.read(ids))
    return other


def test_buffers_wander_with_their_models_under_skip():
    simulation = federation("skip(every=3)", module=Normed(), data=EVEN, local=WORK, sampling={"clients": 3})
    first, before = uploads(simulation), simulation.server.buffers
    advanced(simulation, 1)
    assert torch.equal(simulation.server.buffers, before), "the server's own wait for the next average"
    job = training_job(simulation)
    assert job.model.shape == (3, simulation.setup.layout.size)
    came_from = [int(torch.cdist(row[None], first["model"]).argmin()) for row in job.model]
    assert sorted(came_from) == [0, 1, 2]
    torch.testing.assert_close(job.model, first["model"][came_from])
    torch.testing.assert_close(job.buffers, first["buffers"][came_from])
    assert (first["buffers"][0] - first["buffers"][1]).abs().max() > 1e-3


def test_evaluation_uses_running_statistics_and_leaves_them_alone():
    model = Model.of(Normed()).to(torch.float64, torch.device("cpu"))
    w, buffers = model.initial(torch.float64, torch.device("cpu"))
    x, before = torch.randn(6, 4, dtype=torch.float64), buffers.clone()
    together = model.predict(w, buffers, x).logits
    torch.testing.assert_close(together[:1], model.predict(w, buffers, x[:1]).logits)
    learned, after = model.learn(w, buffers, x)
    assert torch.equal(buffers, before)
    assert not torch.equal(after, before)
    assert not torch.allclose(learned.logits, together)


class Dropping(Network):
    def __init__(self, layer):
        super().__init__(4)
        self.layer = layer

    def features(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "module",
    [
        Dropping(nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.1))),
        Dropping(nn.RReLU()),
        Recurrent(dropout=0.3),
        Dropping(nn.TransformerEncoderLayer(4, 2, dropout=0.1, batch_first=True)),
    ],
)
def test_layers_that_draw_have_the_runs_own_numbers_and_leave_torchs_generator_alone(module):
    before = torch.get_rng_state()
    once, again = (held(advanced(federation(module=module, engine={"kind": "loop"}), 2)) for _ in range(2))
    assert apart(once, again) == 0
    assert apart(once, held(advanced(federation(module=module, engine={"kind": "loop"}, seed=1), 2))) > 1e-6
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_that_draws_where_no_layer_shows_is_refused_and_leaves_torchs_generator_alone():
    module, before = Dropping(nn.functional.dropout), torch.get_rng_state()
    with pytest.raises(UserError, match=r"in evaluation the network draws random numbers .* \(test_modules.py, line"):
        federation(module=module)
    assert torch.equal(torch.get_rng_state(), before)


class Noisy(Network):
    """Draws now and then: seldom in training, or in evaluation only."""

    def __init__(self, when):
        super().__init__(4)
        self.when = when

    def features(self, x):
        if self.when == "seldom":
            return x * (torch.rand(()) > 1e-6)
        return x if self.training else x + torch.randn_like(x)


@pytest.mark.parametrize(("when", "said"), [("seldom", "evaluation"), ("evaluation", "evaluation")])
def test_draws_that_change_little_are_refused_too(when, said):
    with pytest.raises(UserError, match=f"in {said} the network draws"):
        federation(module=Noisy(when))


class Beside(Network):
    """Draws nothing itself, neither where its attention could nor while another thread does."""

    def features(self, x):
        thread = Thread(target=torch.rand, args=(3,))
        thread.start()
        thread.join()
        return nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])[0, 0]


def test_a_network_is_not_blamed_for_what_another_thread_draws():
    federation(module=Beside(4))


class Checkpointed(Network):
    def __init__(self):
        super().__init__(4)
        self.first = nn.Linear(4, 4)

    def features(self, x):
        return checkpoint(lambda x: torch.tanh(self.first(x)), x, use_reentrant=False)


class Listed(Network):
    def __init__(self):
        super().__init__(4)
        self.first = nn.Linear(4, 4)
        self.also = [self.first.weight]

    def features(self, x):
        return x @ self.also[0].T + self.first.bias


@pytest.mark.parametrize("network", [Checkpointed, Listed])
def test_a_network_that_computes_with_other_tensors_than_its_weights_is_refused(network):
    with pytest.raises(UserError, match="computes with other tensors than the weights that it is called with"):
        federation(module=network(), engine={"kind": "loop"})


def test_a_number_that_is_called_dropout_is_none():
    module = Dropping(nn.Dropout(0.2))
    module.dropout = 0.2
    advanced(federation(module=module), 1)


def test_dropout_with_rate_zero_is_no_dropout():
    torch.manual_seed(0)
    dropping = Dropping(nn.Dropout(0.0))
    torch.manual_seed(0)
    plain = Dropping(nn.Identity())
    assert torch.equal(*(advanced(federation(module=module), 1).server.w for module in (dropping, plain)))


def test_batchnorm_of_ones_own_without_momentum_is_refused():
    class Own(nn.BatchNorm1d):
        pass

    with pytest.raises(UserError, match="momentum=None"):
        federation(module=Dropping(Own(4, momentum=None)))


def test_batchnorm_on_a_batch_of_one_sample_is_a_sentence():
    with pytest.raises(UserError, match="BatchNorm"):
        federation(module=Normed(), data=toy(SIZES)).advance()


def test_instance_norm_that_tracks_statistics_trains_in_the_stack_as_in_the_loop():
    module = Tracking()
    stack, loop = (held(advanced(federation(module=module, engine={"kind": kind}), 1)) for kind in ("stack", "loop"))
    assert apart(stack, loop) < 1e-12


def test_tied_weights_stay_tied():
    class Tied(Network):
        def __init__(self):
            super().__init__(4)
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def features(self, x):
            return self.second(torch.tanh(self.first(x)))

    module = Tied()
    stack, loop = (advanced(federation(module=module, engine={"kind": kind}), 2) for kind in ("stack", "loop"))
    assert apart(held(stack), held(loop)) < 1e-12
    trained = stack.module()
    assert torch.equal(trained.first.weight, trained.second.weight)
    assert not torch.equal(trained.first.weight, module.first.weight.double())
