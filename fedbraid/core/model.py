"""The model: a network as a pure function of a vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedbraid.core.batch_norm import CUMULATIVE, CumulativeNorm, make_cumulative
from fedbraid.core.dispatch import NoDraws, WatchDraws
from fedbraid.core.dropout import begin_pass, dropout_keys, has_keyed_form, with_keyed_dropout
from fedbraid.core.forward_rules import ForwardRules
from fedbraid.core.gradient import gradient
from fedbraid.core.last_layer import outputs
from fedbraid.core.outputs import Outputs
from fedbraid.core.torch_generator import forked_generator
from fedbraid.core.vector import Layout
from fedbraid.errors import UserError


@dataclass(frozen=True, eq=False)
class Model:
    """A network as strands and engines use it.

    Parameters travel as the vector `w`. Float buffers (BatchNorm's running statistics) travel beside it as a second
    vector that corrections and server optimisers never touch; integer buffers stay where they are.
    """

    training: nn.Module
    evaluating: nn.Module
    layout: Layout
    buffers: Layout
    frozen: Tensor | None = None  # [D] True for parameters that travel but are not trained (requires_grad=False)
    parts: Callable[[Layout, Tensor], dict[str, Tensor]] = Layout.views  # splits a vector into parameters for training
    tied: tuple[tuple[str, str], ...] = ()  # further names of tensors that have several, and their first names
    keys: tuple[str, ...] = ()  # buffers of dropout layers that receive a step's key
    draws: bool = False  # functions of the network draw random numbers, which come from a step's key
    stacked: bool = False  # clients are batched by `torch.func.vmap`, and batches are padded

    @staticmethod
    def of(module: nn.Module, frozen_statistics: bool = False, constants: Collection[str] = ()) -> Model:
        """Return the model of a network.

        Args:
            module: the network; it is copied.
            frozen_statistics: layers with running statistics normalise by these in training too; the statistics are no
                part of the buffers, so they neither change nor travel.
            constants: names of parameters that nobody changes. They stay in the network, once for all clients, and are
                no part of the vector `w`.

        Raises UserError for layers that cannot be trained here.
        """
        refuse_unsupported_layers(module)
        training = make_cumulative(with_keyed_dropout(module)).train()
        frozen = set[str]()
        for path, layer in training.named_modules() if frozen_statistics else ():
            if _tracks(layer):
                layer.eval()
                frozen |= {f"{path}.{name}" if path else name for name, _ in layer.named_buffers()}
        floats = {name: b for name, b in training.named_buffers() if b.is_floating_point() and name not in frozen}
        changing = {name: p for name, p in module.named_parameters() if name not in constants}
        still = [torch.full((p.numel(),), not p.requires_grad) for p in changing.values()]
        return Model(
            training=training,
            evaluating=copy.deepcopy(module).eval(),
            layout=Layout.of(changing),
            buffers=Layout.of(floats),
            frozen=torch.cat(still) if any(bool(s.any()) for s in still) else None,
            tied=_tied(module),
            keys=dropout_keys(training),
            draws=bool(getattr(module, NOTED_DRAWS, False)) or any(map(_draws, module.modules())),
        )

    @property
    def constants(self) -> dict[str, Tensor]:
        """Parameters that are no part of the vector `w`, by name."""
        held = {*self.layout.names}
        return {name: p.detach() for name, p in self.evaluating.named_parameters() if name not in held}

    @property
    def random(self) -> bool:
        """Whether training draws random numbers, so that every local step needs a key."""
        return self.draws or bool(self.keys)

    @property
    def normalises(self) -> bool:
        """Whether a layer normalises by statistics of the batch in training."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in self.training.modules())

    def for_stack(self) -> Model:
        """Return the model for batches that are padded and clients that are batched by `torch.func.vmap`."""
        training = copy.deepcopy(self.training)
        for layer in training.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, CumulativeNorm):
                # A counter that momentum=None alone reads. Counting writes in place into a tensor that all clients
                # share, and a traced step with such a write cannot drop repeated operations.
                layer.num_batches_tracked = None
        return replace(self, training=training, stacked=True)

    def initial(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """The vectors (parameters, buffers) that the network was made with."""
        w = self.layout.flatten({k: v.detach() for k, v in self.training.named_parameters()})
        b = self.buffers.flatten(dict(self.training.named_buffers()))
        return w.to(device, dtype), b.to(device, dtype)

    @property
    def norms(self) -> frozenset[str]:
        """The parameters of normalisation layers, by name."""
        kinds = nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm
        layers = ((path, layer) for path, layer in self.training.named_modules() if isinstance(layer, kinds))
        return frozenset(f"{path}.{name}" for path, layer in layers for name, _ in layer.named_parameters())

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
        """Return the outputs for `x` [B, ...] in evaluation mode, with parameters `w` [D] and `buffers` [Db]."""
        with ForwardRules(stacked=True) if self.stacked else nullcontext():
            return self._called(self.evaluating, self.layout.views(w) | self.buffers.views(buffers), x)

    def learn(
        self, w: Tensor, buffers: Tensor, x: Tensor, key: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor]:
        """Return the outputs for `x` [B, ...] in training mode, and the buffers [Db] afterwards.

        Args:
            w: [D] parameters.
            buffers: [Db] float buffers before the pass.
            x: [B, ...] inputs.
            key: [] the step's key; every random number of the pass follows from it.
            mask: [B] 1 for real samples, 0 for padding; read only if the model is stacked.
        """
        if not self.stacked and not self.draws:
            return self._learn(w, buffers, x, key)
        if key is None:  # a trial: any numbers will do, but not those of torch's generator
            key = torch.zeros((), dtype=torch.int64, device=x.device)
        with ForwardRules(key if self.draws else None, mask, self.stacked):
            return self._learn(w, buffers, x, key)

    def _learn(self, w: Tensor, buffers: Tensor, x: Tensor, key: Tensor | None) -> tuple[Outputs, Tensor]:
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


NOTED_DRAWS = "_fedbraid_draws"
"""Attribute of a network whose functions draw random numbers, found by a trial; copies and other processes keep it."""


def with_noted_draws(module: nn.Module, x: Tensor, dtype: torch.dtype) -> nn.Module:
    """Return the network, marked if its functions draw from torch's generator in training. It is tried on `x`."""
    trial = with_keyed_dropout(module).to(x.device, dtype).train()
    with torch.no_grad(), forked_generator(x.device), WatchDraws() as watch:
        trial(x)
    if not watch.found:
        return module
    module = copy.deepcopy(module)
    setattr(module, NOTED_DRAWS, True)
    return module


def refuse_unsupported_layers(module: nn.Module) -> None:
    """Raise UserError for layers whose training cannot be that of one client."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise UserError(
                f"layer {name!r} (SyncBatchNorm) would mix the statistics of processes; have nn.BatchNorm2d instead"
            )
        other = isinstance(layer, nn.modules.batchnorm._BatchNorm) and type(layer) not in CUMULATIVE
        if other and layer.momentum is None and layer.track_running_stats:
            raise UserError(
                f"layer {name!r} ({type(layer).__name__}) has momentum=None, whose counter cannot be averaged "
                "between clients; give it a momentum such as 0.1, or have torch's own class"
            )


def has_running_statistics(module: nn.Module) -> bool:
    """Return whether a layer of the network tracks statistics of its inputs."""
    return any(map(_tracks, module.modules()))


def _tracks(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats


def _draws(layer: nn.Module) -> bool:
    """Return whether a layer draws in training by a function for which there is a rule."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0 and not has_keyed_form(layer)
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.RReLU)


def refuse_random_outputs(model: Model, x: Tensor) -> None:
    """Raise UserError if the network draws numbers that do not follow from a step's key."""
    key = torch.zeros((), dtype=torch.int64, device=x.device)
    for when in ("training", "evaluation"):
        reason = f"in {when} the network draws random numbers that the run's seed does not determine"
        with torch.no_grad(), NoDraws(partial(_refused_draw, reason)):
            once, again = (_logits_of(model, when, x, key) for _ in range(2))
        if not torch.equal(once.nan_to_num(), again.nan_to_num()):
            raise UserError(f"{reason} (NumPy? Python's random?); {REMEDY}")


def _refused_draw(reason: str, line: str) -> UserError:
    return UserError(f"{reason}{line}; {REMEDY}")


REMEDY = "have an nn.Dropout, a function such as F.dropout(x, p, self.training) or torch.rand, or leave it out"


def _logits_of(model: Model, when: str, x: Tensor, key: Tensor) -> Tensor:
    """Return the logits of one pass on copies, which leaves counters of the network alone."""
    trial = replace(model, training=copy.deepcopy(model.training), evaluating=copy.deepcopy(model.evaluating))
    w, buffers = _vectors(trial, x)
    return trial.learn(w, buffers, x, key)[0].logits if when == "training" else trial.predict(w, buffers, x).logits


def _vectors(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    dtype = next((p.dtype for p in model.training.parameters()), torch.get_default_dtype())
    return model.initial(dtype, x.device)


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
            p.copy_(views.get(name, p))
    with torch.enable_grad():
        begin_pass(module)
        key = torch.zeros((), dtype=torch.int64, device=x.device)
        with ForwardRules(key) if model.draws else nullcontext():
            expected = _slopes(outputs(module, partial(module, x)).logits, [*trained.values()])
        at = w.requires_grad_()
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
    """Return why this network must run client by client, or None if it can run as a stack; `x` is a sample or two."""
    for name, layer in model.training.named_modules():
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
            return f"layer {name!r} ({type(layer).__name__}) mixes the samples of a batch, padded ones included"
    w, buffers = _vectors(model, x)
    stacked = model.for_stack()
    key = torch.arange(2, device=x.device)
    padded = torch.cat([x, x[:1], x[:1]])
    mask = (torch.arange(len(padded), device=x.device) < len(x)).to(w.dtype)

    def one(w: Tensor, buffers: Tensor, x: Tensor, mask: Tensor, key: Tensor) -> Tensor:
        def objective(at: Tensor) -> tuple[Tensor, Tensor]:
            logits = stacked.learn(at, buffers, x, key, mask)[0].logits
            return logits.sum(), logits

        logits: Tensor = gradient(objective, w)[1][1]
        return logits

    try:
        both = [t.expand(2, *t.shape) for t in (w, buffers, padded, mask)]  # each has a client axis in a stack
        together: Tensor = vmap(one)(*both, key)  # type: ignore[call-arg]
    except RuntimeError as error:
        return f"torch cannot batch it over clients ({str(error).splitlines()[0]})"
    if len(x) > 1:  # a batch of one sample is not one that BatchNorm could train on
        trial = replace(model, training=copy.deepcopy(model.training))
        with torch.no_grad():
            alone = torch.stack([trial.learn(w, buffers, x, k)[0].logits for k in key])
        if not _near(together[:, : len(x)], alone):
            return "what it computes for a sample depends on the padding of its batch"
    return None
