"""Sent140: the mood of tweets, by the user who wrote them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.common_options import share
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.cached import rows_of, split, write_labels, write_texts
from fedbraid.data.datasets.hub_layouts import hub_layout, part_files
from fedbraid.data.formats.csv_tables import rows as table_rows
from fedbraid.data.formats.leaf import json_files, samples
from fedbraid.data.formats.parquet import blocks
from fedbraid.data.formats.vocabulary import Names, Texts
from fedbraid.data.held_out import held_out
from fedbraid.data.paths import FileLayout, Found, find
from fedbraid.errors import UserError

FOLDERS = ("sent140", "sentiment140")
ORIGINAL = "training.1600000.processed.noemoticon.csv"
TABLE = FileLayout(FOLDERS, (f"{ORIGINAL}|{ORIGINAL}.gz|sent140_subset.csv|sent140_subset.csv.gz",))
LEAF = FileLayout((*FOLDERS, "sent140/data"), ("train/*.json", "test/*.json"))
HUB = hub_layout("sent140")
LAYOUTS = (TABLE, LEAF, HUB)
MOODS = ("negative", "positive")
POLARITIES = {"0": 0, "4": 1}

Tweet = tuple[int, str, str]
"""Mood, user, text."""


@dataclass(frozen=True)
class Sent140Options:
    """The options, once they are known to make sense."""

    words: int
    length: int
    min_samples: int
    users: int | None
    test_share: float
    seed: int


def sent140(
    data_dir: str | Path | None = None,
    words: int = 3000,
    length: int = 25,
    min_samples: int = 1,
    users: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Tweets as the numbers of their first `length` words, out of the `words` most frequent of the training tweets.

    Kept are users with at least `min_samples` tweets, and of these the `users` most active where that is given.
    `test_share` of each user's tweets, at random by `seed`, are for testing; a user with one tweet only trains. Files
    that are split already (LEAF's train/ and test/) stay as they are.
    """
    wanted = Sent140Options(
        words=whole("words", words),
        length=whole("length", length),
        min_samples=whole("min_samples", min_samples),
        users=None if users is None else whole("users", users),
        test_share=share("test_share", test_share),
        seed=whole("seed", seed, 0),
    )
    found = find("sent140", data_dir, LAYOUTS)
    parts = _parts(found)
    sources = [file for part in parts for file in part]
    made = decoded("sent140", sources, asdict(wanted), lambda writer: _decode(writer, parts, wanted))
    return Dataset(
        name="sent140",
        train=split(made, "train"),
        test=split(made, "test"),
        classes=len(MOODS),
        labels=MOODS,
        tokens=tuple(made.facts["tokens"]),
        source=str(found.folder),
    )


def _parts(found: Found) -> list[Sequence[Path]]:
    """The files of train and of test, or all files as one part where nobody has split them."""
    if found.layout is LEAF:
        return [json_files(found.folder / name) for name in ("train", "test")]
    # The hub's second part has a third mood and other users: the first is all there is to split.
    return part_files("sent140", found) if found.layout is HUB else [found.files]


def _decode(writer: ArrayWriter, parts: list[Sequence[Path]], wanted: Sent140Options) -> dict[str, Any]:
    texts, moods, authors, names = Texts(), array("q"), array("i"), Names()
    counts = []
    for part in parts:
        for mood, author, text in (tweet for file in part for tweet in _tweets(file)):
            texts.add(text)
            moods.append(mood)
            authors.append(names.number(author))
        counts.append(len(moods))
    users = np.array(authors, dtype=np.int32)
    kept = np.flatnonzero(_chosen(users, wanted))
    if len(parts) > 1:
        is_test = kept >= counts[0]
    else:
        is_test = held_out(users[kept], wanted.test_share, stream(wanted.seed, "sent140 split"))
    rows = {name: kept[own] for name, own in rows_of(is_test, parts[0]).items()}
    write_labels(writer, rows, np.array(moods, dtype=np.int64), users)
    return write_texts(writer, rows, texts, wanted.words, wanted.length)


def _chosen(authors: NDArray[np.int32], wanted: Sent140Options) -> NDArray[np.bool_]:
    """Select the tweets of the users that are kept; of equally active users the first."""
    counts = np.bincount(authors)
    active = counts >= wanted.min_samples
    if wanted.users is not None:
        if wanted.users > active.sum():
            raise UserError(
                f"users={wanted.users} were asked for, and {active.sum()} have at least {wanted.min_samples} tweets; "
                f"ask for at most {active.sum()}"
            )
        active[np.argsort(-counts, kind="stable")[wanted.users :]] = False
    return active[authors]


def _tweets(file: Path) -> Iterator[Tweet]:
    if file.name.endswith((".json", ".json.gz")):
        return _from_leaf(file)
    if file.suffix == ".parquet":
        return _from_parquet(file)
    # The original is older than its author's habit of writing UTF-8.
    return _from_table(file, "latin-1" if file.name.startswith(ORIGINAL) else "utf-8")


def _from_table(file: Path, encoding: str) -> Iterator[Tweet]:
    for line, (polarity, _, _, _, user, text) in table_rows(file, widths=(6,), encoding=encoding):
        if polarity not in POLARITIES:
            raise UserError(f"{file}, line {line} begins with {polarity!r}; the polarity must be 0 or 4")
        yield POLARITIES[polarity], user, text


def _from_parquet(file: Path) -> Iterator[Tweet]:
    for block in blocks(file, ("sentiment", "user", "text")):
        for polarity, user, text in zip(*block, strict=True):
            if str(polarity) not in POLARITIES or user is None or text is None:
                raise UserError(f"{file} has a tweet of polarity {polarity!r}; it must be 0 or 4, with user and text")
            yield POLARITIES[str(polarity)], user, text


def _from_leaf(file: Path) -> Iterator[Tweet]:
    """LEAF's samples are rows of the table without the polarity, which is 0 or 1 in its labels."""
    for user, x, y in samples(file):
        for tweet, mood in zip(x, y, strict=True):
            if not isinstance(tweet, list) or len(tweet) < 5 or not isinstance(tweet[4], str):
                raise UserError(f"{file}: a tweet of {user!r} is no list of id, date, query, user and text")
            if mood not in (0, 1):
                raise UserError(f"{file}: a tweet of {user!r} has the label {mood!r}; it must be 0 or 1")
            yield int(mood), user, tweet[4]
