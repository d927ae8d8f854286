"""What hooks return: what is due passes, anything else is refused by the hook's name."""

from dataclasses import dataclass

import pytest
import torch

from fedbraid.core.returns import DUE
from fedbraid.core.strand import HOOKS, Strand
from fedbraid.errors import UserError

W = torch.zeros(3)


def strand_with(hook, function):
    return dataclass(frozen=True)(type("Made", (Strand,), {hook: function}))()


def test_every_hook_has_something_due():
    assert DUE.keys() == set(HOOKS)


@pytest.mark.parametrize("hook", DUE)
@pytest.mark.parametrize("value", [None, 1.0, "text", (), {"a": 1.0}, [W]], ids=str)
def test_what_is_not_due_is_refused(hook, value):
    made = strand_with(hook, lambda self, *given: value)
    with pytest.raises(UserError, match=rf"^{hook} of made \(.*test_returns.py:\d+\) returns .*; it must return "):
        getattr(made, hook)(W, W, W)


@pytest.mark.parametrize(
    ("hook", "value"),
    [
        ("grad", torch.zeros(())),
        ("loss", torch.zeros(1)),
        ("weigh", torch.zeros(3, 1)),
        ("update", (torch.zeros(()), {})),
        ("deploy", torch.zeros(4)),
    ],
)
def test_a_wrong_shape_is_told(hook, value):
    with pytest.raises(UserError, match="tensor of shape"):
        getattr(strand_with(hook, lambda self, *given: value), hook)(W, W, W)


@pytest.mark.parametrize(
    ("hook", "value"), [("grad", W), ("end", ({}, {"w": W})), ("update", (None, {})), ("update", (W, {})), ("send", {})]
)
def test_what_is_due_passes(hook, value):
    assert getattr(strand_with(hook, lambda self, *given: value), hook)(W, W, W) is value


def test_a_hook_taken_back_counts_as_none():
    """A subclass may return to FedAvg's."""
    made = strand_with("grad", Strand.grad)
    assert type(made).grad is Strand.grad
