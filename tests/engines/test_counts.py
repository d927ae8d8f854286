"""What the log says a round cost: bytes each way, samples forward and backward."""

import pytest
from helpers import SIZES, federation, toy
from made_up_strands import MADE_UP

from fedbraid.core.plan import make_plan

TOTAL, EPOCHS = sum(SIZES), 2
KINDS = ["stack", "loop"]


def lines(method, kind="stack", rounds=3, **settings):
    simulation = federation(method, own=MADE_UP, engine={"kind": kind, "dtype": "float32"}, **settings)
    return [simulation.advance() for _ in range(rounds)], simulation.setup.layout.size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "models_down", "models_up"),
    [("fedavg", 1, 1), ("prox+uniform+avgm", 1, 1), ("scaffold", 2, 2), ("skip", 1, 1), ("scaffold+skip", 2, 2)],
)
def test_a_model_is_four_bytes_a_parameter_for_every_client_each_way(method, models_down, models_up, kind):
    for line in (log := lines(method, kind, rounds=4, sampling={"clients": 4}))[0]:
        assert line["bytes_down"] == 4 * log[1] * 4 * models_down
        assert line["bytes_up"] == 4 * log[1] * 4 * models_up


def test_double_precision_costs_twice():
    simulation = federation("fedavg")
    assert simulation.advance()["bytes_up"] == 8 * simulation.setup.layout.size * len(SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_sends_the_model_once_and_its_answers_count(kind):
    log, size = lines("fair+scaffold", kind)
    clients = len(SIZES)
    for line in log:
        assert line["bytes_down"] == clients * (4 * size * 2 + 4)  # model and c with the probe, then a number each
        assert line["bytes_up"] == clients * (4 * size * 2 + 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "forward", "backward"),
    [
        ("fedavg", EPOCHS, EPOCHS),
        ("scaffold+prox+avgm", EPOCHS, EPOCHS),
        ("sharp", 2 * EPOCHS, 2 * EPOCHS),
        ("fair", EPOCHS + 1, EPOCHS),
        ("anchor", 2 * EPOCHS, EPOCHS),
        ("teach", EPOCHS + 2, EPOCHS),  # each of two teachers looks once at every sample
        ("mix+teach", 3 * EPOCHS, EPOCHS),  # inputs that change are looked at anew
    ],
)
def test_passes_over_the_data(method, forward, backward, kind):
    for line in lines(method, kind)[0]:
        assert (line["forward_samples"], line["backward_samples"]) == (forward * TOTAL, backward * TOTAL)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_left_out_do_not_count(kind):
    work = {"batch": 4, "epochs": 2, "drop_last": True}
    (line, *_), _ = lines("fedavg", kind, local=work)
    assert line["backward_samples"] == 2 * sum(n // 4 * 4 if n >= 4 else n for n in SIZES)


UNEVEN = [
    {"batch": 4, "epochs": 3, "least": 1},
    {"batch": 4, "steps": 5},
    {"batch": 4, "steps": 6, "least": 1},
]


@pytest.mark.parametrize("work", UNEVEN)
@pytest.mark.parametrize("method", ["teach", "mix+teach+sharp", "fair"])
def test_uneven_work_costs_the_same_in_both_engines(method, work):
    stack, loop = (lines(method, kind, local=work, sampling={"clients": 3})[0] for kind in KINDS)
    assert [line["forward_samples"] for line in stack] == [line["forward_samples"] for line in loop]


@pytest.mark.parametrize("method", ["moon", "asd", "ntd", "teach"])
@pytest.mark.parametrize("work", [{"batch": 4, "steps": 2}, {"batch": 4, "epochs": 1, "drop_last": True}])
def test_a_teacher_costs_the_same_whoever_shares_a_stack(method, work):
    """A few steps are less than a large client's data and more than a small one's."""
    engines = [{"kind": kind, "chunk": chunk} for kind in KINDS for chunk in (0, 1, 2, 4)]
    made = [federation(method, own=MADE_UP, local=work, engine=engine) for engine in engines]
    trained = [
        make_plan(made[0].chain, made[0].config.local, n, 4, seed=0, round=0, client=k).samples
        for k, n in enumerate(SIZES)
    ]
    assert sum(trained[k] < n for k, n in enumerate(SIZES)) in range(1, len(SIZES))
    teachers = 2 if method in ("moon", "teach") else 1
    cost = sum(trained) + teachers * sum(map(min, trained, SIZES))
    assert {simulation.advance()["forward_samples"] for simulation in made} == {cost}


@pytest.mark.parametrize("work", UNEVEN)
def test_clients_that_begin_no_epoch_pass_over_no_data(work):
    stack, loop = (lines("anchor", kind, local=work)[0] for kind in KINDS)
    assert [line["forward_samples"] for line in stack] == [line["forward_samples"] for line in loop]


def test_rounds_that_look_ahead_and_rounds_that_do_not_are_told_apart():
    """With a step a round, one look over all data pays for small clients only: some rounds cache, others do not."""
    settings = {"data": toy((1, 2, 30, 1, 2, 30)), "local": {"batch": 2, "steps": 2}, "sampling": {"clients": 1}}
    stack, loop = (lines("teach", kind, rounds=8, **settings)[0] for kind in KINDS)
    assert len({line["forward_samples"] for line in loop}) > 2
    assert [line["forward_samples"] for line in stack] == [line["forward_samples"] for line in loop]


def test_the_training_loss_is_the_mean_over_the_samples_seen():
    """With one full-batch step it is the loss of the initial model on all of the cohort's data."""
    simulation = federation(local={"batch": 0, "epochs": 1})
    samples, w = simulation.clients.samples, simulation.server.w
    logits = simulation.model.predict(w, simulation.server.buffers, samples.x).logits
    expected = -logits.log_softmax(-1).gather(1, samples.y[:, None]).mean()
    assert simulation.advance()["train_loss"] == pytest.approx(float(expected), rel=1e-12)


def test_the_plan_and_the_log_agree_on_the_number_of_samples():
    work = {"batch": 4, "epochs": 3, "least": 1}
    simulation = federation("fedavg", local=work)
    plans = [
        make_plan(simulation.chain, simulation.config.local, n, 4, seed=0, round=0, client=k)
        for k, n in enumerate(SIZES)
    ]
    assert simulation.advance()["backward_samples"] == sum(plan.samples for plan in plans)
