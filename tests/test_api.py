"""The Python API: the same federation however it is asked for, and numbers that can be checked by hand."""

import json
import logging
import math
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from helpers import SIZES, toy
from networks import Normed, Shortcut
from safetensors.torch import load_file

import fedbraid as fb
from fedbraid import api
from fedbraid.api import planned
from fedbraid.config.schema import from_dict
from fedbraid.core.strand import Strand
from fedbraid.report.headline import caveats
from fedbraid.strands import Disco, Prox

pytestmark = pytest.mark.usefixtures("not_rendered")
DATA, PARTITION = toy()
TINY = {
    "data": DATA,
    "partition": PARTITION,
    "model": "logistic",
    "rounds": 3,
    "local": {"batch": 4},
    "engine": {"device": "cpu"},
}


def timeless(run):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.rounds]


def same(one, other):
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return timeless(one) == timeless(other) and all(torch.equal(a, b) for a, b in pairs)


# --- one run


def test_a_method_may_be_text_a_strand_or_a_chain():
    text = fb.run("prox(mu=0.3)", **TINY)
    assert same(text, fb.run(Prox(mu=0.3), **TINY))
    assert same(text, fb.run(fb.chain("prox(mu=0.3)"), **TINY))
    assert same(text, fb.run(config=fb.Config(method="prox(mu=0.3)"), **TINY))
    assert not same(text, fb.run("fedavg", **TINY))
    assert text.config.method == "prox(mu=0.3)"


def test_names_objects_and_tables_ask_for_the_same():
    digits = fb.run(rounds=1, sampling={"clients": 2})
    from fedbraid import data

    dataset = data.load("digits")
    asked = {
        "data": dataset,
        "partition": data.make_partition(dataset, "dirichlet", 10, 0),
        "model": {"name": "mlp", "hidden": [64]},
    }
    assert same(digits, fb.run(rounds=1, sampling={"clients": 2}, **asked))
    assert same(digits, fb.run(rounds=1, sampling={"clients": 2}, data="digits", partition={"clients": 10}))


def test_torchs_tensors_are_data_too():
    arrays = [(split.x.astype(np.float32), split.y) for split in (DATA.train, DATA.test)]
    as_arrays, as_tensors = (
        fb.Dataset("toy", *(fb.Split(kind(x), kind(y)) for x, y in arrays), classes=3)
        for kind in (np.asarray, lambda values: torch.tensor(values).requires_grad_(values.dtype == np.float32))
    )
    assert same(fb.run(**TINY | {"data": as_arrays}), fb.run(**TINY | {"data": as_tensors}))


def test_numbers_of_numpy_are_numbers(tmp_path):
    numpys = {"optimizer": {"lr": np.float32(0.25)}, "rounds": np.int64(2), "evaluate": {"per_client": np.bool_(True)}}
    plain = {"optimizer": {"lr": 0.25}, "rounds": 2, "evaluate": {"per_client": True}}
    mlp = {"name": "mlp", "hidden": np.array([3, 2])}
    one = fb.run(Prox(mu=np.float32(0.5)), out=tmp_path, **TINY | numpys | {"model": mlp})
    assert same(one, fb.run("prox(mu=0.5)", **TINY | plain | {"model": {"name": "mlp", "hidden": [3, 2]}}))
    assert same(one, fb.run("prox", strands={"prox": {"mu": np.float64(0.5)}}, **TINY | numpys | {"model": mlp}))


def test_settings_lie_over_a_configuration_key_by_key():
    base = from_dict({"rounds": 2, "local": {"epochs": 3, "batch": 5}, "optimizer": {"momentum": 0.9}})
    config = fb.run(config=base, **TINY | {"rounds": 1, "local": {"epochs": 1}}, optimizer={"lr": 0.2}).config
    assert (config.rounds, config.local.epochs, config.local.batch) == (1, 1, 5)
    assert (config.optimizer.options["momentum"], config.optimizer.options["lr"]) == (0.9, 0.2)
    other = fb.run(config=base, **TINY, optimizer={"name": "adam"}).config
    assert "momentum" not in other.optimizer.options, "another optimiser has other options"


def test_a_module_of_ones_own_is_trained_in_a_copy():
    module = Normed()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    even = toy((4, 8, 12, 6))
    run = fb.run(**TINY | {"data": even[0], "partition": even[1], "model": module})
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert type(run.model) is Normed and not run.model.training
    trained = run.model.state_dict()
    assert not torch.equal(trained["norm.running_mean"], before["norm.running_mean"])
    assert not torch.equal(trained["head.weight"], before["head.weight"])


def test_a_class_or_function_makes_a_network_of_each_runs_seed():
    def first_weights(model, seed):
        run = fb.run(**TINY | {"model": model, "rounds": 1, "optimizer": {"lr": 1e-30}, "seed": seed})
        return run.model.state_dict()["head.weight"]

    state = torch.random.get_rng_state()
    assert torch.equal(first_weights(Shortcut, 1), first_weights(lambda: Shortcut(), 1))
    assert not torch.allclose(first_weights(Shortcut, 1), first_weights(Shortcut, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    module = Shortcut()
    for seed in (1, 2):  # a module is what it is
        torch.testing.assert_close(first_weights(module, seed), module.state_dict()["head.weight"])


def test_seeds_of_a_comparison_begin_with_weights_of_their_own():
    comparison = fb.compare("fedavg", seeds=2, **TINY | {"model": Shortcut, "rounds": 1, "optimizer": {"lr": 1e-30}})
    assert [run.config.model.name for run in comparison.runs] == ["Shortcut"] * 2
    assert comparison.runs[0].rounds[0]["loss"] != comparison.runs[1].rounds[0]["loss"]


def test_a_run_leaves_torchs_generators_and_threads_alone():
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    fb.run("scaffold", **TINY)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_seeds_reproduce_and_differ():
    assert same(fb.run(**TINY, seed=3), fb.run(**TINY, seed=3))
    assert not same(fb.run(**TINY, seed=3), fb.run(**TINY, seed=4))


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_the_model_scores_what_was_reported(kind):
    from fedbraid import data

    digits = data.load("digits")
    run = fb.run("disco", rounds=3, engine={"kind": kind, "device": "cpu"}, evaluate={"per_client": True})
    x = (torch.as_tensor(digits.test.x).float() - digits.mean[0]) / digits.std[0]
    right = run.model(x).argmax(1).numpy() == digits.test.y
    line = run.rounds[-1]
    assert run.accuracy == line["accuracy"] == right.mean()
    per_class = [right[digits.test.y == c].mean() for c in range(10)]
    assert line["per_class"] == pytest.approx(per_class)
    counts = np.array(run.label_counts)
    each = counts @ per_class / counts.sum(1)
    assert line["client_accuracy"]["each"] == pytest.approx(each.tolist())
    assert line["client_accuracy"]["mean"] == pytest.approx(each.mean())
    assert run.client_scores == dict(enumerate(line["client_accuracy"]["each"])) and "clients" not in run.summary
    loss = torch.nn.functional.cross_entropy(run.model(x), torch.as_tensor(digits.test.y))
    assert line["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_the_model_is_an_ordinary_module_of_torchs(tmp_path):
    from fedbraid import models

    run = fb.run(**TINY | {"model": "mlp"}, out=tmp_path / "run")
    x = torch.as_tensor(DATA.test.x).float()
    own = models.build("mlp", DATA.shape, DATA.classes, hidden=run.config.model.options["hidden"])
    own.load_state_dict(run.model.state_dict())
    answers = run.model(x)
    assert answers.argmax(1).shape == (20,) and torch.equal(answers, own(x).logits)
    assert torch.equal(run.model.forward(x).features, own(x).features)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert saved.keys() == run.model.state_dict().keys()
    torch.save(run.model, tmp_path / "whole.pt")
    assert torch.equal(torch.load(tmp_path / "whole.pt", weights_only=False)(x), answers)
    further = fb.run(**TINY | {"model": run.model, "rounds": 1, "optimizer": {"lr": 1e-30}})
    torch.testing.assert_close(further.model(x), answers)


def test_clients_with_test_samples_of_their_own_are_scored_on_them():
    from fedbraid import data

    synthetic = data.load("synthetic", clients=6, max_size=60)
    run = fb.run(
        data=synthetic,
        partition="natural",
        model="logistic",
        rounds=2,
        evaluate={"per_client": True},
        engine={"device": "cpu"},
    )
    right = run.model(torch.as_tensor(synthetic.test.x)).argmax(1).numpy() == synthetic.test.y
    each = [right[synthetic.test.users == user].mean() for user in range(6)]
    assert run.rounds[-1]["client_accuracy"]["each"] == pytest.approx(each)
    assert run.rounds[-1]["client_accuracy"]["min"] == pytest.approx(min(each))


def test_evaluation_comes_every_so_many_rounds_and_at_the_end():
    run = fb.run(**TINY | {"rounds": 5}, evaluate={"every": 2})
    assert [line["accuracy"] is not None for line in run.rounds] == [False, True, False, True, True]


def test_the_cohorts_mean_may_be_evaluated_instead_of_the_servers_model():
    settings = TINY | {"rounds": 1, "engine": {"device": "cpu", "dtype": "float64"}}
    mean, server = (
        fb.run("avgm(beta=0.5, dampened=true)", **settings, evaluate={"model": m}) for m in ("cohort", "server")
    )
    plain = fb.run("fedavg", **settings)
    torch.testing.assert_close(mean.model.head.weight, plain.model.head.weight)
    assert not torch.allclose(server.model.head.weight, plain.model.head.weight)


def test_a_regression_has_a_loss_and_no_accuracy():
    dataset, partition = toy(task="regression")
    run = fb.run(**TINY | {"data": dataset, "partition": partition})
    x, y = torch.as_tensor(dataset.test.x).float(), torch.as_tensor(dataset.test.y).float()
    loss = ((run.model(x).squeeze(-1) - y) ** 2 / 2).mean()
    assert run.rounds[-1]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert run.accuracy is None and run.label_counts is None and run.summary["metric"] == "loss"


def test_a_model_that_diverges_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING, "fedbraid"):
        run = fb.run(**TINY | {"data": toy(task="regression")[0]}, optimizer={"lr": 1e30})
    assert any("no longer finite" in r.getMessage() for r in caplog.records)
    assert len(run.rounds) == 3


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_the_client_that_makes_the_model_diverge_is_named(caplog, kind):
    dataset, partition = toy()
    x = dataset.train.x.copy()
    x[partition.clients[2]] *= 1e37
    broken = replace(dataset, train=replace(dataset.train, x=x))
    with caplog.at_level(logging.WARNING, "fedbraid"):
        fb.run(**TINY | {"data": broken, "partition": partition, "engine": {"kind": kind, "device": "cpu"}})
    (said,) = [r.getMessage() for r in caplog.records if "no longer finite" in r.getMessage()]
    assert "the training loss of client 2 is not finite" in said


def test_a_method_that_diverges_does_not_win_a_comparison(tmp_path):
    compared = fb.compare("fedprox(mu=1e30)", "fedavg", **TINY, out=tmp_path / "both")
    lost, kept = compared.summary.values()
    assert math.isnan(lost["last"]["mean"]) and kept["last"]["mean"] > 0
    assert "diverged" in (tmp_path / "both" / "table.md").read_text()


def test_every_round_is_handed_to_the_caller_as_it_ends():
    seen = []
    run = fb.run(**TINY, on_round=lambda line, config: seen.append((line, config.rounds)))
    assert [line for line, _ in seen] == run.rounds
    assert {rounds for _, rounds in seen} == {3}


@dataclass(frozen=True)
class Shift(Strand):
    by: float = 0.5

    def update(self, delta, r):
        return delta + self.by, r.state


def test_strands_of_ones_own_are_known_by_name_once_they_are_given():
    moved = fb.run("shift(by=0.25)+prox", own=[Shift], **TINY)
    assert same(moved, fb.run(fb.chain(Shift(0.25), "prox"), **TINY))
    assert same(moved, fb.run("shift(by=0.25)+prox", own=Shift, **TINY))
    with pytest.raises(fb.UserError, match=r"own takes classes of strands, .*, not Shift"):
        fb.run("shift", own=Shift(), **TINY)
    with pytest.raises(fb.UserError, match="no method is called 'shift'"):
        fb.run("shift", **TINY)


# --- comparisons

SEEN: dict[str, list[tuple]] = {}


@dataclass(frozen=True)
class Witness(Strand):
    """Notes who takes part, and where everybody starts."""

    label: str = ""

    def absorb(self, r):
        SEEN.setdefault(self.label, []).append(tuple(r.cohort.ids))
        if not r.number:
            SEEN[self.label].append(tuple(r.w.tolist()))
        return {}


def test_all_methods_meet_the_same_clients_in_the_same_rounds_from_the_same_start():
    SEEN.clear()
    chains = [fb.chain(Witness("a")), fb.chain(Witness("b"), "scaffold"), fb.chain(Witness("c"), "disco+prox")]
    comparison = fb.compare(
        *chains,
        seeds=2,
        data=DATA,
        model="logistic",
        rounds=4,
        sampling={"clients": 2},
        partition={"name": "iid", "clients": 5},
    )
    assert SEEN["a"] == SEEN["b"] == SEEN["c"]
    assert SEEN["a"][:5] != SEEN["a"][5:], "another seed, another federation"
    assert len({str(run.label_counts) for run in comparison.runs if run.config.seed == 0}) == 1
    assert [run.config.seed for run in comparison.runs] == [0, 1] * 3


def test_a_comparison_runs_what_run_runs(tmp_path):
    comparison = fb.compare("fedavg", "disco(a=0.4)", Prox(), seeds=[5, 7], out=tmp_path, **TINY)
    assert len(comparison.runs) == 6
    assert same(comparison.runs[2], fb.run(Disco(a=0.4), seed=5, **TINY))
    assert list(comparison.summary) == comparison.labels[::2]
    last = [run.rounds[-1]["accuracy"] for run in comparison.runs[:2]]
    assert comparison.summary["fedavg"]["last"]["mean"] == pytest.approx(np.mean(last))
    assert (tmp_path / "report.html").exists()
    saved = json.loads((tmp_path / "fedavg" / "seed-5" / "summary.json").read_text())
    assert saved["last"] == comparison.runs[0].accuracy
    with pytest.raises(fb.UserError, match="already holds a run"):
        fb.compare("fedavg", out=tmp_path, seeds=[5], **TINY)
    again = fb.compare("fedavg", out=tmp_path, seeds=[5], resume=True, **TINY)
    assert again.runs[0].rounds == comparison.runs[0].rounds


def test_a_comparison_says_where_methods_average_differently():
    def said(*methods, **settings):
        records = fb.compare(*methods, **TINY | {"rounds": 1} | settings).records
        return [line for line in caveats(records) if "averaged" in line]

    assert said("fedavg", "scaffold", "disco", "prox") == [
        "Not like for like: clients are averaged by data size in fedavg and prox, uniformly in scaffold; "
        "+sizes or +uniform in a method changes that."
    ]
    assert not said("fedavg", "scaffold+sizes", "disco")
    alike, shares = toy((5, 5, 5))
    assert not said("fedavg", "scaffold", data=alike, partition=shares)


# --- mistakes


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "fedavgg"}, "did you mean 'fedavg'?"),
        ({"rounds": 0}, "rounds must be 1 or more"),
        ({"epochs": 3}, "no setting is called 'epochs'"),
        ({"data": "digit"}, "did you mean 'digits'?"),
        ({"data": 3}, "data is a table"),
        ({"model": "mpl"}, "did you mean 'mlp'?"),
        ({"model": {"name": "mlp", "hiden": [3]}}, "did you mean 'hidden'?"),
        ({"partition": "dirichlett"}, "did you mean 'dirichlet'?"),
        ({"sampling": {"clients": 7}}, "sampling.clients is 7, but there are 6 clients"),
        (
            {"method": "skip", "sampling": {"scheme": "bernoulli"}},
            "skip needs the same number of clients in every round",
        ),
        ({"method": "fedlc", "data": toy(task="regression")[0]}, "lc needs class labels"),
        ({"engine": {"device": "gpu0"}}, "engine.device must be"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr is 0"),
        ({"model": torch.nn.Softmax(-1)}, "fedbraid.Outputs(logits, features)"),
        ({"model": torch.nn.Linear}, "called without arguments, and Linear cannot be (missing a required argument"),
        (
            {"data": replace(DATA, **{n: fb.Split(np.ones((37, 4), int), DATA.train.y) for n in ("train", "test")})},
            "whole numbers are words: give pixels as uint8, other numbers as float32",
        ),
        ({"model": dict}, "dict gave dict; it must return a torch module"),
        ({"model": lambda: torch.nn.Linear(4, -3)}, "<lambda> could not be called: RuntimeError: "),
    ],
)
def test_mistakes_are_one_sentence_and_come_before_any_file(settings, sentence, tmp_path):
    with pytest.raises(fb.UserError) as caught:
        fb.run(**TINY | settings, out=tmp_path / "run")
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_a_sentence():
    with pytest.raises(fb.UserError, match="torch sees no GPU here"):
        fb.run(**TINY | {"engine": {"device": "cuda"}})


def test_comparisons_that_make_no_sense_are_refused():
    for methods, options, sentence in (
        ((), {}, "at least one method"),
        (("fedavg", "fedavg"), {}, "listed twice"),
        (("fedprox", "fedavg", "prox"), {}, "fedprox and prox are both prox; a comparison needs different methods"),
        (("prox", "prox(mu=0.01)"), {"seeds": 2}, r"prox and prox\(mu=0.01\) are both prox"),
        (("fedavg+disco", fb.chain("feddisco")), {"vary": {"optimizer.lr": [0.1, 0.2]}}, "are both disco"),
        ((["prox", "disco"], "fedavg"), {}, 'write the method as one text, "prox\\+disco"'),
        (("fedavg",), {"varied": ["rounds"]}, "varied is not set: it follows from --vary"),
        (("fedavg",), {"seeds": 0}, "seeds must be 1 or more"),
        (("fedavg",), {"seeds": []}, "seeds must be 1 or more"),
        (("fedavg",), {"seeds": [4, 1, 1]}, "seed 1 is listed twice"),
        (("fedavg",), {"seeds": 2.5}, "seeds is a number of seeds or a list of them, not 2.5"),
        (("fedavg", "nothing"), {}, "no method is called 'nothing'"),
    ):
        with pytest.raises(fb.UserError, match=sentence):
            fb.compare(*methods, **TINY, **options)


def test_one_method_under_two_names_is_gone_on_with_where_it_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(fb.Comparison, "report", lambda comparison, place: None)

    def compared(*methods, **options):
        return fb.compare(*methods, **TINY | {"rounds": 2}, seeds=2, out=tmp_path, **options)

    fb.run("fedprox", **TINY | {"rounds": 2}, out=tmp_path / "fedprox" / "seed-0")
    with pytest.raises(fb.UserError, match="fedprox and prox are both prox"):
        compared("fedprox", "prox", resume=True)  # the second is new
    with monkeypatch.context() as earlier:  # a version that did not refuse it, stopped on its way
        earlier.setattr(api, "_refuse_twice", lambda requests: None)
        compared("fedprox", "prox", resume=True, on_round=lambda line, config: fb.STOP)
    shutil.rmtree(tmp_path / "prox" / "seed-1")  # which had not begun yet
    with pytest.raises(fb.UserError, match="already holds a run; add --resume"):
        compared("fedprox", "prox")
    for more in ("prox", "fedprox", "prox(mu=0.01)", " prox"):
        with pytest.raises(fb.UserError, match="a comparison needs different methods"):
            compared("fedprox", "prox", more, resume=True)
    done = compared("fedprox", "prox", resume=True)
    assert [len(run.rounds) for run in done.runs] == [2] * 4
    assert list(done.summary) == ["fedprox", "prox"]


def test_methods_that_differ_by_the_settings_alone_are_compared():
    """A number in a method's text wins over the settings."""
    plans = planned("prox", "prox(mu=0.01)", strands={"prox": {"mu": 0.1}})
    assert [str(request.chain) for _, request in plans] == ["prox(mu=0.1)", "prox"]


@pytest.mark.parametrize("method", [["prox", "disco"], ("prox", "disco")])
def test_a_method_is_one_text(method):
    with pytest.raises(fb.UserError, match=r'is no strand; write the method as one text, "prox\+disco", or put its'):
        fb.run(method, **TINY)
    with pytest.raises(fb.UserError, match=r"'disco' is no strand; write the method as one text, \"prox\+disco\""):
        fb.chain("prox") + "disco"


def test_what_is_called_after_each_round_must_be_a_function():
    with pytest.raises(fb.UserError, match="on_round is a function of a round's line and the configuration, not 'x'"):
        fb.run("fedavg", on_round="x", **TINY)


def test_a_comparison_may_start_from_another_seed():
    for seeds in (2, np.int64(2), np.array([3, 4])):
        comparison = fb.compare("fedavg", seed=3, seeds=seeds, **TINY)
        assert [run.config.seed for run in comparison.runs] == [3, 4]


def test_a_partition_with_a_client_without_samples_is_a_sentence():
    empty = fb.Partition((*PARTITION.clients, np.array([], dtype=np.int64)))
    with pytest.raises(fb.UserError, match="client 6"):
        fb.run(**TINY | {"partition": empty})


def test_a_partition_without_clients_is_a_sentence():
    with pytest.raises(fb.UserError, match="the partition has no clients"):
        fb.run(**TINY | {"partition": fb.Partition(())})


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        (([0, 1, 2], [4, 2, 1]), "clients 0 and 1 both hold training sample 1 \\(held more than once in all: 2\\)"),
        (([0, 1], [3, 4, 3]), "client 1 holds training sample 3 twice \\(held more than once in all: 1\\)"),
        (([0, 1], [-1]), "client 1 holds training sample -1, but toy has 0 to 36"),
    ],
)
def test_a_sample_is_one_clients_alone(shares, sentence):
    with pytest.raises(fb.UserError, match=sentence):
        fb.run(**TINY | {"partition": fb.Partition(tuple(map(np.array, shares)))})


def test_data_without_a_test_set_are_told_so():
    with pytest.raises(fb.UserError, match=r"toy's test is NoneType; give its test samples as a fedbraid.Split"):
        fb.run(**TINY | {"data": replace(DATA, test=None)})


def test_bare_arrays_of_indices_are_told_what_they_should_be():
    with pytest.raises(fb.UserError, match=r"give each client's indices as a fedbraid.Partition") as told:
        fb.run(**TINY | {"partition": list(PARTITION.clients)})
    assert len(str(told.value)) < 250 and "\n" not in str(told.value)


def test_a_run_with_objects_needs_them_again(tmp_path):
    begun = fb.run(**TINY, out=tmp_path).config
    for given, missing in (({}, "data"), ({"partition": PARTITION}, "data"), ({"data": DATA}, "partition")):
        with pytest.raises(
            fb.UserError, match=rf"was given its {missing} in Python: .*fedbraid.run\(…, {missing}=…, out=…"
        ):
            fb.run(config=begun, out=tmp_path, resume=True, **given)


def test_hyper_parameters_by_strand_can_be_given_as_in_the_configuration():
    written = fb.run("disco(a=0.1)", **TINY)
    for method in ("disco", Disco, Disco()):
        assert same(fb.run(method, **TINY, strands={"disco": {"a": 0.1}}), written)
    with pytest.raises(fb.UserError, match="set for 'prox', which is not part of 'disco'"):
        fb.run(Disco(), **TINY, strands={"prox": {"mu": 0.1}})


def test_a_partition_of_other_data_is_a_sentence():
    other = fb.Partition((np.array([0, 1]), np.array([sum(SIZES)])))
    with pytest.raises(fb.UserError):
        fb.run(**TINY | {"partition": other})
