"""Data sets of images, by name."""

from __future__ import annotations

from fedbraid.data.dataset import Dataset
from fedbraid.registry import Entry

IMAGES: tuple[Entry[Dataset], ...] = ()
