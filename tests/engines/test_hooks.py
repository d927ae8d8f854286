"""Each client hook does what its documentation says: values against computations by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
from helpers import SIZES, advanced, apart, federation, held, toy
from jobs import uploads
from made_up_strands import MADE_UP
from torch.nn.functional import cross_entropy, one_hot

from fedbraid.core.random import stream
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError

LR = 0.1
KINDS = ["stack", "loop"]
CLIENTS = range(len(SIZES))


class FullBatch:
    """A federation whose clients take a full-batch step an epoch, with its slopes by plain autograd."""

    def __init__(self, method, kind, epochs=1, **settings):
        work = {"batch": 0, "epochs": epochs}
        self.simulation = federation(method, own=MADE_UP, engine={"kind": kind}, local=work, **settings)
        self.start = self.simulation.server.w
        self.samples, self.clients = self.simulation.clients.samples, self.simulation.clients
        self.uploads = uploads(self.simulation) if not self.simulation.chain.using("probe") else None

    def of(self, k):
        own = self.clients.own(k)
        return self.samples.x[own], self.samples.y[own]

    def predict(self, w, x):
        return self.simulation.model.predict(w, self.simulation.server.buffers, x)

    def slope(self, w, k, objective):
        """The gradient at w of `objective(predict, x, y, k)`."""
        w = w.detach().requires_grad_()
        return torch.autograd.grad(objective(lambda x: self.predict(w, x), *self.of(k), k), w)[0]

    def assert_one_step_down(self, objective):
        for k in CLIENTS:
            expected = self.start - LR * self.slope(self.start, k, objective)
            torch.testing.assert_close(self.uploads["model"][k], expected, rtol=0, atol=1e-12)


def entropy(predict, x, y, k):
    return cross_entropy(predict(x).logits, y)


@pytest.mark.parametrize("kind", KINDS)
def test_task_takes_the_place_of_the_loss(kind):
    def focal(predict, x, y, k):
        log_p = predict(x).logits.log_softmax(1).gather(1, y[:, None])
        return (-((1 - log_p.exp()) ** 2) * log_p).mean()

    FullBatch("focal", kind).assert_one_step_down(focal)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_adjusts_what_the_task_loss_sees(kind):
    world = FullBatch("calibrate", kind)

    def calibrated(predict, x, y, k):
        prior = (torch.bincount(y, minlength=3).double() + 1) / (SIZES[k] + 3)
        return cross_entropy(predict(x).logits + 0.5 * prior.log(), y)

    world.assert_one_step_down(calibrated)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_changes_inputs_and_labels_with_the_clients_own_draws(kind):
    def mixed(predict, x, y, k):
        order = stream(0, "local", round=0, client=k).permutation(SIZES[k])
        x, y, rng = x[order], y[order], stream(0, "local/mix", round=0, client=k)
        partner, share = rng.permutation(SIZES[k]), rng.beta(0.4, 0.4, 1)[0]
        x, shares = (share * v + (1 - share) * v[partner] for v in (x, one_hot(y, 3).double()))
        return -(shares * predict(x).logits.log_softmax(1)).sum(1).mean()

    FullBatch("mix", kind).assert_one_step_down(mixed)


@pytest.mark.parametrize("kind", KINDS)
def test_grad_may_evaluate_the_gradient_elsewhere(kind):
    world = FullBatch("sharp", kind)
    for k in CLIENTS:
        g = world.slope(world.start, k, entropy)
        uphill = world.slope(world.start + 0.05 * g / (g.norm() + 1e-12), k, entropy)
        torch.testing.assert_close(world.uploads["model"][k], world.start - LR * uphill, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_listed_grad_is_innermost(kind):
    """`sharp+prox` adds the pull at w; `prox+sharp` evaluates it uphill too."""
    mu = 0.9
    for method, inner in (("sharp+prox(mu=0.9)", 0.0), ("prox(mu=0.9)+sharp", mu)):
        world = FullBatch(method, kind)
        for k in CLIENTS:
            g = world.slope(world.start, k, entropy)
            at = world.start + 0.05 * g / (g.norm() + 1e-12)
            expected = world.start - LR * (world.slope(at, k, entropy) + inner * (at - world.start))
            torch.testing.assert_close(world.uploads["model"][k], expected, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Push(Strand):
    def grad(self, w, c, next):
        return next(w) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_limits_the_raw_gradient_before_strands_correct_it(kind):
    world = FullBatch(Push(), kind, optimizer={"clip": 0.05})
    for k in CLIENTS:
        g = world.slope(world.start, k, entropy)
        expected = world.start - LR * (0.05 * g / g.norm() + 1)
        assert g.norm() > 0.05
        torch.testing.assert_close(world.uploads["model"][k], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_end_may_replace_the_model_that_is_uploaded(kind):
    trained, half = FullBatch("fedavg", kind, epochs=2), FullBatch("halfway", kind, epochs=2)
    torch.testing.assert_close(half.uploads["model"], (half.start + trained.uploads["model"]) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_every_epoch_begins_with_memory_made_from_the_whole_of_the_clients_data(kind):
    """Two epochs of one step: class means of the features under the start, then under the model of the first step."""
    world = FullBatch("anchor", kind, epochs=2)
    for k in CLIENTS:
        (_, y), w, pulled = world.of(k), world.start, None
        shares = one_hot(y, 3).double()

        for _ in range(2):
            features = world.predict(w, world.of(k)[0]).features
            pulled = shares.mT @ features / shares.sum(0).clamp(min=1)[:, None]

            def objective(predict, x, y, k, anchors=shares @ pulled):
                out = predict(x)
                return cross_entropy(out.logits, y) + 0.5 * (out.features - anchors).square().sum(1).mean()

            w = w - LR * world.slope(w, k, objective)
        torch.testing.assert_close(world.uploads["model"][k], w, rtol=0, atol=1e-12)
        torch.testing.assert_close(world.uploads["anchor.means"][k], pulled, rtol=0, atol=1e-12)
        assert world.uploads["anchor.calls"][k] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_over_data_sees_every_sample_once_however_many_there_are(kind):
    """More samples than go through the network at once."""

    @dataclass(frozen=True)
    class Census(Strand):
        def begin(self, w, c):
            return c.over_data(w, lambda out, b: {"n": b.mask.sum(), "x": (b.mask[:, None] * b.x).sum(0)})

        def end(self, w, c):
            return dict(c.memory), {}

    data = toy((1030, 5, 512))
    simulation = federation(Census(), data=data, engine={"kind": kind}, local={"batch": 0, "epochs": 1})
    got = uploads(simulation)
    assert got["census.n"].tolist() == [1030, 5, 512]
    for k, part in enumerate(data[1].clients):
        torch.testing.assert_close(got["census.x"][k], torch.as_tensor(data[0].train.x[part].sum(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_step_remembers_from_step_to_step(kind):
    world = FullBatch("tracker", kind, epochs=3)
    for k in CLIENTS:
        w, mean = world.start, 0.0
        for _ in range(3):
            mean = 0.8 * mean + 0.2 * world.predict(w, world.of(k)[0]).logits.mean(0)
            w = w - LR * world.slope(w, k, entropy)
        torch.testing.assert_close(world.uploads["tracker.mean"][k], mean, rtol=0, atol=1e-12)
    before = world.simulation.server.kept["tracker"]["mean"]
    assert not before.any()
    after = advanced(world.simulation, 1).server.kept["tracker"]["mean"]
    torch.testing.assert_close(after, world.uploads["tracker.mean"].sum(0))


@pytest.mark.parametrize("kind", KINDS)
def test_what_clients_answer_to_a_probe_comes_back_to_each_of_them(kind):
    world = FullBatch("fair", kind)
    losses = [float(cross_entropy(world.predict(world.start, world.of(k)[0]).logits, world.of(k)[1])) for k in CLIENTS]
    factors = torch.tensor(losses, dtype=torch.float64) / (sum(losses) / len(losses))
    steps = torch.stack([factors[k] * world.slope(world.start, k, entropy) for k in CLIENTS])
    shares = torch.tensor(SIZES).double() / sum(SIZES)
    after = advanced(world.simulation, 1).server.w
    torch.testing.assert_close(after, world.start - LR * shares @ steps, rtol=0, atol=1e-12)


def test_deploy_is_what_is_evaluated_and_handed_out():
    simulation = federation("average", own=MADE_UP)
    models = [advanced(simulation, 1).server.w for _ in range(3)]
    torch.testing.assert_close(simulation.deployed()[0], torch.stack(models).mean(0))
    assert not torch.equal(simulation.deployed()[0], simulation.server.w)


def test_over_data_inside_a_local_step_is_refused():
    @dataclass(frozen=True)
    class Peeks(Strand):
        def loss(self, out, batch, c):
            return c.over_data(c.start, lambda out, b: {"n": b.mask.sum()})["n"]

    with pytest.raises(RuntimeError, match=r"over_data .*may be called in begin, end and probe"):
        federation(Peeks()).advance()


# --- strands that keep the contract in unusual ways


@dataclass(frozen=True)
class Swapped(Strand):
    """Remembers two things, and names them in another order at each step."""

    def init_server(self, setup):
        return {"a": setup.w.new_zeros(()), "b": setup.w.new_zeros(())}

    def begin(self, w, c):
        return {"a": torch.zeros_like(c.size), "b": torch.ones_like(c.size)}

    def step(self, w, out, batch, c):
        return {"b": 2 * c.memory["b"], "a": c.memory["a"] + 1}

    def end(self, w, c):
        return dict(c.memory), {}

    def absorb(self, r):
        return {"a": r.sum("a"), "b": r.sum("b")}


@dataclass(frozen=True)
class Counting(Strand):
    """Remembers something only from its first step on."""

    def init_server(self, setup):
        return {"n": setup.w.new_zeros(())}

    def step(self, w, out, batch, c):
        return {"n": c.memory.get("n", 0) + batch.mask.sum()}

    def end(self, w, c):
        return dict(c.memory), {}

    def absorb(self, r):
        return {"n": r.sum("n")}


@dataclass(frozen=True)
class Noise(Strand):
    """Draws noise for each sample and turns it by a matrix that all clients share."""

    def draw(self, d):
        return {"z": d.steps.normal(size=(len(d.counts), d.width, 4))}, {}

    def send(self, r):
        return {"turn": torch.eye(4, dtype=r.w.dtype, device=r.w.device).roll(1, 0)}

    def batch(self, batch, c):
        return replace(batch, x=batch.x + batch.draws["noise.z"][: len(batch.mask)] @ c.received["turn"])


@pytest.mark.parametrize("strand", [Swapped(), Noise()])
def test_unusual_strands_do_the_same_in_the_stack_as_in_the_loop(strand):
    stack, loop = (held(advanced(federation(strand, engine={"kind": kind}), 2)) for kind in KINDS)
    assert apart(stack, loop) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_begin_does_not_give_is_refused_by_name(kind):
    with pytest.raises(UserError, match=r"counting remembers \['n'\], but its begin gives \[\]"):
        federation(Counting(), engine={"kind": kind}).advance()
