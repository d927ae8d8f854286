"""What a network says about a batch."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import Tensor, nn


class Outputs(NamedTuple):
    """The outputs of the last layer, and the features it received."""

    logits: Tensor
    features: Tensor


def answering_logits(module: nn.Module) -> nn.Module:
    """The network, whose call gives logits alone, as torch's usually do; `forward` still gives what it gave.

    By a hook, so that its class, its layers' names and its state dict stay as they are, and it can be pickled.
    """
    if _logits_alone not in module._forward_hooks.values():
        module.register_forward_hook(_logits_alone)
    return module


def answering_all(module: nn.Module) -> nn.Module:
    """The network before `answering_logits`: a copy, if it ever was given to that."""
    if _logits_alone not in module._forward_hooks.values():
        return module
    module = copy.deepcopy(module)
    for key in [key for key, hook in module._forward_hooks.items() if hook is _logits_alone]:
        del module._forward_hooks[key]
    return module


def _logits_alone(module: nn.Module, given: Any, out: object) -> Tensor | None:
    return out.logits if isinstance(out, Outputs) else None  # None leaves it as it is
