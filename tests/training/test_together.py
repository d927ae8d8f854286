"""Runs that share a stack end as they would alone."""

import logging
from dataclasses import dataclass, replace
from time import perf_counter

import pytest
import torch
from covering import chains, covering
from helpers import apart, build, held, toy
from joined import DATA, assert_same, one_by_one, ragged, side_by_side, stacks, together
from recorded import compared, left_on_disk
from torch import nn

from fedbraid.config.schema import from_dict
from fedbraid.core.strand import AT_CLIENTS, HOOKS, Strand
from fedbraid.engines.joint import Joint, why_apart
from fedbraid.strands import Prox
from fedbraid.training.shared_stack import SharedStack, fit_in_memory
from fedbraid.training.user_objects import UserObjects

ROUNDING = 1e-12  # float64, three rounds; the contract is 1e-6
CHAINS = chains("prox(mu=0.3)+scaffold+avgm(nesterov=true)+disco")


def assert_as_alone(methods="fedavg", *, shared=True, **settings):
    """Trained together is trained one by one; `shared`: in one stack a round."""
    joint, alone = side_by_side(methods, **settings), side_by_side(methods, **settings)
    with stacks() as sizes:
        lines = together(joint)
    others = one_by_one(alone)
    assert_same(joint, alone, lines, others, ROUNDING)
    assert len(joint) == 1 or (joint[0].server.w - joint[-1].server.w).abs().max() > 1e-6
    if shared:
        arrived = [sum(line["clients"] - line["lost"] for line in at) for at in zip(*lines, strict=True)]
        assert sizes == arrived
    return sizes, lines


# --- seeds


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_with_partitions_that_differ_from_seed_to_seed(method):
    assert_as_alone(method, sampling={"clients": 4}, optimizer={"momentum": 0.5, "weight_decay": 0.01})


SCENARIOS = {
    "lost clients": {"sampling": {"dropout": 0.4}},
    "late clients": {"sampling": {"late": 0.5, "late_by": 3, "clients": 5}},
    "stragglers": {"local": {"batch": 4, "epochs": 3, "least": 1}},
    "steps": {"local": {"batch": 4, "steps": 5, "least": 2}},
    "drop last": {"local": {"batch": 4, "epochs": 2, "drop_last": True}},
    "adam": {"optimizer": {"name": "adam", "lr": 0.05}},
    "clipped": {"optimizer": {"clip": 0.3, "momentum": 0.9, "decay": 0.8}},
}


@pytest.mark.parametrize(("scenario", "method"), covering(list(SCENARIOS), ["scaffold+disco+moon", "fedacd"]))
def test_every_kind_of_round(method, scenario):
    method = method.replace("scaffold", "drift") if scenario == "adam" else method
    assert_as_alone(method, **SCENARIOS[scenario])


def test_cohorts_of_varying_size():
    _, lines = assert_as_alone("scaffold+teach+disco", sampling={"scheme": "bernoulli", "rate": 0.4})
    assert len({line["clients"] for line in lines[0]}) > 1


def test_a_round_in_which_some_runs_lose_everybody():
    settings = {"sampling": {"clients": 2, "dropout": 0.6}, "rounds": 6}
    _, lines = assert_as_alone("scaffold", shared=False, **settings)
    lost = [[line["lost"] == line["clients"] for line in mine] for mine in lines]
    assert any(any(at) and not all(at) for at in zip(*lost, strict=True))


@pytest.mark.parametrize("method", ["rfedavg", "rfedavg_plus", "fedacd+rfedavg_plus(lam=0.1)"])
def test_probes_that_some_runs_need_and_others_do_not(method):
    assert_as_alone(method, sampling={"clients": 3}, rounds=5)


def test_whole_local_sets_as_batches_of_different_length():
    joint = side_by_side(local={"batch": 0, "epochs": 2})
    assert len({e.engine.width for e in joint}) > 1
    assert_as_alone("scaffold+mixup", local={"batch": 0, "epochs": 2})


@pytest.mark.parametrize("batches", [(2, 5), (5, 2), (3, 0)], ids=str)
def test_runs_whose_batches_differ(batches):
    assert_as_alone("scaffold", each=[{"local": {"batch": batch, "epochs": 2}} for batch in batches])


@pytest.mark.parametrize("chunk", [3, 7])
def test_a_joint_stack_in_chunks(chunk):
    sizes, _ = assert_as_alone("scaffold+skip(every=2)+moon", shared=False, engine={"chunk": chunk})
    assert max(sizes) == chunk and sum(sizes) == 3 * 2 * 6


def test_images_that_change():
    images = toy((40, 47), (3, 6, 6), pixels=True)[0]
    changes = {"crop": 1, "flip": 0.5, "rotation": 10.0, "brightness": 0.2}
    assert_as_alone("scaffold", data=images, augment=changes)


def test_regression():
    assert_as_alone("scaffold+prox", data=toy((40, 47), task="regression")[0])


def test_clients_states_on_disk(tmp_path):
    settings = {"save": {"clients_on_disk": True}, "sampling": {"clients": 3}, "rounds": 6}
    joint = side_by_side("scaffold+moon", directory=tmp_path, **settings)
    alone = side_by_side("scaffold+moon", **settings | {"save": {}})
    group = SharedStack(joint)
    while group.going:
        group.advance()
        for simulation in joint:
            simulation.store.commit(simulation.store.save(f"clients-{simulation.server.round}.safetensors"))
            assert not simulation.store._rows
    one_by_one(alone)
    assert all(apart(held(a), held(b)) <= ROUNDING for a, b in zip(joint, alone, strict=True))


@pytest.mark.parametrize("method", ["scaffold+skip(every=2)+avgm", "rfedavg+moon"])
def test_runs_at_different_rounds_leave_as_they_finish(method):
    settings = {"rounds": 5, "sampling": {"clients": 4}, "optimizer": {"decay": 0.7}}
    joint, alone = (side_by_side(method, (0, 1, 2), **settings) for _ in range(2))
    joint[1].advance()
    for _ in range(3):
        joint[2].advance()
    lines = together(joint)
    assert [len(mine) for mine in lines] == [5, 4, 2]
    others = [theirs[-len(mine) :] for mine, theirs in zip(lines, one_by_one(alone), strict=True)]
    assert_same(joint, alone, lines, others, ROUNDING)


def test_single_precision_agrees_to_its_rounding():
    joint, alone = (side_by_side("scaffold+prox", engine={"dtype": "float32"}) for _ in range(2))
    together(joint), one_by_one(alone)
    assert max(apart(held(a), held(b)) for a, b in zip(joint, alone, strict=True)) < 1e-5


def test_the_seconds_of_a_round_are_shared_by_samples():
    each = [{"local": {"batch": 4, "epochs": 1}}, {"local": {"batch": 4, "epochs": 3}}]
    group = SharedStack(side_by_side(each=each, seeds=[0]))
    began = perf_counter()
    seconds = [line["seconds"] for line in group.advance().values()]
    assert 0.5 * (perf_counter() - began) < sum(seconds) < perf_counter() - began
    assert seconds[1] / seconds[0] == pytest.approx(3, rel=0.02)


# --- numbers that differ


NUMBERS = {
    "prox": ["prox(mu=0.1)", "prox(mu=1.0)"],
    "scaffold": ["scaffold(strength=0.5)", "scaffold"],
    "drift": ["drift(alpha=0.1)", "drift(alpha=0.02)"],
    "sam": ["sam(rho=0.05)", "sam(rho=0.3)"],
    "asd": ["asd(lam=1.0, temperature=3.0)", "asd(lam=10.0)"],
    "ntd": ["ntd(temperature=2.0)", "ntd(beta=0.3)"],
    "moon": ["moon(mu=5.0)", "moon(temperature=0.2)"],
    "rfedavg": ["rfedavg(lam=0.1)", "rfedavg(lam=0.01)"],
    "rfedavg_plus": ["rfedavg_plus(lam=0.1)", "rfedavg_plus(lam=0.01)"],
    "decorr": ["decorr(beta=0.5)", "decorr"],
    "mixup": ["mixup(alpha=0.5)", "mixup(alpha=2.0)"],
    "dp": ["dp(noise=0.5, clip=0.1)", "dp(noise=0.1, clip=0.8)"],
    "fedacd": ["fedacd(lam=0.5)", "fedacd"],
    "on the server": ["disco(a=0.4)+avgm(beta=0.5)", "disco(a=0.2)+avgm(beta=0.9)"],
    "several": ["prox(mu=0.1)+moon(mu=2.0)+disco(a=0.3)", "prox(mu=0.2)+moon(mu=1.0)+disco(a=0.3)"],
}


@pytest.mark.parametrize("methods", NUMBERS.values(), ids=NUMBERS)
def test_hyper_parameters_side_by_side(methods):
    assert_as_alone(methods, sampling={"clients": 4}, optimizer={"momentum": 0.5})


SERVERS = {
    "who averages when": ["fedavg", "skip(every=2)", "skip(every=3)"],
    "steps": ["prox", "prox+avgm", "uniform+prox+opt(kind=yogi)", "prox+skip(every=2)+avgm"],
}


@pytest.mark.parametrize("methods", SERVERS.values(), ids=SERVERS)
def test_servers_that_do_different_things(methods):
    """Clients cannot tell them apart, but by whether they share a model."""
    assert_as_alone(methods, sampling={"clients": 4}, rounds=4)


def test_every_hook_is_the_servers_or_the_clients():
    """What a strand does at clients is seen in what a client is given, or in the network that it trains."""
    at_server = {
        "personalise",
        "init_server",
        "send",
        "weigh",
        "rescale",
        "aggregate",
        "absorb",
        "update",
    }
    assert {*HOOKS} - {*AT_CLIENTS} == at_server | {"deploy"}
    assert {*AT_CLIENTS} < {*HOOKS}


@pytest.mark.parametrize(
    "optimizers",
    [
        [{"lr": 0.1}, {"lr": 0.01, "decay": 0.5}],
        [{"name": "adam", "lr": 0.05, "beta1": 0.8}, {"name": "adam", "lr": 0.01, "eps": 1e-4, "beta2": 0.9}],
        [{"name": "rmsprop", "alpha": 0.9}, {"name": "rmsprop", "alpha": 0.99, "lr": 0.05}],
    ],
    ids=["sgd", "adam", "rmsprop"],
)
def test_optimizers_side_by_side(optimizers):
    assert_as_alone("drift+prox", seeds=[0, 1], each=[{"optimizer": options} for options in optimizers])


def test_schedules_side_by_side():
    cosine, steps = {"shape": "cosine", "warmup": 1}, {"shape": "step", "milestones": [1]}
    assert_as_alone("scaffold", seeds=[0, 1], each=[{"schedule": cosine}, {"schedule": steps}])


def test_runs_may_train_for_different_epochs_and_rounds():
    each = [{"local": {"batch": 4, "epochs": 1}}, {"local": {"batch": 4, "epochs": 3}, "rounds": 5}]
    sizes, _ = assert_as_alone("scaffold", each=each, shared=False)
    assert sizes == [24] * 3 + [12] * 2


@dataclass(frozen=True)
class Chooses(Strand):
    """Looks at its own number, which a tensor cannot stand for."""

    most: float = 1.0

    def grad(self, w, c, next):
        return next(w) if self.most > 2 else self.most * next(w)


LOOKERS = {
    "momentum": ("fedavg", [{"optimizer": {"momentum": 0.5}}, {"optimizer": {"momentum": 0.9}}], "momentum of the opt"),
    "weight decay": ("prox", [{"optimizer": {"weight_decay": 0.1}}, {}], "weight_decay of the optimizer"),
    "sam": (["sam(mix=0.5)", "sam"], [{}], "mix of sam"),
    "noise": (["rfedavg(noise=0.1)", "rfedavg"], [{}], "noise of rfedavg"),
    "mixup or not": (["fedacd(mixup=0.0)", "fedacd"], [{}], "mixup of fedacd"),
}


@pytest.mark.parametrize("looker", LOOKERS)
def test_numbers_that_code_looks_at_are_trained_in_stacks_of_their_own_and_the_log_says_why(looker, caplog):
    methods, each, name = LOOKERS[looker]
    with caplog.at_level(logging.INFO, "fedbraid"):
        sizes, _ = assert_as_alone(methods, each=each, shared=False)
    assert sizes[-2:] == [12, 12], "the seeds of each value still share one"
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and name in said[0] and "do not share a stack: " in said[0]


def test_a_strand_that_looks_at_its_number_is_never_trained_wrongly():
    def built():
        made = []
        for seed, most in ((0, 0.5), (0, 3.0), (1, 0.5)):
            config = from_dict({"rounds": 2, "seed": seed, "engine": {"device": "cpu", "dtype": "float64"}})
            objects = UserObjects(DATA, ragged(DATA, seed), chain=Chooses(most) + Prox())
            made.append(build(config, objects, beside=made[0] if made else None))
        return made

    joint, alone = built(), built()
    assert_same(joint, alone, together(joint), one_by_one(alone), ROUNDING)


def test_a_mistake_that_has_nothing_to_do_with_numbers_is_raised():
    @dataclass(frozen=True)
    class Wrong(Strand):
        def grad(self, w, c, next):
            raise RuntimeError("all is lost")

    made = []
    for seed in (0, 1):
        config = from_dict({"seed": seed, "engine": {"device": "cpu"}})
        objects = UserObjects(DATA, ragged(DATA, seed), chain=Wrong() + Prox())
        made.append(build(config, objects, beside=made[0] if made else None))
    with pytest.raises(RuntimeError, match="all is lost"):
        SharedStack(made).advance()


# --- who can go together


def test_data_are_held_once():
    first, *others = side_by_side("scaffold")
    for other in others:
        assert other.dataset is first.dataset
        assert other.clients.samples is first.clients.samples and other.test is first.test
    joint = Joint([first.engine, *(o.engine for o in others)])
    assert joint.local.clients.samples is first.clients.samples


def test_named_data_are_loaded_once():
    made = []
    for seed in (0, 1):
        config = from_dict({"seed": seed, "engine": {"device": "cpu"}})
        made.append(build(config, UserObjects(), beside=made[0] if made else None))
    assert made[0].clients.samples is made[1].clients.samples
    other = from_dict({"data": {"name": "synthetic"}, "partition": {"name": "natural"}, "engine": {"device": "cpu"}})
    assert build(other, UserObjects(), beside=made[0]).dataset.name == "synthetic"


def noisy(seed, beside=None, level=0.2):
    part = replace(ragged(DATA, seed), noise=(level,) * 6, recipe={"seed": seed})
    config = from_dict({"seed": seed, "engine": {"device": "cpu", "dtype": "float64"}})
    return build(config, UserObjects(DATA, part), beside=beside)


def test_runs_with_noise_of_their_own_hold_samples_of_their_own():
    first = noisy(0)
    second = noisy(1, first)
    assert not torch.equal(first.clients.samples.x, second.clients.samples.x)
    assert why_apart(first.engine, second.engine) == "the samples differ"
    config = from_dict({"engine": {"device": "cpu", "dtype": "float64"}})
    plain = build(config, UserObjects(DATA, ragged(DATA, 0)), beside=first)
    assert why_apart(first.engine, plain.engine) == "the samples differ"
    assert torch.equal(plain.clients.samples.x, side_by_side()[0].clients.samples.x)


APART = {
    "loop": ({"engine": {"kind": "loop"}}, "not the stack"),
    "method": ({"method": "scaffold"}, "more than numbers"),
    "option": ({"method": "prox+asd(divergence=js)"}, "more than numbers"),
    "optimizer": ({"optimizer": {"name": "adam"}}, "more than numbers"),
    "nesterov": ({"optimizer": {"nesterov": True}}, "more than numbers"),
    "network": ({"model": {"name": "mlp", "hidden": [6]}}, "the networks differ"),
    "precision": ({"engine": {"dtype": "float32"}}, "the samples differ"),
    "chunk": ({"engine": {"chunk": 3}}, "set differently"),
}


@pytest.mark.parametrize("what", APART)
def test_what_cannot_go_together(what):
    own, reason = APART[what]
    engine = {"device": "cpu", "dtype": "float64", "kind": "stack", **own.get("engine", {})}
    (here,) = side_by_side("prox+asd", [0])
    base = {"method": "prox+asd", "model": {"name": "mlp", "hidden": [5]}, "local": {"batch": 4}}
    there = build(
        from_dict({**base, **own, "engine": engine, "seed": 1}), UserObjects(DATA, ragged(DATA, 1)), beside=here
    )
    assert reason in why_apart(here.engine, there.engine)
    again = build(
        from_dict({**base, "engine": engine | {"kind": "stack", "dtype": "float64", "chunk": 0}, "seed": 1}),
        UserObjects(DATA, ragged(DATA, 1)),
        beside=here,
    )
    assert why_apart(here.engine, again.engine) is None


def test_numbers_of_a_strand_that_changes_the_network_must_be_the_same():
    one, other = side_by_side(["nh", "nh(scale=3.0)"], [0])
    assert why_apart(one.engine, other.engine) == "the methods differ in more than numbers"


class Turned(nn.Module):
    """A network whose integers, which do not travel, are drawn anew each time it is made."""

    def __init__(self, seed):
        super().__init__()
        self.register_buffer("order", torch.randperm(4, generator=torch.Generator().manual_seed(seed)))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        from fedbraid.models import Outputs

        return Outputs(self.head(x[:, self.order]), x)


def test_networks_that_differ_in_what_does_not_travel():
    made = []
    for seed in (0, 1):
        config = from_dict({"engine": {"device": "cpu"}})
        made.append(build(config, UserObjects(DATA, ragged(DATA, 0), Turned(seed)), beside=made[0] if made else None))
    assert why_apart(made[0].engine, made[1].engine) == "the networks differ in more than their weights"


def test_images_with_batches_of_different_length():
    images = toy((40, 47), (1, 6, 6), pixels=True)[0]
    one, other = side_by_side(data=images, augment={"flip": 0.5}, local={"batch": 0})
    assert one.engine.width != other.engine.width
    assert "batches are of different length" in why_apart(one.engine, other.engine)


def test_as_many_as_memory_holds(monkeypatch):
    runs = side_by_side("scaffold+moon", (0, 1, 2))
    layout = runs[0].setup.layout.size
    # a round's models with states (scaffold's c, moon's model and flag), and the states of all six clients
    each = 8 * (6 * (layout + 2 * layout + 1) + 6 * (2 * layout + 1) + layout)
    monkeypatch.setattr("fedbraid.training.shared_stack.free_memory", lambda device: 2 * 2 * each)
    assert fit_in_memory(runs[:2]) and not fit_in_memory(runs)


# --- a host that runs ahead of its GPU


def test_a_run_that_reads_its_lines_a_round_late_leaves_the_same_files(tmp_path, monkeypatch):
    def left(name):
        compared(tmp_path / name, ["scaffold"], rounds=7, save={"every": 3})
        return {run.name: str(left_on_disk(run)) for run in (tmp_path / name / "scaffold").iterdir()}

    launched, unread = SharedStack.launch, []

    def counted(self):
        lines = launched(self)
        unread.append(lines)
        return lambda: (unread.remove(lines), late.append(len(unread)), lines())[-1]

    late = []
    prompt = left("prompt")
    monkeypatch.setattr(SharedStack, "launch", counted)
    monkeypatch.setattr(SharedStack, "runs_ahead", True)
    assert left("ahead") == prompt
    assert late == [1, 1, 0, 1, 1, 0, 0]  # all are read before the state is saved
