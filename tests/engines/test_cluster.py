"""Clients on the workers of a cluster, as seen by the driver; the workers are in this process, and die when told to."""

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pytest
import torch
from covering import chains
from helpers import advanced, apart, federation, held, identical, toy
from in_process import InProcess
from jobs import training_job
from made_up_strands import MADE_UP

import fedbraid as fb
from fedbraid.analyses.recorded import Recorded
from fedbraid.engines.ray import cluster as cluster_module
from fedbraid.engines.ray import worker_pool as crew_module
from fedbraid.engines.ray.cluster import Cluster, children
from fedbraid.engines.ray.worker_pool import WorkerPool
from fedbraid.errors import UserError
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.user_objects import UserObjects

ROUNDING = 1e-12  # float64, a few rounds; the contract is 1e-6
CHAINS = chains("scaffold(by_size=true)+skip(every=2)+avgm", "rfedavg_plus(noise=1.0)+drift(alpha=0.2)")
WIDE = {"name": "mlp", "hidden": [20]}
"""A model of more than the bytes that workers tell at once."""


@pytest.fixture(autouse=True)
def _in_process(monkeypatch):
    """Clusters are in this process, and nobody waits for what cannot come."""
    monkeypatch.setattr(cluster_module, "RayRemote", lambda *args, **kwargs: InProcess())
    monkeypatch.setattr(crew_module, "GRACE", 0.0)


def spread_out(method="fedavg", remote=None, workers=2, **settings):
    """A federation on workers of this process."""
    engine = {"kind": "ray", "workers": workers, "patience": 0.01} | settings.pop("engine", {})
    made = federation(method, own=MADE_UP, engine=engine, **{"model": WIDE} | settings)
    made.engine.pool.remote = remote or InProcess(workers)
    return made


def one_by_one(simulation):
    """Without the time that it takes to make programs for a stack, anew on each worker."""
    simulation.engine.local = replace(simulation.engine.local, kind="loop")
    return simulation


def alone(method="fedavg", **settings):
    return federation(method, own=MADE_UP, **{"model": WIDE} | settings)


# --- without faults


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_gives_what_one_machine_gives(method):
    settings = {"sampling": {"clients": 4}, "optimizer": {"momentum": 0.5, "weight_decay": 0.01}}
    here = alone(method, engine={"kind": "loop"}, **settings)
    there = one_by_one(spread_out(method, workers=3, **settings))
    for _ in range(3):
        line, other = here.advance(), there.advance()
        assert line["train_loss"] == pytest.approx(other["train_loss"], rel=1e-12)
        exact = ("round", "clients", "accuracy", "bytes_down", "bytes_up", "backward_samples", "forward_samples")
        assert {key: line[key] for key in exact} == {key: other[key] for key in exact}
    assert apart(held(here), held(there)) <= ROUNDING


@pytest.mark.parametrize("workers", [1, 2, 5, 6, 9])
@pytest.mark.parametrize("kind", ["mlp", "logistic"])
def test_any_number_of_workers_gives_the_same(workers, kind):
    settings = {"model": {"name": kind}, "sampling": {"scheme": "bernoulli", "rate": 0.5, "dropout": 0.3}}
    here, there = alone("scaffold", **settings), one_by_one(spread_out("scaffold", workers=workers, **settings))
    assert apart(held(advanced(here)), held(advanced(there))) <= ROUNDING


def test_each_worker_holds_its_clients_and_no_others():
    there = advanced(spread_out("scaffold", workers=3))
    parts = [list(actor.worker.shares.values()) for actor in there.engine.pool.remote.actors]
    assert [len(part) for part in parts] == [1, 1, 1]
    numbers = [part[0].local.clients.numbers.tolist() for part in parts]
    assert sorted(chain(*numbers)) == list(range(6))
    for (one,), mine in zip(parts, numbers, strict=True):
        assert len(one.local.clients.samples) == there.clients.sizes[mine].sum()
        assert set(one.store._rows) == set(mine)


def test_rows_that_are_one_clients_own_go_to_its_worker_only():
    sent = []
    there = spread_out("skip(every=3)", workers=2)
    there.advance()
    remote = there.engine.pool.remote
    call = remote.call
    remote.call = lambda worker, method, *args: sent.append((method, args)) or call(worker, method, *args)
    there.advance()
    work = [args[-1] for method, args in sent if method == "work"]
    assert sorted(chain(*(own.cohort.ids.tolist() for own in work))) == list(range(6))
    assert all(own.model["model"].shape == (len(own.cohort), there.setup.w.numel()) for own in work)


def test_a_driver_that_is_asked_for_sums_gets_one_vector():
    there = spread_out("scaffold", workers=4, data=toy((3,) * 8))
    arrived = []
    remote = there.engine.pool.remote
    get = remote.get
    remote.get = lambda reference: arrived.append(get(reference)) or arrived[-1]
    there.advance()
    large = [a for a in arrived if isinstance(a, np.ndarray) and a.nbytes > 512]
    assert [a.shape for a in large] == [there.setup.w.shape] * 2  # the model's sum, and that of SCAFFOLD's change
    assert Counter(remote.calls)["sum"] == 8


@pytest.mark.parametrize("count", range(1, 18))
def test_the_tree_has_everybody_once_and_is_not_deep(count):
    depth, seen = {0: 0}, [0]
    for at in range(count):
        for child in children(at, count):
            assert child > at  # so that whoever comes later in the order can be asked first
            depth[child] = depth[at] + 1
            seen.append(child)
    assert sorted(seen) == list(range(count))
    assert max(depth.values()) <= max(1, count - 1).bit_length()


def test_sums_do_not_depend_on_who_has_which_share():
    there, crowded = spread_out(workers=3), spread_out(workers=3, remote=InProcess(1))
    assert len(advanced(crowded).engine.pool.connected) == 1
    assert identical(held(advanced(there)), held(crowded))


def test_replies_are_lazy_and_gone_with_the_next_job():
    there = spread_out("scaffold")
    job = training_job(there)
    replies = there.engine.run(job)
    weights = torch.rand(len(job.cohort), dtype=torch.float64)
    everything = replies.each("model")
    torch.testing.assert_close(replies.sum("model", weights), weights @ everything, rtol=1e-12, atol=1e-12)
    parts = torch.zeros_like(everything)
    for places, values in replies.parts("model"):
        parts[places] = values
    assert torch.equal(parts, everything)
    there.engine.run(job)
    with pytest.raises(RuntimeError, match="replies are gone"):
        replies.sum("model", weights)


def test_places_compose():
    replies = spread_out().engine
    open_job = training_job(spread_out())
    first = replace(replies.run(open_job.only(np.array([1, 3]))), came=np.array([0]))
    assert first.of_those_at(np.array([1, 3])).came.tolist() == [1]


# --- with faults


def fated(what):
    """Workers die at these calls: {number: "before" or "after"}."""
    return InProcess(2, lambda number, method: what.get(number, ""))


METHOD = "scaffold+skip(every=2)+drift(alpha=0.2)"
SETTINGS = {"rounds": 3, "sampling": {"clients": 5}, "local": {"batch": 0}, "evaluate": {"every": 9}}


@pytest.fixture(scope="module")
def undisturbed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "RayRemote", lambda *args, **kwargs: InProcess())
        there = advanced(one_by_one(spread_out(METHOD, **SETTINGS)))
        return held(there), list(there.engine.pool.remote.calls)


def test_what_is_undisturbed_is_what_one_machine_gives(undisturbed):
    assert apart(undisturbed[0], held(advanced(alone(METHOD, **SETTINGS)))) <= ROUNDING


@pytest.mark.parametrize("turn", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_a_worker_lost_at_any_call_changes_nothing(undisturbed, turn):
    """Every call, in six turns."""
    expected, calls = undisturbed
    assert {"hold", "work", "sum", "each", "kept", "prepare"} <= set(calls)
    for number in range(turn // 2, len(calls), 3):
        when = ("before", "after", "answered")[(number // 3 + turn) % 3]
        remote = fated({number: when})
        there = advanced(one_by_one(spread_out(METHOD, remote, **SETTINGS)))
        assert identical(held(there), expected), f"lost {when} call {number}, {calls[number]}"
        assert len(remote.actors) == 3 or number >= len(calls) - 2  # the last answers may no longer matter


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(k, marks=pytest.mark.slow) for k in range(3, 30))])
def test_many_losses_change_nothing(undisturbed, seed):
    expected, calls = undisturbed
    remote = fated(some(range(2 * len(calls)), 12, seed))
    there = advanced(one_by_one(spread_out(METHOD, remote, **SETTINGS)))
    assert identical(held(there), expected)
    assert len(remote.actors) > 3


def some(numbers, count, seed):
    """So many of these calls, with a worker's end at each."""
    rng = random.Random(seed)
    return {number: rng.choice(["before", "after", "answered"]) for number in rng.sample(numbers, count)}


@pytest.fixture(scope="module")
def in_four_shares():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "RayRemote", lambda *args, **kwargs: InProcess())
        return held(advanced(one_by_one(spread_out(METHOD, workers=4, **SETTINGS))))


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(k, marks=pytest.mark.slow) for k in range(3, 30))])
def test_losses_where_workers_have_several_shares_change_nothing(in_four_shares, seed):
    remote = fated(some(range(8, 120), 12, seed))
    there = advanced(one_by_one(spread_out(METHOD, remote, workers=4, **SETTINGS)))
    assert identical(held(there), in_four_shares)


def test_all_workers_lost_at_once_change_nothing(undisturbed):
    expected, calls = undisturbed
    for number in range(6, len(calls), 5):
        remote = InProcess(2)

        def fate(at, method, remote=remote, number=number):
            if at == number:
                for actor in remote.actors:
                    actor.worker = None
            return ""

        remote.fate = fate
        assert identical(held(advanced(one_by_one(spread_out(METHOD, remote, **SETTINGS)))), expected)


def test_a_share_goes_to_others_while_there_is_no_replacement_and_back_afterwards(undisturbed):
    remote = InProcess(2)
    there = one_by_one(spread_out(METHOD, remote, **SETTINGS))
    there.advance()
    remote.size, number = 1, len(remote.calls)
    remote.fate = lambda at, method: "before" if at == number + 2 else ""
    there.advance()
    handles = list(there.engine.hosts.values())
    assert handles[0] is handles[1] and there.engine.pool.starting
    (late,) = [actor for actor in remote.actors if actor.late]
    late.late = False
    there.engine.pool.starting[0].ping = remote.call(late, "ping")
    there.advance()
    assert len(set(there.engine.hosts.values())) == 2
    assert identical(held(there), undisturbed[0])


def test_a_cluster_that_is_gone_is_an_error_and_the_run_goes_on_elsewhere(tmp_path, monkeypatch):
    data, partition = toy()
    remotes = []
    monkeypatch.setattr(cluster_module, "RayRemote", lambda *a, **k: remotes.append(InProcess()) or remotes[-1])

    def go(**more):
        engine = {"kind": "ray", "workers": 2, "patience": 0.01, "device": "cpu"} | more.pop("engine", {})
        settings = {"rounds": 5, "model": WIDE, "save": {"every": 1}, "engine": engine} | more
        return fb.run(METHOD, data=data, partition=partition, **settings)

    def end(line, config):
        if line["round"] == 3:
            remotes[-1].size = 0
            for actor in remotes[-1].actors:
                actor.worker = None

    with pytest.raises(UserError, match=r"no worker of the cluster came within 0\.01 s.*--resume"):
        go(out=tmp_path / "run", on_round=end)
    assert len(RunDirectory(tmp_path / "run").rounds()) == 3
    done = go(out=tmp_path / "run", resume=True, engine={"workers": 5})
    whole = go()
    for name, value in done.model.state_dict().items():
        torch.testing.assert_close(value, whole.model.state_dict()[name], rtol=1e-5, atol=1e-6)  # float32


def test_a_share_that_is_lost_again_and_again_is_an_error():
    there = spread_out(remote=InProcess(2, lambda number, method: "before" if method == "work" else ""))
    with pytest.raises(UserError, match="round 1 lost workers again and again"):
        there.advance()


def test_workers_that_never_get_up_are_an_error():
    there = spread_out(remote=InProcess(2, lambda number, method: "before" if method == "ping" else ""))
    there.engine.pool.patience = 60.0
    with pytest.raises(UserError, match="lost as soon as they start"):
        there.advance()


@dataclass(frozen=True)
class Looks(fb.Strand):
    def loss(self, out, batch, c):
        return out.logits.sum() if out.logits.sum() > 0 else -out.logits.sum()


def test_mistakes_of_hooks_are_told_as_they_are():
    with pytest.raises(UserError, match=r"torch\.where"):
        spread_out(Looks()).advance()


def test_a_run_begins_with_those_who_have_come():
    there = spread_out(workers=4, remote=InProcess(3))
    advanced(there)
    assert [len(there.engine.pool.connected), len(there.engine.pool.starting)] == [3, 1]
    assert identical(held(there), held(advanced(spread_out(workers=4))))


def test_workers_of_another_version_are_refused(monkeypatch):
    monkeypatch.setattr(crew_module, "__version__", "9.9")
    with pytest.raises(UserError, match=r"has fedbraid .* and the driver has 9\.9"):
        spread_out().advance()


# --- states in files


def test_a_checkpoint_is_one_that_any_engine_reads(tmp_path):
    there = advanced(spread_out("scaffold", directory=tmp_path), 2)
    segments = there.store.save("unused")
    there.store.commit(segments)
    assert {p.name for p in tmp_path.iterdir()} == set(segments)
    here = alone("scaffold", directory=tmp_path)
    here.store.restore(segments)
    everybody = range(len(here.clients))
    read, expected = (e.store.read(everybody)["scaffold"]["c"] for e in (here, there))
    assert torch.equal(read, expected) and read.abs().sum() > 0


def test_files_that_hold_no_more_go_and_those_of_a_checkpoint_stay(tmp_path):
    there = spread_out("scaffold", directory=tmp_path, rounds=12, sampling={"clients": 2})
    advanced(there, 3)
    listed = there.store.save("")
    there.store.commit(listed)
    advanced(there, 8)
    there.engine.settle()
    assert {p.name for p in tmp_path.iterdir()} == {*listed, *there.store.order}
    assert as_workers_know_it(there)
    later = there.store.save("")
    there.store.commit(later)
    assert {p.name for p in tmp_path.iterdir()} == set(later)


def as_workers_know_it(there):
    """Whether the driver and the workers agree on the files that hold."""
    actors = [actor.worker.shares for actor in there.engine.pool.remote.actors if actor.worker is not None]
    known = {int(name.split("/")[1]): list(held.store.segments) for mine in actors for name, held in mine.items()}
    return known == there.store.of_share and all((there.store.directory / name).exists() for name in there.store.order)


def test_what_a_worker_wrote_before_it_was_lost_does_not_count(in_four_shares):
    """Its states are in files when the other worker is lost; it takes over, is lost too, and all is done again."""
    remote = InProcess(2)
    there = one_by_one(spread_out(METHOD, remote, workers=4, **SETTINGS))
    there.advance()
    remote.size = 1
    kept, lost = [], []

    def fate(number, method):
        kept.append(number) if method == "kept" else None
        if (method == "kept" and len(kept) == 2) or (method == "hold" and len(lost) == 1):
            lost.append(method)
            return "before"
        return ""

    remote.fate = fate
    there.engine.settle()
    assert lost == ["kept", "hold"]
    assert as_workers_know_it(there)
    assert identical(held(advanced(there, 2)), in_four_shares)


def test_a_folder_that_workers_do_not_see_is_refused(tmp_path, monkeypatch):
    there = spread_out("scaffold", directory=tmp_path)
    remote = there.engine.pool.remote
    call = remote.call

    def elsewhere(worker, method, *args):
        if method == "hold":
            share, setup_message, *rest = args
            args = share, replace(setup_message.get(), directory=tmp_path / "not here"), *rest
        return call(worker, method, *args)

    remote.call = elsewhere
    with pytest.raises(UserError, match=r"does not see the driver's folder .* file system that all nodes"):
        there.advance()
    assert not list(tmp_path.iterdir())


def test_without_state_no_folder_is_needed(tmp_path):
    advanced(spread_out("fedprox", directory=tmp_path / "not made"))
    assert not list(tmp_path.iterdir())


def test_states_of_a_run_without_a_directory_go_with_it():
    there = advanced(spread_out("scaffold"))
    place = there.store.directory
    assert place.is_dir() and list(place.iterdir())
    there.engine.close()
    assert not place.exists()


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_a_run_is_resumed_with_another_number_of_workers(tmp_path, on_disk, monkeypatch):
    data, partition = toy()
    open_job = []
    monkeypatch.setattr(cluster_module, "RayRemote", lambda *a, **k: InProcess(k["least"]))

    def go(workers, rounds, **more):
        engine = {"kind": "ray", "workers": workers, "device": "cpu", "dtype": "float64"}
        settings = {"rounds": 6, "model": WIDE, "save": {"every": 2, "clients_on_disk": on_disk}, "engine": engine}

        def stop(line, config):
            open_job.append(line["round"])
            if line["round"] == rounds:
                raise KeyboardInterrupt

        return fb.run(METHOD, data=data, partition=partition, out=tmp_path, resume=True, on_round=stop, **settings)

    for workers, rounds in ((2, 3), (5, 4)):
        with pytest.raises(KeyboardInterrupt):
            go(workers, rounds)
    done = go(1, 99)
    assert open_job == [1, 2, 3, 3, 4, 5, 6]
    engine = {"device": "cpu", "dtype": "float64", "kind": "stack"}
    whole = fb.run(METHOD, data=data, partition=partition, rounds=6, model=WIDE, engine=engine)
    for name, value in done.model.state_dict().items():
        torch.testing.assert_close(value, whole.model.state_dict()[name], rtol=0, atol=ROUNDING)
    left = json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())
    assert {p.name for p in (tmp_path / "checkpoint").iterdir()} == {
        "checkpoint.json",
        left["server"],
        *left["segments"],
    }


# --- where clients are


def test_clients_that_move_take_their_states_along():
    settings = {"rounds": 6, "sampling": {"clients": 5}}
    here, there = alone(METHOD, **settings), one_by_one(spread_out(METHOD, workers=3, **settings))
    for round in range(6):
        here.advance()
        there.advance()
        if round in (1, 3):
            there.engine.settle()
            there.engine._share_out(np.roll(there.engine.home, 1), round)
    assert apart(held(here), held(there)) <= ROUNDING


def test_a_slow_worker_is_relieved_and_that_is_rare(monkeypatch, caplog):
    rounds = 40
    there = spread_out("scaffold", workers=2, data=toy((4,) * 12), rounds=rounds, local={"batch": 4, "epochs": 1})
    homes = []

    def measured(handle, cost, seconds):  # the first worker takes three times as long as the second
        factor = 3.0 if handle is there.engine.pool.connected[0] else 1.0
        handle.cost, handle.seconds = cost, factor * cost

    monkeypatch.setattr(crew_module.WorkerHandle, "measured", measured)
    for _ in range(rounds):
        there.advance()
        homes.append(there.engine.home)
    changes = [k for k in range(1, rounds) if not np.array_equal(homes[k], homes[k - 1])]
    assert len(changes) == 1
    slow = list(there.engine.pool.connected).index(there.engine.hosts[0])
    assert np.bincount(homes[-1])[slow] == 3
    here = advanced(alone("scaffold", data=toy((4,) * 12), rounds=rounds, local={"batch": 4, "epochs": 1}))
    assert apart(held(here), held(there)) <= ROUNDING


# --- beside others


def test_runs_of_a_comparison_go_one_by_one_and_share_their_workers(monkeypatch):
    data, partition = toy()
    remotes = []
    monkeypatch.setattr(cluster_module, "RayRemote", lambda *a, **k: remotes.append(InProcess()) or remotes[-1])
    settings = {"data": data, "partition": partition, "rounds": 2, "model": WIDE}
    engine = {"device": "cpu", "dtype": "float64"}
    done = fb.compare("fedavg", "scaffold", seeds=2, engine=engine | {"kind": "ray", "workers": 2}, **settings)
    assert len(remotes) == 1 and len(remotes[0].actors) == 2
    assert all(actor.worker is None for actor in remotes[0].actors)  # they are sent home in the end
    plain = fb.compare("fedavg", "scaffold", seeds=2, engine=engine | {"kind": "stack"}, **settings)
    for one, other in zip(done.runs, plain.runs, strict=True):
        assert one.config.engine.kind == "ray"
        assert one.rounds[-1]["train_loss"] == pytest.approx(other.rounds[-1]["train_loss"], rel=1e-12)


def test_analyses_of_a_run_look_at_it_on_one_machine(tmp_path):
    data, partition = toy()
    settings = {"data": data, "partition": partition, "rounds": 2, "model": WIDE}
    fb.run("scaffold", out=tmp_path, analyses=["drift"], engine={"kind": "ray", "device": "cpu"}, **settings)
    looked = Recorded(tmp_path, UserObjects(data, partition))
    assert looked.rounds[-1]["drift.variance"] > 0
    assert looked.simulation.local.kind == "stack"
    assert looked.simulation.store.read(range(6))["scaffold"]["c"].abs().sum() > 0


def test_a_crew_asks_for_what_there_is_room_for():
    pool = WorkerPool(InProcess(3))
    pool.gather(10)
    assert (len(pool.connected), pool.wanted) == (3, 3)
    few = WorkerPool(InProcess(3))
    few.gather(2)
    assert len(few.connected) == 2
    assert isinstance(spread_out().engine, Cluster)
