"""Networks by name.

Each one's last layer is called `head`; what `head` receives are the features. They hold no dropout, `forward` never
branches on data, and but for BatchNorm where it is asked for they keep no statistics, so clients can be stacked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedbraid.config.registry import Entry, find, whole
from fedbraid.core.last_layer import last_layer, with_last_layer
from fedbraid.core.outputs import Outputs, answering_all
from fedbraid.core.torch_generator import forked_generator
from fedbraid.errors import UserError, first_line
from fedbraid.models.convolutional import CNN, FEDAVG_CNN, LENET, TINY_CNN, cnn, fedavg_cnn, lenet, tiny_cnn
from fedbraid.models.dense import Perceptron, logistic, mlp
from fedbraid.models.external import is_library, library_network
from fedbraid.models.residual import resnet18, resnet20, resnet50
from fedbraid.models.takes import Takes
from fedbraid.models.text import FILTER_WIDTHS, lstm, textcnn
from fedbraid.models.transformer import vit_small, vit_tiny

__all__ = [
    "Outputs",
    "Own",
    "build",
    "describe",
    "find_network",
    "fitting",
    "is_library",
    "is_named",
    "last_layer",
    "made",
    "name_of",
    "names",
    "with_last_layer",
]

Own = nn.Module | Callable[..., nn.Module]
"""A user-defined network: a module, or a function or class that makes one."""


@dataclass(frozen=True)
class Network(Entry[nn.Module]):
    """A network's maker, and what it takes."""

    takes: Takes


OWN = (
    "give a network of your own with --model FILE.py:CLASS (model=CLASS in Python), or name another library's, such as "
    "torchvision:resnet18"
)
FILES = {"vectors", "weights"}
"""Options that name files; the weights that a network begins with depend on them, and nothing else."""
NUMBERS, IMAGES = Takes("numbers"), Takes("images")
MODELS = (
    Network("logistic", "logistic regression: one linear layer on the flattened input", logistic, NUMBERS),
    Network("mlp", "fully connected layers with ReLU, of the widths in hidden", mlp, NUMBERS),
    Network(
        "perceptron", "one layer whose sigmoid gives the logits (LEAF and FedSkip on SYNTHETIC)", Perceptron, NUMBERS
    ),
    Network(
        "lenet",
        "two convolutions of 6 and 16 channels, layers of 120 and 84 (MOON, FedSkip, FedDisco)",
        lenet,
        Takes("images", LENET.smallest_side),
    ),
    Network(
        "cnn",
        "two convolutions of 64 channels, layers of 384 and 192 (FedDyn, ASD)",
        cnn,
        Takes("images", CNN.smallest_side),
    ),
    Network(
        "fedavg-cnn",
        "two padded convolutions of 32 and 64 channels, a layer of 512 (FedAvg, rFedAvg)",
        fedavg_cnn,
        Takes("images", FEDAVG_CNN.smallest_side),
    ),
    Network(
        "tiny-cnn",
        "three convolutions of 64 channels with GroupNorm, layers of 512 and 384 (ASD on Tiny-ImageNet)",
        tiny_cnn,
        Takes("images", TINY_CNN.smallest_side),
    ),
    Network("resnet18", "ResNet-18 with a 3x3 stem; norm is group or batch (FedDisco, FedACD)", resnet18, IMAGES),
    Network("resnet20", "ResNet-20 of 16, 32 and 64 channels; norm is group or batch (ASD)", resnet20, IMAGES),
    Network("resnet50", "ResNet-50 with a 3x3 stem; norm is group or batch (MOON, FedSkip: batch)", resnet50, IMAGES),
    Network("vit-tiny", "vision transformer, 192 wide, 3 heads, as DeiT-Ti", vit_tiny, IMAGES),
    Network("vit-small", "vision transformer, 384 wide, 6 heads, as DeiT-S (ASD)", vit_small, IMAGES),
    Network(
        "textcnn",
        "filters of 3, 4 and 5 tokens, the greatest answer of each (FedDisco on AG News)",
        textcnn,
        Takes("texts", max(FILTER_WIDTHS)),
    ),
    Network(
        "lstm",
        "LSTM layers over embedded tokens (rFedAvg on Sent140; embedding=8, hidden=100 for Shakespeare)",
        lstm,
        Takes("texts"),
    ),
)


def build(
    name: str, shape: Sequence[int], classes: int, *, tokens: Sequence[str] = (), seed: int = 0, **options: Any
) -> nn.Module:
    """The network called `name` for samples of `shape`; `classes` is the width of its output, 1 for a regression.

    `tokens` are what the numbers in a text stand for; networks for texts need them, others refuse them.

    Weights are drawn from `seed` alone, from torch's default distribution where a network's paper states no other;
    torch's global generators stay as they were.
    """
    if is_library(name):
        return _drawn(lambda: library_network(name, shape, classes, tokens=tokens, **options), seed)
    entry = find_network(name, options)
    sides = tuple(whole("each side of a sample's shape", side) for side in shape)
    classes, seed = whole("classes", classes), whole("seed", seed, 0)
    if not entry.takes.fits(sides, tokens):
        given = f"texts of shape {sides}" if tokens else f"samples of shape {sides}"
        fits = ", ".join(fitting(sides, tokens)) or "none"
        raise UserError(f"model {name!r} needs {entry.takes}, not {given}; models that fit: {fits}")
    surroundings = {"tokens": tokens} if entry.takes.kind == "texts" else {}
    return _drawn(lambda: entry.make(sides, classes, **surroundings, **options), seed)


def find_network(name: str, options: Mapping[str, Any]) -> Network:
    """Return the entry of the network called `name`; raise UserError if it does not take all of `options`.

    The options of other libraries' networks are checked by these, when the network is made.
    """
    if is_library(name):
        return Network(name, f"a network of {name.partition(':')[0]}", partial(library_network, name), NUMBERS)
    return cast(Network, find("model", name, MODELS, options, otherwise=OWN))


def made(network: Own, seed: int, options: Mapping[str, Any]) -> nn.Module:
    """Return a user-defined network: a module as it is, or the result of a class or a function, called under `seed`."""
    if (name := name_of(network)) in names():
        raise UserError(f"the name {name!r} is that of a network of FedBraid's; give yours another one")
    module = answering_all(network if isinstance(network, nn.Module) else _called(network, seed, options))
    for name, layer in module.named_modules():
        if any(map(is_lazy, (*layer.parameters(recurse=False), *layer.buffers(recurse=False)))):
            raise UserError(
                f"layer {name!r} ({type(layer).__name__}) has no weights before it is called; give its number of inputs"
            )
    return module


def _called(network: Callable[..., nn.Module], seed: int, options: Mapping[str, Any]) -> nn.Module:
    name = name_of(network)
    try:
        with suppress(ValueError):  # builtin ones may not tell what they take
            inspect.signature(network).bind(**options)
    except TypeError as error:
        given = f"with {', '.join(options)}" if options else "without arguments"
        raise UserError(
            f"model is called {given}, and {name} cannot be ({error}); set its arguments as model.KEY=VALUE, or in "
            "Python give a function that makes the network, such as lambda: Net(64)"
        ) from None
    try:
        module = _drawn(lambda: network(**options), seed)
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{name} could not be called: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise UserError(
            f"model is called to make the network, and {name} gave {type(module).__name__}; "
            "it must return a torch module"
        )
    return module


def name_of(network: Own) -> str:
    """Return the name of a user-defined network: its class, or the function that makes it."""
    named = type(network) if isinstance(network, nn.Module) else network
    return str(getattr(named, "__name__", type(named).__name__))


def _drawn(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with forked_generator(seed=seed), torch.device("cpu"):  # on the CPU, whatever the default device
        return make()


def fitting(shape: Sequence[int], tokens: Sequence[str] = ()) -> list[str]:
    """The names of the models that take samples of `shape`; with `tokens` they are texts."""
    return [entry.name for entry in MODELS if entry.takes.fits(tuple(shape), tokens)]


def is_named(name: str) -> bool:
    """Return whether a configuration's model is known by its name, and no user-defined network."""
    return name in names() or is_library(name)


def names() -> list[str]:
    return [entry.name for entry in MODELS]


def describe() -> tuple[Entry[nn.Module], ...]:
    """Every model with its name, its summary and its options."""
    return MODELS
