"""What users write goes on to mean the same: names, options, defaults, digests and random streams of version 0.1."""

import matrix
import names
import pytest
from matrix import behaviour

import fedbraid as fb
from fedbraid.studies.run_digest import LATER

PINNED = behaviour()


def test_every_public_name_is_there():
    with matrix.quiet():
        assert [name for name in PINNED["public"] if not hasattr(fb, name)] == []


def test_every_method_is_there():
    now = names.METHODS
    assert {name: now.get(name) for name in PINNED["methods"]} == PINNED["methods"]


@pytest.mark.parametrize("hook", PINNED["hooks"])
def test_a_strand_may_be_written_with_every_hook(hook):
    """A hook that is called otherwise now goes on under its old name."""
    with matrix.quiet():
        made = type(f"With{hook.title()}", (fb.Strand,), {"__annotations__": {}, **inherited(hook)})
    assert made.name


def inherited(hook):
    """A hook that does what the inherited one does; attributes are as they are."""
    if not hasattr(fb.Strand, hook):
        return {hook: lambda self, *args: None}
    own = getattr(fb.Strand, hook)
    if callable(own):
        return {hook: lambda self, *args: own(self, *args)}
    return {} if hook in ("name", "title") else {hook: own}


def test_the_configuration_has_its_keys_and_defaults():
    assert missing(PINNED["config"], names.as_values(fb.Config())) == []


def missing(then, now, place=""):
    """Keys whose default is another, or that are gone."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            found
            for key in then
            for found in (missing(then[key], now[key], f"{place}.{key}") if key in now else [f"{place}.{key}"])
        ]
    return [] if then == now else [place]


@pytest.mark.parametrize("command", PINNED["commands"])
def test_a_command_has_its_options(command):
    assert set(PINNED["commands"][command]) <= set(names.options(command))


def test_an_option_that_was_added_leaves_digests_as_they_were():
    """An entry has the options that it had; one that is new in it is in LATER, so that recorded runs are found."""
    now = names.options_of_entries()
    gone = {
        (table, name, option)
        for table, entries in PINNED["options"].items()
        for name, options in entries.items()
        for option in set(options) - set(now[table].get(name, []))
    }
    new = {
        (table, option)
        for table, entries in now.items()
        for name, options in entries.items()
        for option in set(options) - set(PINNED["options"][table].get(name, options))
    }
    assert not gone and new <= {(table, option) for table, options in LATER.items() for option in options}


def test_streams_draw_the_same():
    assert names.streams() == PINNED["streams"]


@pytest.mark.parametrize(
    "recipe", [pytest.param(r, marks=[] if r in names.QUICK else pytest.mark.slow) for r in PINNED["recipes"]]
)
def test_runs_of_a_recipe_have_their_digests(recipe):
    """As long as the recipe is as it was."""
    (file,) = (file for file in names.files() if file.stem == recipe)
    now, then = names.digests(file), PINNED["recipes"][recipe]
    assert now == then or now[2] != then[2]
