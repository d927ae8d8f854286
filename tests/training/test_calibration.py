"""Which engine `auto` takes on a CPU, and that a run keeps it."""

import json

import pytest
from helpers import advanced, federation, held, identical, toy

import fedbraid as fb
from fedbraid.data.paths import cache_directory
from fedbraid.engines.codegen.libraries import NotCompiled
from fedbraid.training import calibration
from fedbraid.training.calibration import Seconds

AUTO = {"kind": "auto"}


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def measured(monkeypatch):
    """Trials that are not run: what they would have measured, and how often it was asked for."""
    asked = []

    def set_to(loop, stack=None, compiled=None):
        monkeypatch.setattr(calibration, "_tried", lambda *_: asked.append("tried") or Seconds(loop, stack))
        monkeypatch.setattr(
            calibration, "_compiled_seconds", lambda _, __, worth: asked.append(f"worth {worth}") or compiled
        )
        return asked

    return set_to


def test_a_short_run_is_not_tried(measured):
    asked = measured(1e-9, 1.0, 1.0)
    assert federation(engine=AUTO).engine.kind == "stack"
    assert not asked


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [((3e-4, 1e-4, 1e-5), "compiled"), ((3e-4, 1e-4, 2e-4), "stack"), ((1e-5, 1e-4, 2e-4), "loop")],
)
def test_a_long_run_takes_the_fastest(measured, seconds, kind, caplog):
    caplog.set_level("INFO", logger="fedbraid")
    measured(*seconds)
    assert federation(engine=AUTO, rounds=10**6).engine.kind == kind
    assert f"{kind} (a client's local step: loop" in caplog.text


def test_what_cannot_be_compiled_is_not_taken(measured):
    measured(3e-4, 1e-4, None)
    assert federation(engine=AUTO, rounds=10**6).engine.kind == "stack"


def test_a_network_that_takes_long_keeps_what_is_usual(measured):
    asked = measured(0.5)
    assert federation(engine=AUTO, rounds=10**6).engine.kind == "stack"
    assert asked == ["tried"]


def test_only_a_run_that_pays_for_it_is_compiled_for(measured):
    asked = measured(1e-4, 1e-4, 1e-5)
    federation(engine=AUTO, rounds=2000)  # 29 000 steps or so
    assert asked == ["tried", "worth False"]
    federation(engine=AUTO, rounds=10**6)
    assert asked[-1] == "worth True" or len(asked) == 2


def test_trials_are_remembered(measured):
    asked = measured(3e-4, 1e-4, 1e-5)
    for _ in range(2):
        assert federation(engine=AUTO, rounds=10**6).engine.kind == "compiled"
    assert asked == ["tried", "worth True"]
    (kept,) = (cache_directory() / "calibrated").glob("*.json")
    assert json.loads(kept.read_text()) == {"loop": 3e-4, "stack": 1e-4, "compiled": 1e-5}
    kept.write_text("{")
    federation(engine=AUTO, rounds=10**6)
    assert asked[2:] == ["tried", "worth True"]


@pytest.mark.parametrize("method", ["scaffold", "fair"])
def test_trials_leave_no_trace(method):
    """Real trials, of a chain whose clients keep something and of one that probes first."""
    from made_up_strands import MADE_UP

    tried = federation(method, own=MADE_UP, engine=AUTO, rounds=10**6)
    plain = federation(method, own=MADE_UP, engine={"kind": tried.engine.kind}, rounds=10**6)
    assert identical(held(tried), held(plain))
    assert identical(held(advanced(tried, 2)), held(advanced(plain, 2)))


def test_real_trials_measure_every_engine():
    federation(engine=AUTO, rounds=10**6)
    (kept,) = (cache_directory() / "calibrated").glob("*.json")
    assert all(0 < s < 1 for s in json.loads(kept.read_text()).values())


def test_convolutions_are_not_tried(measured):
    asked = measured(1e-9, 1e-9, 1e-9)
    data = toy((3, 1, 4), (1, 28, 28), pixels=True)
    assert federation(data=data, model={"name": "lenet"}, engine=AUTO, rounds=10**6).engine.kind == "loop"
    assert not asked


def test_a_run_records_its_engine_and_is_resumed_with_it(tmp_path, monkeypatch):
    settings = {"rounds": 2, "engine": {"device": "cpu"}, "partition": {"clients": 3}}
    first = fb.run("fedavg", out=tmp_path / "run", **settings)
    assert first.config.engine.kind == "stack"
    recorded = (tmp_path / "run" / "config.toml").read_text()
    assert 'kind = "stack"' in recorded
    # another machine would choose another engine; the run keeps its own
    (tmp_path / "run" / "config.toml").write_text(recorded.replace('kind = "stack"', 'kind = "loop"'))
    again = fb.run("fedavg", out=tmp_path / "run", resume=True, **settings)
    assert again.config.engine.kind == "loop"


def test_a_run_that_was_begun_before_engines_were_recorded_is_resumed(tmp_path):
    settings = {"rounds": 2, "engine": {"device": "cpu"}, "partition": {"clients": 3}}
    fb.run("fedavg", out=tmp_path / "run", **settings)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('kind = "stack"', 'kind = "auto"'))
    assert fb.run("fedavg", out=tmp_path / "run", resume=True, **settings).config.engine.kind == "stack"


def test_a_run_that_was_compiled_says_so_where_it_cannot_be(tmp_path, monkeypatch):
    settings = {"rounds": 2, "engine": {"device": "cpu", "kind": "compiled"}, "partition": {"clients": 3}}
    fb.run("fedavg", out=tmp_path / "run", **settings)

    def gone(text, cap):
        raise NotCompiled("there is no C compiler")

    monkeypatch.setattr("fedbraid.engines.compiled.library", gone)
    settings["engine"] = {"device": "cpu"}
    with pytest.raises(fb.UserError, match="cannot be compiled: there is no C compiler"):
        fb.run("fedavg", out=tmp_path / "run", resume=True, **settings)
