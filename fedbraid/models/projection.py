"""MOON's projection head."""

from __future__ import annotations

from torch import nn

from fedbraid.config.registry import whole


def projection_head(features: int, width: int) -> nn.Module:
    """Two layers between the features and `head`, which then stands on `width` numbers; nothing for 0."""
    if not whole("projection", width, 0):
        return nn.Identity()
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
