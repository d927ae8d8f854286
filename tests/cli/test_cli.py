"""The command line as a user would call it."""

import inspect
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from covering import rest_slow

import fedbraid as fb
from fedbraid import data
from fedbraid import models as known_models
from fedbraid.cli import listings
from fedbraid.cli import shared_options as cli_shared
from fedbraid.cli.app import app, main
from fedbraid.strands import Disco
from fedbraid.version import __version__

pytestmark = pytest.mark.usefixtures("not_rendered")
SMALL = ["--set", "rounds=2"]


@pytest.fixture
def fedbraid(monkeypatch, capsys, tmp_path):
    """Call the command in an empty directory: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


def test_a_bare_run_in_a_real_process_trains_fedavg_on_digits(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedbraid", "run", *SMALL], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout and "last accuracy" in done.stdout
    assert "round 2/2" in done.stderr and "\x1b" not in done.stdout + done.stderr  # plain lines, no terminal
    run = tmp_path / "runs" / "fedavg-digits-1"
    for name in ("config.toml", "rounds.jsonl", "summary.json", "model.safetensors", "report.html", "curves.png"):
        assert (run / name).stat().st_size > 0, name
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]


def test_a_second_run_does_not_overwrite_the_first(fedbraid):
    fedbraid("run", *SMALL)
    fedbraid("run", *SMALL)
    assert sorted(p.name for p in Path("runs").iterdir()) == ["fedavg-digits-1", "fedavg-digits-2"]


def test_settings_come_from_file_then_set_then_options(fedbraid):
    Path("c.toml").write_text('method = "prox"\nrounds = 7\n[local]\nepochs = 3\n')
    code, out, err = fedbraid("run", "c.toml", "--set", "rounds=2", "--method", "disco(a=0.3)", "--out", "d", "--json")
    assert code == 0, err
    shown = json.loads(out)
    assert shown["directory"] == "d" and shown["summary"]["rounds"] == 2
    config = Path("d/config.toml").read_text()
    assert 'method = "disco(a=0.3)"' in config and "epochs = 3" in config


def test_resume_continues_a_finished_run_without_training_and_refuses_other_settings(fedbraid):
    assert fedbraid("run", *SMALL, "--out", "d")[0] == 0
    before = Path("d/rounds.jsonl").read_bytes()
    assert fedbraid("run", "--out", "d", "--resume")[0] == 0
    assert Path("d/rounds.jsonl").read_bytes() == before
    code, _, err = fedbraid("run", "--out", "d", "--resume", "--set", "optimizer.lr=0.5")
    assert code == 2 and "optimizer.lr" in err
    code, _, err = fedbraid("run", *SMALL, "--out", "d")
    assert code == 2 and "--resume" in err


def test_clients_scores_are_told_by_their_extremes(fedbraid):
    _, out, _ = fedbraid("run", *SMALL, "--set", "evaluate.per_client=true", "--out", "d")
    each = json.loads(Path("d/rounds.jsonl").read_text().splitlines()[-1])["client_accuracy"]["each"]
    mean, low, high = (f"{100 * value:.2f} %" for value in (sum(each) / len(each), min(each), max(each)))
    assert f"last accuracy of clients mean {mean}, from {low} to {high}" in " ".join(out.split())


def test_compare_prints_one_table_and_writes_the_report(fedbraid, rendered):
    words = ("fedavg", "fedprox(mu=0.5)", "scaffold", "--seeds", "2", "--target", "0.2", *SMALL, "--out", "c")
    code, out, err = fedbraid("compare", *words)
    assert code == 0, err
    assert "± " in out and "rounds to" in out and "scaffold" in out and "report: c/report.html" in out
    for name in ("report.html", "curves.png", "cost.png", "table.md", "table.json"):
        assert Path("c", name).stat().st_size > 0
    assert "http://" not in re.sub(r"http://www.w3.org/\S+", "", Path("c/report.html").read_text())
    code, out, _ = fedbraid("compare", *words, "--resume", "--json")
    assert code == 0 and [row["method"] for row in json.loads(out)["rows"]] == ["fedavg", "fedprox(mu=0.5)", "scaffold"]


def test_compare_varies_settings(fedbraid, rendered):
    words = ("fedavg", *SMALL, "--vary", "optimizer.lr=0.2,0.1,0.05", "--out", "v", "--json")
    code, out, err = fedbraid("compare", *words)
    assert code == 0, err
    assert [row["method"] for row in json.loads(out)["rows"]] == [f"fedavg lr={lr}" for lr in (0.2, 0.1, 0.05)]
    assert "fedavg lr=0.05 seed 0" in err and Path("v/vary-lr.png").stat().st_size > 0
    code, _, err = fedbraid("compare", *words, "--vary", "seed=1,2")
    assert code == 2 and "ask for several seeds" in err


@pytest.mark.parametrize("words", [("run",), ("compare", "fedavg", "fedprox")], ids=["run", "compare"])
def test_what_is_to_be_resumed_has_to_be_said(fedbraid, words, monkeypatch):
    code, _, err = fedbraid(*words, *SMALL, "--resume")
    assert code == 2 and "say by --out which one" in err and not Path("runs").exists()

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbraid.api.train_runs", pressed)
    code, _, err = fedbraid(*words, *SMALL)
    assert code == 130 and re.search(r"interrupted; --out runs/\S+ --resume goes on with it", err)


def test_a_comparison_goes_on_for_longer_only_if_asked_to(fedbraid):
    words = ("compare", "fedavg", *SMALL, "--out", "c", "--json")
    assert fedbraid(*words)[0] == 0
    asked = [word for word in words if not word.startswith("rounds=")]
    asked.remove("--set")  # that of the rounds
    code, _, err = fedbraid(*asked, "--resume")
    assert code == 0 and not err
    code, _, err = fedbraid(*asked, "--resume", "--set", "rounds=4")
    assert code == 0 and "round 4/4" in err


@pytest.mark.parametrize(
    "words",
    [("methods",), ("methods", "scaffold"), ("models",), ("data", "list"), ("data", "inspect"), ("data", "partition")],
)
def test_lists_are_text_and_json(fedbraid, words):
    code, text, err = fedbraid(*words)
    assert code == 0 and text.strip(), err
    code, out, err = fedbraid(*words, "--json")
    assert code == 0 and json.loads(out), err


def test_a_plan_for_privacy_is_what_the_run_will_spend(fedbraid):
    plan = ("privacy", "--rounds", "2", "--clients", "10", "--cohort", "3")
    code, out, err = fedbraid(*plan, "--noise", "1.5", "--json")
    assert code == 0, err
    planned = json.loads(out)["epsilon"]
    code, out, err = fedbraid(*plan, "--epsilon", str(planned), "--json")
    assert code == 0 and json.loads(out)["noise"] == pytest.approx(1.5, rel=1e-3), err
    for way in (("--clients", "10", "--cohort", "3"), ("--clients", "10", "--rate", "0.3"), ()):
        code, out, err = fedbraid("privacy", "--rounds", "2", "--noise", "1.5", *way)
        assert code == 0 and "epsilon" in out and len(out.strip().splitlines()) == 1, err
    code, out, err = fedbraid("run", "-m", "dp(noise=1.5)", "--set", "rounds=2", "--set", "sampling.clients=3")
    assert code == 0, err
    assert f"of a client: epsilon {math.ceil(100 * planned) / 100:.2f} at delta 1e-05 (2 releases)" in out


def test_the_noise_that_is_told_is_enough_when_it_is_typed_in(fedbraid):
    for target in ("0.7", "1", "3", "8"):
        plan = ("privacy", "--rounds", "20", "--delta", "1e-3")
        code, out, err = fedbraid(*plan, "--epsilon", target)
        assert code == 0, err
        method = re.search(r"dp\(noise=(\S+), delta=0.001\)", out)
        assert method, out
        code, out, err = fedbraid(*plan, "--noise", method[1], "--json")
        assert 0.99 * float(target) < json.loads(out)["epsilon"] <= float(target)


@pytest.mark.parametrize("width", rest_slow([40, 50, 80], {40}.__contains__))
def test_methods_are_listed_whole_in_a_narrow_terminal(fedbraid, monkeypatch, width):
    _, listed, _ = fedbraid("methods", "--json")
    monkeypatch.setattr(cli_shared.out, "_width", width)
    _, shown, _ = fedbraid("methods", "--all")
    assert max(map(len, shown.splitlines())) <= width
    there = set(shown.replace(":", "").split())
    assert {"paper", "hyper-parameters", "floats", "down", "not", "with"} <= there
    for entry in json.loads(listed):
        chain = entry["written"].replace(")+", ")+ ")  # a line for each strand
        for text in (entry["name"], entry["paper"], chain, entry["cost"], ", ".join(entry["not with"])):
            assert set(text.split()) <= there, entry["name"]


def test_the_field_is_one_screen(fedbraid, monkeypatch):
    """Every method by what it changes, in a terminal of usual size."""
    monkeypatch.setattr(cli_shared.out, "_width", 80)
    _, shown, _ = fedbraid("methods")
    _, listed, _ = fedbraid("methods", "--json")
    assert {entry["name"] for entry in json.loads(listed)} <= set(shown.replace(",", " ").split())
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize("words", [("models",), ("data", "list")])
def test_what_there_is_is_listed_whole_in_a_narrow_terminal(fedbraid, monkeypatch, words):
    monkeypatch.setattr(cli_shared.out, "_width", 40)
    _, shown, _ = fedbraid(*words)
    there = set(shown.replace(":", "").split())
    for entry in known_models.describe() if words == ("models",) else data.PARTITIONS:
        for text in (entry.name, entry.summary, listings.written_options(entry)):
            assert set(text.replace(":", "").split()) <= there, entry.name


def test_a_methods_source_is_printed_whole(fedbraid):
    _, out, _ = fedbraid("methods", "disco")
    source = inspect.getsource(Disco)
    assert source in out and max(map(len, source.splitlines())) > 80
    assert "averages  by the weights of disco\n" in out


def test_partition_can_be_drawn(fedbraid, rendered):
    code, _, err = fedbraid("data", "partition", "digits", "--set", "partition.clients=5", "--picture", "who.png")
    assert code == 0 and Path("who.png").read_bytes().startswith(b"\x89PNG"), err


def test_a_strand_of_ones_own(fedbraid):
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nimport fedbraid as fb\n\n"
        "@dataclass(frozen=True)\nclass Half(fb.Strand):\n    by: float = 0.5\n"
        "    def update(self, delta, r):\n        return self.by * delta, r.state\n"
    )
    assert fedbraid("check", "mine.py:Half")[0] == 0
    code, out, err = fedbraid("compare", "fedavg", "half(by=0.9)+disco", "--strand", "mine.py:Half", *SMALL, "--json")
    assert code == 0 and json.loads(out)["rows"][1]["method"] == "half(by=0.9)+disco", err


def test_check_of_a_broken_strand_fails(fedbraid):
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nimport fedbraid as fb\n\n"
        "@dataclass(frozen=True)\nclass Nothing(fb.Strand):\n"
        "    def grad(self, w, c, next):\n        return next(w)\n"
    )
    code, out, _ = fedbraid("check", "mine.py:Nothing")
    assert code == 1 and "failed" in out


def test_a_strand_that_returns_too_little_is_told_so_once_and_without_a_traceback(fedbraid):
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nimport fedbraid as fb\n\n"
        "@dataclass(frozen=True)\nclass Half(fb.Strand):\n"
        "    def update(self, delta, r):\n        return delta / 2\n"
    )
    complaint = "update of half (mine.py:6) returns a tensor"
    code, out, _ = fedbraid("check", "mine.py:Half")
    assert code == 1 and out.count(complaint) == 1 and "padding changes nothing: the same\n" in out
    code, _, err = fedbraid("run", "-m", "half", "--strand", "mine.py:Half", *SMALL)
    assert code == 2 and complaint in err and "Traceback" not in err


def test_a_strand_that_fails_in_a_run_is_told_where(fedbraid):
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nimport fedbraid as fb\n\n"
        "@dataclass(frozen=True)\nclass Half(fb.Strand):\n"
        "    def update(self, delta, r):\n        return delta / r.state['by'], r.state\n"
    )
    code, _, err = fedbraid("run", "-m", "half", "--strand", "mine.py:Half", *SMALL)
    assert code == 2 and "update of half failed at mine.py:7: there is nothing called 'by'" in err


def test_a_run_is_not_resumed_with_another_method(fedbraid):
    assert fedbraid("run", "-m", "prox", *SMALL, "--out", "d")[0] == 0
    code, _, err = fedbraid("run", "-m", "fedavg", "--out", "d", "--resume")
    assert code == 2 and "d was begun with method = 'prox', not 'fedavg'" in err


MISTAKES = [
    (("run", "--method", "fedavgg"), "did you mean 'fedavg'"),
    (("run", "--method", "prox("), "is not a method"),
    (("run", "--method", "prox(nu=1)"), "hyper-parameter"),
    (("run", "--method", "prox(mu=abc)"), "mu must be"),
    (("run", "--method", "prox+prox"), "twice"),
    (("run", "--method", "uniform+disco"), "uniform and disco both set the aggregation weights"),
    (("run", "--method", "skip", "--set", "sampling.scheme=bernoulli"), "sampling.scheme=fixed"),
    (("run", "--set", "rounds"), "key=value"),
    (("run", "--set", "rounds=-1"), "rounds must be 1 or more"),
    (("run", "--set", "model.name=lenet"), "models that fit: logistic, mlp"),
    (("run", "--set", "data.name=digit"), "did you mean 'digits'"),
    (("run", "--set", "partition.beta=0"), "beta"),
    (("run", "--set", "partition.clients=5000"), "clients"),
    (("run", "--set", "sampling.clients=50"), "at most 10"),
    (("run", "--set", "optimizer.lr=0"), "optimizer.lr"),
    (("run", "--set", "optimizer.speed=1"), "known"),
    (("run", "--set", "optimizer.name=sdg"), "did you mean 'sgd'"),
    (("run", "--engine", "fast"), "engine.kind must be one of"),
    (("run", "--device", "tpu"), "engine.device"),
    (("run", "--address", "auto"), "add --engine ray"),
    (("run", "nowhere.toml"), "there is no file nowhere.toml"),
    (("run", "--set", "strands.disco.a=0.1"), "not part of"),
    (("run", "--strand", "nowhere.py:X", "--method", "x"), "there is no file"),
    (("compare", "fedavg", "fedavg"), "listed twice"),
    (("run", "--set", 'varied=["rounds"]'), "varied is not set: it follows from --vary"),
    (("compare", "fedavg", "nope"), "no method is called 'nope'"),
    (("methods", "nope"), "no method is called 'nope'"),
    (("data", "inspect", "nope"), "no data set is called 'nope'"),
    (("run", "-m", "fedprox", "--set", "strands.fedprox.mu=1"), "set strands.prox"),
    (("compare", "fedprox", "fedavg", "--set", "strands.fedprox.mu=1"), "set strands.prox"),
    (("check", "nope.py"), "given as file.py:Class"),
    (("run", "--set", "optimizer.lr=1e39"), "optimizer.lr must be finite in float32"),
    (("run", "-m", "fedprox(mu=1e39)"), "prox's mu must be finite in float32"),
    (("run", "--set", "schedule.shape=cosine", "--set", "schedule.warmup=30"), "leaves no round of 30"),
    (("check", "nope"), "no method is called 'nope'"),
    (("privacy", "--rounds", "3"), "give --noise to compute epsilon, or --epsilon"),
    (("privacy", "--rounds", "3", "--noise", "0"), "above 0"),
    (("privacy", "--rounds", "3", "--noise", "nan"), "above 0"),
    (("privacy", "--rounds", "3", "--noise", "1", "--dropout", "0.5"), "give --cohort or --rate too"),
    (("privacy", "--rounds", "3", "--noise", "1", "--clients", "5"), "give --cohort or --rate too"),
    (("privacy", "--rounds", "3", "--noise", "1", "--delta", "1"), "delta is a chance between 0 and 1"),
    (("privacy", "--rounds", "3", "--noise", "1", "--cohort", "2"), "say by --clients"),
    (("privacy", "--rounds", "3", "--noise", "1", "--clients", "2", "--cohort", "3"), "not 3 of 2"),
    (("privacy", "--rounds", "3", "--noise", "1", "--rate", "0.1", "--cohort", "3"), "keep one of them"),
    (("privacy", "--rounds", "3", "--epsilon", "1e-6"), "choose more"),
    (
        ("run", "-m", "disco(target=globl)"),
        "disco's target must be one of 'uniform', 'global', 'cohort' or a list of numbers",
    ),
    (("run", "-m", "creff(head_batch=0)"), "creff's head_batch must be at least 1, not 0"),
    (("run", "--set", "optimizer.nesterov=true"), "optimizer.nesterov=True is for optimizer.momentum; set that too"),
    (
        ("compare", "fedavg", "--vary", "schedule.shape=constant,cosine", "--set", "schedule.milestones=[2]"),
        "schedule.milestones=(2,) is for schedule.shape=step",
    ),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_exit_code_2(fedbraid, words, expected):
    code, out, err = fedbraid(*words)
    assert code == 2
    assert expected in err and "Traceback" not in err and not out
    assert len(err.strip().splitlines()) == 1
    assert not Path("runs").exists()  # nothing was begun


@pytest.mark.parametrize("place", ["tiny.csv", "tiny.csv/within", "/proc/nothing"])
def test_a_place_that_cannot_be_written_to_is_a_sentence(fedbraid, place):
    Path("tiny.csv").write_text("x,y\n")
    code, _, err = fedbraid("run", "--set", "rounds=1", "--out", place)
    reason = "tiny.csv is a file" if "tiny" in place else "no such file or directory"
    assert code == 2 and f"{place} cannot be a directory to write to: {reason}; choose another place" in err


def test_the_version_is_said(fedbraid):
    import torch

    code, out, err = fedbraid("--version")
    assert (code, out, err) == (0, f"fedbraid {__version__} (torch {torch.__version__})\n", "")


def test_no_gpu_is_said(fedbraid):
    import torch

    if not torch.cuda.is_available():
        code, _, err = fedbraid("run", "--device", "cuda")
        assert code == 2 and "no GPU" in err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 13.0 TiB for an array"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 9.00 GiB"),
    ],
)
def test_too_little_memory_is_a_sentence(monkeypatch, capsys, error):
    def needs_too_much():
        raise error

    monkeypatch.setattr("fedbraid.cli.app.app", needs_too_much)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "this needs more memory than there is" in capsys.readouterr().err


def test_other_failures_keep_their_traceback(monkeypatch):
    def broken():
        raise RuntimeError("a defect")

    monkeypatch.setattr("fedbraid.cli.app.app", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        main()


def test_a_run_that_diverges_fails_unless_told_otherwise(fedbraid):
    words = "run", *SMALL, "--set", "optimizer.lr=1e30", "--device", "cpu"
    code, said, _ = fedbraid(*words)
    assert code == 1 and "diverged" in said
    assert fedbraid(*words, "--on-divergence", "continue")[0] == 0


def test_a_method_rounds_and_a_seed_are_words_of_run(fedbraid):
    code, _, err = fedbraid("run", "fedprox(mu=0.5)", "--rounds", "2", "--seed", "7", "--out", "here", "--json")
    assert code == 0, err
    written = fb.load("here").config
    assert (written.method, written.rounds, written.seed) == ("fedprox(mu=0.5)", 2, 7)
    code, _, err = fedbraid("run", "fedprox", "--method", "fedavg")
    assert code == 2 and "the method is given twice" in err
    code, _, err = fedbraid("run", "nothing.toml")
    assert code == 2 and "there is no file nothing.toml" in err
    assert len(fb.load("here").rounds) == 2


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("lr=0.1", "optimizer.lr"),
        ("batch_size=8", "local.batch"),
        ("alpha=0.1", "partition.beta"),
        ("optimizer.learning_rate=1", "lr"),
        ("data.name=Digits", "'digits'"),
    ],
)
def test_words_of_other_libraries_get_a_hint(fedbraid, setting, meant):
    code, _, err = fedbraid("run", *SMALL, "--set", setting)
    assert code == 2 and f"did you mean {meant}" in err.replace(f"'{meant}'", meant), err


def commands_with_out():
    """Every command that takes --out, as its words."""
    import typer.main

    def of(command, *words):
        if hasattr(command, "commands"):
            return [found for name, part in command.commands.items() for found in of(part, *words, name)]
        return [words] if any("--out" in parameter.opts for parameter in command.params) else []

    return of(typer.main.get_command(app))


def test_the_commands_that_take_out_are_found():
    assert {
        ("run",),
        ("compare",),
        ("serve",),
        ("predict",),
        ("analyze",),
        ("data", "partition"),
        ("study", "run"),
    } <= {*commands_with_out()}


@pytest.mark.parametrize("words", commands_with_out(), ids=" ".join)
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_out_is_refused_by_every_command(fedbraid, words, empty):
    code, out, err = fedbraid(*words, f"--out={empty}")
    assert (code, out) == (2, "") and "--out is empty" in err and "leave --out out" in err
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("call", [fb.run, fb.compare])
def test_an_empty_out_is_refused_in_python(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fb.UserError, match="out is empty"):
        call("fedavg", out="", rounds=1)
    assert not list(tmp_path.iterdir())
