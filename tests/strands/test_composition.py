"""Strands in company: every pair is refused by name or trains to something of its own; what papers combined works."""

import random
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from cheap_strands import HYPER, NAMES
from covering import BRAIDS, OWN_BRAIDS, rest_slow
from helpers import advanced, federation, held, identical
from made_up_strands import MADE_UP

import fedbraid as fb
from fedbraid.api import planned
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.errors import UserError
from fedbraid.strands import METHODS
from fedbraid.strands import parser as methods

PAIRS = list(combinations(NAMES, 2))

LABELS = ([0, 0, 0, 1], [1, 2, 2], [0, 1, 2, 2, 1, 0, 2, 2])


@cache
def few():
    """Three clients, of whom one lacks a class."""
    rng = np.random.default_rng(1)
    y = np.concatenate(LABELS)
    x = rng.normal(size=(3, 3))[y] + rng.normal(size=(len(y), 3))
    ends = np.cumsum([len(part) for part in LABELS])
    parts = tuple(np.arange(end - len(part), end) for part, end in zip(LABELS, ends, strict=True))
    return Dataset("few", Split(x, y), Split(x[:4], y[:4]), 3), Partition(parts)


def written(*names):
    return "+".join(HYPER.get(name, name) for name in names) or "fedavg"


def simulation(method, kind="loop", rounds=2, **settings):
    settings = {"optimizer": {"lr": 0.2, "momentum": 0.3}, "local": {"batch": 3, "steps": 3, "least": 1}} | settings
    return federation(
        method,
        data=few(),
        model={"name": "mlp", "hidden": [4]},
        engine={"kind": kind},
        rounds=rounds,
        evaluate={"every": 99},
        **settings,
    )


@cache
def alone(name):
    return advanced(simulation(written(name))).deployed()[0]


def same(one, other):
    return one.shape == other.shape and float((one - other).abs().max()) < 1e-12


# --- every pair

ROBUST = ("normclip", "median", "trimmed", "rfa", "krum", "cclip")
BYPASS = (
    *("fedacd", "nova", "qfair", "scaffold", "drift", "cm", "smoo", "rfedavg", "rfedavg_plus", "exp"),
    *("nh", "creff", "skip"),
)
"""What would give a bad client a way past robust aggregation."""

REFUSED = {
    ("uniform", "sizes"),
    ("uniform", "disco"),
    ("uniform", "fedacd"),
    ("sizes", "disco"),
    ("sizes", "fedacd"),
    ("disco", "fedacd"),
    ("rfedavg", "rfedavg_plus"),
    ("lc", "rod"),
    ("lc", "fedacd"),
    ("rod", "fedacd"),
    ("fedacd", "mixup"),
    ("avgm", "opt"),
    ("nh", "creff"),
    ("nova", "qfair"),
    ("nova", "drift"),
    ("qfair", "drift"),
    *((name, "dp") for name in ("uniform", "sizes", "disco", "nova", "qfair", "fedacd")),
    *((name, "dp") for name in ("scaffold", "drift", "rfedavg", "rfedavg_plus", "nh", "creff")),
    ("skip", "dp"),
    *((name, "dp") for name in ("cm", "smoo", "exp", "acg")),
    *((name, "skip") for name in ("cm", "exp")),
    *(("skip", name) for name in ("acg", "relaxed")),
    *(("drift", name) for name in ("exp", "relaxed")),
    *(("sam", "lesam"), ("sam", "smoo"), ("lesam", "smoo")),
    *(("lc", "rs"), ("rs", "rod"), ("rs", "fedacd")),
    *(("avgm", "acg"), ("opt", "acg")),
    *combinations(("nh", "etf", "babu", "creff"), 2),
    *((name, "parts") for name in ("scaffold", "drift", "cm", "smoo", "nh", "etf", "babu", "creff", "relaxed")),
    ("parts", "dp"),
    *((name, robust) for name in BYPASS for robust in ROBUST),
    *((robust, "dp") for robust in ROBUST),
    *combinations(ROBUST, 2),
}
UNIFORM_ALREADY = {"qfair", "scaffold", "drift", "opt", "nh", "cm", "lesam", "smoo", "acg", "relaxed"} | {
    *ROBUST[1:3],
    *ROBUST[4:],
}
"""Papers that average uniformly: `uniform` beside them says what holds anyway."""
NOTHING_NEW = {
    *(("uniform", name) for name in UNIFORM_ALREADY),
    *(("sizes", name) for name in NAMES if name not in UNIFORM_ALREADY | {"sizes", "uniform"}),
    *(pair for pair in PAIRS if {"ditto", "apfl"} & {*pair}),  # personal models beside a global one
    ("avgm", "skip"),  # two rounds average once, and momentum begins at the second average
    ("nova", "skip"),  # what counts are the steps of the second round, and here all take three
}


TOLD = REFUSED | NOTHING_NEW
SOME = set(random.Random(3).sample([pair for pair in PAIRS if pair not in TOLD], 120))


@pytest.mark.parametrize(
    ("one", "other"),
    [pytest.param(*p, marks=() if p in TOLD | SOME else pytest.mark.slow, id="-".join(p)) for p in PAIRS],
)
def test_pair(one, other):
    """Refused by a sentence that names both, or trained to a finite model that neither gives alone."""
    if (one, other) in REFUSED:
        for pair in ((one, other), (other, one)):
            with pytest.raises(UserError, match=r" and .* (both|do not go together)") as refusal:
                methods.parse(written(*pair))
            assert {one, other} <= set(str(refusal.value).replace(",", " ").replace(";", " ").replace(":", " ").split())
        return
    w = advanced(simulation(written(one, other))).deployed()[0]
    assert w.isfinite().all()
    new = not same(w, alone(one)) and not same(w, alone(other))
    assert new == ((one, other) not in NOTHING_NEW)


def test_no_strand_is_missing_among_the_braids_that_stand_for_all():
    """Many tests train these and not every strand alone."""
    held = {strand.name for braid in BRAIDS for strand in methods.parse(braid)}
    assert held == set(NAMES)
    own = {strand.name for braid in OWN_BRAIDS for strand in methods.parse(braid, own=MADE_UP)}
    assert {strand.name for strand in MADE_UP} <= own


def test_momentum_beside_skip_begins_at_the_second_average():
    with_momentum, without = (advanced(simulation(m, rounds=4)) for m in ("avgm+skip(every=2)", "skip(every=2)"))
    assert not same(with_momentum.server.w, without.server.w)


def test_nova_and_prox_have_one_pull():
    for together in ("nova+prox(mu=0.3)", "nova(mu=0.3)+prox(mu=0.3)"):
        assert str(methods.parse(together)) == "nova(mu=0.3)+prox(mu=0.3)"
    with pytest.raises(UserError, match=r"nova's mu is 0\.2 and prox's 0\.3"):
        methods.parse("nova(mu=0.2)+prox(mu=0.3)")
    with pytest.raises(UserError, match=r"nova's mu=0.2 is for prox, and there is none; leave it out"):
        fb.run("nova(mu=0.2)+disco", rounds=1)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_control_variates_from_steps_are_those_of_sgd(name):
    with pytest.raises(UserError, match="option 2 reads the gradient from how far local SGD moved"):
        fb.run("feddc", rounds=1, optimizer={"name": name})
    assert fb.run("scaffold(option=1)", rounds=1, optimizer={"name": name}).rounds


@pytest.mark.parametrize("method", ["nova", "qfair", "creff(head_epochs=1,match_steps=1)"])
def test_what_hands_out_no_mean_is_not_evaluated_by_it(method):
    with pytest.raises(UserError, match=r"no mean of a round's models; set evaluate\.model=server"):
        fb.run(method, rounds=1, evaluate={"model": "cohort"})


@dataclass(frozen=True)
class Halved(fb.Strand):
    """Sends back half of the way."""

    share: float = 0.5

    def end(self, w, c):
        return {"model": torch.lerp(c.start, w, self.share)}, c.state


def test_drift_learns_from_the_model_as_it_was_trained():
    """Where another is uploaded, the server would believe in other drifts than the clients have."""
    with pytest.raises(UserError, match="halved and drift do not go together: halved replaces the model"):
        fb.run(fb.chain("feddyn", Halved()), rounds=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_strand_twice_is_refused(name):
    with pytest.raises(UserError, match="the same strand twice"):
        methods.parse(written(name, name))


def test_not_true_distillation_beside_asd_is_asds():
    assert str(methods.parse("ntd+asd")) == str(methods.parse("asd+ntd")) == "asd(not_true=True)"
    assert methods.parse("asd+ntd(beta=1.0)", {"ntd": {"temperature": 1.0}}) == methods.parse("asd+ntd")


NTD_UNHEARD = r"ntd\(beta=5.0\) has no effect here, where another strand does ntd's work .*; write ntd, and set those"


@pytest.mark.parametrize(
    ("method", "strands"),
    [("asd+ntd(beta=5)", {}), ("fedntd(beta=5)+asd", {}), ("asd+ntd", {"ntd": {"beta": 5.0}})],
)
def test_hyper_parameters_of_a_strand_whose_work_another_does_are_refused(method, strands):
    with pytest.raises(UserError, match=NTD_UNHEARD):
        fb.run(method, strands=strands, rounds=1)


def test_a_comparison_gives_them_to_the_methods_that_have_the_strand():
    ntd = {"ntd": {"beta": 5.0}}
    with pytest.raises(UserError, match="hyper-parameters are set for 'ntd', which none of the methods has"):
        planned("asd+ntd", strands=ntd)
    with pytest.raises(UserError, match=NTD_UNHEARD):
        fb.compare(["asd+ntd(beta=5.0)", "fedntd"], rounds=1)
    both = [str(request.chain) for _, request in planned("asd+ntd", "fedntd", strands=ntd)]
    assert both == ["asd(not_true=True)", "ntd(beta=5.0)"]


SAMPLE = random.Random(7).sample([pair for pair in PAIRS if pair not in REFUSED], 25)


@pytest.mark.parametrize(("one", "other"), rest_slow(SAMPLE, set(SAMPLE[:6]).__contains__))
def test_a_pair_is_the_same_in_a_stack_and_in_a_loop(one, other):
    stack, loop = (held(advanced(simulation(written(one, other), kind))) for kind in ("stack", "loop"))
    assert stack.keys() == loop.keys()
    assert max(float((stack[key] - loop[key]).abs().max()) for key in stack if stack[key].numel()) < 1e-9


# --- what papers combined


def all_new(host, guest, rounds=2):
    """The braid is finite, and neither its host nor its guest alone."""
    braid, plain, bare = (
        advanced(simulation(method, rounds=rounds)).deployed()[0] for method in (f"{host}+{guest}", host, guest)
    )
    assert braid.isfinite().all()
    assert not same(braid, plain)
    assert host == "fedavg" or not same(braid, bare)


@pytest.mark.parametrize(
    "host", ["fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "fednova", "moon", "feddc", "fedsam", "fedntd"]
)
def test_disco_on(host):
    all_new(host, "disco")


@pytest.mark.parametrize("host", ["fedavg", "fedprox", "fedntd", "feddyn", "fedsam", "feddisco", "fedspeed", "moon"])
def test_asd_on(host):
    all_new(host, "asd")


@pytest.mark.parametrize("host", ["fedavg", "fedrod", "fedlc", "fednh", "feddyn", "moon"])
def test_mixup_on(host):
    all_new(host, "mixup")


BESIDE_SKIP = [n for n in NAMES if n != "skip" and not {("skip", n), (n, "skip")} & REFUSED]


@pytest.mark.parametrize("name", BESIDE_SKIP)
def test_skip_beside(name):
    """In a round without an average the server's model stands still, whichever is listed first."""
    both = [simulation(written(*pair), rounds=3) for pair in ((name, "skip"), ("skip", name))]
    for one in both:
        begin = one.server.w
        one.advance()
        assert torch.equal(one.server.w, begin)
        one.advance()
        assert not torch.equal(one.server.w, begin)
        one.advance()
        assert one.server.w.isfinite().all() and one.server.kept["skip"] == {}


@pytest.mark.parametrize("name", ["skip", "drift", "scaffold", "avgm", "nova", "qfair", "disco", "creff", "nh"])
def test_every_named_method_takes_company(name):
    """Three and more strands at once: each named method with one more."""
    for chain in METHODS.values():
        try:
            methods.parse(f"{chain}+{written(name)}" if chain else written(name))
        except UserError as refusal:
            assert any(why in str(refusal) for why in (" both ", "same strand twice", "do not go together"))


def test_a_long_braid_trains():
    braid = "feddyn+asd(lam=1)+disco+prox+sam+mixup+decorr+moon+rfedavg_plus+lc+avgm(beta=0.3)"
    assert advanced(simulation(braid, rounds=3)).deployed()[0].isfinite().all()


# --- order

EITHER_WAY = [
    ("scaffold", "skip(every=2)"),
    ("drift", "skip(every=2)"),
    ("avgm", "skip(every=2)"),
    ("opt", "skip(every=2)"),
    ("nova", "skip(every=2)"),
    ("qfair(q=2)", "skip(every=2)"),
    ("disco", "nova"),
    ("disco", "qfair"),
    ("prox", "sam"),
    ("drift", "sam"),
    ("scaffold", "sam"),
    ("scaffold", "drift"),
    ("asd", "decorr"),
    ("moon", "asd"),
    ("prox", "drift"),
    ("nova", "prox"),
    ("disco", "drift"),
    ("lc", "mixup"),
]


@pytest.mark.parametrize(("one", "other"), EITHER_WAY)
def test_order_does_not_matter(one, other):
    ours, theirs = (advanced(simulation(m, rounds=4)) for m in (f"{one}+{other}", f"{other}+{one}"))
    a, b = held(ours) | {"deployed": ours.deployed()[0]}, held(theirs) | {"deployed": theirs.deployed()[0]}
    assert a.keys() == b.keys()
    assert all(same(a[key], b[key]) for key in a if a[key].numel())


@pytest.mark.parametrize(("one", "other"), [("scaffold", "skip(every=2)"), ("disco", "nova"), ("prox", "sam")])
def test_these_are_the_same_to_the_bit(one, other):
    assert identical(*(held(advanced(simulation(m, rounds=4))) for m in (f"{one}+{other}", f"{other}+{one}")))


def test_disco_enters_other_methods_as_its_authors_do():
    """FedDyn and FedDC: only the mean of models is reweighed; SCAFFOLD: not the control variates; FedNova: before."""
    for method, strand in (("drift", "drift"), ("scaffold", "scaffold")):
        braid, plain = (advanced(simulation(m, rounds=1)) for m in (f"{method}+disco", method))
        for key in ("h", "c"):
            if key in plain.server.kept[strand]:
                assert same(braid.server.kept[strand][key], plain.server.kept[strand][key])
        assert not same(braid.server.w, plain.server.w)


SERVER_STEPS = ["avgm", "opt(lr=0.05)", "scaffold(server_lr=0.5)"]


@pytest.mark.parametrize("server", SERVER_STEPS)
def test_the_drift_is_added_to_whatever_step_the_server_takes(server):
    """The model handed out after one round is the server's own step from the start: no drift is in it."""
    one = advanced(simulation(f"{server}+drift", rounds=1))
    start, delta = one.setup.w, one.server.cohort_mean[0] - one.setup.w
    step = {"avgm": delta, "scaffold(server_lr=0.5)": 0.5 * delta}.get(server)
    if step is None:  # the first step of Adam without bias correction
        step = 0.05 * 0.1 * delta / (0.1 * delta.abs() + 1e-3)
    assert float((one.deployed()[0] - start - step).abs().max()) < 1e-12


@pytest.mark.parametrize("server", SERVER_STEPS)
def test_the_drift_is_added_last_wherever_it_is_listed(server):
    first, last = (advanced(simulation(m, rounds=3)) for m in (f"drift+{server}", f"{server}+drift"))
    assert same(first.deployed()[0], last.deployed()[0])


@pytest.mark.parametrize("server", SERVER_STEPS)
@pytest.mark.parametrize("nh_first", [False, True])
def test_prototypes_keep_their_length_beside_a_servers_step(server, nh_first):
    one = advanced(simulation(f"nh+{server}" if nh_first else f"{server}+nh", rounds=3))
    rows = one.setup.layout.views(one.server.w)["head.weight"]
    assert float((rows.norm(dim=1) - 1).abs().max()) < 1e-12
