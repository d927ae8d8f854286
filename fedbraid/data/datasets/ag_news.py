"""AG News: the first words of news articles of four kinds."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.config.registry import whole
from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.cached import rows_of, split, write_labels, write_texts
from fedbraid.data.datasets.hub_layouts import hub_layout, part_files
from fedbraid.data.formats.csv_tables import rows
from fedbraid.data.formats.parquet import blocks
from fedbraid.data.formats.streams import opened
from fedbraid.data.formats.vocabulary import Texts
from fedbraid.data.paths import FileLayout, find
from fedbraid.errors import UserError

log = logging.getLogger("fedbraid")

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
TRAIN = "train.csv|train.csv.gz|train_subset_*.csv|train_subset_*.csv.gz"
TABLES = FileLayout(("ag_news", "ag-news", "ag_news_csv"), (TRAIN, "test.csv|test.csv.gz"))
HUB = hub_layout("ag-news")
LAYOUTS = (TABLES, HUB)
PUBLISHED_TEST = "d52ea96a97a2d943681189a97654912d"
"""The md5 of test.csv as it was published."""


def ag_news(data_dir: str | Path | None = None, words: int = 20000, length: int = 64) -> Dataset:
    """Title and description together, as the numbers of their first `length` words.

    The vocabulary is the `words` most frequent words of the training texts.
    """
    options = {"words": whole("words", words), "length": whole("length", length)}
    found = find("ag-news", data_dir, LAYOUTS)
    parts = part_files("ag-news", found) if found.layout is HUB else [[file] for file in found.files]
    sources = [file for part in parts for file in part]
    made = decoded("ag-news", sources, options, lambda writer: _decode(writer, parts, **options))
    return Dataset(
        name="ag-news",
        train=split(made, "train"),
        test=split(made, "test"),
        classes=len(CLASSES),
        labels=CLASSES,
        tokens=tuple(made.facts["tokens"]),
        source=str(found.folder),
    )


def _decode(writer: ArrayWriter, parts: Sequence[Sequence[Path]], words: int, length: int) -> dict[str, Any]:
    texts, labels, ends = Texts(), array("q"), []
    for part in parts:
        for label, text in (article for file in part for article in _articles(file)):
            labels.append(label)
            texts.add(text)
        ends.append(len(labels))
    _log_whether_published(parts[1][0])
    chosen = rows_of(np.arange(len(labels)) >= ends[0], [part[0] for part in parts])
    write_labels(writer, chosen, np.array(labels, dtype=np.int64), None)
    return write_texts(writer, chosen, texts, words, length)


def _articles(file: Path) -> Iterator[tuple[int, str]]:
    """Class and text of every article: class, title and description, or class and both in one."""
    if file.suffix == ".parquet":
        yield from _from_parquet(file)
        return
    for line, (kind, *parts) in rows(file, widths=(3, 2)):
        if kind not in ("1", "2", "3", "4"):
            raise UserError(f"{file}, line {line} begins with {kind!r}; the class must be 1, 2, 3 or 4")
        yield int(kind) - 1, " ".join(parts)


def _from_parquet(file: Path) -> Iterator[tuple[int, str]]:
    for texts, labels in blocks(file, ("text", "label")):
        for text, label in zip(texts, labels, strict=True):
            if label not in range(len(CLASSES)) or not isinstance(text, str):
                raise UserError(f"{file} has an article of class {label!r}; it must be a text of class 0, 1, 2 or 3")
            yield label, text


def _log_whether_published(file: Path) -> None:
    """For those who compare numbers: other test texts give other accuracies."""
    if file.suffix == ".parquet":  # the hub vouches for it
        return
    with opened(file) as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))  # type: ignore[arg-type]
    if digest.hexdigest() != PUBLISHED_TEST:
        log.info("%s is not the published test set (its md5 is %s)", file, digest.hexdigest())
