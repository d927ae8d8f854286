"""What must be equal whatever the numbers, what a round costs, and what stays on a client."""

import numpy as np
import pytest
import torch
from covering import ENGINES as QUICK_ENGINES
from helpers import SIZES, advanced, federation, held, identical, toy
from local_world import (
    CLASSES,
    COHORT,
    ENGINES,
    HIDDEN,
    LR,
    World,
    a_client,
    apart,
    ce,
    net,
    objective,
    one_hot,
    over,
    slope_of,
    tensor,
)
from torch import nn

from fedbraid.core.outputs import Outputs
from fedbraid.core.round import one_round
from fedbraid.errors import UserError
from fedbraid.strands import parser as methods
from fedbraid.strands.acd import Acd
from fedbraid.strands.asd import Asd
from fedbraid.strands.lc import Lc
from fedbraid.strands.ntd import Ntd
from fedbraid.strands.rfedavg import RFedAvg
from fedbraid.strands.rod import Rod

NEUTRAL = [
    "asd(lam=0)",
    "asd(lam=0)+ntd",
    "ntd(beta=0)",
    "moon(mu=0)",
    "decorr(beta=0)",
    "lc(tau=0, missing=1)",
    "rod(gamma=0, missing=1)",
    "sam(rho=0)",
    "sam(rho=0, adaptive=True)",
    "rfedavg(lam=0)",
    "rfedavg_plus(lam=0)",
]
LABELS = np.array([3, 0, 2, 3, 2])
PARAMETERS = HIDDEN * 5 + CLASSES * (HIDDEN + 1)
BYTES = 8
EPOCHS = 2


@pytest.fixture(scope="module")
def fedavg():
    return {kind: World(rho=0.5).trained(kind).server.w for kind in ENGINES}


@pytest.mark.parametrize("kind", QUICK_ENGINES)
@pytest.mark.parametrize("method", NEUTRAL)
def test_no_strength_is_fedavg_to_the_bit(method, kind, fedavg):
    assert torch.equal(World(method, rho=0.5).trained(kind).server.w, fedavg[kind])


# --- losses


def logits(seed=0):
    return 2 * np.random.default_rng(seed).normal(size=(5, CLASSES))


def asd_loss(strand, student, teacher, counts, y=LABELS):
    f = np.zeros((len(y), 1))
    return objective(strand, student, f, one_hot(y), a_client(y, counts, {"received": (teacher, f)}))


@pytest.mark.parametrize("divergence", ["kl", "reverse", "js"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_student_that_equals_its_teacher_learns_nothing_from_it(divergence, scale):
    z = logits() * scale
    for strand in (Asd(divergence=divergence), Asd(divergence=divergence, not_true=True), Ntd()):
        value, gz, _ = asd_loss(strand, z, z, [2, 0, 5, 9])
        assert abs(value) < 1e-14 and np.abs(gz).max() < 1e-14


def test_asds_weights_depend_on_shares_of_labels_alone_and_sum_to_one():
    student, teacher, counts = logits(1), logits(2), np.array([2.0, 0, 5, 9])
    value, gz, _ = asd_loss(Asd(), student, teacher, counts)
    for factor in (10.0, 1e-3):
        again, slope, _ = asd_loss(Asd(), student, teacher, factor * counts)
        np.testing.assert_allclose(again, value, rtol=1e-13)
        np.testing.assert_allclose(slope, gz, rtol=1e-12)
    # where every sample diverges alike, the weighted sum is that divergence: the weights sum to 1
    alike, base = np.tile(student[:1], (5, 1)), np.tile(teacher[:1], (5, 1))
    y = np.array([3, 0, 2, 3, 2])
    weighed, even = (asd_loss(Asd(weights=w), alike, base, counts, y)[0] for w in ("adaptive", "uniform"))
    one = asd_loss(Asd(), alike[:1], base[:1], counts, y[:1])[0]
    np.testing.assert_allclose([weighed, even], one, rtol=1e-13)


def test_asd_prefers_rare_labels_and_sure_teachers():
    student, teacher, counts = np.zeros((2, CLASSES)), np.tile([2.0, 1, 0, 0], (2, 1)), [1, 0, 0, 9]
    _, gz, _ = asd_loss(Asd(), student, teacher, counts, np.array([0, 3]))
    np.testing.assert_allclose(gz[0], 9 * gz[1], rtol=1e-12)
    unsure = np.array([[2.0, 1, 0, 0], [0.2, 0.1, 0, 0]])
    sure = asd_loss(Asd(1.0), student[:, :] + [1.0, 0, 0, 0], unsure, [5, 0, 0, 5], np.array([0, 3]))[1]
    q = [np.exp(t / 2) / np.exp(t / 2).sum() for t in unsure]
    p = np.exp([0.5, 0, 0, 0]) / np.exp([0.5, 0, 0, 0]).sum()
    alpha = [np.median(g / ((p - t) / 2)) for g, t in zip(sure, q, strict=True)]
    assert alpha[0] > alpha[1] and abs(sum(alpha) - 1) < 1e-12


def test_fedacd_with_even_ratios_and_without_its_first_term_is_cross_entropy():
    z, even = logits(3), torch.zeros(CLASSES, CLASSES).double()
    f = np.zeros((5, 1))

    def loss(lam, classes=CLASSES):
        return objective(Acd(lam=lam), z, f, one_hot(LABELS), a_client(LABELS, [1] * 4, memory={"shift": even}))

    (value, gz, _), (first, g_first, _) = loss(1.0), loss(0.0)
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    np.testing.assert_allclose(value - first, -log_p[range(5), LABELS].mean(), rtol=1e-13)
    np.testing.assert_allclose(gz - g_first, (np.exp(log_p) - one_hot(LABELS)) / 5, rtol=1e-11, atol=1e-14)


def test_fedacds_ratios_are_antisymmetric():
    y = np.arange(CLASSES).repeat(3)
    parts = [(logits(4)[[0, 1, 2, 3] * 3], np.zeros((12, 1)), y)]
    shift = Acd().begin(torch.zeros(1), a_client(y, [3] * 4, over_data=over(parts)))["shift"]
    assert apart(shift, -shift.T) < 1e-13 and shift.abs().max() > 0.1


def test_counts_of_classes_matter_up_to_a_factor_in_rod_and_not_so_in_lc():
    z, f = logits(5), np.zeros((5, 1))

    def loss(strand, counts):
        return objective(strand, z, f, one_hot(LABELS), a_client(LABELS, counts))[0]

    counts = np.array([2.0, 0, 5, 9])
    assert abs(loss(Rod(), counts) - loss(Rod(), 16 * counts)) < 1e-12
    assert abs(loss(Lc(), counts) - loss(Lc(), 16 * counts)) > 1e-3
    assert abs(loss(Lc(tau=0.5), counts) - loss(Lc(tau=1.0), 16 * counts)) < 1e-12  # 16 ** (1/4) = 2


# --- chains


def test_asd_takes_the_place_of_ntd():
    together, other_way = (methods.parse(m) for m in ("asd(lam=3)+ntd", "ntd+asd(lam=3)"))
    assert [s.name for s in together] == ["asd"] == [s.name for s in other_way]
    assert together.strands[0].not_true and together == other_way
    assert not methods.parse("asd").strands[0].not_true


@pytest.mark.parametrize("kind", QUICK_ENGINES)
def test_sams_ascent_ignores_prox_wherever_it_is_listed(kind):
    mu = 0.6
    world = World(f"prox(mu={mu})+sam")

    def loss_of(k, received):
        loss_of.received = received
        return lambda w, x, y, drawn: ce(w, x, y)

    def grad(f, w):
        w = w.detach()
        g = slope_of(f, w)
        return slope_of(f, w + 0.1 * g / g.norm()) + mu * (w - loss_of.received)

    expected = world.federated(loss_of, grad=grad)
    one, other = (world.trained(kind, method).server.w for method in (f"prox(mu={mu})+sam", f"sam+prox(mu={mu})"))
    assert torch.equal(one, other)
    assert apart(one, expected) < 1e-10


@pytest.mark.parametrize("method", ["rfedavg(lam=0.5)", "rfedavg_plus(lam=0.5)"])
@pytest.mark.parametrize("kind", QUICK_ENGINES)
def test_one_participant_trains_as_under_fedavg(method, kind):
    assert torch.equal(*(World(m, cohort=1).trained(kind).server.w for m in (method, "fedavg")))


def test_rfedavg_and_rfedavg_plus_train_alike_while_their_means_are_the_same():
    """In the first round both know the features of the initial model."""
    each, mean = (advanced(World(f"{m}(lam=0.5)").built(), 1).server.w for m in ("rfedavg", "rfedavg_plus"))
    assert apart(each, mean) < 1e-12
    each, mean = (advanced(World(f"{m}(lam=0.5)").built(), 3).server.w for m in ("rfedavg", "rfedavg_plus"))
    assert apart(each, mean) > 1e-6


@pytest.mark.parametrize("kind", QUICK_ENGINES)
def test_fedacds_score_is_of_the_trained_local_model(kind):
    """A client alone in its round: the score belongs to the model that the server then holds."""
    world = World("fedacd(mixup=0.0)", cohort=1)
    simulation = world.built(kind)
    for t in range(3):
        (k,) = world.cohort(t)
        score = float(replies(simulation)[-1].each("fedacd.score"))
        simulation.advance()
        p, y = net(simulation.server.w, world.x[k])[0].softmax(-1).numpy(), world.y[k].numpy()
        rows = []
        for c in set(y.tolist()):
            P = p[y == c].mean(0)
            rows.append(sum(P[j] * np.log(P[j] / (1 - 1e-5 if j == c else 1e-5 / 3)) for j in range(CLASSES)))
        assert abs(score - 1 / (1 + np.exp(-1 / np.mean(rows)))) < 1e-7


class Directions(nn.Module):
    """A network whose features have length 1."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(4, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        f = self.hidden(x)
        f = f / f.norm(dim=1, keepdim=True)
        return Outputs(self.head(f), f)


@pytest.mark.parametrize("kind", QUICK_ENGINES)
def test_moon_begins_as_fedavg_with_a_network_that_normalises(kind):
    world = World(cohort=6)
    one, other = (
        federation(m, data=world.data, module=Directions(), engine={"kind": kind}) for m in ("moon", "fedavg")
    )
    other.server = one.server
    assert torch.equal(advanced(one, 1).server.w, advanced(other, 1).server.w)


def test_the_projection_heads_features_are_what_moon_compares():
    model = {"name": "mlp", "hidden": [HIDDEN], "projection": 3}
    moon, plain = (federation(m, data=World().data, model=model) for m in ("moon", "fedavg"))
    assert moon.setup.width == 3
    assert moon.setup.layout.size == plain.setup.layout.size > PARAMETERS
    assert apart(advanced(moon).server.w, advanced(plain).server.w) > 1e-6


@pytest.mark.parametrize("method", ["fedacd(tau=1.0)", "fedacd(missing=0.0)"])
def test_fedacds_hyper_parameters_that_have_no_logarithm_are_refused(method):
    with pytest.raises(UserError):
        advanced(federation(method), 1)


# --- what crosses the network, what stays


def replies(simulation):
    """The replies to each job of the next round, which is not finished; clients' states stay as they were."""
    everybody = range(len(SIZES))
    before = simulation.store.read(everybody) if simulation.store.blank else None
    args = simulation.setup, simulation.server, simulation.cohort(), simulation.config.seed
    flow = one_round(simulation.chain, simulation.lr, *args)
    answers = [simulation.engine.run(next(flow))]
    try:
        while True:
            answers.append(simulation.engine.run(flow.send(answers[-1])))
    except StopIteration:
        pass
    if before is not None:
        simulation.store.write(everybody, before)
    return answers


@pytest.mark.parametrize("kind", QUICK_ENGINES)
def test_rods_personal_head_stays_on_its_client_and_leaves_the_shared_model_alone(kind):
    world = World("rod", rho=0.5)
    simulation = world.trained(kind)
    uploads = replies(world.built(kind))[0].uploads
    assert {"model"} <= uploads.keys() and not [key for key in uploads if "rod" in key]
    assert torch.equal(simulation.server.w, world.trained(kind, "rod(personal=False)").server.w)
    heads = held(simulation)["clients/rod/weight"]
    sampled = {k for t in range(5) for k in world.cohort(t)}
    assert [bool(h.any()) for h in heads] == [k in sampled for k in range(len(SIZES))]
    assert len({tuple(h.flatten().tolist()) for h in heads}) >= len(sampled)
    assert "clients/rod/weight" not in held(world.trained(kind, "rod(personal=False)"))


@pytest.mark.parametrize("kind", QUICK_ENGINES)
@pytest.mark.parametrize(
    ("method", "forward", "backward"),
    [
        ("asd", EPOCHS + 1, EPOCHS),  # the teacher looks once at every sample
        ("ntd", EPOCHS + 1, EPOCHS),
        ("asd+ntd", EPOCHS + 1, EPOCHS),
        ("moon", EPOCHS + 2, EPOCHS),
        ("moon+asd", EPOCHS + 2, EPOCHS),  # they share a teacher
        ("mixup+asd", 2 * EPOCHS, EPOCHS),  # inputs that change are looked at anew
        ("sam", 2 * EPOCHS, 2 * EPOCHS),
        ("sam+asd", 2 * EPOCHS + 1, 2 * EPOCHS),
        ("decorr", EPOCHS, EPOCHS),
        ("lc", EPOCHS, EPOCHS),
        ("rod", EPOCHS, EPOCHS),
        ("mixup", EPOCHS, EPOCHS),
        ("fedacd", 2 * EPOCHS + 1, EPOCHS),  # P at every epoch, and for the score
        ("rfedavg_plus", EPOCHS + 1, EPOCHS),
    ],
)
def test_passes_over_the_data(method, forward, backward, kind):
    world = World(method)
    simulation = world.built(kind)
    for t in range(2):
        line, samples = simulation.advance(), sum(SIZES[k] for k in world.cohort(t))
        assert (line["forward_samples"], line["backward_samples"]) == (forward * samples, backward * samples)


@pytest.mark.parametrize("method", ["asd", "ntd", "asd+ntd", "moon", "sam", "decorr", "lc", "rod", "mixup"])
def test_only_models_cross_the_network(method):
    simulation = World(method).built("loop")
    for _ in range(2):
        line = simulation.advance()
        assert line["bytes_down"] == line["bytes_up"] == COHORT * PARAMETERS * BYTES


@pytest.mark.parametrize(("kind", "cohort"), [("loop", 1), ("loop", 2), ("stack", 4), ("loop", 6)])
def test_fedacd_uploads_one_number_more(kind, cohort):
    line = World("fedacd", cohort=cohort).built(kind).advance()
    assert line["bytes_down"] == cohort * PARAMETERS * BYTES
    assert line["bytes_up"] == cohort * (PARAMETERS + 1) * BYTES


@pytest.mark.parametrize(("kind", "cohort"), [("loop", 2), ("loop", 3), ("stack", 4), ("loop", 6)])
def test_rfedavg_plus_sends_one_mean_each_way(kind, cohort):
    simulation = World("rfedavg_plus", cohort=cohort).built(kind)
    for _ in range(3):
        line = simulation.advance()
        assert line["bytes_down"] == line["bytes_up"] == cohort * (PARAMETERS + HIDDEN) * BYTES


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize(("kind", "cohort"), [("loop", 2), ("stack", 4), ("loop", 6)])
def test_rfedavg_sends_everybody_everybodys_mean(kind, cohort, include_self):
    world = World(f"rfedavg(include_self={include_self})", cohort=cohort)
    simulation, known, quiet = world.built(kind, rounds=9), set(), 0
    for t in range(9):
        ids = set(world.cohort(t))
        line = simulation.advance()
        asked = not ids <= known
        samples = sum(SIZES[k] for k in ids)
        assert line["bytes_up"] == cohort * (PARAMETERS + HIDDEN * (1 + asked)) * BYTES
        assert line["forward_samples"] == (EPOCHS + 1 + asked) * samples
        if not asked:
            others = cohort if include_self else cohort - 1
            assert line["bytes_down"] == cohort * (PARAMETERS + others * HIDDEN) * BYTES
        known |= ids
        quiet += not asked
    assert quiet


@pytest.mark.parametrize("cohort", [2, 4, 6])
def test_rfedavg_sends_means_once_in_its_first_round(cohort):
    line = World("rfedavg", cohort=cohort).built().advance()
    assert line["bytes_down"] == cohort * (PARAMETERS + 1 + (cohort - 1) * HIDDEN) * BYTES  # 1: that it is new


def test_every_mean_that_leaves_a_client_has_noise_of_its_own():
    """Else the difference of two uploads has none."""
    simulation = World("rfedavg(noise=1.0)", cohort=6).built(optimizer={"lr": 1e-12})
    before, after = (answer.each("rfedavg.map") for answer in replies(simulation))
    assert ((before - after).abs().amax(1) > 1e-3).all()  # the model has hardly moved


def test_noise_differs_between_clients_and_rounds():
    simulation = World("rfedavg_plus(noise=1.0)", cohort=6).built(optimizer={"lr": 1e-12})
    maps = []
    for _ in range(2):
        maps.append(replies(simulation)[0].each("rfedavg_plus.map"))
        simulation.advance()
    clean = World("rfedavg_plus(noise=1e-9)", cohort=6).built()
    noise = torch.stack(maps) - replies(clean)[0].each("rfedavg_plus.map")
    scaled = noise * tensor(SIZES)[:, None]  # standard normal
    assert len(set(scaled.flatten().tolist())) == scaled.numel()
    assert 0.6 < float(scaled.std()) < 1.4


@pytest.mark.parametrize("method", ["moon", "fedacd", "rfedavg(lam=0.5)", "asd+ntd", "sam(adaptive=True)", "rod"])
def test_the_same_seed_gives_the_same_run(method):
    assert identical(*(held(World(method).trained()) for _ in range(2)))


def test_a_learning_rate_that_decays_reaches_rods_personal_head():
    world = World("rod", cohort=1, work={"batch": 0, "epochs": 1})
    heads = []
    for decay in (1.0, 0.5):
        simulation = advanced(world.built(optimizer={"lr": LR, "decay": decay}), 1)
        first = held(simulation)["clients/rod/bias"].clone()
        heads.append((first, held(advanced(simulation, 1))["clients/rod/bias"]))
    assert torch.equal(heads[0][0], heads[1][0])
    (k,) = world.cohort(1)
    assert [k] != world.cohort(0)  # so its head starts from zero
    assert heads[0][1][k].any() and apart(heads[0][1][k], 2 * heads[1][1][k]) < 1e-12


@pytest.mark.parametrize("more", ["", "+disco(target=cohort)"])
def test_rfedavgs_clients_tell_their_mean_under_the_initial_model_once(more):
    """What the accountant counts: one release, and one after each training."""
    simulation = World(f"rfedavg(noise=1.0){more}", cohort=3).built(rounds=8)
    told, trained = np.zeros(len(SIZES), dtype=int), np.zeros(len(SIZES), dtype=int)
    for _ in range(8):
        ids = simulation.cohort().ids
        answers = replies(simulation)
        trained[ids] += 1
        if len(answers) == 2:
            told[ids] += answers[0].each("rfedavg.map").abs().amax(1).numpy() > 0
        simulation.advance()
    assert set(told[trained > 0]) == {1}
    assert max(trained) + 1 <= RFedAvg(noise=1.0).privacy.releases(8)


def test_fedacd_is_refused_where_there_is_one_class():
    with pytest.raises(UserError, match="fedacd tells classes apart, and there is only one"):
        federation("fedacd", data=toy(classes=1))


@pytest.mark.parametrize("method", ["ntd", "asd+ntd", "asd(not_true=true)"])
def test_two_classes_have_nothing_to_distil_without_the_true_one(method):
    with pytest.raises(
        UserError, match=r"distils the classes that are not a sample's own, and of the 2 of .* no two are left"
    ):
        federation(method, data=toy(classes=2))
    federation("asd", data=toy(classes=2))
