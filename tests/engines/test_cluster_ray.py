"""The same with Ray: a cluster of several nodes on this machine, of which workers and nodes are killed."""

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import chains
from helpers import advanced, apart, federation, held, toy
from jobs import training_job
from made_up_strands import MADE_UP
from ray_here import NOISE, Nodes, own_place, started_at
from safetensors.torch import load_file

import fedbraid as fb
from fedbraid.engines.ray import worker_pool as crew_module
from fedbraid.engines.ray.actors import RayRemote, _is_user_code
from fedbraid.errors import UserError
from fedbraid.training.user_code import load_strand

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install fedbraid[ray]")

pytestmark = [pytest.mark.filterwarnings(noise) for noise in NOISE]
ROUNDING = 1e-12
CHAINS = chains("scaffold+drift(alpha=0.2)+skip(every=2)")
WIDE = {"name": "mlp", "hidden": [20]}


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes with room for a worker each."""
    made = []

    def end():
        ray.shutdown()
        for cluster in made:
            cluster.shutdown()

    with own_place(end) as place:
        made.append(Nodes(2))
        assert started_at(place)
        yield made[0]


@pytest.fixture(scope="module")
def pool(nodes):
    """Two workers, for many federations."""
    first = federation(engine={"kind": "ray", "workers": 2, "address": nodes.cluster.address})
    first.advance()
    yield first.engine.pool
    first.engine.close()


@pytest.fixture
def spread_out(pool):
    """Federations on these workers."""
    made = []

    def make(method="fedavg", **settings):
        made.append(federation(method, own=MADE_UP, engine={"kind": "ray"}, **{"model": WIDE} | settings))
        made[-1].engine.pool = pool
        pool.users += 1
        return made[-1]

    yield make
    for simulation in made:
        simulation.engine.close()


def alone(method="fedavg", **settings):
    return federation(method, own=MADE_UP, **{"model": WIDE} | settings)


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_gives_what_one_machine_gives(spread_out, method):
    settings = {"sampling": {"clients": 4}, "optimizer": {"momentum": 0.5}, "rounds": 2}
    here, there = alone(method, **settings), spread_out(method, **settings)
    assert apart(held(advanced(here)), held(advanced(there))) <= ROUNDING


def test_workers_are_other_processes_with_one_thread_each(pool):
    info = [handle.info for handle in pool.connected]
    assert len({fact.process for fact in info} | {os.getpid()}) == 3
    assert {fact.threads for fact in info} == {1}


def test_large_models_go_through_the_object_store(spread_out):
    """What is larger than Ray sends along with a call."""
    settings = {"model": {"name": "mlp", "hidden": [2000]}, "rounds": 2, "local": {"batch": 4, "steps": 1}}
    here, there = alone("scaffold", **settings), spread_out("scaffold", **settings)
    assert here.setup.w.nbytes > 100_000
    assert apart(held(advanced(here)), held(advanced(there))) <= ROUNDING


def lose(pool, which):
    """Kill a worker's process."""
    os.kill(pool.connected[which].info.process, signal.SIGKILL)


MOMENTS = ["before the sums", *(pytest.param(m, marks=pytest.mark.slow) for m in ("between rounds", "before saving"))]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_is_killed_is_replaced_and_nothing_changes(spread_out, pool, moment):
    method, settings = "scaffold+drift(alpha=0.2)+skip(every=2)", {"rounds": 3}
    here, there = advanced(alone(method, **settings)), spread_out(method, **settings)
    there.advance()
    before = {handle.info.process for handle in pool.connected}
    if moment == "between rounds":
        lose(pool, 0)
    run = there.engine.run

    def run_and_lose(job, meanwhile):
        replies = run(job, meanwhile)
        lose(pool, 1)
        return replies

    if moment == "before the sums":
        there.engine.run = run_and_lose
    there.advance()
    there.engine.run = run
    if moment == "before saving":
        lose(pool, 0)
    there.advance()
    assert apart(held(here), held(there)) <= ROUNDING
    now = {handle.info.process for handle in pool.connected}
    assert len(now) == 2 and len(now & before) == 1


def test_replies_of_a_killed_worker_are_made_again(spread_out, pool):
    there = spread_out("scaffold")
    there.advance()
    job = training_job(there)
    replies = there.engine.run(job)
    before = replies.each("scaffold.change")
    weights = torch.rand(len(job.cohort), dtype=torch.float64)
    total = replies.sum("model", weights)
    lose(pool, 0)
    assert torch.equal(replies.each("scaffold.change"), before)
    assert torch.equal(replies.sum("model", weights), total)


def test_a_strand_and_a_network_of_ones_own_need_not_be_installed(spread_out, tmp_path):
    (tmp_path / "mine_only.py").write_text(
        "from dataclasses import dataclass\nimport torch\nimport fedbraid as fb\n\n"
        "FACTOR = 0.25\n\n"
        "def halved(update):\n    return FACTOR * update\n\n"
        "@dataclass(frozen=True)\nclass Calm(fb.Strand):\n"
        "    def end(self, w, c):\n        return {'model': c.start + halved(w - c.start)}, c.state\n\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n        self.body, self.head = torch.nn.Linear(4, 16), torch.nn.Linear(16, 3)\n"
        "    def forward(self, x):\n        f = self.body(x).relu()\n        return fb.Outputs(self.head(f), f)\n"
    )
    calm = load_strand(f"{tmp_path}/mine_only.py:Calm")
    import mine_only

    torch.manual_seed(0)
    network = mine_only.Net()
    assert _is_user_code(calm) and not _is_user_code(np.random.Generator) and not _is_user_code(fb.Strand)
    here, there = (make(calm(), module=network) for make in (alone, spread_out))
    assert apart(held(advanced(here)), held(advanced(there))) <= ROUNDING


def test_mistakes_on_workers_are_told_as_they_are(spread_out):
    bad = spread_out(module=BatchNorm(), data=None, local={"batch": 1})
    with pytest.raises(UserError, match="BatchNorm needs two samples or more"):
        bad.advance()


class BatchNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)

    def forward(self, x):
        f = self.norm(x)
        return fb.Outputs(self.head(f), f)


def test_a_cluster_that_is_not_there_is_a_sentence(monkeypatch):
    def nobody(**settings):
        raise ConnectionError("could not find any running Ray instance\nmore")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(UserError, match="no Ray cluster at auto that this process can join: could not find any"):
        RayRemote("auto").room()


def test_without_ray_it_is_a_sentence(monkeypatch):
    monkeypatch.setattr("fedbraid.engines.ray.actors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"install fedbraid\[ray\]"):
        federation(engine={"kind": "ray"})


def test_ray_is_imported_by_nobody_else():
    sources = Path(fb.__file__).parent.rglob("*.py")
    knowing = {p.name for p in sources if "import ray\n" in p.read_text() or "from ray" in p.read_text()}
    assert knowing == {"actors.py"}


# --- at random moments


def kill_at_random(nodes, pool, seed, kinds, between, going):
    """Kill workers' processes, and nodes, in whose place new ones are put, while a run is `going`; what was killed."""
    rng, done = random.Random(seed), []
    for kind in kinds:
        wait([going], rng.uniform(*between))
        while not pool.connected and not going.done():
            time.sleep(0.05)
        if going.done():
            break
        if kind == "node":
            nodes.kill(rng.choice(nodes.nodes))
            nodes.add()
        else:
            try:
                os.kill(rng.choice(list(pool.connected)).info.process, signal.SIGKILL)
            except ProcessLookupError:  # gone with its node, which nobody has noticed yet
                continue
        done.append(kind)
    return done


STATES = "scaffold+drift(alpha=0.2)+skip(every=2)"


def chaos(nodes, make, method, seed, kinds, between, rounds, **settings):
    """A federation while things are killed, beside an undisturbed one on one machine.

    Local steps are many and small: rounds take a while, and do not magnify rounding. (FedDyn with alpha = 0.01 makes
    1e-7 of the last digit in fifty rounds, on one machine too.)
    """
    data = toy((20, 7, 31, 12, 26, 9, 18, 15))
    work = {"local": {"batch": 1, "epochs": 10}, "optimizer": {"lr": 0.01}, "model": WIDE, "data": data}
    settings = {"rounds": rounds, "sampling": {"clients": 6}, **work, **settings}
    here = advanced(federation(method, **settings))
    there = make(method, **settings)
    there.advance()
    with ThreadPoolExecutor(1) as pool:  # nodes can be started by the main thread only
        going = pool.submit(advanced, there, rounds - 1)
        done = kill_at_random(nodes, there.engine.pool, seed, kinds, between, going)
        going.result()
    away = apart(held(here), held(there))
    print(f"\n{method}, seed {seed}: {away} apart after {done}")
    assert away <= 1e-11  # the contract is 1e-6
    return done


@pytest.mark.slow
def test_killed_workers_and_nodes_change_nothing(nodes, spread_out, monkeypatch):
    monkeypatch.setattr(crew_module, "GRACE", 2.0)
    done = chaos(nodes, spread_out, STATES, 1, ["worker", "node"], (0.1, 1.0), rounds=12)
    assert done == ["worker", "node"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["scaffold", "feddyn(alpha=0.5)", "skip(every=3)", STATES, "rfedavg_plus+scaffold"])
def test_killed_again_and_again(nodes, spread_out, monkeypatch, method, seed):
    monkeypatch.setattr(crew_module, "GRACE", 2.0)
    kinds = random.Random(seed).choices(["worker", "worker", "node"], k=8)
    done = chaos(nodes, spread_out, method, seed, kinds, (0.0, 0.6), rounds=120)
    assert len(done) >= 3


@pytest.mark.slow
def test_a_cluster_without_nodes_is_an_error(nodes, spread_out, monkeypatch):
    """And the state is not lost: what comes back goes on where it was."""
    monkeypatch.setattr(crew_module, "GRACE", 0.5)
    here = advanced(federation("scaffold"))
    there = spread_out("scaffold", model={"name": "mlp", "hidden": [5]})
    there.advance()
    there.engine.settle()
    there.engine.pool.patience = 3.0
    for node in list(nodes.nodes):
        nodes.kill(node)
    with pytest.raises(UserError, match="no worker of the cluster came within 3 s"):
        there.advance()
    nodes.add()
    there.engine.pool.patience = 60.0
    advanced(there, 2)
    assert apart(held(here), held(there)) <= ROUNDING


@pytest.mark.slow
def test_on_a_laptop_it_starts_ray_by_itself(tmp_path):
    words = ["run", "--engine", "ray", "--method", "scaffold", "--set", "rounds=3", "--set", "engine.dtype=float64"]
    models = []
    with own_place() as place:
        for name, more in (("cluster", words[1:3]), ("here", ["--engine", "stack"])):
            command = [sys.executable, "-m", "fedbraid", "run", *more, *words[3:], "--out", name]
            path = {"PYTHONPATH": str(Path(fb.__file__).parents[1])}
            done = subprocess.run(command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            models.append(load_file(tmp_path / name / "model.safetensors"))
        assert place.exists()
    for name, value in models[0].items():
        torch.testing.assert_close(value, models[1][name], rtol=0, atol=1e-12)
