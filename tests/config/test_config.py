"""The configuration: there and back again, and one sentence for every mistake."""

import math
import tomllib
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.config.schema import (
    Config,
    Evaluation,
    flat,
    from_dict,
    merged,
    optimizer_of,
    read_toml,
    to_dict,
    to_toml,
)
from fedbraid.core.optimizer import Adam, Sgd
from fedbraid.core.plan import MOST
from fedbraid.errors import UserError

NAMES = st.text("abcdefghij_", min_size=1, max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
OPTIONS = st.dictionaries(NAMES.filter(lambda n: n not in ("name", "clients")), VALUES, max_size=3)
COUNTS = st.integers(1, 10**9)


def table(**parts):
    return st.fixed_dictionaries({}, optional=parts)


def named(**parts):
    return st.builds(lambda own, options: options | own, table(name=NAMES, **parts), OPTIONS)


CONFIGS = table(
    method=NAMES,
    rounds=COUNTS,
    seed=st.integers(0, 2**63 - 1),
    strands=st.dictionaries(NAMES, OPTIONS, max_size=3),
    data=named(),
    partition=named(clients=COUNTS),
    model=named(),
    optimizer=named(),
    schedule=table(warmup=st.integers(0, 99))
    | st.fixed_dictionaries({"shape": st.just("step"), "milestones": st.just([2, 5]), "gamma": st.floats(0.1, 9.0)}),
    sampling=table(clients=st.integers(0, 99))
    | st.fixed_dictionaries({"scheme": st.just("by_size"), "clients": COUNTS})
    | st.fixed_dictionaries({"scheme": st.just("bernoulli"), "rate": st.floats(1e-9, 1.0)}),
    local=table(batch=st.integers(0, 99), epochs=st.integers(1, MOST), drop_last=st.booleans()),
    evaluate=table(every=COUNTS, model=st.sampled_from(["server", "cohort"]), target=st.floats(0, 0.99)),
    engine=table(kind=st.sampled_from(["auto", "stack", "loop"]), chunk=st.integers(0, 9), device=NAMES),
    analyses=st.lists(NAMES, max_size=3),
    analysis=table(every=COUNTS),
    save=table(every=COUNTS, clients_on_disk=st.booleans()),
)


@given(CONFIGS)
def test_a_configuration_survives_toml(values):
    config = from_dict(values)
    assert from_dict(tomllib.loads(to_toml(config))) == config
    assert from_dict(to_dict(config)) == config


@given(CONFIGS)
def test_what_is_given_is_what_is_held(values):
    held = flat(to_dict(from_dict(values)))
    for key, value in flat(values).items():
        assert held[key] == value and type(held[key]) is type(value)


def test_nothing_is_everything_by_default():
    assert from_dict({}) == Config()
    assert "options" not in str(to_dict(Config()))


def test_whole_numbers_pass_as_numbers():
    assert from_dict({"sampling": {"scheme": "bernoulli", "rate": 1}}).sampling.rate == 1.0


def leaves_of(cls, path=""):
    for f in fields(cls):
        value = getattr(cls(), f.name)
        if is_dataclass(value):
            yield from leaves_of(type(value), f"{path}{f.name}.")
        elif f.name not in ("options", "strands"):
            yield f"{path}{f.name}", value


ODD = [True, 3, -1, 2.5, "x", "", None, [], [1], {}, {"a": 1}, math.nan, math.inf, b"b", object()]


def put(key, value):
    values: dict = {}
    *tables, last = key.split(".")
    inner = values
    for name in tables:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return values


@pytest.mark.parametrize(("key", "default"), list(leaves_of(Config)))
def test_wrong_types_are_one_sentence_that_names_the_key(key, default):
    for value in ODD:
        fits = type(value) is type(default) or (type(default) is float and type(value) is int)
        fits = fits or (type(default) is tuple and value == [])  # TOML's lists
        fits = fits or (key == "schedule.milestones" and value == [1])
        try:
            from_dict(put(key, value))
        except UserError as error:
            assert key in str(error) or (key.startswith("local.") and "local" in str(error))
            assert "\n" not in str(error)
        else:
            assert fits, f"{key} took {value!r}"


@pytest.mark.parametrize(
    "key", ["data", "partition", "model", "sampling", "local", "optimizer", "schedule", "evaluate", "analysis", "save"]
)
@pytest.mark.parametrize("value", [1, "x", None, [], [("a", 1)]])
def test_a_table_is_not_a_value(key, value):
    with pytest.raises(UserError, match=f"{key} is a table"):
        from_dict({key: value})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"round": 3}, "no setting is called 'round'; did you mean 'rounds'?"),
        ({"local": {"epoch": 3}}, "no setting is called 'local.epoch'; did you mean 'local.epochs'?"),
        ({"evaluate": {"per_clients": True}}, "did you mean 'evaluate.per_client'?"),
        ({"engine": {"kind": "stak"}}, "must be one of 'auto', 'stack', 'loop', 'compiled', 'ray', not 'stak'"),
        ({"engine": {"address": "auto"}}, "engine.address and engine.gpus_per_worker are for engine.kind=ray"),
        ({"engine": {"kind": "ray", "gpus_per_worker": 1.5}}, "a share of a GPU or a whole number of them, not 1.5"),
        ({"engine": {"patience": 0.0}}, "engine.patience must be a number of seconds above 0"),
        ({"rounds": 0}, "rounds must be 1 or more, not 0"),
        ({"rounds": "3"}, "rounds must be a whole number, not '3'"),
        ({"rounds": True}, "rounds must be a whole number, not True"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"sampling": {"rate": 0.0}}, "sampling.rate must lie in (0, 1]"),
        ({"sampling": {"scheme": "by_size"}}, "say how many by sampling.clients"),
        ({"sampling": {"rate": math.nan}}, "sampling.rate must lie in (0, 1]"),
        ({"evaluate": {"target": 90}}, "evaluate.target is a share such as 0.9"),
        ({"evaluate": {"validation": 10}}, "evaluate.validation is a share of the training samples"),
        ({"local": {"epochs": 0}}, "epochs >= 1"),
        ({"local": {"least": 7}}, "local.least is 7"),
        ({"strands": {"disco": 3}}, "strands.disco is a table of hyper-parameters"),
        ({"strands": 3}, "strands is a table"),
        ({"local": {"batch": 10**30}}, "local.batch must be a whole number below 2**63"),
        ({"evaluate": {"target": 10**400}}, "evaluate.target must be finite in float32"),
        ({"schedule": {"shape": "cosin"}}, "must be one of 'constant', 'step', 'cosine', not 'cosin'"),
        ({"schedule": {"milestones": [5, 3]}}, "rounds from 1 on, in order, such as [50, 75], not [5, 3]"),
        ({"schedule": {"milestones": [0]}}, "rounds from 1 on, in order, such as [50, 75], not [0]"),
        (
            {"schedule": {"milestones": [0.5]}},
            "schedule.milestones must be a list of whole numbers such as [50, 75], not [0.5]",
        ),
        ({"schedule": {"gamma": 0.0}}, "schedule.gamma must be a finite number"),
        ({"schedule": {"floor": 1.5}}, "schedule.floor is a share of optimizer.lr from 0 to 1"),
        ({"schedule": {"warmup": -1}}, "schedule.warmup must be 0 or more rounds"),
        ({"data": {"name": 3}}, "data.name must be text"),
        ({"partition": {"clients": 2.5}}, "partition.clients must be a whole number"),
    ],
)
def test_mistakes_say_what_would_be_right(values, sentence):
    with pytest.raises(UserError) as caught:
        from_dict(values)
    assert sentence in str(caught.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([f.name for f in fields(Config)]) | st.text(max_size=8)


@given(st.dictionaries(KEYS, ANYTHING, max_size=4))
def test_nothing_gives_anything_but_a_configuration_or_a_user_error(values):
    try:
        assert isinstance(from_dict(values), Config)
    except UserError as error:
        assert str(error)


@given(st.dictionaries(KEYS, st.dictionaries(st.text(max_size=8), ANYTHING, max_size=3), max_size=3))
def test_no_table_gives_anything_but_a_configuration_or_a_user_error(values):
    try:
        assert isinstance(from_dict(values), Config)
    except UserError as error:
        assert str(error)


# --- settings on the command line


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("rounds=3", "rounds", 3),
        ("local.epochs = 5", "local.epochs", 5),
        ("optimizer.lr=1e-2", "optimizer.lr", 0.01),
        ("data.name=digits", "data.name", "digits"),
        ('data.name="a b"', "data.name", "a b"),
        ("model.hidden=[64, 32]", "model.hidden", [64, 32]),
        ("save.clients_on_disk=true", "save.clients_on_disk", True),
        ("strands.disco.a=0.3", "strands.disco.a", 0.3),
        ("data.path=a=b", "data.path", "a=b"),
        ("engine.device=cuda:1", "engine.device", "cuda:1"),
    ],
)
def test_settings_are_put_where_they_belong(setting, key, value):
    before = {"local": {"batch": 7}}
    assert flat(merged(before, [setting])) == {"local.batch": 7, key: value}
    assert before == {"local": {"batch": 7}}


def test_later_settings_win():
    assert merged({"rounds": 1}, ["rounds=2", "rounds=3"]) == {"rounds": 3}


@pytest.mark.parametrize("setting", ["rounds", "=3", " =3", "", "rounds.x=1"])
def test_settings_of_the_wrong_form_are_refused(setting):
    with pytest.raises(UserError):
        from_dict(merged({"rounds": 3}, [setting]))


@pytest.mark.parametrize("setting", [".=1", "a..b=1", "local.=1", ".rounds=1"])
def test_settings_with_odd_keys_are_refused(setting):
    with pytest.raises(UserError):
        from_dict(merged({}, [setting]))


@given(st.text(max_size=20))
def test_no_setting_gives_anything_but_a_configuration_or_a_user_error(setting):
    try:
        from_dict(merged({}, [setting]))
    except UserError as error:
        assert str(error)


@given(st.text(max_size=12))
def test_no_value_gives_anything_but_a_configuration_or_a_user_error(value):
    try:
        from_dict(merged({}, [f"rounds={value}"]))
    except UserError as error:
        assert str(error)


def test_files_that_cannot_be_read_are_named(tmp_path):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("rounds = ")
    bytes_ = tmp_path / "bytes.toml"
    bytes_.write_bytes(b"\xff\xfe")
    for path, why in ((wrong, "not valid TOML"), (bytes_, "not valid TOML"), (tmp_path / "none.toml", "no file")):
        with pytest.raises(UserError, match=why) as caught:
            read_toml(path)
        assert path.name in str(caught.value)


# --- the local optimiser


def test_the_optimizer_is_made_of_its_options():
    config = from_dict({"optimizer": {"lr": 1, "momentum": 0.9, "nesterov": True}})
    assert optimizer_of(config) == Sgd(1, 0.9, True)
    assert optimizer_of(from_dict({"optimizer": {"name": "adam", "beta1": 0.8}})) == Adam(beta1=0.8)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "sgdm"}, "no optimizer is called 'sgdm'; did you mean 'sgd'?"),
        ({"momentun": 0.9}, "did you mean 'momentum'?"),
        ({"name": "adam", "momentum": 0.9}, "no option of optimizer 'adam' is called 'momentum'"),
        ({"lr": "fast"}, "optimizer.lr must be a number, not 'fast'"),
        ({"lr": True}, "optimizer.lr must be a number, not True"),
        ({"lr": [0.1]}, "optimizer.lr must be a number"),
        ({"nesterov": 1}, "optimizer.nesterov must be true or false"),
        ({"lr": -0.1}, "optimizer.lr must be at least 0, not -0.1"),
        ({"lr": 1e39}, "optimizer.lr must be finite in float32 (at most 3.4e+38), not 1e+39"),
        ({"lr": 10**400}, "optimizer.lr must be finite in float32"),
        ({"weight_decay": 1e40}, "optimizer.weight_decay must be finite in float32"),
        ({"momentum": 1e9}, "optimizer.momentum must be at least 0 and below 1, not 1000000000.0"),
        ({"lr": 1e-50}, "optimizer.lr is 1e-50, so nothing would be learned; give a number above 1.2e-38"),
        ({"decay": 1e20}, "in 30 rounds optimizer.decay=1e+20 makes the learning rate larger than float32 holds"),
        ({"lr": math.nan}, "optimizer.lr must be finite"),
        ({"lr": math.inf}, "optimizer.lr must be finite"),
        ({"lr": 0}, "optimizer.lr is 0"),
    ],
)
def test_mistakes_in_the_optimizer_say_what_would_be_right(options, sentence):
    with pytest.raises(UserError) as caught:
        optimizer_of(from_dict({"optimizer": options}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("options", [{"momentum": 1.0}, {"momentum": 1.5}, {"name": "adam", "beta1": 1.0}])
def test_momentum_that_never_fades_is_refused(options):
    with pytest.raises(UserError):
        optimizer_of(from_dict({"optimizer": options}))


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"shape": "step"}, "schedule.shape=step needs schedule.milestones"),
        ({"shape": "cosine", "warmup": 30}, "schedule.warmup=30 leaves no round of 30"),
        (
            {"shape": "step", "milestones": [1, 2], "gamma": 1e30},
            "in 30 rounds schedule.gamma=1e+30 makes the learning rate larger than float32 holds",
        ),
    ],
)
def test_schedules_that_make_no_sense_say_what_would(schedule, sentence):
    with pytest.raises(UserError) as caught:
        optimizer_of(from_dict({"schedule": schedule}))
    assert sentence in str(caught.value)


def test_keys_that_are_no_text_are_a_sentence():
    with pytest.raises(UserError):
        from_dict({1: 2})


def test_options_that_toml_cannot_hold_are_a_sentence():
    with pytest.raises(UserError):
        to_toml(from_dict({"data": {"name": "synthetic", "max_size": None}}))


def test_a_default_of_every_table_is_the_configurations_default():
    assert Config().evaluate == Evaluation()


def test_a_file_that_is_nested_too_deeply_gives_a_sentence(tmp_path):
    deep = tmp_path / "deep.toml"
    deep.write_text("a = " + "[" * 20_000 + "]" * 20_000)
    with pytest.raises(UserError, match=r"deep\.toml is nested too deeply for a configuration"):
        read_toml(deep)
