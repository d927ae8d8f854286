"""Networks that people bring: the stack trains them as the loop does, and as plain torch where nothing is drawn."""

import copy
import warnings

import pytest
import torch
from helpers import advanced, apart, federation, held
from networks import Normed
from torch import nn
from torch.func import vmap
from torch.nn.functional import cross_entropy
from user_networks import CASES, EVEN, NUMBERS, Bert, Normed1d, ResNet, sentences

import fedbraid as fb
from fedbraid.core.gradient import gradient
from fedbraid.core.model import Model
from fedbraid.core.plan import make_plan
from fedbraid.engines.local_engine import OWN_BUFFERS
from fedbraid.errors import UserError

KINDS = "stack", "loop"
POLICIES = "local", "average"


def trained(module, data, kind, **settings):
    settings = {"local": {"batch": 4, "epochs": 2}, "optimizer": {"momentum": 0.5}, "rounds": 2} | settings
    made = federation(module=copy.deepcopy(module), data=data, engine={"kind": kind}, **settings)
    assert made.engine.kind == kind
    return advanced(made)


@pytest.fixture
def _no_vmap_fallback():
    """Operations without a batching rule would run client by client, slowly: here they fail instead."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("_no_vmap_fallback")
def test_the_stack_trains_as_the_loop(name):
    torch.manual_seed(0)
    make, data = CASES[name]
    module = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it batches client by client
        stack = held(trained(module, data, "stack"))
    assert apart(stack, held(trained(module, data, "loop"))) <= 1e-9


def plain(module, data, rounds):
    """Federated averaging as it is usually written, with torch's own modules in float64."""
    dataset, partition = data
    server = copy.deepcopy(module).double()
    for r in range(rounds):
        states = []
        for client, own in enumerate(partition.clients):
            x, y = (torch.as_tensor(part[own]) for part in (dataset.train.x, dataset.train.y))
            local = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(local.parameters(), 0.1, momentum=0.5)
            simulation = federation(module=copy.deepcopy(module), data=data, local={"batch": 4, "epochs": 2})
            plan = make_plan(simulation.chain, simulation.config.local, len(own), 4, seed=0, round=r, client=client)
            for positions, count in zip(plan.positions, plan.counts, strict=True):
                at = positions[:count]
                optimizer.zero_grad()
                cross_entropy(local(x[at]), y[at]).backward()
                optimizer.step()
            states.append((len(own), local.state_dict()))
        total = sum(n for n, _ in states)
        mean = {k: sum(n / total * s[k] for n, s in states) for k in states[0][1]}
        server.load_state_dict({k: v.to(server.state_dict()[k].dtype) for k, v in mean.items()})
    return server.state_dict()


@pytest.mark.parametrize("name", ["resnet", "vit", "fused", "normed", "cumulative"])
def test_the_stack_trains_as_plain_torch(name):
    torch.manual_seed(1)
    make, data = CASES[name]
    module = make()
    rounds = 1 if name == "cumulative" else 2  # its counter is a mean afterwards, which torch's integer cannot be
    got = trained(module, data, "stack", rounds=rounds)
    expected = plain(module, data, rounds)
    own = got.model.layout.views(got.server.w) | got.model.buffers.views(got.server.buffers)
    for key in own.keys() - {"norm1.num_batches_tracked"}:
        torch.testing.assert_close(own[key], expected[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_a_batch_of_one_sample_is_refused_where_torch_refuses_it(kind):
    with pytest.raises(
        UserError, match=r"BatchNorm needs two samples or more in a batch, and clients 1, 2 have one left over"
    ):
        trained(Normed1d(), NUMBERS, kind)


def test_synchronised_batch_norm_is_refused():
    with pytest.raises(UserError, match=r"SyncBatchNorm.*nn.BatchNorm2d"):
        Model.of(nn.SyncBatchNorm(3))


def test_dropout_repeats_with_the_seed_and_differs_between_seeds():
    module = Bert(0.5)
    one, same, other = (held(trained(module, sentences(), "stack", seed=s)) for s in (1, 1, 2))
    assert apart(one, same) == 0 and apart(one, other) > 1e-3


def test_what_cannot_be_reproduced_is_refused_with_its_line():
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x[:, torch.randperm(4)])

    with pytest.raises(UserError, match=r"in training the network draws .* \(test_user_networks.py, line \d+\)"):
        federation(module=Choosing(), data=NUMBERS)


def test_dropout_that_is_not_turned_off_in_evaluation_is_refused():
    class Always(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(nn.functional.dropout(x))

    with pytest.raises(UserError, match=r"in evaluation the network draws .*self.training"):
        federation(module=Always(), data=NUMBERS)


def test_attention_is_torchs_under_every_kind_of_bias():
    torch.manual_seed(0)
    clients, samples, heads, length = 3, 4, 2, 5
    x = torch.randn(clients, samples, heads, length, 4, dtype=torch.float64)
    biases = {
        "none": None,
        "shared": torch.randn(length, length, dtype=torch.float64),
        "of heads": torch.randn(clients, heads, length, length, dtype=torch.float64),
        "of samples": torch.randn(clients, samples, 1, length, length, dtype=torch.float64),
        "mask": torch.rand(clients, samples, 1, length, length) > 0.3,
    }
    from fedbraid.core.attention import attention

    for name, bias in biases.items():
        axis = None if name in ("none", "shared") else 0
        learned = bias is not None and bias.dtype != torch.bool and axis == 0

        def loss(f, x, b, learned=learned):
            def objective(flat):
                q = flat[: x.numel()].view(x.shape)
                made = f(q, q.sin(), q.cos(), flat[x.numel() :].view(b.shape) if learned else b)
                return made.square().sum(), made

            return gradient(objective, torch.cat([x.flatten(), b.flatten()]) if learned else x.flatten())

        def ours(q, k, v, b):
            return attention(q, k, v, b, False, None, False)

        slopes, (_, made) = vmap(lambda x, b, loss=loss: loss(ours, x, b), (0, axis))(x, bias)
        for k in range(clients):
            b = bias[k] if axis == 0 else bias
            slope, (_, one) = loss(torch.nn.functional.scaled_dot_product_attention, x[k], b)
            torch.testing.assert_close(made[k], one, rtol=0, atol=1e-12)
            torch.testing.assert_close(slopes[k], slope, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_own_statistics_stay_with_their_clients_and_do_not_travel(kind):
    data, module = EVEN, Normed()
    settings = {"local": {"batch": 4, "epochs": 1, "drop_last": True}, "sampling": {"clients": 2}, "rounds": 3}
    own, usual = (federation(module=module, data=data, engine={"kind": kind}, buffers=b, **settings) for b in POLICIES)
    for _ in range(3):
        before = own.store.read(range(4))[OWN_BUFFERS]["buffers"]
        line, other = own.advance(), usual.advance()
        after = own.store.read(range(4))[OWN_BUFFERS]["buffers"]
        cohort = line["client_ids"]
        changed = (before != after).any(1)
        assert changed.nonzero().flatten().tolist() == sorted(cohort)
        mean = after[cohort].mean(0) if len(set(own.sizes[cohort])) == 1 else None
        weights = torch.as_tensor(own.sizes[cohort] / own.sizes[cohort].sum())
        torch.testing.assert_close(own.server.buffers, weights @ after[cohort], rtol=0, atol=1e-12)
        assert mean is None or torch.allclose(mean, own.server.buffers)
        statistics = 2 * own.setup.buffers.numel() * own.setup.buffers.element_size()
        assert other["bytes_down"] - line["bytes_down"] == other["bytes_up"] - line["bytes_up"] == statistics
    assert not torch.allclose(own.server.buffers, usual.server.buffers)


def test_engines_agree_on_own_statistics():
    settings = {"data": EVEN, "local": {"batch": 4, "epochs": 2, "drop_last": True}, "buffers": "local"}
    torch.manual_seed(0)
    module = Normed()
    stack, loop = (
        advanced(federation("prox", module=module, engine={"kind": k}, **settings)) for k in ("stack", "loop")
    )
    assert apart(held(stack), held(loop)) <= 1e-9
    read = [made.store.read(range(4))[OWN_BUFFERS]["buffers"] for made in (stack, loop)]
    torch.testing.assert_close(*read, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_frozen_statistics_are_those_of_the_network_and_do_not_travel(kind):
    torch.manual_seed(0)
    module = Normed()
    module.norm.running_mean.normal_()
    module.norm.running_var.uniform_(0.5, 2)
    made = advanced(federation(module=module, engine={"kind": kind}, buffers="freeze"), 2)
    assert made.setup.buffers.numel() == 0
    trained = made.module()
    for name in ("running_mean", "running_var"):
        assert torch.equal(getattr(trained.norm, name).float(), getattr(module.norm, name))
    x = torch.randn(5, 4, dtype=torch.float64)
    learned = made.model.learn(made.server.w, made.server.buffers, x)[0].logits
    torch.testing.assert_close(learned, made.model.predict(made.server.w, made.server.buffers, x).logits)


def test_a_policy_without_statistics_is_refused():
    with pytest.raises(UserError, match="buffers is local, but the network has no running statistics"):
        federation(buffers="local")


def frozen_resnet():
    """A network of which the head and one scale are trained."""
    module = ResNet().requires_grad_(False)
    module.fc.requires_grad_(True)
    module.layers[1].bn2.weight.requires_grad_(True)
    return module


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_parameters_that_nobody_trains_are_held_once_and_do_not_travel(method):
    torch.manual_seed(0)
    module = frozen_resnet()
    data, trained_ones = CASES["resnet"][1], [p for p in module.parameters() if p.requires_grad]
    size = sum(p.numel() for p in trained_ones)
    kinds = {k: federation(method, module=module, data=data, engine={"kind": k}, buffers="freeze") for k in KINDS}
    lines = {k: made.advance() for k, made in kinds.items()}
    assert apart(*(held(made) for made in kinds.values())) <= 1e-9
    for made, line in zip(kinds.values(), lines.values(), strict=True):
        assert made.setup.w.numel() == size and made.setup.buffers.numel() == 0
        assert line["bytes_down"] == line["bytes_up"] == 4 * 8 * size * (2 if method == "scaffold" else 1)
        after = made.module().state_dict()
        for name, p in module.named_parameters():
            assert torch.equal(after[name], p.double()) != p.requires_grad, name


def test_a_frozen_head_stays_in_the_vector_where_strands_look_for_it():
    module = ResNet()
    module.fc.requires_grad_(False)
    made = federation(module=module, data=CASES["resnet"][1])
    assert {"fc.weight", "fc.bias"} <= {*made.setup.layout.names}


def test_a_run_with_frozen_parameters_is_recorded_and_loaded(tmp_path):
    module = frozen_resnet()
    dataset, partition = CASES["resnet"][1]
    run = fb.run("fedavg", data=dataset, partition=partition, model=module, rounds=2, out=tmp_path / "run")
    again = fb.load(tmp_path / "run", data=dataset, partition=partition, model=frozen_resnet())
    for name, value in run.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
