"""What a network says about a batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Outputs(NamedTuple):
    """The outputs of the last layer, and the features it received."""

    logits: Tensor
    features: Tensor
