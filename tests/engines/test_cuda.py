"""The stack on a GPU, its steps captured in CUDA graphs, against the loop on the CPU."""

import gc

import pytest
import torch
from helpers import advanced, apart, federation, held, toy
from made_up_strands import MADE_UP
from networks import NETWORKS, Normed, Recurrent
from user_networks import CASES

from fedbraid.engines.graph import BURST
from fedbraid.strands import STRANDS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
ROUNDING = 1e-9  # float64; the contract is 1e-6
CHEAP = {"creff": "creff(head_epochs=2, match_steps=2)"}
CHAINS = [
    "fedavg",
    *(CHEAP.get(s.name, s.name) for s in (*STRANDS, *MADE_UP)),
    "prox(mu=0.3)+scaffold+avgm(nesterov=true)+disco",
    "scaffold+skip(every=2)+avgm",
    "anchor+teach+sharp+calibrate",
    "mix+teach+focal+tracker+fair+scaffold+disco+skip(every=2)+average",
]
GPU, CPU = {"kind": "stack", "device": "cuda"}, {"kind": "loop"}
EXACT = ("round", "clients", "bytes_down", "bytes_up", "forward_samples", "backward_samples")


def assert_same(method, *, gpu=GPU, cpu=CPU, rounds=3, **settings):
    results = []
    for engine in (gpu, cpu):
        simulation = federation(method, own=MADE_UP, engine=engine, rounds=rounds, **settings)
        lines = [simulation.advance() for _ in range(rounds)]
        results.append((held(simulation), [[line[key] for key in EXACT] for line in lines]))
    assert apart(results[0][0], results[1][0]) <= ROUNDING
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_on_ragged_clients_with_partial_participation(method):
    assert_same(method, sampling={"clients": 4}, optimizer={"momentum": 0.5, "weight_decay": 0.01})


@pytest.mark.parametrize(
    "work",
    [
        {"batch": 4, "epochs": 2, "drop_last": True},
        {"batch": 4, "epochs": 3, "least": 1},
        {"batch": 4, "steps": 6, "least": 1},
        {"batch": 0, "epochs": 2},
    ],
)
@pytest.mark.parametrize("method", ["scaffold+prox", "anchor+teach", "mix+tracker"])
def test_every_kind_of_local_work(method, work):
    assert_same(method, local=work, sampling={"clients": 5})


@pytest.mark.parametrize(
    "optimizer",
    [
        {"momentum": 0.9, "nesterov": True, "decay": 0.9},
        {"clip": 0.3, "momentum": 0.5},
        {"name": "adam", "lr": 0.05},
        {"name": "rmsprop", "lr": 0.02, "clip": 1.0},
    ],
)
def test_every_optimizer(optimizer):
    assert_same("drift+prox", optimizer=optimizer)


@pytest.mark.parametrize(
    "method", ["scaffold+teach+disco", "anchor+tracker", "mix", "rfedavg(lam=0.1)", "rfedavg_plus(lam=0.1)+asd"]
)
def test_cohorts_of_varying_size(method):
    assert_same(method, rounds=6, sampling={"scheme": "bernoulli", "rate": 0.4})


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("method", ["scaffold+skip(every=2)+teach", "anchor+fair+tracker"])
def test_a_stack_in_chunks(method, chunk):
    assert_same(method, gpu=GPU | {"chunk": chunk}, optimizer={"momentum": 0.5})


def test_many_clients_that_finish_one_after_the_other():
    data = toy([1 + 3 * k % 23 for k in range(19)])
    assert_same("scaffold+anchor", data=data, local={"batch": 3, "epochs": 2, "least": 1})


def test_rounds_that_look_ahead_and_rounds_that_do_not():
    """The frozen models' outputs are cached in some rounds and not in others, within one captured memory."""
    work = {"batch": 2, "steps": 2}
    assert_same("teach", data=toy((1, 2, 30, 1, 2, 30)), local=work, sampling={"clients": 1}, rounds=8)


def test_convolutions_on_bytes():
    data = toy((3, 1, 4), (1, 28, 28), pixels=True)
    assert_same("scaffold", data=data, model={"name": "lenet"}, local={"batch": 2}, optimizer={"momentum": 0.9})


@pytest.mark.parametrize("network", NETWORKS)
def test_every_kind_of_network(network):
    assert_same("prox", module=NETWORKS[network](), optimizer={"momentum": 0.5})


@pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN would like them in memory of their own
@pytest.mark.parametrize("kind", ["stack", "loop"])
@pytest.mark.parametrize("network", [Normed, lambda: Recurrent(dropout=0.3)], ids=["BatchNorm", "LSTM"])
def test_batchnorm_and_recurrence_on_the_gpu(network, kind):
    even = toy((4, 8, 12, 6))
    work = {"batch": 4, "epochs": 2, "drop_last": True}
    assert_same("scaffold+skip(every=2)", module=network(), data=even, local=work, gpu={"device": "cuda", "kind": kind})


@pytest.mark.parametrize("name", CASES)
def test_networks_of_the_users(name):
    torch.manual_seed(0)
    make, data = CASES[name]
    assert_same("prox", module=make(), data=data, optimizer={"momentum": 0.5})


def test_the_loop_on_the_gpu():
    assert_same("anchor+teach+scaffold", gpu={"kind": "loop", "device": "cuda"})


def test_single_precision_agrees_to_its_rounding():
    gpu, cpu = (
        held(advanced(federation("scaffold", engine=engine | {"dtype": "float32"}, optimizer={"momentum": 0.5})))
        for engine in (GPU, CPU)
    )
    assert apart(gpu, cpu) < 1e-4


def test_a_graph_is_captured_once_for_each_size_and_used_in_later_rounds():
    simulation = federation("scaffold", engine=GPU, rounds=12)
    advanced(simulation, 8)  # ends of stretches that recur get graphs of their own
    captured = simulation.engine.stack._captured
    graphs = dict(captured.graphs)
    advanced(simulation, 4)
    assert simulation.engine.stack._captured is captured
    assert captured.graphs == graphs


@pytest.mark.parametrize("method", ["fedavg", "asd+disco", "mixup+moon", "fedacd", "scaffold+skip(every=2)"])
def test_long_rounds_whose_graphs_hold_several_steps(method):
    even = toy((12, 12, 12, 11, 10))
    assert_same(method, data=even, local={"batch": 2, "epochs": 5}, optimizer={"momentum": 0.5})
    simulation = federation("fedavg", data=even, engine=GPU, local={"batch": 2, "epochs": 5})
    advanced(simulation, 1)
    assert BURST in {steps for _, _, steps in simulation.engine.stack._captured.graphs}


@pytest.mark.parametrize("method", ["fedavg", "asd+disco", "mixup+moon", "fedacd"])
def test_images_that_change(method):
    augment = {"crop": 2, "padding": "reflect", "flip": 0.5, "rotation": 30.0, "brightness": 0.3, "contrast": 0.3}
    augment |= {"saturation": 0.3, "hue": 0.1}
    assert_same(method, data=toy(shape=(3, 8, 8), pixels=True), augment=augment, sampling={"clients": 4})


@pytest.mark.parametrize("method", ["scaffold+disco", "rfedavg_plus"])
def test_clients_that_are_lost_or_late(method):
    assert_same(method, sampling={"clients": 5, "dropout": 0.5, "late": 0.3, "late_by": 3}, rounds=4)


def test_graphs_of_earlier_runs_are_not_freed_within_a_capture():
    """Old graphs in a cycle are garbage that only the collector frees, here as often as it can."""
    rounds, settings = 2, {"engine": GPU, "rounds": 2}
    alone = federation("scaffold", **settings)
    expected = [alone.advance() for _ in range(rounds)], held(alone)
    before = gc.get_threshold()
    try:
        for _ in range(3):
            again = federation("scaffold", **settings)
            lines = [again.advance() for _ in range(rounds)]
            assert apart(held(again), expected[1]) <= ROUNDING
            assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in expected[0]])
            again.itself = again  # a cycle
            del again
            gc.set_threshold(1)
    finally:
        gc.set_threshold(*before)


def test_the_log_has_the_seconds_that_rounds_take():
    """Their sum is the time on the clock, though lines are read late and the host runs ahead."""
    from time import perf_counter

    made = federation("fedavg", data=toy((400,) * 8, (20,)), rounds=30, local={"batch": 10, "epochs": 4}, engine=GPU)
    advanced(made, 3)
    torch.cuda.synchronize()
    began, lines = perf_counter(), [made.launch() for _ in range(20)]
    torch.cuda.synchronize()
    wall, seconds = perf_counter() - began, [line()["seconds"] for line in lines]
    assert 0.7 * wall <= sum(seconds) <= 1.05 * wall
    assert min(seconds) > max(seconds) / 10
