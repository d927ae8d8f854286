"""Messages come back as they were written, and what is not as it should be is refused by one sentence."""

import json
import random
from contextlib import suppress

import pytest
import torch
from safetensors.torch import save

from fedbraid.deploy.messages import (
    HEADER,
    ROOM,
    VERSION,
    Message,
    MessageRefused,
    at_most,
    check_tensors,
    digest,
    read,
)

DUE = {"model": torch.zeros(5), "buffers": torch.zeros(0), "n": torch.zeros((), dtype=torch.int64)}
MOST = 1 << 20


def message(**changes):
    values = {"kind": "train", "run": "ab", "round": 3, "payload": {"lr": 0.1, "samples": 7}, "tensors": tensors()}
    return Message(**(values | changes))


def tensors(**changes):
    return {"model": torch.arange(5.0), "buffers": torch.zeros(0), "n": torch.tensor(4)} | changes


def packed(header, metadata=None):
    return save({}, metadata or {HEADER: json.dumps(header)})


def header(**changes):
    return {"version": VERSION, "kind": "train", "run": "ab", "round": 3, "told": {}} | changes


def test_a_letter_comes_back_as_it_was_written():
    wrote = message(payload={"lr": 0.1 + 0.2, "names": ["a", "β"], "none": None})
    got = read(wrote.to_bytes(), MOST)
    assert (got.kind, got.run, got.round, got.payload) == (wrote.kind, wrote.run, wrote.round, wrote.payload)
    assert got.tensors.keys() == wrote.tensors.keys()
    for key, value in wrote.tensors.items():
        assert got.tensors[key].dtype == value.dtype and torch.equal(got.tensors[key], value)


def test_the_same_letter_gives_the_same_bytes_and_another_one_another_mark():
    one = message(payload={"a": 1, "b": 2}, tensors=tensors())
    same = message(payload={"b": 2, "a": 1}, tensors=dict(reversed(tensors().items())))
    assert one.to_bytes() == same.to_bytes()
    others = [message(round=4), message(run="cd"), message(payload={}), message(tensors=tensors(model=torch.zeros(5)))]
    assert len({digest(other.to_bytes()) for other in [one, *others]}) == 5


def test_views_and_expanded_tensors_are_written_whole():
    wide = torch.arange(6.0).reshape(2, 3)
    got = read(Message("answer", "ab", 0, {}, {"t": wide.T, "e": torch.ones(1).expand(4)}).to_bytes(), MOST)
    assert torch.equal(got.tensors["t"], wide.T) and torch.equal(got.tensors["e"], torch.ones(4))


# --- what is no message


def refused(content, reason, most=MOST):
    with pytest.raises(MessageRefused, match=reason) as refusal:
        read(content, most)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 200


def test_size_is_looked_at_before_anything_else():
    content = message().to_bytes()
    assert read(content, len(content)).round == 3
    refused(content, "at most", most=len(content) - 1)
    refused(b"\xff" * 100, "100 bytes", most=99)  # malformed as well, but nobody looked


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\xff" * 8,
        b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
        (2**62).to_bytes(8, "little") + b"{}",
        (200000).to_bytes(8, "little") + b"[" * 200000,
        save({"model": torch.zeros(2)}),
        packed({}, {"other": "{}"}),
        packed({}, {HEADER: "no JSON"}),
        packed({}, {HEADER: "[" * 100000}),
        packed({}, {HEADER: json.dumps(header(payload={"x": float("nan")}))}),
        packed(header(), {HEADER: json.dumps([1, 2])}),
        *(packed({key: value for key, value in header().items() if key != gone}) for gone in header()),
        packed(header(kind=1)),
        packed(header(run=None)),
        packed(header(round="3")),
        packed(header(round=True)),
        packed(header(told=[])),
        b"\x80\x04\x95pickle",
    ],
    ids=range(23),
)
def test_malformed(content):
    refused(content, "no well-formed message")


def test_another_version_is_said_so():
    refused(packed(header(version=2)), "version 2 of messages, not 1")


def test_every_truncation_and_a_thousand_corruptions_are_refused_or_read():
    """Whatever comes, `read` gives a message or a sentence."""
    content = message().to_bytes()
    for length in range(len(content)):
        refused(content[:length], "no well-formed message")
    rng = random.Random(0)
    for _ in range(1000):
        broken = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        with suppress(MessageRefused):
            check_tensors(read(bytes(broken), MOST).tensors, DUE)


# --- what is a message, and not the one that was due


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "probe"}, "kind 'probe', not 'train'"),
        ({"run": "cd"}, "another run"),
        ({"round": 2}, "round 3, not 4"),
    ],
)
def test_another_letter(changes, reason):
    message().require("train", "ab", 3)
    with pytest.raises(MessageRefused, match=reason):
        message(**changes).require("train", "ab", 3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": torch.zeros(6)}, r"shape \[6\], not \[5\]"),
        ({"model": torch.zeros(5, 1)}, r"shape \[5, 1\]"),
        ({"model": torch.zeros(5, dtype=torch.float64)}, "float64, not float32"),
        ({"n": torch.tensor(4.0)}, "float32, not int64"),
        ({"more": torch.zeros(1)}, "'more', which was not asked for"),
        ({"model": torch.tensor([0, 0, float("nan"), 0, 0])}, "not finite"),
        ({"model": torch.tensor([0, 0, float("-inf"), 0, 0])}, "not finite"),
    ],
)
def test_other_tensors(changes, reason):
    check_tensors(tensors(), DUE)
    with pytest.raises(MessageRefused, match=reason):
        check_tensors(tensors(**changes), DUE)


@pytest.mark.parametrize("gone", list(DUE))
def test_a_tensor_that_lacks(gone):
    with pytest.raises(MessageRefused, match=f"lacks '{gone}'"):
        check_tensors({key: value for key, value in tensors().items() if key != gone}, DUE)


@pytest.mark.parametrize("value", [None, "7", True, [7], -1, 2**63, 7.5, float("1e400")])
def test_counts_are_counts(value):
    assert message().count("samples") == 7
    with pytest.raises(MessageRefused, match="'samples' must be a whole number"):
        message(payload={"samples": value}).count("samples")


@pytest.mark.parametrize("value", [None, "7", False, -1e-9, float("1e400"), float("nan")])
def test_numbers_are_numbers(value):
    assert message().number("lr") == 0.1
    with pytest.raises(MessageRefused, match="'lr' must be a number"):
        message(payload={"lr": value}).number("lr")


def test_what_is_due_fits_its_limit():
    assert len(message().to_bytes()) <= at_most(DUE) == 5 * 4 + 8 + ROOM
