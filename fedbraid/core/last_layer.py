"""The last layer of a network, whose inputs are the features.

A network returns `Outputs`, or logits alone. Of the latter the last layer is found by one call and noted on the module:
so copies, other processes and strands that change the network know it too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedbraid.core.outputs import Outputs
from fedbraid.core.torch_generator import forked_generator
from fedbraid.errors import UserError

HEAD = "head"
"""What the last layer is called in a network that returns `Outputs`."""
CALLED = f"called {HEAD} where the network returns fedbraid.Outputs"
NOTED = "_fedbraid_last_layer"

WHAT_TO_RETURN = "fedbraid.Outputs(logits, features), where features are what its last layer receives"


def last_layer(module: nn.Module) -> str:
    """The name of the layer that gives the logits, as `get_submodule` takes it."""
    return str(getattr(module, NOTED, HEAD))


def with_last_layer(module: nn.Module, x: Tensor, dtype: torch.dtype) -> nn.Module:
    """The network, knowing its last layer if it returns logits alone. It is tried on `x`, with weights of `dtype`."""
    trained, evaluated = (_found(copy.deepcopy(module).to(x.device, dtype).train(mode), x) for mode in (True, False))
    if trained != evaluated:
        raise UserError(f"the network returns something else in training than in evaluation; return {WHAT_TO_RETURN}")
    if trained is None:
        return module
    module = copy.deepcopy(module)
    setattr(module, NOTED, trained)
    return module


def outputs(module: nn.Module, call: Callable[[], object]) -> Outputs:
    """What `module` answers to `call`, which calls it; with the features also where it returns logits alone."""
    if not hasattr(module, NOTED):
        return _as_outputs(call())
    received: list[Tensor] = []

    def note(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        received.append(*given, *named.values())

    # for this call only: a hook that stays would be shared by copies, and could not be pickled
    hook = module.get_submodule(last_layer(module)).register_forward_pre_hook(note, with_kwargs=True)
    try:
        logits = call()
    finally:
        hook.remove()
    if not isinstance(logits, Tensor) or len(received) != 1:
        raise UserError(f"the network no longer returns what its last layer gives; return {WHAT_TO_RETURN}")
    return Outputs(logits, received[0])


def _as_outputs(result: object) -> Outputs:
    if isinstance(result, Outputs):
        return result
    raise UserError(f"the network returned {type(result).__name__}; a FedBraid network returns {WHAT_TO_RETURN}")


def _found(module: nn.Module, x: Tensor) -> str | None:
    """The name of the nn.Linear whose outputs the network returns as they are; None if it returns `Outputs`."""
    gave: list[tuple[str, Tensor, int]] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda layer, given, out: gave.append((name, out, out._version))

    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(noting(name))
    with torch.no_grad(), forked_generator(x.device):
        result = module(x)
    if not isinstance(result, Tensor):
        _as_outputs(result)
        return None
    names = [name for name, out, version in gave if _is_same(out, result) and result._version == version]
    if len(names) != 1 or [name for name, *_ in gave].count(names[0]) != 1:
        raise UserError(
            "the network returned a Tensor, but not as one nn.Linear, called once, gave it; leave out what comes after "
            f"the last layer (a softmax is part of the loss), or return {WHAT_TO_RETURN}"
        )
    return names[0]


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same place in memory: what is computed from another has a place of its own."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
