"""What is done to a data set before it is shared out: fewer samples, a long tail, other image sizes."""

from __future__ import annotations

from fedbraid.data.dataset import Dataset


def shaped(dataset: Dataset) -> Dataset:
    return dataset
