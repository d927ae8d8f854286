"""A run may be killed at any instant and resumed: the result is the same to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import recorded
import tomli_w
import torch
from forks import FORKS
from networks import Shortcut
from recorded import METHOD, left_on_disk, record, without_checksums
from safetensors.torch import load_file, save_file

import fedbraid as fb
from fedbraid.analyses import analyze
from fedbraid.training import run_checks
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.user_code import load_strand


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted run leaves, by whether clients' states live on disk and by method."""
    made = {}

    def of(on_disk=False, method=METHOD, **settings):
        key = (on_disk, method, str(settings))
        if key not in made:
            place = tmp_path_factory.mktemp("whole")
            record(place, method, **{"save": {"every": 2, "clients_on_disk": on_disk}, **settings})
            made[key] = left_on_disk(place)
        return made[key]

    return of


# --- killed for real


def killed_until_finished(place: Path, seed: int, kills: int, **settings) -> int:
    """Start the run again and again, killing it a few rounds on at a random moment; then let it finish. How often."""
    rng, done = random.Random(seed), 0
    while done < kills and not (place / "summary.json").exists():
        rounds_on = lines_of(place) + rng.randint(0, 6)
        process = FORKS.Process(target=record, args=(place,), kwargs=settings)
        process.start()
        while process.is_alive() and lines_of(place) < rounds_on:
            time.sleep(0.001)
        process.join(rng.uniform(0, 0.02))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            done += process.exitcode == -signal.SIGKILL
    finish(place, **settings)
    return done


def lines_of(place: Path) -> int:
    log = place / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def finish(place: Path, **settings) -> None:
    process = FORKS.Process(target=record, args=(place,), kwargs=settings)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("seed", "on_disk"),
    [(1, True), *(pytest.param(s, d, marks=pytest.mark.slow) for s, d in [(1, False), (2, True), (3, False)])],
)
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(whole, tmp_path, seed, on_disk):
    settings = {"save": {"every": 2, "clients_on_disk": on_disk}, "rounds": 40}
    kills = killed_until_finished(tmp_path / "run", seed, 20 if seed > 1 else 4, **settings)
    print(f"seed {seed}: killed {kills} times")
    assert kills >= 3
    assert left_on_disk(tmp_path / "run") == whole(on_disk, rounds=40)


def test_a_killed_run_validates_on_the_samples_that_it_held_out_before(whole, tmp_path):
    settings = {"rounds": 30, "evaluate": {"validation": 0.3}}
    assert killed_until_finished(tmp_path / "run", 5, 1, **settings) == 1
    left = left_on_disk(tmp_path / "run")
    assert left == whole(**settings) and left != whole(rounds=30)


def test_a_plain_process_killed_after_its_first_checkpoint(whole, tmp_path):
    place = tmp_path / "run"
    code = "import sys, recorded; recorded.record(sys.argv[1], rounds=80)"
    env = os.environ | {"PYTHONPATH": str(Path(recorded.__file__).parent)}
    process = subprocess.Popen([sys.executable, "-c", code, str(place)], env=env)
    while not (place / "checkpoint" / "checkpoint.json").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = json.loads((place / "checkpoint" / "checkpoint.json").read_text())["round"]
    assert 0 < before < 80
    seen = []
    record(place, rounds=80, on_round=lambda line, config: seen.append(line["round"]))
    assert seen == list(range(before + 1, 81))
    assert left_on_disk(place) == whole(rounds=80)


# --- every file operation fails once

OPERATIONS = ("replace", "fsync", "unlink", "truncate")


class Crash(BaseException):
    """The machine stops here."""


def crashing(monkeypatch, at: int, *, dead: bool) -> list[str]:
    """Let the file operation number `at` fail, and all after it if the process is `dead`. The operations asked for."""
    calls: list[str] = []
    for name in OPERATIONS:
        real = getattr(os, name)

        def operation(*args, name=name, real=real, **kwargs):
            calls.append(name)
            if len(calls) - 1 == at or (dead and len(calls) - 1 > at):
                raise Crash(f"{name}, operation {at}")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, operation)
    return calls


@pytest.mark.parametrize(
    ("on_disk", "dead"),
    [(True, True), *(pytest.param(o, d, marks=pytest.mark.slow) for o, d in [(True, False), (False, True)])],
)
def test_a_crash_at_any_file_operation_leaves_a_run_that_can_be_resumed(whole, tmp_path, monkeypatch, on_disk, dead):
    settings = {"rounds": 3, "save": {"every": 2, "clients_on_disk": on_disk}}
    expected = whole(on_disk, rounds=3)
    with monkeypatch.context() as patch:
        calls = crashing(patch, -1, dead=False)
        record(tmp_path / "uninterrupted", **settings)
    assert set(calls) == {"replace", "fsync", "unlink"}
    for at in range(len(calls)):
        place = tmp_path / str(at)
        with monkeypatch.context() as patch:
            crashing(patch, at, dead=dead)
            with pytest.raises(Crash):
                record(place, **settings)
        record(place, **settings)
        assert left_on_disk(place) == expected, f"after a crash in {calls[at]}, operation {at}"


def test_a_crash_while_resuming_leaves_a_run_that_can_be_resumed(whole, tmp_path, monkeypatch):
    def half(place):
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crashing(patch, 34, dead=True)
            record(place)
        with open(place / "rounds.jsonl", "ab") as log:
            log.write(b'{"round": 99}\n{"roun')

    half(tmp_path / "uninterrupted")
    with monkeypatch.context() as patch:
        calls = crashing(patch, -1, dead=False)
        record(tmp_path / "uninterrupted")
    assert "truncate" in calls
    for at in range(calls.index("replace") + 2):
        half(tmp_path / str(at))
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crashing(patch, at, dead=True)
            record(tmp_path / str(at))
        record(tmp_path / str(at))
        assert left_on_disk(tmp_path / str(at)) == whole()


def stopped_before_the_end(place: Path, monkeypatch, method=METHOD, **settings) -> None:
    """A run whose last checkpoint is written and whose model and summary are not."""

    def stop(*_):
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(RunDirectory, "finish", stop)
        record(place, method, **settings)


@pytest.mark.parametrize("method", [METHOD, "skip(every=4, final_aggregate=false)"])
def test_a_run_stopped_just_before_its_end_writes_what_is_missing(whole, tmp_path, monkeypatch, method):
    stopped_before_the_end(tmp_path, monkeypatch, method)
    record(tmp_path, method)
    assert left_on_disk(tmp_path) == whole(method=method)


def test_the_cohorts_mean_survives_a_stop_just_before_the_end(whole, tmp_path, monkeypatch):
    settings = {"evaluate": {"model": "cohort"}, "method": "avgm"}
    stopped_before_the_end(tmp_path, monkeypatch, **settings)
    record(tmp_path, **settings)
    assert left_on_disk(tmp_path)["model"] == whole(**settings)["model"]


def test_a_finished_run_hands_out_the_cohorts_mean_again(tmp_path):
    settings = {"evaluate": {"model": "cohort"}, "method": "avgm"}
    first, again = (record(tmp_path, **settings).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], again[key]) for key in first)


# --- what a directory says


def test_a_cut_off_last_line_is_healed(whole, tmp_path):
    record(tmp_path)
    log = tmp_path / "rounds.jsonl"
    log.write_bytes(log.read_bytes() + b'{"round": 9, "accur')
    assert [line["round"] for line in RunDirectory(tmp_path).rounds()] == list(range(1, 9))
    assert len(record(tmp_path).rounds) == 8
    assert left_on_disk(tmp_path) == whole()


def test_a_run_without_a_checkpoint_starts_over(whole, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crashing(patch, 6, dead=True)
        record(tmp_path)
    assert (tmp_path / "rounds.jsonl").read_text().count("\n") == 2
    assert not (tmp_path / "checkpoint" / "checkpoint.json").exists()
    record(tmp_path)
    assert "was stopped before its first checkpoint; it starts over" in caplog.text
    assert left_on_disk(tmp_path) == whole()


def test_resuming_a_finished_run_trains_nothing_and_returns_it(tmp_path):
    first, rounds = record(tmp_path), []
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    again = record(tmp_path, on_round=lambda line, config: rounds.append(line))
    assert rounds == []
    assert again.rounds == first.rounds
    assert again.summary == first.summary
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == files


def test_the_models_file_holds_the_model_that_is_returned(tmp_path):
    run = record(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == run.model.state_dict().keys()
    assert all(torch.equal(saved[key], value) for key, value in run.model.state_dict().items())


def test_saving_clients_on_disk_changes_no_result(whole):
    assert whole(True) == whole(False)


def test_a_checkpoint_of_an_older_version_is_refused(tmp_path):
    record(tmp_path)
    without_checksums(tmp_path)
    file = tmp_path / "checkpoint" / "checkpoint.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in saved.items() if key != "segments"} | {"clients": {}}))
    with pytest.raises(fb.UserError, match="was recorded by an older FedBraid; resume it with that one, or begin anew"):
        record(tmp_path)


def test_a_checkpoint_leaves_no_other_files_behind(tmp_path):
    record(tmp_path)
    saved = json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())
    named = {"checkpoint.json", saved["server"], *saved["segments"]}
    assert {p.name for p in (tmp_path / "checkpoint").iterdir()} == named
    expected = {
        ".lock",
        "checkpoint",
        "config.toml",
        "inputs.json",
        "manifest.json",
        "model.safetensors",
        "rounds.jsonl",
        "summary.json",
    }
    assert {p.name for p in tmp_path.iterdir()} == expected


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"rounds": 7}, "rounds"),
        ({"seed": 1}, "seed"),
        ({"optimizer": {"momentum": 0.6}}, "optimizer.momentum"),
        ({"optimizer": {"momentum": 0.5, "lr": 0.2}}, "optimizer.lr"),
        ({"method": "scaffold"}, "method"),
        ({"strands": {}, "local": {"epochs": 2}}, "local.epochs"),
    ],
)
def test_resuming_with_other_settings_is_refused_by_name(tmp_path, settings, key):
    record(tmp_path)
    before = (tmp_path / "rounds.jsonl").read_bytes()
    with pytest.raises(fb.UserError, match=rf"was begun with {key} = .*resume it with the same settings"):
        record(tmp_path, **{"method": METHOD, **settings})
    assert (tmp_path / "rounds.jsonl").read_bytes() == before


# --- damaged


def flipped(file: Path, at: float = 0.9) -> None:
    """One bit of a file is another one; `at` is a share of its length, the last part of which holds numbers."""
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1
    file.write_bytes(bytes(content))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize("damage", [flipped, cut, Path.unlink])
@pytest.mark.parametrize("what", ["server", "clients"])
def test_damage_to_a_checkpoint_is_told_by_its_file(tmp_path, damage, what):
    record(tmp_path, rounds=6)
    file = sorted((tmp_path / "checkpoint").glob(f"{what}-*"))[-1]
    damage(file)
    with pytest.raises(fb.UserError, match=rf"{file.name} is damaged \(.*begin anew in another directory"):
        record(tmp_path, rounds=8)
    assert lines_of(tmp_path) < 8, "a client's state is looked at when it is needed"


def test_a_checkpoint_without_checksums_is_read(whole, tmp_path):
    record(tmp_path, rounds=6)
    without_checksums(tmp_path)
    place = tmp_path / "checkpoint"
    saved = json.loads((place / "checkpoint.json").read_text())
    del saved["checksum"]
    (place / "checkpoint.json").write_text(json.dumps(saved))
    for segment in saved["segments"]:
        save_file({k: t for k, t in load_file(place / segment).items() if k != "checks"}, place / segment)
    record(tmp_path, rounds=8)
    assert left_on_disk(tmp_path)["model"] == whole()["model"]


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"round": 6}', "{"])
def test_a_damaged_list_of_the_checkpoints_files_is_a_sentence(tmp_path, content):
    record(tmp_path)
    (tmp_path / "checkpoint" / "checkpoint.json").write_text(content)
    with pytest.raises(fb.UserError, match=r"checkpoint.json is damaged"):
        record(tmp_path)


@pytest.mark.parametrize(("rounds", "every"), [(8, 2), (2, 10)])
def test_a_run_that_lost_its_checkpoint_does_not_start_over(tmp_path, rounds, every):
    record(tmp_path, rounds=rounds, save={"every": every})
    (tmp_path / "checkpoint" / "checkpoint.json").unlink()
    before = (tmp_path / "rounds.jsonl").read_bytes()
    with pytest.raises(fb.UserError, match=rf"has {rounds} rounds, but .*checkpoint.json is missing; put it back"):
        record(tmp_path, rounds=rounds, save={"every": every})
    assert (tmp_path / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_lost_its_configuration_is_not_written_over(tmp_path, resume):
    record(tmp_path)
    (tmp_path / "config.toml").unlink()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(fb.UserError, match=r"rounds.jsonl is of a run whose config.toml is missing; put that back"):
        record(tmp_path, resume=resume)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("garbage", [b"\xff\x00{", b"3"])
def test_a_damaged_line_of_the_log_is_told_by_its_number(tmp_path, garbage):
    record(tmp_path)
    without_checksums(tmp_path)
    lines = (tmp_path / "rounds.jsonl").read_bytes().splitlines()
    (tmp_path / "rounds.jsonl").write_bytes(b"\n".join([*lines[:2], garbage.ljust(len(lines[2])), *lines[3:], b""]))
    with pytest.raises(fb.UserError, match=r"line 3 of .*rounds.jsonl is damaged"):
        record(tmp_path)
    with pytest.raises(fb.UserError, match=r"line 3 of .*rounds.jsonl is damaged"):
        analyze(tmp_path, ["cost"])


def test_all_files_follow_the_users_mask(tmp_path):
    before = os.umask(0o027)
    try:
        record(tmp_path)
    finally:
        os.umask(before)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 6 and {p.stat().st_mode & 0o777 for p in files} == {0o640}


# --- networks of one's own


@pytest.mark.parametrize("method", ["rfedavg+moon", "creff(head_epochs=2, match_steps=2)"])
def test_a_network_of_ones_own_goes_on_with_the_weights_it_was_begun_with(whole, tmp_path, method):
    """Also where clients and the server look back at the first model."""
    module = Shortcut()
    expected = whole(method=method, model=module)
    stop = {"on_round": lambda line, config: line["round"] == 5 and (_ for _ in ()).throw(Crash)}
    with pytest.raises(Crash):
        record(tmp_path, method, model=module, **stop)
    record(tmp_path, method, model=Shortcut())
    assert left_on_disk(tmp_path) == expected
    assert all(torch.equal(t, module.state_dict()[k]) for k, t in load_file(tmp_path / "initial.safetensors").items())


def test_a_crash_before_the_configuration_is_written_leaves_nothing_to_resume(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr("fedbraid.training.run_directory.write_text", lambda *_: (_ for _ in ()).throw(Crash))
        record(tmp_path, model=Shortcut())
    module = Shortcut()
    record(tmp_path, model=module)
    begun = load_file(tmp_path / "initial.safetensors")
    assert all(torch.equal(tensor, module.state_dict()[key]) for key, tensor in begun.items())


def test_another_network_under_the_same_name_is_refused(tmp_path):
    class Wider(Shortcut):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 6, bias=False)

    Wider.__name__ = "Shortcut"
    record(tmp_path, model=Shortcut)
    with pytest.raises(fb.UserError, match=r"'second.bias' was float32 of shape \(6,\) there and is missing here"):
        record(tmp_path, model=Wider)
    with pytest.raises(fb.UserError, match="already holds a run"):
        record(tmp_path, model=Wider, resume=False)


# --- strands of one's own

CALM = """
from dataclasses import dataclass
from fedbraid import Strand

class Base(Strand):
    def update(self, delta, r):
        return {by} * delta, r.state

@dataclass(frozen=True)
class Calm(Base):
    {comment}
"""


@pytest.mark.parametrize(
    ("other", "warned"),
    [({"by": 0.5}, False), ({"comment": '"""Half a step."""  # or so\n\n'}, False), ({"by": 0.25}, True)],
)
def test_other_code_of_a_strand_is_warned_about(tmp_path, caplog, other, warned):
    code = {"by": 0.5, "comment": "pass"}
    for settings, rounds in ((code, 2), (code | other, 3)):
        (tmp_path / "mine.py").write_text(CALM.format(**settings))
        calm = load_strand(f"{tmp_path / 'mine.py'}:Calm")
        caplog.clear()
        record(tmp_path / "run", "calm+scaffold", own=calm, rounds=rounds)
    assert ("the code of calm has changed since the last checkpoint of" in caplog.text) == warned


def test_the_code_is_that_which_was_loaded(tmp_path, caplog):
    """A file that is edited while a run goes on."""
    file = tmp_path / "mine.py"
    file.write_text(CALM.format(by=0.5, comment="pass"))
    edit = {"on_round": lambda *_: file.write_text(CALM.format(by=0.25, comment="pass"))}
    record(tmp_path / "run", "calm", own=load_strand(f"{file}:Calm"), rounds=2, **edit)
    record(tmp_path / "run", "calm", own=load_strand(f"{file}:Calm"), rounds=3)
    assert "the code of calm has changed" in caplog.text


# --- made longer


def test_a_finished_run_goes_on_as_if_it_had_been_longer_from_the_start(whole, tmp_path):
    record(tmp_path, rounds=6)
    seen = []
    record(tmp_path, on_round=lambda line, config: seen.append(line["round"]))
    assert seen == [7, 8]
    assert left_on_disk(tmp_path) == whole()
    assert RunDirectory(tmp_path).config().rounds == 8


def test_a_run_that_is_not_finished_goes_on_for_longer_too(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crashing(patch, 20, dead=True)
        record(tmp_path, rounds=6)
    assert 0 < RunDirectory(tmp_path).reached < 6
    record(tmp_path)
    assert left_on_disk(tmp_path) == whole()


def test_a_crash_while_a_run_is_made_longer_loses_nothing(whole, tmp_path, monkeypatch):
    record(tmp_path / "calls", rounds=6)
    with monkeypatch.context() as patch:
        calls = crashing(patch, -1, dead=False)
        record(tmp_path / "calls")
    for at in range(calls.index("replace") + 4):
        place = tmp_path / str(at)
        record(place, rounds=6)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crashing(patch, at, dead=True)
            record(place)
        record(place)
        assert left_on_disk(place) == whole(), f"after a crash in {calls[at]}, operation {at}"


def test_a_run_that_a_longer_one_does_not_begin_with_ends_there(tmp_path):
    record(tmp_path, rounds=7)  # skip averages in the middle of its period
    before = left_on_disk(tmp_path)
    with pytest.raises(fb.UserError, match="has 7 rounds and cannot go on to 8: skip does what it would not"):
        record(tmp_path)
    assert left_on_disk(tmp_path) == before
    record(tmp_path, rounds=7)


def test_a_run_whose_learning_rate_comes_down_over_all_of_its_rounds_ends_there(tmp_path):
    cosine = {"schedule": {"shape": "cosine"}}
    record(tmp_path, "scaffold", rounds=4, **cosine)
    before = left_on_disk(tmp_path)
    with pytest.raises(fb.UserError, match=r"cannot go on to 8: with schedule\.shape=cosine the learning rate"):
        record(tmp_path, "scaffold", **cosine)
    assert left_on_disk(tmp_path) == before
    record(tmp_path, "scaffold", rounds=4, **cosine)


def test_a_schedule_that_does_not_depend_on_the_end_is_made_longer(whole, tmp_path):
    steps = {"schedule": {"shape": "step", "milestones": [3, 7], "warmup": 2}}
    record(tmp_path, rounds=6, **steps)
    record(tmp_path, **steps)
    assert left_on_disk(tmp_path) == whole(**steps)
    assert len({line["lr"] for line in left_on_disk(tmp_path)["lines"]}) == 5


def test_a_run_from_before_there_were_schedules_goes_on(whole, tmp_path):
    """Its log says less, and its configuration names no schedule."""
    record(tmp_path, rounds=6)
    without_checksums(tmp_path)
    log, config, place = (tmp_path / name for name in ("rounds.jsonl", "config.toml", "checkpoint/checkpoint.json"))
    new = {"lr", "client_ids", "lost_ids"}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({k: v for k, v in line.items() if k not in new}) + "\n" for line in lines))
    values = tomllib.loads(config.read_text())
    assert values.pop("schedule")
    config.write_text(tomli_w.dumps(values))
    place.write_text(json.dumps(json.loads(place.read_text()) | {"log_bytes": log.stat().st_size}))
    record(tmp_path).report(tmp_path)
    after, expected = left_on_disk(tmp_path), whole()
    assert after["model"] == expected["model"] and after["summary"] == expected["summary"]
    assert after["lines"][6:] == expected["lines"][6:] and not new & {*after["lines"][5]}


def test_a_run_from_before_a_partition_had_its_options_goes_on(tmp_path):
    """They have their defaults in it."""
    settings = {"rounds": 2, "data": {"name": "digits", "samples": 200}, "partition": {"name": "dirichlet"}}
    fb.run("fedavg", out=tmp_path, **settings)
    without_checksums(tmp_path)
    config = tomllib.loads((tmp_path / "config.toml").read_text())
    for option in ("long_tail", "draws", "draws_seed"):
        config["partition"].pop(option, None)
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config))
    assert fb.run("fedavg", out=tmp_path, resume=True, **settings | {"rounds": 3}).summary["rounds"] == 3


def test_the_runs_of_a_comparison_are_made_longer_together(tmp_path):
    methods = ["fedavg", "fedprox"]
    long = recorded.compared(tmp_path / "long", methods, rounds=4)
    recorded.compared(tmp_path / "short", methods, rounds=2)
    grown = recorded.compared(tmp_path / "short", methods, rounds=4)
    for one, other in zip(long.runs, grown.runs, strict=True):
        assert [line["round"] for line in other.rounds] == [1, 2, 3, 4]
        assert one.summary["last"] == other.summary["last"]
        for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_of_a_comparison_all_runs_can_be_made_longer_or_none_is(tmp_path):
    methods = ["fedavg", "fedskip(every=3)"]
    recorded.compared(tmp_path, methods, rounds=4)
    with pytest.raises(fb.UserError, match="cannot go on to 6: skip"):
        recorded.compared(tmp_path, methods, rounds=6)
    assert {RunDirectory(file.parent).config().rounds for file in tmp_path.glob("*/seed-*/config.toml")} == {4}


def test_a_directory_with_a_run_is_not_written_to_unless_resuming_is_asked_for(tmp_path):
    record(tmp_path)
    with pytest.raises(fb.UserError, match="already holds a run"):
        fb.run("fedavg", rounds=1, out=tmp_path)


def test_two_processes_cannot_write_to_one_run(tmp_path):
    with RunDirectory(tmp_path).locked():
        ours, theirs = FORKS.Pipe()
        process = FORKS.Process(target=recorded.refused, args=(tmp_path, theirs))
        process.start()
        sentence = ours.recv()
        process.join()
    assert "is in use by another process" in sentence
    assert not (tmp_path / "config.toml").exists()
    record(tmp_path, rounds=1)


# --- read back


def test_a_finished_run_is_read_back_without_training(tmp_path):
    data, partition = recorded.federation()
    run = record(tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    again = fb.load(tmp_path / "run", data=data, partition=partition)
    assert again.rounds == run.rounds and again.summary == run.summary and again.config == run.config
    assert again.label_counts == run.label_counts and again.directory == run.directory
    x = torch.as_tensor(data.test.x).float()
    assert torch.equal(again.model(x), run.model(x)) and not again.model.training
    assert fb.load(tmp_path / "run", data=data).label_counts is None
    assert before == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}


def test_a_run_of_names_alone_is_read_back_by_its_directory(tmp_path):
    run = fb.run("fedrod+disco", rounds=1, out=tmp_path / "run", engine={"device": "cpu"})
    again = fb.load(tmp_path / "run")
    assert again.label_counts == run.label_counts and again.summary == run.summary
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), run.model.parameters(), strict=True))


def test_a_network_of_ones_own_is_given_again_to_be_read_back(tmp_path):
    data, _ = recorded.federation()
    run = record(tmp_path, "fedavg", model=Shortcut, rounds=1)
    with pytest.raises(fb.UserError, match=r"given its model in Python \('Shortcut'\)"):
        fb.load(tmp_path, data=data)
    assert torch.equal(fb.load(tmp_path, data=data, model=Shortcut()).model.head.weight, run.model.head.weight)


def test_what_cannot_be_read_back_is_told(tmp_path):
    data, _ = recorded.federation()
    with pytest.raises(fb.UserError, match=r"holds no run: it has no config\.toml"):
        fb.load(tmp_path / "nowhere")
    place = tmp_path / "fedavg" / "seed-0"
    record(place, "fedavg")
    with pytest.raises(fb.UserError, match=r"holds a comparison; name one of its runs, such as .*seed-0"):
        fb.load(tmp_path)
    with pytest.raises(fb.UserError, match="was given its data in Python"):
        fb.load(place)
    (place / "model.safetensors").write_bytes(b"")
    with pytest.raises(fb.UserError, match=r"model\.safetensors"):
        fb.load(place, data=data)
    (place / "summary.json").unlink()
    with pytest.raises(fb.UserError, match=r"is not finished: 8 of its 8 rounds are saved; continue it .*--resume"):
        fb.load(place, data=data)


@pytest.mark.parametrize(
    ("method", "now", "settings"),
    [
        ("nova", "nova(mu=0.1)", {"mu = 0.0": "mu = 0.1"}),
        ("asd+ntd", "asd+ntd(beta=2.0)", {}),
        ("fedavg", "fedavg", {"batch = 32": "batch = 0", "drop_last = false": "drop_last = true"}),
    ],
)
def test_what_was_allowed_when_a_run_was_recorded_is_read_and_gone_on_with(tmp_path, method, now, settings):
    fb.run(method, rounds=1, out=tmp_path / "run")
    without_checksums(tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    told = file.read_text().replace(f'method = "{method}"', f'method = "{now}"')
    for old, new in settings.items():
        assert old in told
        told = told.replace(old, new)
    file.write_text(told)
    run = fb.load(tmp_path / "run")
    assert len(run.rounds) == 1
    assert len(fb.run(config=run.config, out=tmp_path / "run", resume=True).rounds) == 1


def test_a_strand_without_effect_on_the_data_is_gone_on_with_where_it_was_recorded(tmp_path, monkeypatch):
    settings = {"data": {"name": "synthetic-leaf", "clients": 3, "classes": 2}, "partition": "natural", "rounds": 2}

    def stopped():
        return fb.run("fedntd", **settings, out=tmp_path, on_round=lambda line, config: fb.STOP)

    with pytest.raises(fb.UserError, match="no two are left to tell apart"):
        stopped()
    with monkeypatch.context() as earlier:  # a version that did not refuse it
        earlier.setattr(run_checks, "validate_effect", lambda chain, dataset: None)
        stopped()
    assert len(fb.load(tmp_path).rounds) == 1 and analyze(tmp_path, ["drift"])
    assert len(fb.run("fedntd", **settings, out=tmp_path, resume=True).rounds) == 2
