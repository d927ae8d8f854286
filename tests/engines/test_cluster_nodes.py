"""Several nodes of a Ray cluster on one machine, of which nodes and workers are killed at random moments."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from importlib.util import find_spec

import pytest
from helpers import advanced, apart, federation, held, toy
from ray_here import NOISE, own_ray

from fedbraid.engines import crew as crew_module
from fedbraid.errors import UserError

pytestmark = [
    pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed: pip install fedbraid[ray]"),
    *(pytest.mark.filterwarnings(noise) for noise in NOISE),
]
CLOSE = 1e-6  # the contract; in float64 it is far less
ROUNDING = 1e-11
QUICKLY = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 500,
}
"""Ray notices after a second, not after many, that a node is gone."""


class Nodes:
    """A cluster: a head without workers, and nodes with room for one worker each."""

    def __init__(self, count):
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 100 << 20, "include_dashboard": False}
        self.cluster = Cluster(True, head_node_args={"num_cpus": 0, "_system_config": QUICKLY, **small})
        self.nodes = []
        for _ in range(count):
            self.add()
        self.cluster.wait_for_nodes()

    def add(self):
        self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=100 << 20, wait=False))

    def kill(self, node):
        """SIGKILL to the process that a node is."""
        self.nodes.remove(node)
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def shutdown(self):
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    with own_ray():
        made = Nodes(2)
        yield made
        import ray

        ray.shutdown()
        made.shutdown()


@pytest.fixture
def spread_out(nodes):
    made = []

    def make(method, **settings):
        engine = {"kind": "ray", "address": nodes.cluster.address, "workers": 2} | settings.pop("engine", {})
        made.append(federation(method, engine=engine, **settings))
        return made[-1]

    yield make
    for experiment in made:
        experiment.engine.close()


def kill_at_random(nodes, crew, seed, kinds, between, going):
    """Kill workers' processes, and nodes, in whose place new ones are put, while a run is `going`; what was killed."""
    rng, done = random.Random(seed), []
    for kind in kinds:
        wait([going], rng.uniform(*between))
        while not crew.here and not going.done():
            time.sleep(0.05)
        if going.done():
            break
        if kind == "node":
            nodes.kill(rng.choice(nodes.nodes))
            nodes.add()
        else:
            try:
                os.kill(rng.choice(list(crew.here)).facts.process, signal.SIGKILL)
            except ProcessLookupError:  # gone with its node, which nobody has noticed yet
                continue
        done.append(kind)
    return done


STATES = "scaffold+drift(alpha=0.2)+skip(every=2)"


def chaos(nodes, spread_out, method, seed, kinds, between, rounds, **settings):
    """A federation while things are killed, beside an undisturbed one on one machine."""
    data = toy((20, 7, 31, 12, 26, 9, 18, 15))
    work = {"local": {"batch": 1, "epochs": 6}, "model": {"name": "mlp", "hidden": [20]}, "data": data}
    settings = {"rounds": rounds, "sampling": {"clients": 6}, **work, **settings}
    here = advanced(federation(method, **settings))
    there = spread_out(method, **settings)
    there.advance()
    with ThreadPoolExecutor(1) as pool:  # nodes can be started by the main thread only
        going = pool.submit(advanced, there, rounds - 1)
        done = kill_at_random(nodes, there.engine.crew, seed, kinds, between, going)
        going.result()
    away = apart(held(here), held(there))
    print(f"{method}, seed {seed}: {away} apart after {done}")
    assert away <= min(CLOSE, ROUNDING)
    return done


def test_killed_workers_and_nodes_change_nothing(nodes, spread_out, monkeypatch):
    monkeypatch.setattr(crew_module, "GRACE", 2.0)
    done = chaos(nodes, spread_out, STATES, 1, ["worker", "node"], (0.1, 1.0), rounds=20)
    assert done == ["worker", "node"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["scaffold", "feddyn", "skip(every=3)", STATES, "rfedavg_plus+scaffold"])
def test_killed_again_and_again(nodes, spread_out, monkeypatch, method, seed):
    monkeypatch.setattr(crew_module, "GRACE", 2.0)
    kinds = random.Random(seed).choices(["worker", "worker", "node"], k=8)
    done = chaos(nodes, spread_out, method, seed, kinds, (0.0, 3.0), rounds=120)
    assert len(done) >= 3


@pytest.mark.slow
def test_a_cluster_without_nodes_is_an_error(nodes, spread_out, monkeypatch):
    """And the state is not lost: what comes back goes on where it was."""
    monkeypatch.setattr(crew_module, "GRACE", 0.5)
    here = advanced(federation("scaffold"))
    there = spread_out("scaffold")
    there.advance()
    there.engine.settle()
    there.engine.crew.patience = 3.0
    for node in list(nodes.nodes):
        nodes.kill(node)
    with pytest.raises(UserError, match="no worker of the cluster came within 3 s"):
        there.advance()
    nodes.add()
    there.engine.crew.patience = 60.0
    advanced(there, 2)
    assert apart(held(here), held(there)) <= ROUNDING
