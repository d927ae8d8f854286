"""The network of a run, tried on samples before it is trained."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fedbraid import models
from fedbraid.config.schema import Config, ModelConfig
from fedbraid.core.chain import Chain
from fedbraid.core.last_layer import outputs
from fedbraid.core.model import (
    Model,
    has_running_statistics,
    refuse_other_tensors,
    refuse_random_outputs,
    refuse_unsupported_layers,
    with_noted_draws,
)
from fedbraid.data.dataset import Dataset, Split
from fedbraid.engines.device import device_of
from fedbraid.engines.samples import Samples
from fedbraid.errors import UserError, first_line


def network_of(
    config: Config, chain: Chain, dataset: Dataset, own: models.Own | None = None, holds_frozen: bool = True
) -> Model:
    """Return the network for samples such as the data set's, as the chain's strands want it.

    `holds_frozen`: parameters that nobody trains are held once, in the network, and do not travel. A federation over
    machines sends them, since each one builds the network by itself.
    """
    if own is not None:
        check_named(config, own)
        module = _tried(models.made(own, config.seed, config.model.options), config, dataset)
    else:
        module = models.build(
            config.model.name,
            dataset.shape,
            dataset.classes,
            tokens=dataset.tokens,
            seed=config.seed,
            **config.model.options,
        )
        if models.is_library(config.model.name):
            module = _tried(module, config, dataset)
    still = {name: p for name, p in module.named_parameters() if not p.requires_grad} if holds_frozen else {}
    module = altered(module, chain)
    model = Model.of(module, config.buffers == "freeze", unchanged(still, module))
    if config.buffers != "average" and not has_running_statistics(model.training):
        raise UserError(f"buffers is {config.buffers}, but the network has no running statistics; leave it at average")
    return model.to(getattr(torch, config.engine.dtype), device_of(config.engine.device))


def unchanged(still: Mapping[str, Tensor], module: nn.Module) -> set[str]:
    """Return the names of parameters `still` that strands left as they were: none trains them and none sets them."""
    now = dict(module.named_parameters())
    left = {name for name in still if name in now and not now[name].requires_grad}
    last = f"{models.last_layer(module)}."  # strands look for it in the vector
    return {name for name in left if not name.startswith(last) and torch.equal(now[name], still[name])}


def check_named(config: Config, own: models.Own) -> None:
    """Refuse settings that name another network than the supplied one."""
    asked, name = config.model.name, models.name_of(own)
    if "model.name" in config.varied or asked not in (ModelConfig.name, name):
        raise UserError(f"model.name={asked}, but the network was given: {name}; leave out one of the two")


def altered(module: nn.Module, chain: Chain) -> nn.Module:
    """The network as the chain's strands want it."""
    for strand in chain.using("model"):
        module = strand.model(copy.deepcopy(module))
    return module


def _tried(module: nn.Module, config: Config, dataset: Dataset) -> nn.Module:
    """Return the supplied network, after a trial of what it returns and of the weights it computes with."""
    dtype, one = getattr(torch, config.engine.dtype), Split(dataset.train.x[:1], dataset.train.y[:1])
    samples = Samples.of(dataset, one, dtype, device_of(config.engine.device))
    x = _first_twice(samples)
    with _taking(samples, dataset):
        refuse_unsupported_layers(module)
        module = with_noted_draws(models.with_last_layer(module, x, dtype), x, dtype)
        model = Model.of(module).to(dtype, x.device)
        refuse_random_outputs(model, x)
        refuse_other_tensors(model, x)
    return module


def check_network(model: Model, samples: Samples, dataset: Dataset) -> None:
    """Refuse, before the first round, a network that does not take the samples or answers in another shape."""
    x = _first_twice(samples)
    with _taking(samples, dataset):
        refuse_random_outputs(model, x)
        logits = outputs(model.evaluating, partial(model.evaluating, x)).logits
    if not logits.isfinite().all():
        raise UserError(
            f"the network's answers to the first sample of {dataset.name} are not finite; look at its weights, and at "
            "the data set's mean and std"
        )
    if logits.shape != (2, dataset.classes):
        raise UserError(
            f"the network answers two samples with logits of shape {tuple(logits.shape)}; "
            f"{dataset.name} needs (2, {dataset.classes})"
        )


def _first_twice(samples: Samples) -> Tensor:
    return samples.inputs(torch.zeros(2, dtype=torch.int64, device=samples.x.device))


@contextmanager
def _taking(samples: Samples, dataset: Dataset) -> Iterator[None]:
    """Turn errors of the network, while it is tried on samples, into UserErrors."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = first_line(error)
        if not isinstance(error, RuntimeError | IndexError | TypeError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        words = "; whole numbers are words: give pixels as uint8, other numbers as float32" if samples.is_text else ""
        raise UserError(f"the network does not take samples of shape {dataset.shape} ({reason}){words}") from error
