"""The same with Ray's actors: other processes, of which some are killed."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import advanced, apart, federation, held
from jobs import training_job
from made_up_strands import MADE_UP
from ray_here import NOISE, own_ray, started_at

import fedbraid as fb
from fedbraid.cli_input import load_strand
from fedbraid.engines.ray_remote import RayRemote, _is_the_users
from fedbraid.errors import UserError
from fedbraid.strands import STRANDS

pytestmark = [
    pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed: pip install fedbraid[ray]"),
    *(pytest.mark.filterwarnings(noise) for noise in NOISE),
]
ROUNDING = 1e-12
CHEAP = {"creff": "creff(head_epochs=2, match_steps=2)"}
CHAINS = [
    "fedavg",
    *(CHEAP.get(s.name, s.name) for s in (*STRANDS, *MADE_UP)),
    "scaffold+drift(alpha=0.2)+skip(every=2)",
]
WIDE = {"name": "mlp", "hidden": [20]}


@pytest.fixture(scope="module")
def crew():
    """Two workers on a Ray that the engine starts by itself."""
    with own_ray() as place:
        first = federation(engine={"kind": "ray", "workers": 2})
        first.advance()
        assert started_at(place)
        yield first.engine.crew
        first.engine.close()


@pytest.fixture
def spread_out(crew):
    """Federations on these workers."""
    made = []

    def make(method="fedavg", **settings):
        engine = {"kind": "ray", "workers": 2}
        made.append(federation(method, own=MADE_UP, engine=engine, **{"model": WIDE} | settings))
        made[-1].engine.crew = crew
        crew.users += 1
        return made[-1]

    yield make
    for experiment in made:
        experiment.engine.close()


def alone(method="fedavg", **settings):
    return federation(method, own=MADE_UP, **{"model": WIDE} | settings)


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_gives_what_one_machine_gives(spread_out, method):
    settings = {"sampling": {"clients": 4}, "optimizer": {"momentum": 0.5}, "rounds": 2}
    here, there = alone(method, **settings), spread_out(method, **settings)
    assert apart(held(advanced(here)), held(advanced(there))) <= ROUNDING


def test_workers_are_other_processes_with_one_thread_each(crew):
    facts = [hand.facts for hand in crew.here]
    assert len({fact.process for fact in facts} | {os.getpid()}) == 3
    assert {fact.threads for fact in facts} == {1}


def test_large_models_go_through_the_object_store(spread_out):
    """What is larger than Ray sends along with a call."""
    settings = {"model": {"name": "mlp", "hidden": [2000]}, "rounds": 2, "local": {"batch": 4, "steps": 1}}
    here, there = alone("scaffold", **settings), spread_out("scaffold", **settings)
    assert here.setup.w.nbytes > 100_000
    assert apart(held(advanced(here)), held(advanced(there))) <= ROUNDING


def lose(crew, which):
    """Kill a worker's process."""
    os.kill(crew.here[which].facts.process, signal.SIGKILL)


@pytest.mark.parametrize("moment", ["between rounds", "before the sums", "before the states are asked for"])
def test_a_worker_that_is_killed_is_replaced_and_nothing_changes(spread_out, crew, moment):
    method, settings = "scaffold+drift(alpha=0.2)+skip(every=2)", {"rounds": 3}
    here, there = advanced(alone(method, **settings)), spread_out(method, **settings)
    there.advance()
    before = {hand.facts.process for hand in crew.here}
    if moment == "between rounds":
        lose(crew, 0)
    run = there.engine.run

    def run_and_lose(job, meanwhile):
        replies = run(job, meanwhile)
        lose(crew, 1)
        return replies

    if moment == "before the sums":
        there.engine.run = run_and_lose
    there.advance()
    there.engine.run = run
    if moment == "before the states are asked for":
        lose(crew, 0)
    there.advance()
    assert apart(held(here), held(there)) <= ROUNDING
    now = {hand.facts.process for hand in crew.here}
    assert len(now) == 2 and len(now & before) == 1


def test_replies_of_a_killed_worker_are_made_again(spread_out, crew):
    there = spread_out("scaffold")
    there.advance()
    job = training_job(there)
    replies = there.engine.run(job)
    before = replies.each("scaffold.change")
    weights = torch.rand(len(job.cohort), dtype=torch.float64)
    total = replies.sum("model", weights)
    lose(crew, 0)
    assert torch.equal(replies.each("scaffold.change"), before)
    lose(crew, 1)
    assert torch.equal(replies.sum("model", weights), total)


def test_a_strand_and_a_network_of_ones_own_need_not_be_installed(spread_out, tmp_path):
    (tmp_path / "mine_only.py").write_text(
        "from dataclasses import dataclass\nimport torch\nimport fedbraid as fb\n\n"
        "FACTOR = 0.25\n\n"
        "def halved(update):\n    return FACTOR * update\n\n"
        "@dataclass(frozen=True)\nclass Calm(fb.Strand):\n"
        "    def end(self, w, c):\n        return {'model': c.start + halved(w - c.start)}, c.kept\n\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n        self.body, self.head = torch.nn.Linear(4, 16), torch.nn.Linear(16, 3)\n"
        "    def forward(self, x):\n        f = self.body(x).relu()\n        return fb.Outputs(self.head(f), f)\n"
    )
    calm = load_strand(f"{tmp_path}/mine_only.py:Calm")
    import mine_only

    torch.manual_seed(0)
    network = mine_only.Net()
    assert _is_the_users(calm) and not _is_the_users(np.random.Generator) and not _is_the_users(fb.Strand)
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
    import ray

    def nobody(**settings):
        raise ConnectionError("could not find any running Ray instance\nmore")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(UserError, match="no Ray cluster at auto that this process can join: could not find any"):
        RayRemote("auto").room()


def test_without_ray_it_is_a_sentence(monkeypatch):
    monkeypatch.setattr("fedbraid.engines.ray_remote.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"install fedbraid\[ray\]"):
        federation(engine={"kind": "ray"})


def test_ray_is_imported_by_nobody_else():
    sources = Path(fb.__file__).parent.rglob("*.py")
    knowing = {p.name for p in sources if "import ray\n" in p.read_text() or "from ray" in p.read_text()}
    assert knowing == {"ray_remote.py"}
