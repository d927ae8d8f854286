"""Data sets of texts and tables, by name."""

from __future__ import annotations

from fedbraid.data.dataset import Dataset
from fedbraid.registry import Entry

RECORDS: tuple[Entry[Dataset], ...] = ()
