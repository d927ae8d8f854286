"""Runs are verified when they are read: damage to any file is noticed by whoever reads it, and named."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from torch import nn

import fedbraid as fb
from fedbraid.analyses import analyze
from fedbraid.cli.app import main
from fedbraid.storage.manifest import check_seal, read_manifest, seal
from fedbraid.training.results import Run
from fedbraid.training.verification import runs_in, verify_run

SMALL = {"rounds": 4, "partition": {"clients": 3}, "save": {"every": 2}, "engine": {"device": "cpu"}}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    place = tmp_path_factory.mktemp("recorded") / "run"
    fb.run("scaffold", out=place, **SMALL)
    return place


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was killed after its third round; its checkpoint is of the second."""
    place = tmp_path_factory.mktemp("stopped") / "run"

    def kill(line, config):
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run("scaffold", out=place, on_round=kill, **SMALL)
    return place


@pytest.fixture
def run(recorded, tmp_path):
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def flip(file, at=-9, bits=0xFF):
    content = bytearray(file.read_bytes())
    content[at] ^= bits
    file.write_bytes(bytes(content))


def test_a_finished_run_is_verified_whole(recorded):
    result = verify_run(recorded)
    assert result.verdict == "verified" and result.detail.startswith("4 rounds")
    listed = set(read_manifest(recorded))
    there = {str(f.relative_to(recorded)) for f in recorded.rglob("*") if f.is_file()}
    assert there - listed <= {"manifest.json", ".lock"}


@pytest.mark.parametrize("name", ["config.toml", "rounds.jsonl", "summary.json", "inputs.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "empty", "cut", "gone"])
def test_every_damage_of_every_file_is_found(run, name, damage):
    file = run / name
    if damage == "flip":
        flip(file)
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: 0 if damage == "empty" else -40])
    if name == "config.toml" and damage == "gone":
        assert runs_in(run) == []
        return
    assert verify_run(run).verdict == "damaged"
    if name != "inputs.json":
        with pytest.raises(fb.UserError):
            fb.load(run)
    if name not in ("rounds.jsonl", "summary.json"):
        with pytest.raises(fb.UserError):
            fb.trained(run)


def test_a_model_with_flipped_bytes_predicts_nothing(run):
    for at in range(-72, -8):
        flip(run / "model.safetensors", at)
    for read in (fb.load, fb.trained):
        with pytest.raises(fb.UserError, match=r"model.safetensors is damaged .*manifest.json"):
            read(run)


def test_an_emptied_configuration_is_not_fedavg(run):
    (run / "config.toml").write_text("")
    with pytest.raises(fb.UserError, match=r"config.toml is damaged"):
        fb.load(run)
    with pytest.raises(fb.UserError, match=r"config.toml is damaged"):
        analyze(run, ["drift"])


def edited(place, **changes):
    file = place / "checkpoint" / "checkpoint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("changes", [{"round": 1}, {"segments": []}, {"log_bytes": 0}, {"fingerprint": "0" * 16}])
def test_an_edited_checkpoint_is_not_resumed(stopped, tmp_path, changes):
    place = shutil.copytree(stopped, tmp_path / "run")
    assert verify_run(place).detail == "not over: checked up to its checkpoint after round 2"
    edited(place, **changes)
    assert verify_run(place).verdict == "damaged"
    with pytest.raises(fb.UserError, match=r"checkpoint.json is damaged"):
        fb.run("scaffold", out=place, resume=True, **SMALL)


def test_a_log_or_configuration_that_changed_is_not_resumed(stopped, tmp_path):
    place = Path(shutil.copytree(stopped, tmp_path / "log"))
    text = (place / "rounds.jsonl").read_text()
    (place / "rounds.jsonl").write_text(text.replace('"clients": 3', '"clients": 4', 1))
    with pytest.raises(fb.UserError, match="its lines are not those of the last checkpoint"):
        fb.run("scaffold", out=place, resume=True, **SMALL)
    place = Path(shutil.copytree(stopped, tmp_path / "config"))
    text = (place / "config.toml").read_text()
    (place / "config.toml").write_text(text.replace("epochs = 1", "epochs = 2"))
    with pytest.raises(fb.UserError, match=r"local.epochs is 2, and was 1 at the last checkpoint"):
        fb.run("scaffold", out=place, resume=True, local={"epochs": 2}, **SMALL)


def test_a_resumed_run_ends_as_the_whole_one(recorded, stopped, tmp_path):
    place = Path(shutil.copytree(stopped, tmp_path / "run"))
    fb.run("scaffold", out=place, resume=True, **SMALL)
    assert verify_run(place).verdict == "verified"
    assert (place / "model.safetensors").read_bytes() == (recorded / "model.safetensors").read_bytes()
    fb.run("scaffold", out=place, resume=True, **{**SMALL, "rounds": 6})
    assert verify_run(place).detail.startswith("6 rounds")


def test_rounds_are_counted(run):
    (run / "manifest.json").unlink()  # as of a version that wrote none
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(fb.UserError, match=r"line 3 of .* is damaged .it is of round 4"):
        fb.load(run)
    (run / "rounds.jsonl").write_text("".join(lines[:3]))
    with pytest.raises(fb.UserError, match="it has 3 rounds where the summary has 4"):
        fb.load(run)


def test_a_run_without_checksums_is_read_with_a_warning(run, caplog):
    (run / "manifest.json").unlink()
    assert len(fb.load(run).rounds) == 4
    assert "has no checksums" in caplog.text


def test_the_command_names_what_is_damaged(run, capsys, monkeypatch):
    def verify(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", "verify", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, capsys.readouterr()

    code, said = verify(run.parent)
    assert code == 0 and "verified" in said.out
    flip(run / "model.safetensors")
    code, said = verify(run, "--json")
    assert code == 1 and json.loads(said.out)[str(run)]["verdict"] == "damaged"
    assert verify(run.parent / "nothing")[0] == 2


def test_seals_cover_everything():
    values = seal({"round": 3, "segments": ("a", "b"), "code": {}})
    check_seal(Path("x"), json.loads(json.dumps(values)))
    for key in values:
        with pytest.raises(fb.UserError, match="not what was written"):
            check_seal(Path("x"), {k: v for k, v in values.items() if k != key})


MADE_AGAIN = ("summary.json", "inputs.json", "model.safetensors", "manifest.json")


@pytest.mark.parametrize("gone", [*((name,) for name in MADE_AGAIN), MADE_AGAIN], ids="+".join)
def test_resuming_a_finished_run_makes_missing_files_again(recorded, run, gone):
    before = {name: (run / name).read_bytes() for name in MADE_AGAIN}
    for name in gone:
        (run / name).unlink()
    assert verify_run(run).verdict != "verified"
    trained = []
    fb.run("scaffold", out=run, resume=True, on_round=lambda line, config: trained.append(line), **SMALL)
    assert trained == []
    assert {name: (run / name).read_bytes() for name in MADE_AGAIN} == before
    assert verify_run(run).verdict == "verified"


def test_files_made_again_have_the_budget_that_was_spent(tmp_path):
    place, method = tmp_path / "run", "fedprox+dp(noise=1.0, clip=0.5)"
    fb.run(method, out=place, **SMALL)
    before = (place / "summary.json").read_bytes()
    assert b"epsilon" in before
    (place / "summary.json").unlink()
    fb.run(method, out=place, resume=True, **SMALL)
    assert (place / "summary.json").read_bytes() == before and verify_run(place).verdict == "verified"


def test_the_command_makes_a_missing_model_again(run, monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, capsys.readouterr()

    monkeypatch.setattr(Run, "report", lambda self, directory: [])  # its pictures take seconds
    (run / "model.safetensors").unlink()
    assert call("verify", str(run))[0] == 1
    code, said = call("run", "--out", str(run), "--resume")
    assert code == 0, said.err
    assert call("verify", str(run))[0] == 0


@pytest.mark.parametrize(("damage", "sentence"), [("gone", "is damaged .it is missing"), ("flip", "another model")])
def test_a_lost_initial_model_is_not_vouched_for_when_others_are_made_again(tmp_path, damage, sentence):
    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    place = tmp_path / "run"
    fb.run("fedavg", out=place, model=net, **SMALL)
    if damage == "gone":
        (place / "initial.safetensors").unlink()
    else:
        flip(place / "initial.safetensors")
    (place / "model.safetensors").unlink()
    with pytest.raises(fb.UserError, match=sentence):
        fb.run("fedavg", out=place, model=net, resume=True, **SMALL)
    assert not (place / "model.safetensors").exists()
