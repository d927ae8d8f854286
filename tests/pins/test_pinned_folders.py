"""What version 0.1 left on disk is read, gone on with and reported as that version would have: to the bit where the
machine is of the kind that it was recorded on, and else to a tolerance.
"""

import json
import tomllib

import matrix
import numpy as np
import pytest
import recorded_folders
from recorded_folders import Interrupted, fedbraid, federate, interrupt, lines, run, study, unpacked, weights
from test_pinned_models import SAME_BUT_FOR_COMPILER
from test_pinned_names import missing

import fedbraid as fb

pytestmark = pytest.mark.usefixtures("not_rendered")


@pytest.fixture
def recorded(tmp_path):
    with unpacked(tmp_path) as place, matrix.quiet():
        yield place


def values(run):
    """A run's configuration, to which a later version may add settings."""
    return tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))


def same_end(now, then):
    """Two runs' folders: the model, the log and the last checkpoint."""
    got, due = weights(now), weights(then)
    assert got.keys() == due.keys()
    for name in due:
        if SAME_BUT_FOR_COMPILER:
            assert got[name].tobytes() == due[name].tobytes(), name
        else:
            np.testing.assert_allclose(got[name], due[name], rtol=0, atol=1e-9)
    assert missing(values(then), values(now)) == []
    assert len(lines(now)) == len(lines(then))
    if SAME_BUT_FOR_COMPILER:
        assert all(line.items() >= old.items() for line, old in zip(lines(now), lines(then), strict=True))
        assert matrix.state(now) == matrix.state(then)


def test_an_interrupted_run_goes_on_to_the_same_end(recorded):
    assert not (recorded / "run" / "summary.json").exists() and len(lines(recorded / "run")) == 5
    run(recorded / "run", resume=True)
    same_end(recorded / "run", recorded / "ends" / "run")
    same_end(recorded / "ends" / "run", recorded / "finished")  # as if it had not been interrupted


def test_a_finished_run_is_as_it_was(recorded):
    before = {file: file.read_bytes() for file in (recorded / "finished").rglob("*.*")}
    again = run(recorded / "finished", resume=True)
    assert all(file.read_bytes() == then for file, then in before.items())
    assert again.summary["rounds"] == 6 and again.client_scores
    made = again.report(recorded / "report")
    assert "scaffold" in (recorded / "report" / "report.html").read_text(encoding="utf-8") and made


@pytest.mark.slow
def test_a_finished_run_is_analysed(recorded):
    assert fedbraid("analyze", recorded / "finished", "--out", recorded / "analysed") == 0
    assert list((recorded / "analysed").rglob("*.csv"))


def test_a_finished_run_predicts(recorded):
    trained = fb.trained(recorded / "finished")
    samples = np.linspace(-1, 1, 4 * 6).reshape(4, 6)
    scores = trained.predict(samples).scores
    by_hand = {name: value.astype(np.float64) for name, value in weights(recorded / "finished").items()}
    (first, bias), (head, last) = ((by_hand[f"{n}.weight"], by_hand[f"{n}.bias"]) for n in ("hidden.0", "head"))
    logits = np.maximum(samples @ first.T + bias, 0) @ head.T + last
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_a_comparison_goes_on_to_the_same_end(recorded):
    comparison = recorded_folders.compare(recorded / "comparison", resume=True)
    assert len(comparison.runs) == 4 and not comparison.failed
    for method in recorded_folders.COMPARED:
        for seed in ("seed-0", "seed-1"):
            same_end(recorded / "comparison" / method / seed, recorded / "ends" / "comparison" / method / seed)
    assert (recorded / "comparison" / "report.html").exists()


def test_a_study_goes_on_and_reports_the_same(recorded):
    out = recorded / "study" / "out"
    before = {file: file.read_bytes() for file in out.rglob("seed-*.json")}
    assert len(before) == 2
    assert study(recorded / "study") == 0
    assert all(file.read_bytes() == then for file, then in before.items()), "a run was made again"
    assert missing(timeless(recorded / "ends" / "study" / "out"), timeless(out)) == []
    table = json.loads((out / "pinned" / "results.json").read_text(encoding="utf-8"))
    assert "75.5" in json.dumps(table)
    assert fedbraid("study", "report", recorded / "study" / "pinned.toml", "--out", out) == 0


def timeless(out):
    """All records without how long anything took and with what it was made; floats to nine digits."""
    found = {}
    for file in sorted((out / "runs").rglob("*.json")):
        values = json.loads(file.read_text(encoding="utf-8"))
        for key in ("environment", "engine"):
            values.pop(key, None)
        values["series"].pop("seconds")
        values["totals"].pop("seconds")
        found[str(file.relative_to(out))] = json.loads(json.dumps(values), parse_float=lambda x: f"{float(x):.9g}")
    return found


def test_a_federation_goes_on_to_the_same_end(recorded):
    """The server's folder and the clients' homes, whose letters the server counts."""
    place = recorded / "federation"
    before = json.loads((place / "run" / "federation.json").read_text(encoding="utf-8"))
    federate(place)
    same_end(place / "run", recorded / "ends" / "federation" / "run")
    after = json.loads((place / "run" / "federation.json").read_text(encoding="utf-8"))
    assert after.items() >= before.items()


def test_the_recorded_federation_was_interrupted(recorded):
    assert len(lines(recorded / "federation" / "run")) == 2
    homes = list((recorded / "federation" / "homes").glob("*/*/state-*.safetensors"))
    assert {file.parents[1].name for file in homes} >= {"clinic-a", "clinic-b"}


def test_what_is_recorded_is_what_is_written_now(tmp_path):
    """The same files with the same names, so that an earlier version finds in them what it looks for."""
    with unpacked(tmp_path / "then") as then, matrix.quiet():
        with pytest.raises(Interrupted):
            run(tmp_path / "now", on_round=interrupt(5))
        found = {str(file.relative_to(tmp_path / "now")) for file in (tmp_path / "now").rglob("*.*")}
        due = {str(file.relative_to(then / "run")) for file in (then / "run").rglob("*.*")}
        assert found - {".lock"} == due
        assert missing(values(then / "run"), values(tmp_path / "now")) == []
        for file in due:
            if file.endswith("checkpoint.json"):
                keys = json.loads((tmp_path / "now" / file).read_text()).keys()
                assert keys >= json.loads((then / "run" / file).read_text()).keys()
