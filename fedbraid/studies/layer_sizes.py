"""Trained numbers of each layer of a network: ASD's fifth table, which lists layers."""

from __future__ import annotations

from torch import nn

from fedbraid import models
from fedbraid.errors import UserError, unknown
from fedbraid.studies.recipe import Settings

KINDS: dict[str, type[nn.Module]] = {
    "all": nn.Module,
    "convolution": nn.Conv2d,
    "linear": nn.Linear,
    "normalisation": nn.GroupNorm,
}
OWN = "model", "samples", "layer"


def layers(settings: Settings, seed: int) -> float:
    """The trained numbers of `layer`, such as "convolution 2", or of "all" layers.

    `model` is a run's, for `samples` of a `shape` and a number of `classes`.
    """
    for key in settings:
        if key not in OWN:
            raise unknown("setting of a layer", key, OWN)
    for key in OWN:
        if key not in settings:
            raise UserError(f"a layer needs {key}")
    kind, _, place = settings["layer"].partition(" ")
    if kind not in KINDS:
        raise unknown("kind of layer", kind, KINDS)
    network = models.build(**settings["model"], **settings["samples"], seed=seed)
    sizes = [
        sum(p.numel() for p in m.parameters(recurse=False)) for m in network.modules() if isinstance(m, KINDS[kind])
    ]
    if not place:
        return float(sum(sizes))
    if not place.isdecimal() or not 1 <= int(place) <= len(sizes):
        raise UserError(f"no layer is {settings['layer']!r}: this network has {len(sizes)} of that kind")
    return float(sizes[int(place) - 1])
