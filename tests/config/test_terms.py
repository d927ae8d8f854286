"""Lines that people write: names with settings, joined by '+'."""

import pytest

from fedbraid.config.terms import terms
from fedbraid.errors import UserError


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("iid", [("iid", {})]),
        (" a + b ()+c", [("a", {}), ("b", {}), ("c", {})]),
        ("a(x=1, y=-2.5)+b(z=1-1e-5)", [("a", {"x": 1, "y": -2.5}), ("b", {"z": 1 - 1e-5})]),
        ("a(x=kl, y=true, z=False)", [("a", {"x": "kl", "y": True, "z": False})]),
        ("a(x='two words', y=[1, 2], z=(3,))", [("a", {"x": "two words", "y": [1, 2], "z": (3,)})]),
    ],
)
def test_names_and_settings_are_read(text, read):
    assert terms(text, "anything") == read


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "a+",
        "a-b",
        "a(1)",
        "a(x=1, x=2)",
        "a(**x)",
        "a.b(x=1)",
        "a(x=f(1))",
        "a(x=1+'b')",
        "3",
        "(" * 500,
        "a\0",
    ],
)
def test_what_cannot_be_read_is_said_to_be_no_such_thing(text):
    with pytest.raises(UserError, match="is not a method; write one") as caught:
        terms(text, "a method; write one")
    assert len(str(caught.value)) < 130


def test_text_in_quotes_stays_as_it_is():
    assert terms("a(path='b=c,d', kind=e)", "this") == [("a", {"path": "b=c,d", "kind": "e"})]
    assert terms('a(path="x=y)", kind=e)', "this") == [("a", {"path": "x=y)", "kind": "e"})]
