"""A network as a pure function of a vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedbraid.core.dispatch import NoDraws
from fedbraid.core.dropout import begin_pass, can_be_planned, keys_of, planned
from fedbraid.core.gradient import gradient
from fedbraid.core.last_layer import outputs
from fedbraid.core.outputs import Outputs
from fedbraid.core.vector import Layout
from fedbraid.errors import UserError


@dataclass(frozen=True, eq=False)
class Model:
    """What strands and engines know of a network.

    Parameters travel as the vector `w`. Float buffers (BatchNorm's running statistics) travel beside it as a second
    vector that corrections and server optimisers never touch; integer buffers stay where they are.
    """

    training: nn.Module
    evaluating: nn.Module
    layout: Layout
    buffers: Layout
    frozen: Tensor | None = None  # [D] True for parameters that travel but are not trained (requires_grad=False)
    parts: Callable[[Layout, Tensor], dict[str, Tensor]] = Layout.views  # how a vector is taken apart for training
    tied: tuple[tuple[str, str], ...] = ()  # further places of tensors that lie in several, and these tensors' names
    keys: tuple[str, ...] = ()  # of layers of dropout: where a step's key goes

    @staticmethod
    def of(module: nn.Module) -> Model:
        refuse_hidden_randomness(module)
        floats = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
        still = [torch.full((p.numel(),), not p.requires_grad) for p in module.parameters()]
        training = planned(module).train()
        return Model(
            training=training,
            evaluating=copy.deepcopy(module).eval(),
            layout=Layout.of(dict(module.named_parameters())),
            buffers=Layout.of(floats),
            frozen=torch.cat(still) if any(s.any() for s in still) else None,
            tied=_tied(module),
            keys=keys_of(training),
        )

    def initial(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """The vectors (parameters, buffers) that the network was made with."""
        w = self.layout.flatten({k: v.detach() for k, v in self.training.named_parameters()})
        b = self.buffers.flatten(dict(self.training.named_buffers()))
        return w.to(device, dtype), b.to(device, dtype)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers that the network was made with, by name."""
        return _tensors(self.evaluating)

    def beginning_with(self, values: Mapping[str, Tensor]) -> Model:
        """The same network with other parameters and buffers of the same names, shapes and types."""
        mine = self.tensors
        for name in (*mine, *values):
            here, there = _kind(mine.get(name)), _kind(values.get(name))
            if here != there:
                raise UserError(
                    f"the network is not the one that the run was begun with: {name!r} was {there} there and is {here} "
                    "here; give the same network"
                )
        training, evaluating = (copy.deepcopy(m) for m in (self.training, self.evaluating))
        for module in (training, evaluating):
            tensors = _tensors(module)
            for name, value in values.items():
                tensors[name].copy_(value)
        return replace(self, training=training, evaluating=evaluating)

    def to(self, dtype: torch.dtype, device: torch.device) -> Model:
        """A copy of its own: two threads must not share a module while `functional_call` swaps its tensors."""
        training, evaluating = (copy.deepcopy(m).to(device, dtype) for m in (self.training, self.evaluating))
        frozen = None if self.frozen is None else self.frozen.to(device)
        return replace(self, training=training, evaluating=evaluating, frozen=frozen, parts=Layout.views)

    def predict(self, w: Tensor, buffers: Tensor, x: Tensor) -> Outputs:
        """Outputs in evaluation mode."""
        return self._called(self.evaluating, self.layout.views(w) | self.buffers.views(buffers), x)

    def learn(self, w: Tensor, buffers: Tensor, x: Tensor, key: Tensor | None = None) -> tuple[Outputs, Tensor]:
        """Outputs in training mode, and the buffers afterwards. `key` has the masks of dropout."""
        tensors = self.parts(self.layout, w)
        if self.keys and key is not None:
            begin_pass(self.training)
            tensors = tensors | dict.fromkeys(self.keys, key)
        if not self.buffers.names:
            return self._called(self.training, tensors, x), buffers
        running = {name: b.clone() for name, b in self.buffers.views(buffers).items()}
        out = self._called(self.training, tensors | running, x)
        return out, self.buffers.flatten(running)

    def _called(self, module: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Outputs:
        # torch ties by name, and a layer of two names would keep what it was called with
        everywhere = tensors | {place: tensors[name] for place, name in self.tied if name in tensors}
        return outputs(module, lambda: functional_call(module, everywhere, (x,), tie_weights=False))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}


def _kind(tensor: Tensor | None) -> str:
    """A tensor's type and shape in words."""
    if tensor is None:
        return "missing"
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _tied(module: nn.Module) -> tuple[tuple[str, str], ...]:
    """Places that share their tensor with an earlier one, and the name that it has there. A layer is one place."""
    first: dict[Tensor, str] = {}
    places = ((f"{path}.{key}" if path else key, t) for path, layer in module.named_modules() for key, t in _own(layer))
    return tuple((place, name) for place, t in places if (name := first.setdefault(t, place)) != place)


def _own(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from layer.named_parameters(recurse=False, remove_duplicate=False)
    yield from layer.named_buffers(recurse=False, remove_duplicate=False)


def refuse_hidden_randomness(module: nn.Module) -> None:
    """Layers that draw from torch's global generator would make a result depend on who trained before."""
    for name, layer in module.named_modules():
        if _draws(layer):
            raise UserError(
                f"layer {name or type(layer).__name__!r} ({type(layer).__name__}) draws from torch's global generator, "
                "so seeds would not reproduce; set its rate to 0, or have an nn.Dropout instead"
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            raise UserError(
                f"layer {name!r} ({type(layer).__name__}) has momentum=None, whose counter cannot be averaged "
                "between clients; give it a momentum such as 0.1"
            )


def _draws(layer: nn.Module) -> bool:
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0 and not can_be_planned(layer)
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.RReLU)


def refuse_random_outputs(model: Model, x: Tensor) -> None:
    """A network that draws from torch's global generator somewhere, or whose outputs differ from call to call."""
    for module, when in ((model.training, "training"), (model.evaluating, "evaluation")):
        random = UserError(
            f"in {when} the network draws from a generator that all share (functional dropout?), so seeds "
            "would not reproduce; have an nn.Dropout, or leave it out"
        )
        with torch.no_grad(), NoDraws(random):
            once, again = (outputs(m, partial(m, x)).logits for m in (copy.deepcopy(module), copy.deepcopy(module)))
            if not torch.allclose(once, again, rtol=0, atol=0, equal_nan=True):
                raise random


def refuse_other_tensors(model: Model, x: Tensor) -> None:
    """A network must compute with the weights that it is called with, and with these in the backward pass too."""
    module = copy.deepcopy(model.training)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        return
    w, buffers = model.initial(next(iter(trained.values())).dtype, x.device)
    w = w + 0.01 * torch.linspace(-1, 1, w.numel(), dtype=w.dtype, device=w.device)
    views = model.layout.views(w)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(views[name])
    with torch.enable_grad():
        begin_pass(module)
        expected = _slopes(outputs(module, partial(module, x)).logits, [*trained.values()])
        at = w.requires_grad_()
        key = torch.zeros((), dtype=torch.int64, device=x.device)
        (got,) = _slopes(model.learn(at, buffers, x, key)[0].logits, [at])
    found = model.layout.views(got)
    if any(not _near(found[name], slope) for name, slope in zip(trained, expected, strict=True)):
        raise UserError(
            "the network computes with other tensors than the weights that it is called with (activation "
            "checkpointing? parameters that are also kept in a list?); leave that out"
        )


def _slopes(logits: Tensor, at: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(logits.square().sum(), at, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, at, strict=True)]


def _near(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-3 * other.abs().max() + 1e-6) or not bool(other.isfinite().all())


def why_not_stacked(model: Model, x: Tensor) -> str | None:
    """Why this network must run client by client, or None if it can run as a stack; `x` is a sample or two."""
    for name, layer in model.training.named_modules():
        if isinstance(layer, nn.RNNBase):
            return f"layer {name!r} ({type(layer).__name__}) has no batching rule over clients"
        if isinstance(layer, nn.modules.batchnorm._NormBase) and (
            layer.track_running_stats or isinstance(layer, nn.modules.batchnorm._BatchNorm)
        ):
            return f"layer {name!r} ({type(layer).__name__}) mixes the samples of a batch, padded ones included"
    dtype = next((p.dtype for p in model.training.parameters()), torch.float32)
    w, buffers = model.initial(dtype, x.device)
    try:
        vmap(lambda w: gradient(lambda at: (model.learn(at, buffers, x)[0].logits.sum(), at), w)[0])(w.expand(2, -1))
    except RuntimeError as error:
        return f"torch cannot batch it over clients ({str(error).splitlines()[0]})"
    return None
