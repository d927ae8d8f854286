"""Feature skew: the same kinds of samples, seen through instruments of different quality."""

from __future__ import annotations

import numpy as np

from fedbraid.core.random import stream
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.errors import UserError


def noisy(dataset: Dataset, partition: Partition) -> Split:
    """The training samples with each client's noise on its inputs, the same for the whole run.

    A client's level is its standard deviation as a share of the inputs' range: 255 for bytes, as NIID-Bench has it on
    images scaled to 0..1.
    """
    train = dataset.train
    if partition.noise is None:
        return train
    if dataset.tokens:
        raise UserError(f"noise can be added to numbers, not to {dataset.name}'s tokens; choose another partition")
    x = train.x.astype(np.float32)
    span = np.float32(255.0 if train.x.dtype == np.uint8 else x.max() - x.min())
    for client, (own, level) in enumerate(zip(partition.clients, partition.noise, strict=True)):
        rng = stream(partition.recipe.get("seed", 0), "noise", client=client)
        x[own] += span * np.float32(level) * rng.standard_normal((len(own), *x.shape[1:]), dtype=np.float32)
    return Split(x, train.y, train.users)
