"""A record is read as it was written, and found by what its run is."""

import json
import math
from dataclasses import dataclass, replace

import pytest
from tiny_study import made_up_record

from fedbraid.config.schema import from_dict, to_dict
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError
from fedbraid.studies import run_records
from fedbraid.studies.run_digest import config_of, digest


def real(**settings):
    """A record that has a real configuration, and so a place."""
    config = config_of({"rounds": 3, **settings})
    record = made_up_record([0.123456789, None, 1e-9], train_loss=[math.nan, 2.5, 3.0])
    return replace(record, digest=digest(config), config={**to_dict(config), "seed": 4}, seed=4)


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = real(method="fedprox", strands={"prox": {"mu": 0.5}})
    path = run_records.write(tmp_path, record)
    assert path == tmp_path / "runs" / record.digest / "seed-4.json"
    again = run_records.read(tmp_path, record.digest, 4)
    assert again == record
    assert again.series["accuracy"] == [0.123457, None, 1e-9] and again.series["train_loss"] == [None, 2.5, 3.0]
    assert again.series["bytes_down"] == [10, 10, 10] and json.loads(path.read_text())["series"]["bytes_down"] == 10
    assert again.totals["bytes_down"] == 30 and again.rounds == [1, 2, 3]
    assert [p.name for p in path.parent.iterdir()] == ["seed-4.json"]
    assert run_records.read(tmp_path, record.digest, 5) is None


def test_the_last_evaluated_round_is_kept_whole_and_tables_are_flat():
    clients = {"mean": 0.5, "std": 0.1, "each": [0.4, 0.6]}
    record = made_up_record([0.5, 0.7, None], client_accuracy=[None, clients, None])
    assert record.client_accuracy == [0.4, 0.6] and record.per_class == [0.7, 0.35, None]
    assert record.series["client_accuracy.mean"] == [None, 0.5, None]
    assert not {"per_class", "client_accuracy.each"} & {*record.series}


def test_who_took_part_is_not_kept_and_the_learning_rate_is():
    record = made_up_record([0.5, 0.7], lr=[0.1, 0.05], client_ids=[[0, 1], [1, 2]], lost_ids=[[], [2]])
    assert record.series["lr"] == [0.1, 0.05] and not {"client_ids", "lost_ids"} & {*record.series}


def test_one_round_stays_a_list(tmp_path):
    record = replace(real(rounds=1), series={"round": [1], "accuracy": [0.5], "finite": [True]})
    run_records.write(tmp_path, record)
    assert run_records.read(tmp_path, record.digest, 4).series == record.series


def test_label_counts_of_many_clients_are_left_out():
    config = {"seed": 0, "rounds": 0}
    few, many = ([[1] * 10] * n for n in (2000, 2001))
    assert run_records.record_of("0", config, [], few, {}, {}).label_counts == few
    assert run_records.record_of("0", config, [], many, {}, {}).label_counts is None
    assert run_records.record_of("0", config, [], None, {}, {}).label_counts is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": "x"}'])
def test_what_is_no_record_is_refused(text, tmp_path):
    path = run_records.path_of(tmp_path, "0" * 16, 0)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match="is not a record of a run"):
        run_records.read(tmp_path, "0" * 16, 0)


def test_a_record_in_another_runs_place_is_refused(tmp_path):
    record = real()
    other = digest(config_of({"rounds": 7}))
    run_records.write(tmp_path, replace(record, digest=other))
    with pytest.raises(UserError, match="is of another run"):
        run_records.read(tmp_path, other, 4)


def test_a_record_that_calls_itself_otherwise_is_refused(tmp_path):
    record = real()
    path = run_records.write(tmp_path, record)
    path.write_text(path.read_text().replace(f'"digest": "{record.digest}"', f'"digest": "{"0" * 16}"'))
    with pytest.raises(UserError, match=f"is a record of {'0' * 16}, not of {record.digest}"):
        run_records.read(tmp_path, record.digest, 4)


def test_early_records_know_nothing_of_their_files(tmp_path):
    record = replace(real(), source="1" * 16)
    path = run_records.write(tmp_path, record)
    assert run_records.read(tmp_path, record.digest, 4) == record
    values = json.loads(path.read_text())
    del values["source"]
    path.write_text(json.dumps(values))
    assert run_records.read(tmp_path, record.digest, 4) == replace(record, source="")


def test_a_copy_for_another_seed_is_refused(tmp_path):
    """Two runs that are one would agree better than any two do."""
    record = real()
    run_records.write(tmp_path, record).rename(run_records.path_of(tmp_path, record.digest, 5))
    with pytest.raises(UserError, match="is a record of seed 4, not of seed 5"):
        run_records.read(tmp_path, record.digest, 5)


DAMAGE = {
    "no series": ({"series": {}}, "see 'series'"),
    "series of something else": ({"series": [1]}, "see 'series'"),
    "text": ({"series.accuracy": ["a", "b", "c"]}, "see 'accuracy' in 'series'"),
    "a short column": ({"series.accuracy": [0.5]}, "see 'accuracy' in 'series'"),
    "rounds cut off": ({"series.round": [1, 2]}, "it has not all of its 3 rounds"),
    "no totals": ({"totals": {}}, "see 'totals'"),
    "totals of text": ({"totals.seconds": "long"}, "see 'totals'"),
    "no config": ({"config": None}, "see 'config'"),
    "a setting that there is not": ({"config.zzz": 1}, "see 'config' .*zzz"),
    "more than all right": ({"series.accuracy": [0.5, 0.5, 5.0]}, "see 'accuracy' in 'series', which has shares"),
    "no environment": ({"environment": None}, "see 'environment'"),
    "analyses of something else": ({"analyses": []}, "see 'analyses'"),
    "label counts of text": ({"label_counts": "many"}, "see 'label_counts'"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_record_is_named(what, tmp_path):
    changes, told = DAMAGE[what]
    record = real()
    path = run_records.write(tmp_path, record)
    values = json.loads(path.read_text())
    for key, value in changes.items():
        table, _, within = key.partition(".")
        if within:
            values[table][within] = value
        else:
            values[table] = value
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=f"seed-4.json is damaged: {told}.*; delete it"):
        run_records.read(tmp_path, record.digest, 4)


# --- what a run is


def test_the_same_run_has_the_same_digest_however_it_is_written():
    one = config_of({"method": "fedprox", "strands": {"prox": {"mu": 1}}, "partition": {"beta": 1}})
    others = [
        {"method": "prox(mu=1.0)", "partition": {"name": "dirichlet", "beta": 1.0, "clients": 10}},
        {"method": "fedprox(mu=1)", "strands": {"disco": {"a": 3}}, "partition": {"beta": 1.0, "min_size": 10}},
        {"method": "prox(mu=1.0)", "partition": {"beta": 1.0}, "optimizer": {"name": "sgd", "momentum": 0}},
        {"method": "prox(mu=1.0)", "partition": {"beta": 1.0}, "data": {"samples": 0}, "model": {"hidden": [64]}},
        {"method": "prox(mu=1.0)", "partition": {"beta": 1.0}, "engine": {"kind": "loop"}, "save": {"every": 3}},
    ]
    for settings in others:
        assert digest(config_of(settings)) == digest(one), settings
    assert digest(replace(one, seed=5)) == digest(one)
    assert digest(one) == "7950505904330926", "settings that are added later leave finished runs what they are"
    assert digest(from_dict(to_dict(one))) == digest(one)


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 31},
        {"method": "disco"},
        {"method": "prox+disco"},
        {"method": "disco+prox"},
        {"method": "prox(mu=0.2)"},
        {"data": {"samples": 100}},
        {"partition": {"beta": 0.7}},
        {"partition": {"clients": 11}},
        {"partition": {"name": "iid"}},
        {"model": {"hidden": [32]}},
        {"optimizer": {"lr": 0.2}},
        {"local": {"epochs": 2}},
        {"sampling": {"clients": 3}},
        {"augment": {"flip": 0.5}},
        {"schedule": {"warmup": 3}},
        {"evaluate": {"per_client": True}},
        {"evaluate": {"metrics": ["auroc"]}},
        {"evaluate": {"validation": 0.1}},
    ],
    ids=str,
)
def test_what_makes_another_run_makes_another_digest(settings):
    others = [{}, {"method": "prox"}, {"method": "prox+disco(a=0.4)"}, {"rounds": 29}]
    assert digest(config_of(settings)) not in {digest(config_of(other)) for other in others}


@dataclass(frozen=True)
class Calm(Strand):
    """A strand that FedBraid does not have."""

    most: float = 0.1

    def end(self, w, c):
        return {"model": w.clamp(max=self.most)}, c.state


def test_a_strand_of_ones_own_is_part_of_what_a_run_is(tmp_path):
    def known(**settings):
        return digest(config_of(settings, (Calm,)))

    assert known(method="calm", strands={"calm": {"most": 2}}) == known(method="calm(most=2.0)")
    assert len({known(method=m) for m in ("fedavg", "calm", "calm(most=1)", "calm+disco", "disco+calm")}) == 5
    with pytest.raises(UserError, match="no method is called 'calm'"):
        config_of({"method": "calm"})
    config = config_of({"method": "calm+disco", "rounds": 3}, (Calm,))
    record = replace(real(), digest=digest(config), config={**to_dict(config), "seed": 4})
    run_records.write(tmp_path, record)
    assert run_records.read(tmp_path, digest(config), 4) == record, "also where the strand is not known"


def test_a_digest_stays_what_it_is():
    """Records of earlier versions are found. A default that changes should change it, a new setting should not."""
    assert digest(config_of({})) == "d4320b70f5240a7b"
