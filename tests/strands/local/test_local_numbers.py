"""Every local loss, its gradient and every weight against the definition in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from local_world import CLASSES, a_client, kl, log_softmax, objective, one_hot, over, slope, tensor

from fedbraid.core.batch import Batch
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Draws
from fedbraid.core.vector import Layout
from fedbraid.strands.acd import Acd
from fedbraid.strands.asd import Asd
from fedbraid.strands.decorr import Decorr
from fedbraid.strands.lc import Lc
from fedbraid.strands.mixup import Mixup
from fedbraid.strands.moon import Moon
from fedbraid.strands.ntd import Ntd
from fedbraid.strands.rfedavg import RFedAvg, RFedAvgPlus
from fedbraid.strands.rod import Rod
from fedbraid.strands.sam import Sam

COUNTS = np.array([2.0, 0.0, 7.0, 31.0])  # the client has no sample of class 1
LABELS = np.array([3, 0, 2, 3, 2])
HUGE = np.array([[1e4, -1e4, 0, 3], [-1e4, 1e4, 1e4, 0], [0, 0, 0, 0], [1e4, 1, 2, -1e4], [-1e4, -1e4, -1e4, 1e4]])
BATCHES = ["usual", "one sample", "huge"]
WIDTH = 3


def a_batch(kind, seed=0):
    """Student's and teacher's logits, features, labels."""
    rng = np.random.default_rng(seed)
    n = 1 if kind == "one sample" else len(LABELS)
    student, teacher = 3 * rng.normal(size=(2, n, CLASSES))
    if kind == "huge":
        student, teacher = HUGE, HUGE[::-1].copy()
    return student, teacher, rng.normal(size=(n, WIDTH)), LABELS[:n]


def check(strand, definition, kind, views=None, gradient=True, **more):
    """`definition(logits, features, y)` is what the strand adds to (or makes of) the task loss."""
    student, teacher, features, y = a_batch(kind)
    views = {"received": (teacher, features[::-1].copy())} if views is None else views
    value, gz, gf = objective(strand, student, features, one_hot(y), a_client(y, COUNTS, views, **more))
    expected = definition(student, features, y)
    assert np.isfinite(value) and np.isfinite(gz).all() and np.isfinite(gf).all()
    np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-12)
    if gradient and kind != "huge":
        np.testing.assert_allclose(gz, slope(lambda z: definition(z, features, y), student), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(gf, slope(lambda f: definition(student, f, y), features), rtol=1e-6, atol=1e-8)
    return gz, gf


# --- distillation


def js(t, s):
    p, q = (np.exp(log_softmax(z)) for z in (t, s))
    m = (p + q) / 2
    return sum((a * np.log(a / b)) / 2 for r in (p, q) for a, b in zip(r, m, strict=True) if a > 0)


DIVERGENCES = {"kl": kl, "reverse": lambda t, s: kl(s, t), "js": js}


def alphas(teacher, y, counts, temperature=1.0):
    raw = []
    for z, label in zip(teacher, y, strict=True):
        log_p = log_softmax(z / temperature)
        entropy = -sum(np.exp(v) * v for v in log_p if np.exp(v) > 0)
        raw.append(np.exp(-entropy) / (counts[label] / counts.sum()))
    return np.array(raw) / np.sum(raw)


def without(z, label):
    return np.delete(z, label)


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("not_true", [False, True])
@pytest.mark.parametrize("weights", ["adaptive", "uniform"])
@pytest.mark.parametrize("entropy", ["plain", "temperature"])
@pytest.mark.parametrize("divergence", list(DIVERGENCES))
def test_asd(kind, not_true, weights, entropy, divergence):
    strand = Asd(4.0, 3.0, entropy, divergence, weights, not_true)
    teacher = a_batch(kind)[1]

    def definition(student, features, y):
        alpha = alphas(teacher, y, COUNTS, 3.0 if entropy == "temperature" else 1.0)
        if weights == "uniform":
            alpha = np.full(len(y), 1 / len(y))
        pairs = [(t / 3.0, s / 3.0) for t, s in zip(teacher, student, strict=True)]
        if not_true:
            pairs = [(without(t, c), without(s, c)) for (t, s), c in zip(pairs, y, strict=True)]
        return 4.0 * sum(a * DIVERGENCES[divergence](*pair) for a, pair in zip(alpha, pairs, strict=True))

    gz, gf = check(strand, definition, kind)
    assert not gf.any()
    if not_true:
        assert not gz[range(len(gz)), LABELS[: len(gz)]].any()
    if divergence == "kl" and not not_true and weights == "adaptive":
        student, _, _, y = a_batch(kind)
        alpha = alphas(teacher, y, COUNTS, 3.0 if entropy == "temperature" else 1.0)
        q, p = (np.exp([log_softmax(z / 3.0) for z in part]) for part in (teacher, student))
        np.testing.assert_allclose(gz, 4.0 * alpha[:, None] * (p - q) / 3.0, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", BATCHES)
def test_ntd(kind):
    teacher = a_batch(kind)[1]

    def definition(student, features, y):
        rows = [kl(without(t, c) / 3, without(s, c) / 3) for t, s, c in zip(teacher, student, y, strict=True)]
        return 2.0 * 9.0 * np.mean(rows)

    gz, _ = check(Ntd(2.0, 3.0), definition, kind)
    assert not gz[range(len(gz)), LABELS[: len(gz)]].any()


# --- features


@pytest.mark.parametrize("kind", ["usual", "one sample"])
@pytest.mark.parametrize("has", [0.0, 1.0])
def test_moon(kind, has):
    rng = np.random.default_rng(1)
    student, teacher, features, _ = a_batch(kind)
    near, far = rng.normal(size=(2, *features.shape))

    def definition(logits, z, y):
        def e(a, b):
            return np.exp(a @ b / np.sqrt(a @ a * (b @ b)) / 0.4)

        rows = [-np.log(e(a, g) / (e(a, g) + e(a, p))) for a, g, p in zip(z, near, far, strict=True)]
        return has * 2.5 * np.mean(rows)

    views = {"received": (teacher, near), "previous": (student, far)}
    check(Moon(2.5, 0.4), definition, kind, views, state={"has": tensor(has)})


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e-4])
@pytest.mark.parametrize("previous", [0.0, 1e4])
def test_moon_stays_finite_where_features_are_dead_or_huge(scale, previous):
    z = np.random.default_rng(2).normal(size=(5, WIDTH))
    views = {"received": (np.zeros((5, CLASSES)), z[::-1] * scale), "previous": (np.zeros((5, CLASSES)), z * previous)}
    c = a_client(LABELS, COUNTS, views, state={"has": tensor(1.0)})
    value, _, gf = objective(Moon(), np.zeros((5, CLASSES)), z * scale, one_hot(LABELS), c)
    assert np.isfinite(value) and np.isfinite(gf).all()


@pytest.mark.parametrize("kind", ["usual", "one sample"])
@pytest.mark.parametrize("scale", ["code", "paper"])
def test_decorr(kind, scale):
    def definition(logits, f, y):
        n, d = f.shape
        total = 0.0
        for i in range(d):
            for j in range(d):
                a, b = f[:, i] - f[:, i].mean(), f[:, j] - f[:, j].mean()
                va, vb = (v @ v / max(1, n - 1) + 1e-8 for v in (a, b))
                entry = a @ b / np.sqrt(va * vb)
                if scale == "paper":
                    total += 0.3 * (entry / max(1, n - 1)) ** 2 / d**2
                elif i != j:
                    total += 0.3 * entry**2 / (d * (d - 1)) / n
        return total

    _, gf = check(Decorr(0.3, scale), definition, kind)
    if kind == "one sample":
        assert not gf.any()


def test_decorrs_scales_are_the_squared_correlations():
    """The authors' code is (n − 1)² / n times the mean squared correlation of two dimensions."""
    f = np.random.default_rng(3).normal(size=(9, WIDTH)) * 1e3
    corr = np.corrcoef(f.T)
    for scale, expected in [
        ("paper", (corr**2).sum() / WIDTH**2),
        ("code", 64 / 9 * (corr[~np.eye(WIDTH, dtype=bool)] ** 2).mean()),
    ]:
        y = np.zeros(9, dtype=int)
        value = objective(Decorr(1.0, scale), np.zeros((9, CLASSES)), f, one_hot(y), a_client(y, COUNTS))[0]
        np.testing.assert_allclose(value, expected, rtol=1e-9)


def test_decorr_stays_finite_where_features_are_dead():
    f = np.random.default_rng(3).normal(size=(5, WIDTH)) * [1.0, 0.0, 1e4]
    value, _, gf = objective(Decorr(), np.zeros((5, CLASSES)), f, one_hot(LABELS), a_client(LABELS, COUNTS))
    assert np.isfinite(value) and np.isfinite(gf).all()


@pytest.mark.parametrize("kind", ["usual", "one sample"])
def test_rfedavg_and_plus_have_the_same_gradient_for_the_same_means(kind):
    means = np.random.default_rng(4).normal(size=(3, WIDTH))

    def each(logits, f, y):
        return 0.7 * np.mean([((f.mean(0) - m) ** 2).sum() for m in means])

    def one(logits, f, y):
        return 0.7 * ((f.mean(0) - means.mean(0)) ** 2).sum()

    _, all_of_them = check(RFedAvg(0.7), each, kind, received={"others": tensor(means)})
    _, their_mean = check(RFedAvgPlus(0.7), one, kind, received={"target": tensor(means.mean(0))})
    np.testing.assert_allclose(all_of_them, their_mean, rtol=1e-12)
    f = a_batch(kind)[2]
    np.testing.assert_allclose(their_mean, np.tile(1.4 * (f.mean(0) - means.mean(0)) / len(f), (len(f), 1)), rtol=1e-12)


def a_round(maps, known=None, ids=(0, 1, 2), kept=None, answered=True):
    known = np.zeros(8) if known is None else known
    kept = np.zeros((8, WIDTH)) if kept is None else kept
    state = {"map": tensor(kept), "known": tensor(known)}
    cohort = SimpleNamespace(ids=np.array(ids))
    return SimpleNamespace(
        state=state, replies=True if answered else None, cohort=cohort, each=lambda key: tensor(maps), w=torch.zeros(1)
    )


def test_rfedavg_sends_everybody_the_others_last_means():
    rng = np.random.default_rng(5)
    kept, asked, ids = rng.normal(size=(8, WIDTH)), rng.normal(size=(3, WIDTH)), (1, 4, 6)
    known = np.array([0, 1, 0, 0, 0, 0, 1, 0.0])
    r = a_round(asked, known, ids, kept)
    first, later = (RFedAvg().send(a_round(None, known, some, kept, answered=False)) for some in (ids, (1, 6)))
    assert first.payload["new"].tolist() == [0, 1, 0] and later["others"].shape == (2, 1, WIDTH)
    current = [kept[1], asked[1], kept[6]]  # client 4 never took part
    for k, others in enumerate(RFedAvg().send(r)["others"].numpy()):
        np.testing.assert_array_equal(others, [m for j, m in enumerate(current) if j != k])
    everybody = RFedAvg(include_self=True).send(r)["others"].numpy()
    np.testing.assert_array_equal(everybody, [current] * 3)
    after = RFedAvg().absorb(r)
    assert after["known"].tolist() == [0, 1, 0, 0, 1, 0, 1, 0]
    np.testing.assert_array_equal(after["map"][list(ids)].numpy(), asked)
    np.testing.assert_array_equal(after["map"][[0, 2, 3, 5, 7]].numpy(), kept[[0, 2, 3, 5, 7]])


def test_rfedavg_plus_sends_everybody_the_mean_of_the_others():
    maps = np.random.default_rng(6).normal(size=(3, WIDTH))
    target = RFedAvgPlus().send(a_round(maps))["target"].numpy()
    for k in range(3):
        np.testing.assert_allclose(target[k], np.delete(maps, k, 0).mean(0), rtol=1e-13)
    np.testing.assert_allclose(RFedAvgPlus(include_self=True).send(a_round(maps))["target"], maps.mean(0), rtol=1e-13)


def test_a_cohort_of_clones_is_pulled_nowhere():
    f = a_batch("usual")[2]
    others = RFedAvg().send(a_round(np.tile(f.mean(0), (3, 1))))["others"][0]
    target = RFedAvgPlus().send(a_round(np.tile(f.mean(0), (3, 1))))["target"][0]
    for strand, received in ((RFedAvg(1.0), {"others": others}), (RFedAvgPlus(1.0), {"target": target})):
        c = a_client(LABELS, COUNTS, received=received)
        value, _, gf = objective(strand, np.zeros((5, CLASSES)), f, one_hot(LABELS), c)
        assert value < 1e-28 and np.abs(gf).max() < 1e-14


def test_alone_in_a_round_there_is_nothing_to_be_near_to():
    alone = a_round(np.ones((1, WIDTH)), ids=(3,))
    for strand in (RFedAvg(1.0), RFedAvgPlus(1.0)):
        sent = strand.send(alone)
        c = a_client(LABELS, COUNTS, received={key: value[0] for key, value in sent.items()})
        value, gz, gf = objective(strand, *a_batch("usual")[::2], one_hot(LABELS), c)
        assert value == 0 and not gz.any() and not gf.any()


@pytest.mark.parametrize("strand", [RFedAvg, RFedAvgPlus])
@pytest.mark.parametrize("delta", ["full", "batch"])
@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_feature_means(strand, delta, noise):
    rng = np.random.default_rng(7)
    parts = [(np.zeros((n, CLASSES)), rng.normal(size=(n, WIDTH)) * 2, np.zeros(n, dtype=int)) for n in (3, 5)]
    parts[0][1][0] = 0.0
    chance = rng.normal(size=WIDTH)
    c = SimpleNamespace(
        over_data=over(parts),
        draws=dict.fromkeys(("first", "received"), tensor(chance)),
        initial=None,
        received_model=None,
        received={"new": tensor(1.0)},
    )
    f = np.concatenate([p[1] for p in (parts if delta == "full" else parts[:1])])
    expected = f.mean(0)
    if noise:
        clipped = [row / max(1.0, np.sqrt(row @ row) / 1.5) for row in f]
        expected = (np.sum(clipped, axis=0) + noise * 1.5 * chance) / len(f)
    got = strand(delta=delta, noise=noise, clip=1.5).probe(c)["map"]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("strand", [RFedAvg, RFedAvgPlus])
def test_features_are_clipped_without_noise_where_that_is_wanted(strand):
    f = np.array([[3.0, 0.0, 4.0], [0.3, 0.0, 0.4], [0.0, 0.0, 0.0]])
    c = SimpleNamespace(
        over_data=over([(np.zeros((3, CLASSES)), f, np.zeros(3, dtype=int))]),
        draws={},
        initial=None,
        received_model=None,
        received={"new": tensor(1.0)},
    )
    got = strand(clip=1.0, clipped=True).probe(c)["map"]
    np.testing.assert_allclose(got.numpy(), [0.9 / 3, 0.0, 1.2 / 3], rtol=1e-13)
    np.testing.assert_allclose(strand(clip=1.0).probe(c)["map"].numpy(), f.mean(0), rtol=1e-13)


# --- calibrated logits


def calibrated(adjust, missing):
    def definition(logits, features, y):
        n = np.where(COUNTS > 0, COUNTS, missing)
        has = [c for c in range(CLASSES) if n[c] > 0]
        rows = [log_softmax(adjust(z[has], n[has]))[has.index(c)] for z, c in zip(logits, y, strict=True)]
        return -np.mean(rows)

    return definition


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("missing", [0.0, 1e-8, 1.0])
def test_lc_and_rod(kind, missing):
    gz, _ = check(Lc(0.8, missing), calibrated(lambda z, n: z - 0.8 * n**-0.25, missing), kind)
    assert missing or not gz[:, 1].any()
    gz, _ = check(Rod(0.8, missing), calibrated(lambda z, n: z + 0.8 * np.log(n), missing), kind)
    assert missing or not gz[:, 1].any()


@pytest.mark.parametrize("strand", [Lc, Rod])
def test_missing_counts_only_classes_that_the_client_lacks(strand):
    def adjust(z, n):
        return z - n**-0.25 if strand is Lc else z + np.log(n)

    check(strand(1.0, missing=5.0), calibrated(adjust, 5.0), "usual")


def test_rods_personal_head():
    """A step down the cross-entropy of both heads together, in the personal head alone."""
    z, _, f, y = a_batch("usual")
    rng = np.random.default_rng(8)
    weight, bias = rng.normal(size=(CLASSES, WIDTH)), rng.normal(size=CLASSES)

    def definition(head):
        both = z + f @ head[:, :WIDTH].T + head[:, WIDTH]
        return -np.mean([log_softmax(row)[c] for row, c in zip(both, y, strict=True)])

    pads = np.ones((2, CLASSES))
    batch = Batch(torch.zeros(7, 1), tensor(np.concatenate([one_hot(y), pads])), tensor([1] * 5 + [0, 0]))
    out = Outputs(tensor(np.concatenate([z, pads])), tensor(np.concatenate([f, np.ones((2, WIDTH))])))
    c = SimpleNamespace(memory={"weight": tensor(weight), "bias": tensor(bias)}, lr=tensor(0.3))
    after = Rod().step(torch.zeros(1), out, batch, c)
    expected = -0.3 * slope(definition, np.column_stack([weight, bias]))
    np.testing.assert_allclose(after["weight"].numpy() - weight, expected[:, :WIDTH], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(after["bias"].numpy() - bias, expected[:, WIDTH], rtol=1e-6, atol=1e-9)


# --- FedACD


def flat(z, y):
    """KL(p ‖ q) with q_y = p_y and the rest spread evenly, as it is written."""
    p = np.exp(log_softmax(z))
    q = np.full(len(z), (1 - p[y]) / (len(z) - 1))
    q[y] = p[y]
    return np.sum(p * np.log(p / q))


def adjusted(z, y, log_ratio):
    terms = [z[i] - z[y] + log_ratio[y, i] for i in range(len(z)) if i != y]
    return np.logaddexp.reduce([0.0, *terms])


def acd_definition(strand, log_ratio):
    def definition(logits, features, y):
        return np.mean([flat(z, c) + strand.lam * adjusted(z, c, log_ratio) for z, c in zip(logits, y, strict=True)])

    return definition


@pytest.mark.parametrize("kind", ["usual", "one sample"])
def test_fedacds_loss(kind):
    strand, shift = Acd(lam=0.6), 3 * np.random.default_rng(9).normal(size=(CLASSES, CLASSES))
    np.fill_diagonal(shift, 0)
    check(strand, acd_definition(strand, shift), kind, memory={"shift": tensor(shift)})


def test_fedacds_loss_of_mixed_labels_is_the_mix_of_the_losses():
    strand, shift = Acd(lam=0.6), np.random.default_rng(9).normal(size=(CLASSES, CLASSES))
    np.fill_diagonal(shift, 0)
    z, _, f, y = a_batch("usual")
    partner, keep = np.array([1, 4, 0, 3, 2]), 0.3
    definition = acd_definition(strand, shift)
    c = a_client(y, COUNTS, memory={"shift": tensor(shift)})
    value = objective(strand, z, f, keep * one_hot(y) + (1 - keep) * one_hot(y[partner]), c)[0]
    mix = keep * definition(z, f, y) + (1 - keep) * definition(z, f, y[partner])
    np.testing.assert_allclose(value, mix, rtol=1e-12)


def test_fedacds_loss_is_finite_for_huge_logits():
    shift = np.where(np.eye(CLASSES) > 0, 0, 20.0)
    c = a_client(LABELS, COUNTS, memory={"shift": tensor(shift)})
    value, gz, _ = objective(Acd(), HUGE, np.zeros((5, WIDTH)), one_hot(LABELS), c)
    expected = np.mean([adjusted(z, y, shift) for z, y in zip(HUGE, LABELS, strict=True)])
    # the first term: sure of a wrong class, torn between two of them, even, sure of a wrong class twice more
    spread = [np.log(3), np.log(3 / 2), 0.0, np.log(3), np.log(3)]
    np.testing.assert_allclose(value, expected + np.mean(spread), rtol=1e-12)
    assert np.isfinite(gz).all()


@pytest.mark.parametrize("margin", [1.0, 10.0, 36.0, 40.0, 200.0, 700.0])
def test_fedacds_flatness_is_exact_for_sure_predictions(margin):
    """(1 − p_y)(log(C − 1) − H of the others), where 1 − p_y = S e^{−m} / (1 + S e^{−m})."""
    others = np.array([0.0, 1.0, 2.5])
    s = np.exp(others).sum()
    shares = np.exp(others) / s
    gap = np.log(3) + np.sum(shares * np.log(shares))
    small = s * np.exp(-margin)
    c = a_client(np.array([0]), COUNTS, memory={"shift": torch.zeros(4, 4).double()})
    z = np.array([[margin, *others]])
    value, gz, _ = objective(Acd(lam=0.0), z, np.zeros((1, 1)), one_hot([0]), c)
    np.testing.assert_allclose(value, small / (1 + small) * gap, rtol=1e-10)
    # dL1/dz_k = p_k (log(p_k / q_k) − KL)
    p = np.array([1.0, *(np.exp(others - margin))]) / (1 + small)
    log_ratio = np.array([0.0, *np.log(3 * shares)])
    np.testing.assert_allclose(gz[0], p * (log_ratio - value), rtol=1e-9, atol=1e-300)
    if margin <= 10:
        np.testing.assert_allclose(value, flat(z[0], 0), rtol=1e-9)
    if margin >= 40:  # as it is written the rest has probability 0
        with np.errstate(all="ignore"):
            assert not np.isclose(flat(z[0], 0), value, rtol=1e-3)


def class_matrix(parts):
    z, y = (np.concatenate([p[i] for p in parts]) for i in (0, 2))
    p = np.exp([log_softmax(row) for row in z])
    return np.array([p[y == c].mean(0) if (y == c).any() else np.full(CLASSES, np.nan) for c in range(CLASSES)])


def a_clients_data(scale=2.0):
    rng = np.random.default_rng(10)
    ys = [np.array([0, 2, 3]), np.array([3, 3, 0, 2, 2])]
    parts = [(scale * rng.normal(size=(len(y), CLASSES)), np.zeros((len(y), 1)), y) for y in ys]
    counts = np.bincount(np.concatenate(ys), minlength=CLASSES)
    return parts, a_client(np.concatenate(ys), counts, over_data=over(parts), state={})


@pytest.mark.parametrize("missing", [1e-8, 0.1])
def test_fedacds_ratios(missing):
    parts, c = a_clients_data()
    P = class_matrix(parts)
    shift = Acd(missing=missing).begin(torch.zeros(1), c)["shift"].numpy()
    for y in (0, 2, 3):
        for k in range(CLASSES):
            expected = 0.0 if k == y else np.log(missing) if k == 1 else np.log(P[y, k] / P[k, y])
            np.testing.assert_allclose(shift[y, k], expected, rtol=1e-11, atol=1e-12)
    assert np.isfinite(shift).all()


@pytest.mark.parametrize("reduction", ["mean_present", "sum"])
@pytest.mark.parametrize("tau", [1 - 1e-5, 0.8])
def test_fedacds_score(reduction, tau):
    parts, c = a_clients_data()
    P = class_matrix(parts)
    rows = []
    for i in (0, 2, 3):
        rows.append(sum(P[i, j] * np.log(P[i, j] / (tau if i == j else (1 - tau) / 3)) for j in range(CLASSES)))
    total = np.sum(rows) if reduction == "sum" else np.mean(rows)
    score = Acd(tau=tau, kl=reduction).end(torch.zeros(1), c)[0]["score"]
    np.testing.assert_allclose(float(score), 1 / (1 + np.exp(-1 / total)), rtol=1e-12)


def test_fedacd_is_finite_where_predictions_are_certain():
    _, c = a_clients_data(1e4)
    assert torch.isfinite(Acd().begin(torch.zeros(1), c)["shift"]).all()
    assert 0.5 <= float(Acd().end(torch.zeros(1), c)[0]["score"]) <= 1
    y = np.array([0, 2, 3])
    right = [(2e4 * one_hot(y), np.zeros((3, 1)), y)]
    perfect = a_client(y, [1, 0, 1, 1], over_data=over(right), state={})
    assert float(Acd().end(torch.zeros(1), perfect)[0]["score"]) == 1.0


def test_fedacd_weighs_by_score_alone():
    v = np.array([0.5, 0.9, 0.7])
    r = SimpleNamespace(each=lambda key: tensor(v), ones=tensor(np.ones(3)))
    np.testing.assert_allclose(Acd().weigh(tensor([0.1, 0.2, 0.7]), r), v / v.sum(), rtol=1e-14)
    np.testing.assert_allclose(Acd(score=False).weigh(tensor([0.1, 0.2, 0.7]), r), np.ones(3) / 3, rtol=1e-14)


# --- Mixup, SAM


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixups_draws(alpha):
    counts, width = np.array([3, 1, 5, 4] * 1000), 5
    streams = (lambda: np.random.default_rng(0),) * 2
    drawn, _ = Mixup(alpha).draw(Draws(counts, width, None, streams))
    for row, count in zip(drawn["partner"][:50], counts, strict=False):
        assert sorted(row[:count]) == list(range(count)) and list(row[count:]) == list(range(count, width))
    keep = drawn["keep"]
    assert keep.shape == (4000,) and (keep >= 0).all() and (keep <= 1).all()
    assert abs(keep.mean() - 0.5) < 0.03 and abs(keep.var() - 1 / (4 * (2 * alpha + 1))) < 0.01
    assert len({tuple(row) for row in drawn["partner"][2::4]}) == 120


def test_mixup_interpolates_inputs_and_labels():
    rng = np.random.default_rng(1)
    x, y, partner = rng.normal(size=(5, 3)), one_hot(LABELS), np.array([2, 0, 1, 3, 4])
    draws = {"mixup.keep": tensor(0.3), "mixup.partner": torch.as_tensor(partner)}
    after = Mixup().batch(Batch(tensor(x), tensor(y), tensor(np.ones(5)), draws), None)
    np.testing.assert_allclose(after.x.numpy(), 0.3 * x + 0.7 * x[partner], rtol=1e-14)
    np.testing.assert_allclose(after.y.numpy(), 0.3 * y + 0.7 * y[partner], rtol=1e-14)
    z = rng.normal(size=(5, CLASSES))
    each = -np.array([log_softmax(row) for row in z])
    value = float(-(after.y * tensor(z).log_softmax(-1)).sum(-1).mean())
    a, b = (np.mean([row[c] for row, c in zip(each, labels, strict=True)]) for labels in (LABELS, LABELS[partner]))
    np.testing.assert_allclose(value, 0.3 * a + 0.7 * b, rtol=1e-13)


@pytest.mark.parametrize(("adaptive", "mix"), [(False, 1.0), (False, 0.3), (True, 1.0), (True, 0.3)])
def test_sam(adaptive, mix):
    rng = np.random.default_rng(2)
    a, b, w = rng.normal(size=(5, 5)), rng.normal(size=5), rng.normal(size=5)
    layout = Layout.of({"weight": torch.zeros(3), "bias": torch.zeros(2)})
    visited = []

    def gradient(at):
        visited.append(at.numpy())
        return tensor(a) @ at + tensor(b)

    got = Sam(0.4, mix, adaptive, 0.2).grad(tensor(w), SimpleNamespace(layout=layout), gradient)
    g = a @ w + b
    T = np.array([*(np.abs(w[:3]) + 0.2), 1, 1]) if adaptive else np.ones(5)
    worst = w + 0.4 * T**2 * g / np.sqrt(np.sum((T * g) ** 2))
    np.testing.assert_allclose(visited[-1], worst, rtol=1e-13)
    np.testing.assert_allclose(got.numpy(), (1 - mix) * g + mix * (a @ worst + b), rtol=1e-12)
    assert len(visited) == 2
    still = Sam().grad(tensor(w), SimpleNamespace(layout=layout), torch.zeros_like)
    assert not still.any()  # no gradient, no direction, no NaN
